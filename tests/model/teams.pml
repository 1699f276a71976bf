/* Teams, for spin: every interleaving of a small instance.

The ledger of namespace A moves into the ledger objects of teams and out of them, while serve decides on it. Namespace B stays in team 1.
Controllers look, write by swap and crash; people change membership, what a team and a namespace are granted, and the teams themselves.
`tests/model/run` checks each instance whole, and once without each rule.

What each inline stands for is named above it; tests/test_teams_model.py replays what the inlines decide with those functions.

  S1  what is admitted fits: no admission makes what is stored or admitted in a namespace exceed the namespace's `hard` in force, nor that and the
      larger of the same and the guarantee of each other namespace of the team exceed the team's. What is guaranteed to a namespace counts before
      that is there, too. A namespace that joins with more is no admission
  S2  a ledger decides in at most one place, and there every stored live pod that was admitted under it is in `used` or in a reservation
  G   while what the others of a team hold or are guaranteed leaves room for it, a pod within the guarantee of its namespace is not denied for the
      team
  H   once a pod of a gang has started, quota is held for the rest while it waits, wherever the ledger moves
  N   nobody is denied for pods that wait in other namespaces, unless some lack only the quota of the team and nobody may pass them, and a
      controller lives; nobody passes those. Both but for what the next count will change, which a fair controller writes
  L1  a move always ends: once nothing changes any more, each ledger is where it belongs, reservations are empty, and `used` is what is stored;
      no run is infinite. Where pods come for ever: those that wait for the team and may not be passed start, and the others are admitted

What quota.pml checks is taken as given: a decision and its write are one step, since both are of one resourceVersion; when a reservation has
expired; when a ledger is initialised, and how long "no quota" is believed. Two reads and a write of the first one are two steps, the reads and
the write: the first object does not change in between, or the write fails. That "no quota" is answered while nothing of A is there needs no
more than that: teams are only asked whether they make it "never counted", which denies.
Not modelled: VerdictReason.NOT_STORED, which only denies, and by what was never stored; the order among several that wait.
*/

/* ---- Rules: each can be switched off with -D<RULE>=0 */

/* the object says to which team a ledger belongs; without it: labels say that it left, or came: a frozen or void ledger is decided on,
   and what it reserves is lost (S2) */
#ifndef MEMBERSHIP_IS_IN_THE_OBJECT
#define MEMBERSHIP_IS_IN_THE_OBJECT 1
#endif
/* an own object with movedTo is void; without it: it is decided on after it was copied (S2) */
#ifndef MOVED_IS_VOID
#define MOVED_IS_VOID 1
#endif
/* a ledger in leaving is frozen; without it: the same in the team's object (S2) */
#ifndef LEAVING_IS_FROZEN
#define LEAVING_IS_FROZEN 1
#endif
/* L1 comes before L2; without it: the ledger is decided on in both objects (S2) */
#ifndef FROZEN_BEFORE_TAKEN_BACK
#define FROZEN_BEFORE_TAKEN_BACK 1
#endif
/* J1: only if the team's object does not have the ledger; without it: L3 of an earlier move is still to come: L2 brings back that old
   ledger (S2) */
#ifndef MOVES_IN_ONCE_REMOVED
#define MOVES_IN_ONCE_REMOVED 1
#endif
/* and that is read after the own object; without it: the same as without MOVES_IN_ONCE_REMOVED */
#ifndef REMOVED_IS_READ_AFTER_OWN
#define REMOVED_IS_READ_AFTER_OWN 1
#endif
/* J2: only if the team's object does not have the ledger; without it: a void ledger replaces the one that is decided on (S1, S2) */
#ifndef ADDED_IF_ABSENT
#define ADDED_IF_ABSENT 1
#endif
/* and movedTo is read after the team's object; without it: the ledger has come and gone in between: it is decided on in both objects
   (S2) */
#ifndef ADDED_IS_READ_AFTER_TEAM
#define ADDED_IS_READ_AFTER_TEAM 1
#endif
/* L2: only if the own object says movedTo; without it: the old ledger replaces the one that is decided on since L2 (S2) */
#ifndef TAKEN_BACK_ONCE
#define TAKEN_BACK_ONCE 1
#endif
/* and the team's object is read after that; without it: the ledger has gone and come back in between: an old one is taken back (S2) */
#ifndef TAKEN_BACK_IS_READ_AFTER_OWN
#define TAKEN_BACK_IS_READ_AFTER_OWN 1
#endif
/* L3: only if the own object does not say movedTo; without it: the only ledger is removed (S1, S2) */
#ifndef TAKEN_BACK_BEFORE_REMOVED
#define TAKEN_BACK_BEFORE_REMOVED 1
#endif
/* and that is read after the team's object; without it: the ledger has come back in between, and leaves again (S2) */
#ifndef OWN_IS_READ_AFTER_LEAVING
#define OWN_IS_READ_AFTER_LEAVING 1
#endif
/* the revisions move with the ledger; without it: an old list is counted after the move (S2) */
#ifndef REVISIONS_MOVE
#define REVISIONS_MOVE 1
#endif
/* only that version of a team's object is deleted that had no ledger; without it: a ledger that was added meanwhile is lost (S2, L1) */
#ifndef TEAM_GOES_BY_SWAP
#define TEAM_GOES_BY_SWAP 1
#endif
/* the object of a team is created for a movedTo, too; without it: the team is deleted between J1 and J2: the move never ends (L1) */
#ifndef TEAM_IS_MADE_FOR_MOVED
#define TEAM_IS_MADE_FOR_MOVED 1
#endif
/* it is created without ledgers, and J2 is a swap of it; without it: a late creation: the ledger has come and gone in between, and is
   decided on in both objects (S2) */
#ifndef TEAM_IS_MADE_EMPTY
#define TEAM_IS_MADE_EMPTY 1
#endif
/* the ClusterGPUQuota is read after the object that its spec goes into; without it: an older hard is in force again (S1) */
#ifndef TEAM_SPEC_IS_READ_AFTER
#define TEAM_SPEC_IS_READ_AFTER 1
#endif
/* and the GPUQuota, in whichever object its ledger is; without it: the same as without TEAM_SPEC_IS_READ_AFTER */
#ifndef QUOTA_SPEC_IS_READ_AFTER
#define QUOTA_SPEC_IS_READ_AFTER 1
#endif
/* an own object is deleted if membership, read after it, says that there is no team; without it: an informer is behind: a ledger that is
   needed is lost (S2) */
#ifndef MEMBERSHIP_IS_READ_AFTER_OWN
#define MEMBERSHIP_IS_READ_AFTER_OWN 1
#endif
/* only that version of it; without it: the same, if it is written in between */
#ifndef OWN_GOES_BY_SWAP
#define OWN_GOES_BY_SWAP 1
#endif
/* and only without movedTo; without it: the team's object still decides, and so does the next own object (S2) */
#ifndef MOVED_STAYS
#define MOVED_STAYS 1
#endif
/* the other ledgers are of the version that is written; without it: two namespaces decide on the same free GPUs: the team's quota is
   exceeded (S1) */
#ifndef TEAM_IS_OF_THE_WRITTEN_VERSION
#define TEAM_IS_OF_THE_WRITTEN_VERSION 1
#endif
/* the team's hard counts; without it: the team's quota is exceeded (S1) */
#ifndef TEAM_HARD_COUNTS
#define TEAM_HARD_COUNTS 1
#endif
/* in the team's object, the namespace's hard counts, too; without it: the namespace's quota is exceeded (S1) */
#ifndef OWN_HARD_COUNTS
#define OWN_HARD_COUNTS 1
#endif
/* what is guaranteed to others counts, if they use less; without it: it is given away: the sum exceeds hard (S1) */
#ifndef OTHERS_GUARANTEES_COUNT
#define OTHERS_GUARANTEES_COUNT 1
#endif
/* also before they are in the object; without it: the same as without OTHERS_GUARANTEES_COUNT */
#ifndef ABSENT_GUARANTEES_COUNT
#define ABSENT_GUARANTEES_COUNT 1
#endif
/* what is guaranteed to the namespace itself does not count; without it: a pod within the guarantee is denied (G) */
#ifndef OWN_GUARANTEE_IS_ITS_OWN
#define OWN_GUARANTEE_IS_ITS_OWN 1
#endif
/* the pods of one name are those of one namespace; without it: two namespaces have a pod of that name, and one of them counts: the
   team's quota is exceeded (S1) */
#ifndef NAMES_ARE_OF_A_NAMESPACE
#define NAMES_ARE_OF_A_NAMESPACE 1
#endif
/* a dimension that another ledger lacks denies; without it: hard gains it, and what that namespace uses reads as zero: the team's quota
   is exceeded (S1) */
#ifndef OTHERS_KEY_IS_COUNTED
#define OTHERS_KEY_IS_COUNTED 1
#endif
/* what is held for pods in line moves with the ledger; without it: the rest of a gang has nothing, although one of its pods runs (H) */
#ifndef HELD_MOVES
#define HELD_MOVES 1
#endif
/* a lift takes over what the object holds that it writes; without it: it was held where the ledger was before, and given back since: a
   pod of a gang starts, and the rest has nothing (H) */
#ifndef LIFT_IS_HELD_THERE
#define LIFT_IS_HELD_THERE 1
#endif
/* a claim counts for its devices only once its pod is bound; without it: the binding fails, and the claim has larger devices: the team's
   quota is exceeded (S1, S2) */
#ifndef EXACT_ONCE_BOUND
#define EXACT_ONCE_BOUND 1
#endif
/* what an allocation gives back is given back by a count, wherever the ledger is; without it: the allocation is reviewed, and fails (S1,
   S2) */
#ifndef SHRINKS_BY_LIST
#define SHRINKS_BY_LIST 1
#endif
/* while somebody waits for the team, serve denies the others; without it: they pass: a gang never starts (N, L1) */
#ifndef WAITING_CLOSES_OTHERS
#define WAITING_CLOSES_OTHERS 1
#endif
/* creations in flight deny nobody in other namespaces; without it: one that is refused after us, again and again, denies everybody (N,
   L1) */
#ifndef IN_FLIGHT_CLOSES_NOBODY
#define IN_FLIGHT_CLOSES_NOBODY 1
#endif
/* only a turn says who waits for the team, not a count alone; without it: a count without a turn denies the others for pods that wait
   for something else (N) */
#ifndef ONLY_A_TURN_CLOSES
#define ONLY_A_TURN_CLOSES 1
#endif
/* who cannot start whatever is free, denies nobody; without it: a pod with another gate denies everybody (N) */
#ifndef OBSTACLES_CLOSE_NOBODY
#define OBSTACLES_CLOSE_NOBODY 1
#endif
/* who waits for the own quota denies nobody in other namespaces; without it: the same (N) */
#ifndef OWN_QUOTA_CLOSES_NOBODY
#define OWN_QUOTA_CLOSES_NOBODY 1
#endif
/* who may be passed denies nobody; without it: BestEffortFIFO denies those who may pass (N) */
#ifndef WHO_MAY_BE_PASSED_CLOSES_NOBODY
#define WHO_MAY_BE_PASSED_CLOSES_NOBODY 1
#endif
/* nobody is denied for others without a controller; without it: what it wrote last denies without end (N, L1) */
#ifndef ONLY_WITH_A_CONTROLLER
#define ONLY_WITH_A_CONTROLLER 1
#endif

/* ---- Instances. The last of two pods is of B, if B is there; the others are of A. Membership of A: 0 for no team. A generation of a team is what it is granted. */

#define A 0
#define B 1
#define UNLIMITED 9

#ifdef MOVED             /* A leaves the team, joins it again and leaves it again; lists are old */
#define CHANGES 3
#define NEXT(member) (1 - (member))
#define OLD_LISTS 1
#define DELETIONS 1
#endif
#ifdef BETWEEN           /* A goes to another team, and back */
#define TEAMS 2
#define CHANGES 2
#define NEXT(member) (3 - (member))
#endif
#ifdef FOLLOWED          /* two pods of A; `hard` of its GPUQuota is lowered and raised while it moves */
#define PODS_OF_B 0
#define CHANGES 2
#define NEXT(member) (1 - (member))
#define HARD(generation) 2
#define QUOTA_GENERATIONS 3
#define OWN_HARD(generation) (generation == 1 -> 1 : 2)
#endif
#ifdef GRANTED           /* `hard` and the guarantee of the team are raised and lowered while A leaves, or leaves and joins */
#define CHANGES 2
#define NEXT(member) (1 - (member))
#define GENERATIONS 3
#define HARD(generation) (generation == 1 -> 2 : 1)
#define GUARANTEED(generation, n) (n == B || generation == 0 -> 0 : (generation == 1 -> 2 : 1))
#endif
#ifdef GAINED            /* `hard` of the team gains the key; no ledger has it */
#define GENERATIONS 2
#define HARD(generation) (generation == 0 -> UNLIMITED : 1)
#endif
#ifdef DROPPED           /* the team is deleted, and created again */
#define PODS 1
#define PODS_OF_B 0
#define DROPS 3
#endif
#ifdef FOUNDED           /* A has no GPUQuota, so its own object comes and goes with membership */
#define PODS 1
#define PODS_OF_B 0
#define CHANGES 3
#define NEXT(member) (1 - (member))
#define FIRST_MEMBER 0
#define HAS_QUOTA 0
#endif
#ifdef LINED             /* two pods of A wait in line, as a gang; `hard` of its GPUQuota is lowered and raised while it moves */
#define PODS_OF_B 0
#define CHANGES 2
#define NEXT(member) (1 - (member))
#define HARD(generation) 2
#define QUOTA_GENERATIONS 3
#define OWN_HARD(generation) (generation == 1 -> 1 : 2)
#define IN_LINE 1
#endif

#ifdef ALLOCATED         /* pod 0 has a claim that counts 2 until it has its devices, a small one or a large one; A leaves the team */
#define BIG 1
#define CHANGES 1
#define NEXT(member) (1 - (member))
#define HARD(generation) 2
#define OLD_LISTS 1
#endif

#ifdef CLOSED            /* a gang of A waits for the team, for its own quota or for another gate, or is never stored; pods of B do not wait */
#define CLOSING 1
#define PODS 4
#define PODS_OF_B 12
#define HARD(generation) 2
#define QUOTA_GENERATIONS 2
#define OWN_HARD(generation) (generation == 0 -> 2 : 1)
#endif

#ifndef CLOSING
#define CLOSING 0
#endif
#ifndef PODS
#define PODS 2
#endif
#ifndef PODS_OF_B
#define PODS_OF_B (1 << (PODS - 1))
#endif
#ifndef BIG
#define BIG 0                 /* pods that count 2, a bit each; others count 1 */
#endif
#ifndef TEAMS
#define TEAMS 1
#endif
#ifndef CHANGES
#define CHANGES 0
#define NEXT(member) 0
#endif
#ifndef FIRST_MEMBER
#define FIRST_MEMBER 1
#endif
#ifndef GENERATIONS
#define GENERATIONS 1
#endif
#ifndef HARD
#define HARD(generation) 1
#endif
#ifndef GUARANTEED
#define GUARANTEED(generation, n) 0
#endif
#ifndef QUOTA_GENERATIONS
#define QUOTA_GENERATIONS 1
#define OWN_HARD(generation) UNLIMITED
#endif
#ifndef DROPS
#define DROPS 0
#endif
#ifndef HAS_QUOTA
#define HAS_QUOTA 1
#endif
#ifndef DELETIONS
#define DELETIONS 0           /* of pods of A */
#endif
#ifndef OLD_LISTS
#define OLD_LISTS 0
#endif
#ifndef IN_LINE
#define IN_LINE 0
#endif
#ifndef CONTROLLERS
#define CONTROLLERS 2
#endif

/* ---- What the API server has */

typedef Ledger {             /* of a namespace: `used` and reservations by pod, a bit each */
  bool counted;
  byte used;
  byte small;                /* of `used`: counts for its devices, which are 1 less */
  byte reserved;
  byte held;                 /* for pods that wait: `uid/lift` */
  byte revision;             /* of the list that was counted last */
  byte quota;                /* which generation of the GPUQuota its `hard` is */
  bool keyed                 /* `used` has the key of the team's `hard` */
};

#define OWN 0
#define PLACES (TEAMS + 1)
#define AT(place, n) ((place) + PLACES * (n))
Ledger ledger[2 * PLACES];   /* by place: the own object, then the teams */

bool exists;                 /* the own object of A */
byte moved_to[2];
bool made[PLACES];           /* the object of a team, */
byte has[PLACES];            /* the namespaces in it, */
byte leaving[PLACES];        /* and those that leave; a bit each */
byte in_force[PLACES];       /* which generation its `hard` and guarantees are */

byte member;                 /* of A, by its labels */
bool granted[PLACES];        /* the ClusterGPUQuotas */
byte generation;             /* of the first */
byte quota_generation;       /* of the GPUQuota of A */
byte changes;                /* still to come */
byte drops;                  /* and of these, too: ClusterGPUQuota 1 is deleted, and created again */

#define NEW 0
#define REVIEWED 1           /* serve knows the place */
#define ALLOWED 2
#define LIVE 3
#define OVER 4               /* denied, failed or deleted */
#define WAITING 5            /* stored under the gate, so it has no demand */
#define LIFTED 6             /* a controller removes the gate, and serve knows the place */
byte pod[PODS];
byte place[PODS];            /* as serve knows it */
byte promised;               /* ghost: admitted or counted under a quota; a bit each */
bool was_outside;            /* ghost: A was in no team since its own object was written last */
#if TEAM_IS_OF_THE_WRITTEN_VERSION == 0
byte others_seen[PODS];
#endif
#if BIG
byte devices;                /* of the claim of pod 0: how much they count; 0: it has none, */
byte allocations;            /* so often, at most twice, */
bool bound;                  /* for good once the pod is bound, */
bool ended;                  /* until it has ended. Then a process that was not there before counts it as it was admitted */
byte events;                 /* of these */
#define TAKES(q) (!HAS_BIT(BIG, q) -> 1 : (bound -> devices : 2))
#define IS_SMALL (((bound && !ended) || !EXACT_ONCE_BOUND) && devices == 1)
#else
#define TAKES(q) 1
#define IS_SMALL 0
#endif
#if IN_LINE
byte denials;                /* still to come: of removals of gates, by serve or by others */
bool held_seen[PODS];
#endif
#if CLOSING
bool closes;                 /* `waitingForTeam` of A, */
bool joining;                /* and the reservation of its gang that is being created */
bool obstacle, unread;       /* it has another gate; its demand cannot be read, so there is no turn */
bool strict, starved;        /* the order, and whether it has waited for long */
byte turnabouts = 2;         /* still to come: of obstacle, unread, and of the GPUQuota */
bool deleted;                /* it was deleted while it waited, once */
bool alive = true;           /* as serve reads the Lease */
#endif

/* ---- What controllers know */

#define NOTHING 0
#define MOVE_OUT 1           /* J1 */
#define ADD 2                /* J2 */
#define TAKE_BACK 3          /* L2 */
#define REMOVE 4             /* L3 */
#define MAKE_TEAM 5
#define DROP_TEAM 6
#define SWAP_TEAM_SPEC 7
#define SWAP_QUOTA_SPEC 8
#define DROP_OWN 9
byte job[CONTROLLERS];
byte to[CONTROLLERS];        /* which team, or place */
byte target[CONTROLLERS];    /* the object that it will write, by place, */
bool fresh[CONTROLLERS];     /* which is still as it was read: resourceVersion */
byte read[CONTROLLERS];      /* which generation it has read */
Ledger copy[CONTROLLERS];    /* what it has read in the second object */
byte view[CONTROLLERS];      /* membership of A as its informers show it */
#if OLD_LISTS
typedef List {
  byte shown[PODS];
#if BIG
  byte events;
  bool small                 /* the claim, with its devices */
#endif
};
List list[CONTROLLERS];      /* of the pods of A */
#endif
bool crashed;

#define NO_OBJECT 9

hidden byte i; hidden byte owner; hidden byte where; hidden byte where_held; hidden byte sum; hidden byte others; hidden byte within; hidden byte covered;
hidden byte rest_is_held; hidden byte settled; hidden byte is_passed; hidden byte is_denied_for; hidden byte authorities; hidden mtype verdict;
Ledger no_ledger;

#if PODS == 1
#define PODS_WHERE(condition, c) (condition(c, 0) -> 1 : 0)
#define SUM_OF_PODS(amount, c) amount(c, 0)
#define ANY_POD(condition, c) condition(c, 0)
#elif PODS == 4
#define PODS_WHERE(condition, c) ((condition(c, 0) -> 1 : 0) | (condition(c, 1) -> 2 : 0) | (condition(c, 2) -> 4 : 0) | (condition(c, 3) -> 8 : 0))
#define SUM_OF_PODS(amount, c) (amount(c, 0) + amount(c, 1) + amount(c, 2) + amount(c, 3))
#define ANY_POD(condition, c) (condition(c, 0) || condition(c, 1) || condition(c, 2) || condition(c, 3))
#else
#define PODS_WHERE(condition, c) ((condition(c, 0) -> 1 : 0) | (condition(c, 1) -> 2 : 0))
#define SUM_OF_PODS(amount, c) (amount(c, 0) + amount(c, 1))
#define ANY_POD(condition, c) (condition(c, 0) || condition(c, 1))
#endif

#define BIT(number) (1 << (number))
#define HAS_BIT(mask, number) (((mask) >> (number)) & 1)
#define COUNT(mask) (((mask) & 1) + (((mask) >> 1) & 1) + (((mask) >> 2) & 1) + (((mask) >> 3) & 1))
#define WEIGHT(mask) (COUNT(mask) + COUNT((mask) & BIG))
#define SIZE(q) (HAS_BIT(BIG, q) -> 2 : 1)
#define LARGER(a, b) ((a) > (b) -> (a) : (b))
#define OF(q) (HAS_BIT(PODS_OF_B, q) -> B : A)
#define HAS(t, m) HAS_BIT(has[t], m)
#define LEAVES(t, m) HAS_BIT(leaving[t], m)
#define MEMBER (granted[member] -> member : 0)

#define NO_TEAM 255          /* the generation of a team's object without a ClusterGPUQuota: it limits nothing */
#define LIMIT(t) ((t) != 1 -> 1 : (in_force[t] == NO_TEAM -> UNLIMITED : HARD(in_force[t])))
#define GUARANTEE(t, m) ((t) != 1 || in_force[t] == NO_TEAM -> 0 : GUARANTEED(in_force[t], m))
#define IS_LIMITED(t) (LIMIT(t) != UNLIMITED)
#define OWN_LIMIT(at) ((at) >= PLACES || !HAS_QUOTA -> UNLIMITED : OWN_HARD(ledger[at].quota))

#define IS_WAITING(c, q) (pod[q] == WAITING || pod[q] == LIFTED)
#define ALL_WAITING PODS_WHERE(IS_WAITING, 0)
#define IS_STARTED(c, q) (pod[q] == ALLOWED || pod[q] == LIVE)
#define STARTED ANY_POD(IS_STARTED, 0)

/* ---- Properties */

/* Where the ledger is, decided on or frozen. */
#define HELD_IN(m) (moved_to[m] && HAS(moved_to[m], m) -> moved_to[m] : OWN)
#define IS_DEMANDED(m, q) (OF(q) == (m) && HAS_BIT(promised, q) && (pod[q] == ALLOWED || pod[q] == LIVE) -> TAKES(q) : 0)
#define DEMANDED(m) SUM_OF_PODS(IS_DEMANDED, m)
#define DEMANDED_OF(t, m) (HAS(t, m) && moved_to[m] == (t) -> LARGER(DEMANDED(m), GUARANTEE(t, m)) : GUARANTEE(t, m))

inline check_fits(m) {       /* S1 */
  where = HELD_IN(m);
  sum = DEMANDED(m);
  assert(sum <= OWN_LIMIT(AT(where, m)));
  if
  :: where -> sum = sum + DEMANDED_OF(where, 1 - (m)); assert(sum <= LIMIT(where))
  :: else
  fi;
  skip
}

inline check_everyone_is_covered() {   /* S2 */
  i = 0;
  do
  :: i < PODS ->
     owner = OF(i);
     where_held = AT(HELD_IN(owner), owner);
     covered = !ledger[where_held].counted || HAS_BIT(ledger[where_held].reserved, i) ||
               (HAS_BIT(ledger[where_held].used, i) && SIZE(i) - HAS_BIT(ledger[where_held].small, i) >= TAKES(i));
     assert(pod[i] != LIVE || !HAS_BIT(promised, i) || covered);
     i++
  :: else -> break
  od;
#if IN_LINE
  where_held = AT(HELD_IN(A), A);
  covered = !STARTED || !((ALL_WAITING) & (255 - (ledger[where_held].held | ledger[where_held].reserved)));
  rest_is_held = covered;
  assert(rest_is_held);
#endif
  authorities = (exists && !moved_to[A] -> 1 : 0);
  i = 1;
  do
  :: i <= TEAMS -> authorities = authorities + (HAS(i, A) && !LEAVES(i, A) -> 1 : 0); i++
  :: else -> break
  od;
  assert(authorities <= 1)
}

inline written(object) {
  i = 0;
  do
  :: i < CONTROLLERS ->
     if
     :: target[i] == object -> fresh[i] = false
     :: else
     fi;
     i++
  :: else -> break
  od;
  was_outside = (object == OWN -> !MEMBER : was_outside) && !HAS_QUOTA;
  check_everyone_is_covered()
}

inline assign(target_ledger, source) {
  target_ledger.counted = source.counted; target_ledger.used = source.used; target_ledger.small = source.small; target_ledger.reserved = source.reserved;
  target_ledger.held = source.held; target_ledger.revision = source.revision; target_ledger.quota = source.quota; target_ledger.keyed = source.keyed
}

/* ---- What tests/test_teams_model.py replays; spin's verifier prints nothing */

inline print_ledger(at, limit) {
  printf("%d/%d/%d/%d/%d/%d/%d/%d,", ledger[at].counted, ledger[at].used, ledger[at].reserved, ledger[at].keyed, limit, ledger[at].held, ledger[at].small, ledger[at].revision)
}
inline print_team(t) {
  printf(" team=%d hard=%d big=%d guaranteed=%d,%d, has=%d leaving=%d ledgers=", t, LIMIT(t), BIG, GUARANTEE(t, A), GUARANTEE(t, B), has[t], leaving[t]);
  print_ledger(AT(t, A), OWN_LIMIT(AT(t, A)));
  print_ledger(AT(t, B), OWN_LIMIT(AT(t, B)))
}
inline print_own() {
  printf(" exists=%d moved_to=%d own=", exists, moved_to[A]);
  print_ledger(AT(OWN, A), OWN_LIMIT(AT(OWN, A)))
}
inline print_before(t) { print_team(t); print_own(); printf(" then") }
inline print_after(t) { print_team(t); print_own(); printf("\n") }

/* ---- serve */

mtype = { RESERVED, EXCEEDED, TEAM_EXCEEDED, UNCOUNTED_LEDGER, NOT_HELD, OTHERS_WAIT };

#if CLOSING
/* policies/quota/ledger/decide.py: _Batch._others_go_first */
/* webhook/quota/enforcer.py: ReviewQuota.reserve */
#define IS_CLOSED(m) ((m) == B && (closes || (joining && !IN_FLIGHT_CLOSES_NOBODY)) && (alive || !ONLY_WITH_A_CONTROLLER))
#else
#define IS_CLOSED(m) false
#endif

#define USED(at) (WEIGHT(ledger[at].used) - COUNT(ledger[at].small))
#define KNOWN_USED(t, m) (IS_LIMITED(t) && !ledger[AT(t, m)].keyed -> 0 : USED(AT(t, m)))
#define TAKEN(t, m) (KNOWN_USED(t, m) + WEIGHT(ledger[AT(t, m)].reserved) + WEIGHT(ledger[AT(t, m)].held))
#define OWN_TAKEN(at) (USED(at) + WEIGHT(ledger[at].reserved) + WEIGHT(ledger[at].held))
#define SUM_OF(t, m) (HAS(t, m) -> LARGER(TAKEN(t, m), GUARANTEE(t, m)) : (ABSENT_GUARANTEES_COUNT -> GUARANTEE(t, m) : 0))

/* policies/quota/ledger/team.py: TeamState.free */
/* policies/quota/ledger/team_ledgers.py: TeamLedgers.team_state */
inline sum_team(q, t, m) {
  others = (OTHERS_GUARANTEES_COUNT -> SUM_OF(t, 1 - m) : TAKEN(t, 1 - m));
#if TEAM_IS_OF_THE_WRITTEN_VERSION == 0
  others = others_seen[q];
#endif
  if
  :: !OWN_GUARANTEE_IS_ITS_OWN -> sum = others + SUM_OF(t, m) + SIZE(q)
  :: OWN_GUARANTEE_IS_ITS_OWN && NAMES_ARE_OF_A_NAMESPACE -> sum = others + TAKEN(t, m) + SIZE(q)
  :: else ->                 /* all pods have one name, of which only one is stored */
     sum = KNOWN_USED(t, A) + KNOWN_USED(t, B) + LARGER(COUNT(ledger[AT(t, m)].reserved) + 1, COUNT(ledger[AT(t, 1 - m)].reserved))
  fi
}

#define LACKS_KEY(t, m) (IS_LIMITED(t) && HAS(t, m) && !ledger[AT(t, m)].keyed)

/* policies/quota/ledger/decide.py: _Batch.decide, _Batch._shortfalls, _Batch._has_uncounted. VerdictReason.RESERVED, VerdictReason.EXCEEDED, VerdictReason.UNCOUNTED. */
inline decide(q, t, m) {
  verdict = RESERVED;
  if
  :: !ledger[AT(t, m)].counted || (t && LACKS_KEY(t, m)) -> verdict = UNCOUNTED_LEDGER
  :: else ->
     if
     :: OWN_HARD_COUNTS && OWN_TAKEN(AT(t, m)) + SIZE(q) > OWN_LIMIT(AT(t, m)) -> verdict = EXCEEDED
     :: else ->
        if
        :: t && TEAM_HARD_COUNTS ->
           sum_team(q, t, m);
           within = (others + TAKEN(t, m) + SIZE(q) <= LIMIT(t) && TAKEN(t, m) + SIZE(q) <= GUARANTEE(t, m));
           if
           :: sum > LIMIT(t) -> verdict = TEAM_EXCEEDED; assert(!within)          /* G */
           :: sum <= LIMIT(t) && OTHERS_KEY_IS_COUNTED && LACKS_KEY(t, 1 - m) -> verdict = UNCOUNTED_LEDGER
           :: sum <= LIMIT(t) && !LACKS_KEY(t, 1 - m) && IS_CLOSED(m) && !within -> verdict = OTHERS_WAIT
           :: else
           fi
        :: else
        fi
     fi
  fi
}

/* webhook/quota/cluster_store.py: ClusterStore.read */
inline looks_up(q) {
  place[q] = (MEMBERSHIP_IS_IN_THE_OBJECT -> moved_to[OF(q)] : (OF(q) == A -> MEMBER : 1));
#if TEAM_IS_OF_THE_WRITTEN_VERSION == 0
  others_seen[q] = (place[q] -> SUM_OF(place[q], 1 - OF(q)) : 0);
#endif
  pod[q] = REVIEWED
}

#define IS_OWN(m) ((m) == A && exists && (!moved_to[A] || !MOVED_IS_VOID || !MEMBERSHIP_IS_IN_THE_OBJECT))
#define IS_OF_TEAM(t, m) (made[t] && HAS(t, m) && (!LEAVES(t, m) || !LEAVING_IS_FROZEN || !MEMBERSHIP_IS_IN_THE_OBJECT))
#define IS_DECIDED(q) (place[q] == OWN -> IS_OWN(OF(q)) : IS_OF_TEAM(place[q], OF(q)))

/* What serve knows of the place may be old: if the object does not have the ledger, it looks it up again, or its deadline has passed. */
inline reviews(q) {
  owner = OF(q); where = place[q];
  decide(q, where, owner);
  printf("decide pod=%d namespace=%d verdict=%e", q, owner, verdict); print_team(where); printf(" own=");
  print_ledger(AT(where, owner), OWN_LIMIT(AT(where, owner))); printf("\n");
  place[q] = 0;
#if TEAM_IS_OF_THE_WRITTEN_VERSION == 0
  others_seen[q] = 0;
#endif
  if
  :: verdict == RESERVED ->
     pod[q] = ALLOWED;
     promised = promised | BIT(q);
     ledger[AT(where, owner)].reserved = ledger[AT(where, owner)].reserved | BIT(q);
     written(where);
     check_fits(OF(q))
  :: else -> pod[q] = OVER
  fi
}

#if IN_LINE
/* A controller may know an old ledger, so it may remove any gate. It stops at some time, where it is denied: else runs were infinite. */
inline looks_up_lift(q) {
  place[q] = moved_to[A];
  held_seen[q] = !LIFT_IS_HELD_THERE && HAS_BIT(ledger[AT(place[q], A)].held, q);
  pod[q] = LIFTED
}

#define IS_HELD(at, q) ((LIFT_IS_HELD_THERE -> HAS_BIT(ledger[at].held, q) : held_seen[q]))
#define WOULD_LIFT(q) (COUNTED_IN != NOWHERE && ledger[COUNTED_IN].counted && HAS_BIT(ledger[COUNTED_IN].held, q) && OWN_TAKEN(COUNTED_IN) <= OWN_LIMIT(COUNTED_IN))

/* policies/quota/ledger/decide.py: _Batch._lift. VerdictReason.NOT_HELD. */
inline decide_lift(q, t) {
  verdict = RESERVED;
  if
  :: !ledger[AT(t, A)].counted || (t && LACKS_KEY(t, A)) -> verdict = UNCOUNTED_LEDGER
  :: else ->
     if
     :: !IS_HELD(AT(t, A), q) -> verdict = NOT_HELD
     :: else ->
        if
        :: OWN_TAKEN(AT(t, A)) > OWN_LIMIT(AT(t, A)) -> verdict = EXCEEDED
        :: OWN_TAKEN(AT(t, A)) <= OWN_LIMIT(AT(t, A)) && t && SUM_OF(t, B) + TAKEN(t, A) > LIMIT(t) -> verdict = TEAM_EXCEEDED
        :: else
        fi
     fi
  fi
}

inline lifts(q) {
  where = place[q];
  decide_lift(q, where);
  printf("decide pod=%d namespace=%d lift=1 verdict=%e", q, A, verdict); print_team(where); printf(" own=");
  print_ledger(AT(where, A), OWN_LIMIT(AT(where, A))); printf("\n");
  place[q] = 0; held_seen[q] = false;
  if
  :: verdict == RESERVED ->
     pod[q] = ALLOWED;
     promised = promised | BIT(q);
     ledger[AT(where, A)].held = ledger[AT(where, A)].held & (255 - BIT(q));
     ledger[AT(where, A)].reserved = ledger[AT(where, A)].reserved | BIT(q);
     written(where);
     check_fits(A)
  :: else -> pod[q] = WAITING; denials = (denials -> denials - 1 : 0)
  fi
}
#endif

/* ---- controller */

#define SHOWN_LIVE 1
#define SHOWN_OVER 2
#define SHOWS(m, q) (OF(q) != (m) -> 0 : (pod[q] == LIVE -> SHOWN_LIVE : (pod[q] == OVER -> SHOWN_OVER : 0)))
#define IS_LIVE(m, q) (SHOWS(m, q) == SHOWN_LIVE)
#define IS_OVER(m, q) (SHOWS(m, q) == SHOWN_OVER)
#define ALL_LIVE(m) (PODS_WHERE(IS_LIVE, m))
#define ALL_OVER(m) (PODS_WHERE(IS_OVER, m))

#if OLD_LISTS
#define SHOWN(c, q) list[c].shown[q]
#else
#define SHOWN(c, q) SHOWS(A, q)
#endif
#define IS_NEWS(c, q) (SHOWN(c, q) != SHOWS(A, q))
#define IS_SHOWN_LIVE(c, q) (SHOWN(c, q) == SHOWN_LIVE)
#define IS_SHOWN(c, q) (SHOWN(c, q) != 0)
#if BIG
#define IS_OLD(c) (ANY_POD(IS_NEWS, c) || list[c].events != events)
#define EVENTS(c) list[c].events
#define SHOWN_SMALL(c) (list[c].small && IS_SHOWN_LIVE(c, 0))
#else
#define IS_OLD(c) ANY_POD(IS_NEWS, c)
#define EVENTS(c) 0
#define SHOWN_SMALL(c) 0
#endif
#define SHOWN_ALIVE(c) (PODS_WHERE(IS_SHOWN_LIVE, c))
#define ALL_SHOWN(c) (PODS_WHERE(IS_SHOWN, c))
#define REVISION(c) (SUM_OF_PODS(SHOWN, c) + EVENTS(c))       /* it rises with each event */

#if OLD_LISTS
inline lists(c) {
  i = 0;
  do
  :: i < PODS -> list[c].shown[i] = SHOWS(A, i); i++
  :: else -> break
  od;
#if BIG
  list[c].events = events; list[c].small = IS_SMALL
#else
  skip
#endif
}
#endif

/* Where A is counted, and its GPUQuota followed: as serve decides, where it is not frozen. */
#define NOWHERE 255
#define COUNTED_IN (!moved_to[A] -> (exists -> OWN : NOWHERE) : (HAS(moved_to[A], A) && !LEAVES(moved_to[A], A) -> moved_to[A] : NOWHERE))
#define IS_COUNTED_IN(at) (COUNTED_IN == (at))
#define FAILED_LIFTS(at) (IN_LINE -> ledger[at].reserved & ALL_WAITING : 0)
#define COUNTS(c, at) (IS_COUNTED_IN(at) && ledger[at].counted && REVISION(c) >= ledger[at].revision && \
                       (ledger[at].used != SHOWN_ALIVE(c) || ledger[at].small != SHOWN_SMALL(c) || (ledger[at].reserved & ALL_SHOWN(c)) || FAILED_LIFTS(at) || ((at) != OWN && IS_LIMITED(at) && !ledger[at].keyed)))

/* policies/quota/ledger/reconcile.py: reconcile */
inline counts(c, at) {
  ledger[at].held = ledger[at].held | FAILED_LIFTS(at);
  ledger[at].reserved = ledger[at].reserved & (255 - FAILED_LIFTS(at));
  ledger[at].small = SHOWN_SMALL(c);
  ledger[at].used = SHOWN_ALIVE(c);
  ledger[at].reserved = ledger[at].reserved & (255 - ALL_SHOWN(c));
  ledger[at].revision = REVISION(c);
  ledger[at].keyed = ((at) != OWN && IS_LIMITED(at));
  promised = promised | ledger[at].used;
  written(at)
}

/* policies/quota/line.py: next_to_start */
/* policies/quota/team_line.py: next_to_start_in_team */
#define TAKES_TURN(at) (IS_COUNTED_IN(at) && ledger[at].counted && ledger[at].used == ALL_LIVE(A))
#define HOLDS(at) (TAKES_TURN(at) && !STARTED && ALL_WAITING == 3 && !ledger[at].held && !ledger[at].reserved && OWN_LIMIT(at) >= 2)
#define GIVES_BACK(at) (TAKES_TURN(at) && !STARTED && ledger[at].held && !ledger[at].reserved && OWN_TAKEN(at) > OWN_LIMIT(at))

/* policies/quota/ledger/reconcile.py: initialise */
inline initialises() {
  ledger[OWN].counted = true;
  ledger[OWN].used = ALL_LIVE(A);
  ledger[OWN].revision = SUM_OF_PODS(SHOWS, A);
  promised = promised | ledger[OWN].used;
  written(OWN)
}

inline looks(c, what, at, object) { job[c] = what; to[c] = at; target[c] = object; fresh[c] = true }
inline is_done(c) { job[c] = NOTHING; to[c] = 0; target[c] = 0; fresh[c] = false; read[c] = 0; assign(copy[c], no_ledger) }

#define SHOULD_MOVE_OUT(c, t) (exists && ledger[OWN].counted && !moved_to[A] && view[c] == (t) && made[t] && (!HAS(t, A) || !MOVES_IN_ONCE_REMOVED))
#define SHOULD_ADD(t) (moved_to[A] == (t) && made[t] && (!HAS(t, A) || !ADDED_IF_ABSENT))
#define SHOULD_LEAVE(c, t) (made[t] && HAS(t, A) && !LEAVES(t, A) && view[c] != (t) && FROZEN_BEFORE_TAKEN_BACK)
#define IS_LEAVING(c, t) (HAS(t, A) && (LEAVES(t, A) || (!FROZEN_BEFORE_TAKEN_BACK && view[c] != (t))))
#define SHOULD_TAKE_BACK(c, t) (exists && (moved_to[A] == (t) || !TAKEN_BACK_ONCE) && IS_LEAVING(c, t))
#define SHOULD_REMOVE(c, t) (IS_LEAVING(c, t) && (moved_to[A] != (t) || !TAKEN_BACK_BEFORE_REMOVED))
#define SHOULD_MAKE_TEAM(t) (!made[t] && (granted[t] || (moved_to[A] == (t) && TEAM_IS_MADE_FOR_MOVED)))
#define SHOULD_DROP_TEAM(t) (made[t] && !has[t] && !granted[t] && moved_to[A] != (t))
#define SHOULD_SWAP_TEAM_SPEC(t) ((t) == 1 && made[t] && granted[t] && in_force[t] != generation)
#define SHOULD_SWAP_QUOTA_SPEC(at) (QUOTA_GENERATIONS > 1 && IS_COUNTED_IN(at) && ledger[at].quota != quota_generation)
#define SHOULD_MAKE_OWN(c) (!exists && view[c] && view[c] == MEMBER)
#define SHOULD_DROP_OWN(c) (!HAS_QUOTA && exists && (!moved_to[A] || !MOVED_STAYS) && (MEMBERSHIP_IS_READ_AFTER_OWN -> !MEMBER : !view[c]))

inline moves_out(c) {        /* J1 */
  if
  :: fresh[c] || (!REMOVED_IS_READ_AFTER_OWN && exists && ledger[OWN].counted && !moved_to[A]) ->
     where = to[c];
     printf("step move_out"); print_before(where);
     moved_to[A] = where;
     print_after(where);
     written(OWN)
  :: else
  fi;
  is_done(c)
}

inline adds(c) {             /* J2 */
  where = to[c];
  if
  :: fresh[c] || (!ADDED_IS_READ_AFTER_TEAM && made[where] && !HAS(where, A)) ->
     printf("step add"); print_before(where);
     has[where] = has[where] | BIT(A);
     assign(ledger[where], copy[c]);
     ledger[where].keyed = IS_LIMITED(where);
     ledger[where].revision = (REVISIONS_MOVE -> copy[c].revision : 0);
     ledger[where].held = (HELD_MOVES -> copy[c].held : 0);
     assign(ledger[OWN], no_ledger);       /* it is void */
     print_after(where);
     written(where)
  :: else
  fi;
  is_done(c)
}

inline leaves(t) {           /* L1 */
  printf("step leave"); print_before(t);
  leaving[t] = leaving[t] | BIT(A);
  print_after(t);
  written(t)
}

inline takes_back(c) {       /* L2 */
  where = to[c];
  if
  :: fresh[c] || (!TAKEN_BACK_IS_READ_AFTER_OWN && moved_to[A] == where) ->
     printf("step take_back"); print_before(where);
     moved_to[A] = 0;
     assign(ledger[OWN], copy[c]);
     ledger[OWN].revision = (REVISIONS_MOVE -> copy[c].revision : 0);
     ledger[OWN].held = (HELD_MOVES -> copy[c].held : 0);
     if
     :: !HAS_QUOTA -> ledger[OWN].counted = false; ledger[OWN].used = 0       /* it has no limits, so it denies */
     :: else
     fi;
     print_after(where);
     written(OWN)
  :: else
  fi;
  is_done(c)
}

inline removes(c) {          /* L3 */
  where = to[c];
  if
  :: fresh[c] || (!OWN_IS_READ_AFTER_LEAVING && HAS(where, A) && LEAVES(where, A)) ->
     printf("step remove"); print_before(where);
     has[where] = has[where] & (255 - BIT(A));
     leaving[where] = leaving[where] & (255 - BIT(A));
     assign(ledger[where], no_ledger);
     print_after(where);
     written(where)
  :: else
  fi;
  is_done(c)
}

inline keeps_own(c, t) {
  if
  :: !TEAM_IS_MADE_EMPTY && moved_to[A] == t -> assign(copy[c], ledger[OWN])
  :: else
  fi
}

inline makes_team(c) {       /* of what it has read, however long ago, if there is none now */
  where = to[c];
  if
  :: !made[where] ->
     made[where] = true; in_force[where] = read[c];
     if
     :: !TEAM_IS_MADE_EMPTY && copy[c].counted -> has[where] = BIT(A); assign(ledger[where], copy[c])
     :: else
     fi;
     written(where)
  :: else
  fi;
  is_done(c)
}

inline drops_team(c) {
  where = to[c];
  if
  :: made[where] && (fresh[c] || !TEAM_GOES_BY_SWAP) ->
     made[where] = false; has[where] = 0; leaving[where] = 0; in_force[where] = 0;
     assign(ledger[where], no_ledger);
     written(where)
  :: else
  fi;
  is_done(c)
}

inline swaps_team_spec(c) {
  where = to[c];
  if
  :: fresh[c] || (!TEAM_SPEC_IS_READ_AFTER && made[where]) ->
     assert(in_force[where] == NO_TEAM || read[c] >= in_force[where]);        /* S1: never an older `hard` */
     in_force[where] = read[c];
     i = 0;
     do
     :: i < 2 -> ledger[AT(where, i)].keyed = (ledger[AT(where, i)].keyed && IS_LIMITED(where)); i++
     :: else -> break
     od;
     written(where)
  :: else
  fi;
  is_done(c)
}

inline swaps_quota_spec(c) {
  where = to[c];
  if
  :: fresh[c] || (!QUOTA_SPEC_IS_READ_AFTER && IS_COUNTED_IN(where)) ->
     assert(read[c] >= ledger[where].quota);                              /* S1: never an older `hard` */
     ledger[where].quota = read[c];
     written(where)
  :: else
  fi;
  is_done(c)
}

inline drops_own(c) {
  if
  :: exists && (fresh[c] || !OWN_GOES_BY_SWAP) ->
     covered = was_outside; assert(covered);                          /* S2: what it holds is still promised */
     exists = false; moved_to[A] = 0;
     promised = promised & PODS_OF_B;
     assign(ledger[OWN], no_ledger);
     written(OWN)
  :: else
  fi;
  is_done(c)
}

/* webhook/controller/moves.py: next_step, TeamMoves.read, TeamMoves.prepare_join, TeamMoves.join, TeamMoves.leave */
#define STEPS_OF_TEAM(c, t) \
  :: d_step { !job[c] && SHOULD_MOVE_OUT(c, t) -> looks(c, MOVE_OUT, t, OWN) } \
  :: d_step { !job[c] && SHOULD_ADD(t) -> looks(c, ADD, t, t); assign(copy[c], ledger[OWN]) } \
  :: d_step { !job[c] && SHOULD_LEAVE(c, t) -> leaves(t) } \
  :: d_step { !job[c] && SHOULD_TAKE_BACK(c, t) -> looks(c, TAKE_BACK, t, OWN); assign(copy[c], ledger[t]) } \
  :: d_step { !job[c] && SHOULD_REMOVE(c, t) -> looks(c, REMOVE, t, t) } \
  :: d_step { !job[c] && SHOULD_MAKE_TEAM(t) -> looks(c, MAKE_TEAM, t, NO_OBJECT); read[c] = (!granted[t] -> NO_TEAM : (t == 1 -> generation : 0)); keeps_own(c, t) } \
  :: d_step { !job[c] && SHOULD_DROP_TEAM(t) -> looks(c, DROP_TEAM, t, t) } \
  :: d_step { !job[c] && SHOULD_SWAP_TEAM_SPEC(t) -> looks(c, SWAP_TEAM_SPEC, t, t); read[c] = generation } \
  :: d_step { !job[c] && SHOULD_SWAP_QUOTA_SPEC(t) -> looks(c, SWAP_QUOTA_SPEC, t, t); read[c] = quota_generation } \
  :: d_step { COUNTS(c, t) -> counts(c, t) } \
  TURNS(t)

#if IN_LINE
#define TURNS(at) \
  :: d_step { HOLDS(at) -> ledger[at].held = 3; written(at) } \
  :: d_step { GIVES_BACK(at) -> ledger[at].held = 0; written(at) }
#else
#define TURNS(at)
#endif

proctype Controller(byte c) {
end:
  do
  STEPS_OF_TEAM(c, 1)
#if TEAMS > 1
  STEPS_OF_TEAM(c, 2)
#endif
  :: d_step { COUNTS(c, OWN) -> counts(c, OWN) }
  TURNS(OWN)
#if OLD_LISTS
  :: d_step { IS_OLD(c) -> lists(c) }
#endif
#if CHANGES || DROPS
  :: d_step { view[c] != MEMBER -> view[c] = MEMBER }
#endif
#if QUOTA_GENERATIONS > 1
  :: d_step { !job[c] && SHOULD_SWAP_QUOTA_SPEC(OWN) -> looks(c, SWAP_QUOTA_SPEC, OWN, OWN); read[c] = quota_generation }
  :: d_step { job[c] == SWAP_QUOTA_SPEC -> swaps_quota_spec(c) }
#endif
#if HAS_QUOTA == 0
  :: d_step { SHOULD_MAKE_OWN(c) -> exists = true; written(OWN) }
  :: d_step { exists && !moved_to[A] && !ledger[OWN].counted -> initialises() }
  :: d_step { !job[c] && SHOULD_DROP_OWN(c) -> looks(c, DROP_OWN, 0, OWN) }
  :: d_step { job[c] == DROP_OWN -> drops_own(c) }
#endif
  :: d_step { job[c] == MOVE_OUT -> moves_out(c) }
  :: d_step { job[c] == ADD -> adds(c) }
  :: d_step { job[c] == TAKE_BACK -> takes_back(c) }
  :: d_step { job[c] == REMOVE -> removes(c) }
  :: d_step { job[c] == MAKE_TEAM -> makes_team(c) }
  :: d_step { job[c] == DROP_TEAM -> drops_team(c) }
  :: d_step { job[c] == SWAP_TEAM_SPEC -> swaps_team_spec(c) }
#if CONTROLLERS > 1
  :: atomic { c == 1 && !crashed -> crashed = true; is_done(c); view[c] = 0; break }       /* for good; controller 0 goes on */
#endif
  od;
  skip
}

#if CLOSING
/* ---- Pods that wait for the team. A count and the turn are one write; it is counted by what is stored now. */

#define OWN_HAS_ROOM (OWN_HARD(quota_generation) >= 2)
#define CAN_START (pod[0] == WAITING && !unread && !obstacle && OWN_HAS_ROOM)
#define MAY_BE_PASSED (!strict && !starved)
#define REALLY_WAITS (CAN_START && !MAY_BE_PASSED)
#define IN_CREATION(m) ((m) == A -> 0 : ledger[AT(1, m)].reserved & (255 - (ALL_LIVE(m) | ALL_OVER(m))))       /* gates are removed at once */
#define HAS_ROOM (COUNT(ALL_LIVE(B) | IN_CREATION(B)) + 2 <= LIMIT(1))
#define TURN_HOLDS (pod[0] != WAITING -> 0 : (unread -> ledger[AT(1, A)].held : (CAN_START && HAS_ROOM -> 3 : 0)))
#define TURN_CLOSES (!HAS_ROOM && WAITING_CLOSES_OTHERS && (!obstacle || !OBSTACLES_CLOSE_NOBODY) && \
                     (OWN_HAS_ROOM || !OWN_QUOTA_CLOSES_NOBODY) && (!MAY_BE_PASSED || !WHO_MAY_BE_PASSED_CLOSES_NOBODY))
#define COUNT_CLOSES (pod[0] == WAITING && (unread -> !ONLY_A_TURN_CLOSES : TURN_CLOSES))
#define IS_CHANGED(m) (ledger[AT(1, m)].used != ALL_LIVE(m) || ledger[AT(1, m)].reserved != IN_CREATION(m))
#define IS_DUE (!crashed && (IS_CHANGED(A) || IS_CHANGED(B) || (joining && pod[0] != ALLOWED) || closes != COUNT_CLOSES || \
                ledger[AT(1, A)].held != TURN_HOLDS || ledger[AT(1, A)].quota != quota_generation))

/* policies/quota/ledger/reconcile.py: _counted */
/* policies/quota/team_line.py: next_to_start_in_team */
inline counts_and_takes_turn() {
  printf("turn unread=%d obstacle=%d strict=%d starved=%d waits=%d", unread, obstacle, strict, starved, pod[0] == WAITING);
  ledger[AT(1, A)].quota = quota_generation;
  ledger[AT(1, A)].used = ALL_LIVE(A); ledger[AT(1, A)].reserved = IN_CREATION(A);
  ledger[AT(1, B)].reserved = IN_CREATION(B); ledger[AT(1, B)].used = ALL_LIVE(B);
  if
  :: pod[0] != ALLOWED -> joining = false
  :: else
  fi;
  print_team(1);
  closes = COUNT_CLOSES;
  ledger[AT(1, A)].held = TURN_HOLDS;
  promised = promised | ledger[AT(1, B)].used;
  printf(" closes=%d holds=%d\n", closes, ledger[AT(1, A)].held)
}

#define ALL_OF_A(state) pod[0] = state; pod[1] = state

inline joins() {
  joining = true; starved = false; ALL_OF_A(ALLOWED);
  printf("decide pod=0 namespace=%d joins=1 verdict=RESERVED", A); print_team(1); printf(" own="); print_ledger(AT(1, A), OWN_LIMIT(AT(1, A))); printf("\n")
}

inline starts() {            /* the removal of the gates is reviewed and stored */
  ledger[AT(1, A)].held = 0; ledger[AT(1, A)].reserved = 3; promised = promised | 3; ALL_OF_A(LIVE);
  check_fits(A)
}

inline comes(q) {
  decide(q, 1, B);
  printf("decide pod=%d namespace=%d alive=%d closes=%d verdict=%e", q, B, alive, closes, verdict); print_team(1); printf(" own=");
  print_ledger(AT(1, B), UNLIMITED); printf("\n");
  is_passed = REALLY_WAITS && !IS_DUE && !crashed;
  is_denied_for = (REALLY_WAITS && !crashed) || IS_DUE || (crashed && alive);
  assert(verdict != OTHERS_WAIT || is_denied_for);                    /* N */
  assert(verdict != RESERVED || !is_passed);                          /* N */
  if
  :: verdict == RESERVED ->
     pod[q] = ALLOWED; promised = promised | BIT(q);
     ledger[AT(1, B)].reserved = ledger[AT(1, B)].reserved | BIT(q);
     check_fits(B)
  :: else
  fi;
  is_right = (verdict == RESERVED && (!REALLY_WAITS || crashed)) || (crashed && verdict != OTHERS_WAIT)
}

proctype Counter() {
end:
  do
  :: d_step { IS_DUE -> counts_and_takes_turn() }
  od;
  skip
}

proctype Tenant() {          /* of A */
end:
  do
  :: d_step { pod[0] == NEW -> joins() }
  :: d_step { pod[0] == ALLOWED -> ALL_OF_A(WAITING) }
  :: d_step { pod[0] == ALLOWED -> ALL_OF_A(NEW) }                    /* it is refused after us, again and again */
  :: d_step { joining && pod[0] != WAITING -> joining = false }         /* it was in flight for JOINING_SECONDS */
  :: d_step { pod[0] == WAITING && !deleted -> deleted = true; ALL_OF_A(NEW) }
  :: d_step { pod[0] == WAITING && !strict && !starved -> starved = true }
  :: d_step { pod[0] == WAITING && ledger[AT(1, A)].held == 3 && !obstacle && OWN_TAKEN(AT(1, A)) <= OWN_LIMIT(AT(1, A)) -> starts() };
progress_starts:
     skip
  :: d_step { pod[0] == LIVE -> ALL_OF_A(NEW); promised = promised & PODS_OF_B }
  :: d_step { turnabouts -> turnabouts--; obstacle = !obstacle }
  :: d_step { turnabouts && !unread -> turnabouts--; unread = true }
  :: d_step { unread -> unread = false }
  :: d_step { turnabouts -> turnabouts--; quota_generation = 1 - quota_generation }
  od;
  skip
}

proctype Neighbour(byte q) {
  bool is_right;
end:
  do
  :: d_step { pod[q] == NEW -> comes(q) };
     if
     :: d_step { is_right -> is_right = false };
progress_comes:
        skip
     :: d_step { !is_right -> skip }
     fi
  :: d_step { pod[q] == ALLOWED -> pod[q] = LIVE }
  :: d_step { pod[q] == ALLOWED -> pod[q] = OVER }
  :: d_step { pod[q] == LIVE -> pod[q] = OVER }
  :: d_step { pod[q] == OVER && (crashed || !HAS_BIT(ledger[AT(1, B)].reserved | ledger[AT(1, B)].used, q)) -> promised = promised & (255 - BIT(q)); pod[q] = NEW }
  od;
  skip
}

proctype Clock() {
end:
  do
  :: d_step { !crashed -> crashed = true }
  :: atomic { !crashed -> break }                                     /* it never does */
  :: d_step { crashed && alive -> alive = false }
  od;
  skip
}
#endif

/* ---- API server and people */

#define B_LEDGER ledger[AT(1, B)]

#define ACTS(q) \
  :: d_step { pod[q] == NEW && (exists || OF(q) == B) -> looks_up(q) } \
  :: d_step { pod[q] == NEW && !exists && OF(q) == A -> pod[q] = ALLOWED }                       /* there is no quota */ \
  :: d_step { pod[q] == REVIEWED && IS_DECIDED(q) -> reviews(q) } \
  :: d_step { pod[q] == REVIEWED && !IS_DECIDED(q) -> place[q] = 0; pod[q] = OVER } \
  :: d_step { pod[q] == REVIEWED && !IS_DECIDED(q) && (place[q] != moved_to[OF(q)] || !exists) -> place[q] = 0; pod[q] = NEW } \
  :: d_step { pod[q] == ALLOWED -> pod[q] = LIVE; check_everyone_is_covered() } \
  :: d_step { pod[q] == ALLOWED -> pod[q] = OVER } \
  :: d_step { pod[q] == LIVE && DELETIONS && OF(q) == A && !IS_IN_USE(q) -> pod[q] = OVER }

#if BIG
#define IS_IN_USE(q) (HAS_BIT(BIG, q) && devices)
#define CAN_BE_ALLOCATED (pod[0] == LIVE && !devices && !bound && allocations < 2)

/* The scheduler, the resource-claim controller, and the end of the pod. tests/model/quota.pml has who else could use the claim. */
inline gets(amount) { devices = amount; allocations++; events++; check_everyone_is_covered() }
#else
#define IS_IN_USE(q) false
#endif

#define ACTS_IN_LINE(q) \
  :: d_step { pod[q] == WAITING && exists && (denials || WOULD_LIFT(q)) -> looks_up_lift(q) } \
  :: d_step { pod[q] == LIFTED && IS_DECIDED(q) -> lifts(q) } \
  :: d_step { pod[q] == LIFTED && !IS_DECIDED(q) && place[q] != moved_to[A] -> place[q] = 0; held_seen[q] = false; pod[q] = WAITING } \
  :: d_step { pod[q] == ALLOWED -> pod[q] = LIVE; check_everyone_is_covered() } \
  :: d_step { pod[q] == ALLOWED && denials -> denials--; pod[q] = WAITING; check_everyone_is_covered() }

proctype World() {
end:
  do
#if IN_LINE
  ACTS_IN_LINE(0)
  ACTS_IN_LINE(1)
#else
  ACTS(0)
#if PODS > 1
  ACTS(1)
#endif
#endif
#if BIG
  :: d_step { CAN_BE_ALLOCATED -> gets(1) }
  :: d_step { CAN_BE_ALLOCATED -> gets(2) }
  :: d_step { devices && (!bound || ended) -> devices = 0; events++ }
  :: d_step { devices && !bound -> bound = true; events++ }
  :: d_step { bound && !ended -> ended = true; events++ }
#if SHRINKS_BY_LIST == 0
  :: d_step { CAN_BE_ALLOCATED && COUNTED_IN != NOWHERE && HAS_BIT(ledger[COUNTED_IN].used, 0) -> where = COUNTED_IN; ledger[where].small = 1; written(where) }
#endif
#endif
  :: d_step { changes > 0 -> changes--; member = NEXT(member); was_outside = (was_outside || !MEMBER) && !HAS_QUOTA }
#if DROPS
  :: d_step { drops > 0 -> drops--; granted[1] = !granted[1]; was_outside = (was_outside || !MEMBER) && !HAS_QUOTA }
#endif
#if GENERATIONS > 1
  :: d_step { generation + 1 < GENERATIONS -> generation++ }
#endif
#if QUOTA_GENERATIONS > 1
  :: d_step { quota_generation + 1 < QUOTA_GENERATIONS -> quota_generation++ }
#endif
#if PODS_OF_B
  :: d_step { B_LEDGER.used != ALL_LIVE(B) || (B_LEDGER.reserved & (ALL_LIVE(B) | ALL_OVER(B))) || B_LEDGER.keyed != IS_LIMITED(1) ->      /* a count */
              B_LEDGER.used = ALL_LIVE(B); B_LEDGER.reserved = B_LEDGER.reserved & (255 - (ALL_LIVE(B) | ALL_OVER(B))); B_LEDGER.keyed = IS_LIMITED(1); written(1) }
#endif
  od;
  skip
}

#define IN_ITS_PLACE(t) (HAS(t, A) == (MEMBER == (t)) && !LEAVES(t, A) && made[t] == granted[t])
#define IS_SETTLED(at, alive) (!ledger[at].reserved && !ledger[at].held && ledger[at].used == (alive) && ledger[at].small == IS_SMALL)

proctype Quiet() {           /* L1 */
  timeout ->
  settled = (exists == (HAS_QUOTA || MEMBER)) && moved_to[A] == MEMBER && IN_ITS_PLACE(1);
#if TEAMS > 1
  settled = settled && IN_ITS_PLACE(2);
#endif
  assert(settled);
  settled = !exists || IS_SETTLED(MEMBER, ALL_LIVE(A));
  assert(settled);
#if IN_LINE
  settled = (ALL_LIVE(A) == 3);
  assert(settled);
#endif
  settled = !granted[1] || in_force[1] == generation;
  assert(settled);
  settled = !exists || ledger[MEMBER].quota == quota_generation;
  assert(settled)
}

#if CLOSING
init {
  if
  :: strict = true
  :: skip
  fi;
  d_step {
    member = 1; exists = true; moved_to[A] = 1; moved_to[B] = 1; made[1] = true; granted[1] = true; has[1] = 3;
    ledger[AT(1, A)].counted = true; ledger[AT(1, B)].counted = true; ledger[AT(1, A)].keyed = true; ledger[AT(1, B)].keyed = true
  };
  atomic { run Counter(); run Tenant(); run Neighbour(2); run Neighbour(3); run Clock() }
}
#else
init {
  if
  :: changes = CHANGES
  :: changes = CHANGES - (CHANGES > 0)
  fi;
  if
  :: drops = DROPS
  :: drops = DROPS - (DROPS > 0)
  fi;
  d_step {
    member = FIRST_MEMBER;
    exists = HAS_QUOTA;
    moved_to[A] = (HAS_QUOTA -> FIRST_MEMBER : 0);
    moved_to[B] = 1;
    made[1] = true; made[TEAMS] = true; granted[1] = true; granted[TEAMS] = true;
    has[1] = (exists && FIRST_MEMBER == 1 -> BIT(A) : 0) | (PODS_OF_B -> BIT(B) : 0);
    ledger[AT(1, A)].counted = (HAS_BIT(has[1], A));
    ledger[AT(1, B)].counted = true;
    ledger[AT(1, A)].keyed = IS_LIMITED(1) && HAS_BIT(has[1], A);
    ledger[AT(1, B)].keyed = IS_LIMITED(1);
    view[0] = member; view[CONTROLLERS - 1] = member;
#if IN_LINE
    pod[0] = WAITING; pod[1] = WAITING; denials = 1;
#endif
    was_outside = !MEMBER && !HAS_QUOTA
  };
  atomic {
    run Controller(0); run World(); run Quiet();
#if CONTROLLERS > 1
    run Controller(1);
#endif
    skip
  }
}
#endif
