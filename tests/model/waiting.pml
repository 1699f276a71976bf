/* Waiting in line, for spin: every interleaving of a small instance.

Pods under our scheduling gate, the ledger, serve, controllers that count, hold demand and remove gates, an API server that stores and deletes,
owners who remove gates themselves. `tests/model/run` checks each instance whole, and once without each rule.

What each inline stands for is named above it; tests/test_model.py replays what the inlines decide with those functions.

  S1  what is admitted fits: what is stored without the gate, or admitted to be, never grows beyond the `hard` in force
  S2  every stored, live pod without the gate is in `used` or in a reservation
  W   every stored, live pod under the gate is in `waiting` or in a reservation
  O   nobody passes the line: no creation without the gate, and no removal of the gate by an owner, is admitted while another pod waits
  G   gangs start whole: while the gate of a pod of a gang is removed, the demand of all its pods is held
  T   nobody takes more than his demand, and nobody with his replacement
  R   nobody takes the quota of a pod that is being replaced: one that failed, and that its object asks for, before its time is over
  L1  once nothing arrives any more, no reservation is left, `used` and `waiting` are what is stored, and whoever fits has started; no run is infinite

What quota.pml checks is taken as given: a decision and its write are one step, since both are of one resourceVersion; lists are consistent; a count by an
older list is refused (the fence, whose loss is checked here, too). A count and what it makes a controller hold are two steps, which allows more than the
code, where they are one write. Every controller has seen the end of the pod that is replaced: where none has, nothing is kept. Not modelled: a creation that is stored later than JOINING_SECONDS, whose order in line is not promised before it is counted, the order in line, since safety does not depend on it, catalogues, other gates, VerdictReason.QUEUE_FULL.
*/

/* ---- Rules: each can be switched off with -D<RULE>=0 */

/* a pod under the gate has no demand; without it: it takes the room that it waits for: nobody ever starts (L1) */
#ifndef WAITING_IS_FREE
#define WAITING_IS_FREE 1
#endif
/* the creation of a pod under the gate has a reservation; without it: until it is counted, the ledger does not know that it waits (W) */
#ifndef JOINING_IS_RESERVED
#define JOINING_IS_RESERVED 1
#endif
/* while somebody waits, serve denies what is not the controller's; without it: a creation by an old copy of the ledger passes the line
   (O) */
#ifndef LINE_DENIES_OTHERS
#define LINE_DENIES_OTHERS 1
#endif
/* a removal of the gate takes over what is held; without it: a count shows the pod without its gate, and an older one comes late: it is
   in neither used nor a reservation (S2) */
#ifndef LIFT_TAKES_OVER
#define LIFT_TAKES_OVER 1
#endif
/* it needs as much to be held as the pod demands now; without it: the demand of the pod grew meanwhile (S2) */
#ifndef LIFT_IS_COVERED
#define LIFT_IS_COVERED 1
#endif
/* and a ledger that is not above hard; without it: hard was lowered meanwhile: the quota is exceeded (S1) */
#ifndef LIFT_FITS_HARD
#define LIFT_FITS_HARD 1
#endif
/* a removal that is tried again names the version of the one before; without it: one of an older version takes the place of one that may
   be stored still: the pod starts and is in neither used nor a reservation (S2) */
#ifndef LIFT_AGAIN_OF_ITS_VERSION
#define LIFT_AGAIN_OF_ITS_VERSION 1
#endif
/* it reserves what that one reserved; without it: the pod starts without a reservation (S2) */
#ifndef LIFT_AGAIN_CARRIES
#define LIFT_AGAIN_CARRIES 1
#endif
/* it takes the place of that one; without it: both are reserved (T) */
#ifndef LIFT_AGAIN_REPLACES
#define LIFT_AGAIN_REPLACES 1
#endif
/* its entry has an id of its own; without it: the entry expires when the first removal is old, and the second one is stored (S2) */
#ifndef LIFT_AGAIN_IS_SEEN_ANEW
#define LIFT_AGAIN_IS_SEEN_ANEW 1
#endif
/* only the controller takes over what is held; without it: an owner removes the gate, and passes others (O) */
#ifndef ONLY_CONTROLLERS_LIFT
#define ONLY_CONTROLLERS_LIFT 1
#endif
/* what is held stays while the pod waits; without it: the rest of a gang loses it when it is counted (G) */
#ifndef HELD_WHILE_IT_WAITS
#define HELD_WHILE_IT_WAITS 1
#endif
/* if the removal fails, it is held again; without it: the rest of a gang has lost it (G) */
#ifndef FAILED_LIFT_IS_HELD
#define FAILED_LIFT_IS_HELD 1
#endif
/* nothing is held for a gang before all its pods wait; without it: its first pods start alone (G) */
#ifndef GANG_IS_COMPLETE
#define GANG_IS_COMPLETE 1
#endif
/* the demand of a gang is held in one write; without it: two gangs hold half each, and start (G) */
#ifndef GANG_IN_ONE_WRITE
#define GANG_IN_ONE_WRITE 1
#endif
/* a gang of which a pod has started gives nothing back; without it: hard is lowered: the rest has nothing (G) */
#ifndef STARTED_GANG_HOLDS
#define STARTED_GANG_HOLDS 1
#endif
/* what is held, but too little, is given back; without it: the demand of the pod grew: it never starts, and what is held is lost for
   others (L1) */
#ifndef SHORT_IS_GIVEN_BACK
#define SHORT_IS_GIVEN_BACK 1
#endif
/* the fence; without it: an old list shows no pod: what has replaced its reservation is lost (W, S2) */
#ifndef WAITING_FENCE
#define WAITING_FENCE 1
#endif

/* what a failed pod used stays in an entry, written by the count that takes it out of `used`; without it: another one takes it in between (R) */
#ifndef KEPT_WITH_USED
#define KEPT_WITH_USED 1
#endif
/* only by that count; without it: a second leader, which has seen the end, too, keeps it again once the replacement has used it (T) */
#ifndef KEPT_ONCE
#define KEPT_ONCE 1
#endif
/* it goes when its time is over; without it: the object makes no other pod, and the quota is lost for others (L1) */
#ifndef KEEP_EXPIRES
#define KEEP_EXPIRES 1
#endif
/* nothing is kept for a pod that succeeded; without it: none replaces it, and the quota is lost for others until that time is over (L1) */
#ifndef SUCCEEDED_GIVES_BACK
#define SUCCEEDED_GIVES_BACK 1
#endif
/* nor beyond what its object asks for; without it: the object was made smaller, and holds what it does not ask for (L1) */
#ifndef KEPT_AS_ASKED
#define KEPT_AS_ASKED 1
#endif
/* the turn of the replacement makes it what is held, in one write; without it: another one takes it in between (R) */
#ifndef KEEP_BECOMES_LIFT
#define KEEP_BECOMES_LIFT 1
#endif

/* ---- Instances. Pods below GANG are one gang; each demands 1, and pod 0 demands 2 once its owner has raised it. */

#ifdef LINE              /* two pods, one GPU; owners remove gates, one comes without a gate by an old copy of the ledger */
#define GANG 0
#define HARD 1
#define OWNER_LIFTS 1
#define NEWCOMER 1
#define DELETIONS 0
#endif
#ifdef GANGS             /* a gang of two, two GPUs; pods are deleted */
#define GANG 2
#define HARD 2
#endif
#ifdef BESIDE            /* a gang of two, a pod beside it, two GPUs */
#define PODS 3
#define GANG 2
#define HARD 2
#define CONTROLLERS 1
#endif
#ifdef GREW              /* the demand of a pod of a gang rises while it waits, and `hard` is lowered */
#define GANG 2
#define HARD 3
#define RAISES 1
#define LOWERS 1
#define DELETIONS 0
#endif
#ifdef LOWERED           /* `hard` is lowered, and raised again */
#define GANG 2
#define HARD 2
#define LOWERS 1
#define DELETIONS 0
#endif
#ifdef AGAIN             /* a controller ends while it removes gates: another one removes them again */
#define GANG 2
#define HARD 3
#define RAISES 1
#define RETRIES 1
#define DELETIONS 0
#endif
#ifdef RESTARTS          /* pod 0 runs, and ends; its object makes pod 1 for it, and may be made smaller; pod 2 is another one; one GPU */
#define PODS 3
#define GANG 0
#define HARD 1
#define REPLACES 1
#define NEWCOMER 2
#define DELETIONS 0
#define FAILURES 0
#endif
#ifndef REPLACES
#define REPLACES 0
#endif
#ifndef PODS
#define PODS 2
#endif
#ifndef RETRIES
#define RETRIES 0
#endif
#ifndef OWNER_LIFTS
#define OWNER_LIFTS 0
#endif
#ifndef RAISES
#define RAISES 0
#endif
#ifndef LOWERS
#define LOWERS 0
#endif
#ifndef NEWCOMER
#define NEWCOMER PODS
#endif
#ifndef CONTROLLERS
#define CONTROLLERS 2
#endif
#ifndef FAILURES
#define FAILURES 1
#endif
#ifndef DELETIONS
#define DELETIONS 1
#endif

/* ---- What the API server has */

#define ABSENT 0
#define GATED 1
#define FREE 2
#define GONE 3
byte pod[PODS];
byte demand[PODS] = 1;
byte version[PODS];
byte revision;
byte hard = HARD;
byte moves;                  /* of `hard` */
byte failures;
byte deletions;
bool stopped;

bool succeeded;              /* pod 0; or it failed */
bool asks = true;            /* its object, for another one */
bool late;                   /* the time is over for which an object keeps quota without pods */

mtype = { new, sent, read, allowed, ended };
mtype create[PODS] = new;
bool gated[PODS];            /* what /mutate did */
mtype lift[PODS] = new;      /* the removal of the gate by a controller, */
byte lift_version[PODS];
mtype again[PODS] = new;     /* by another one, while the first may still be stored. The pod may change between its review and its decision */
byte again_version[PODS];
mtype own[PODS] = new;       /* or by the owner */
byte own_version[PODS];

/* ---- The ledger: `used` and `waiting` by pod, and reservations */

#define JOINED 1             /* a creation under the gate: it demands nothing, and waits */
#define CREATED 2
byte used[PODS];
bool waiting[PODS];
byte creation[PODS];
byte held[PODS];             /* `uid/lift` */
byte begun[PODS];            /* `uid/lift/request uid`, of whose reviewed version: */
byte begun_version[PODS];
bool begun_again[PODS];      /* by the second one */
byte changed[PODS];          /* `uid/request uid`: a removal by the owner */
byte kept;                   /* `uid/keep` of pod 0 */
bool unkept;                 /* which a write of its own adds, without KEPT_WITH_USED */
byte counted_revision;

/* ---- What controllers know. Of a reservation, 1: it was seen, 2: for longer than the bound, 3: and a list began after that */

typedef Seen {
  byte shown[PODS];
  byte demand[PODS];
  byte version[PODS];
  byte revision;
  byte creation[PODS];
  byte begun[PODS];
  byte changed[PODS];
  bool tried[PODS];          /* it has sent a lift since the ledger or its list was new */
  bool succeeded;
  bool listed;
  bool settled               /* nothing is new since its last count */
};
Seen seen[CONTROLLERS];

hidden byte i; hidden byte j; hidden byte sum; hidden byte is_new; hidden mtype verdict;

#if PODS == 2
#define ALL(condition) (condition(0) && condition(1))
#define ANY(condition) (condition(0) || condition(1))
#define SUM(amount) (amount(0) + amount(1))
#else
#define ALL(condition) (condition(0) && condition(1) && condition(2))
#define ANY(condition) (condition(0) || condition(1) || condition(2))
#define SUM(amount) (amount(0) + amount(1) + amount(2))
#endif

/* policies/quota/ledger/quota_ledger.py: QuotaLedger.all_waiting */
#define WAITS(p) (waiting[p] || creation[p] == JOINED)
/* policies/quota/ledger/quota_ledger.py: QuotaLedger.reserved */
#define TAKEN(p) (used[p] + (creation[p] == CREATED -> 1 : 0) + held[p] + begun[p] + changed[p])
#define TOGETHER (SUM(TAKEN) + kept)

/* ---- Properties */

#define IN_GANG(p) ((p) < GANG)
#define IS_LIFTED_BY(request, at, p) (request[p] == allowed && pod[p] == GATED && at[p] == version[p])
#define IS_LIFTED(p) (IS_LIFTED_BY(lift, lift_version, p) || IS_LIFTED_BY(again, again_version, p) || IS_LIFTED_BY(own, own_version, p))
#define COMES(p) (create[p] == allowed && !gated[p] -> 1 : (IS_LIFTED(p) -> demand[p] : 0))
#define RUNS_OR_COMES(p) ((pod[p] == FREE -> demand[p] : 0) + COMES(p))

inline check_fits() {
  sum = SUM(RUNS_OR_COMES);
  assert(sum <= hard)        /* S1 */
}

#define STANDS_IN_LINE(p) (pod[p] == GATED || (create[p] == allowed && gated[p]))
inline check_nobody_is_passed(p) {
  i = 0;
  do
  :: i < PODS -> assert(i == p || !STANDS_IN_LINE(i)); i++   /* O */
  :: else -> break
  od;
  skip
}

#define IS_READY(p) (pod[p] == FREE || pod[p] == GONE || held[p] || begun[p])
#define GANG_IS_READY (IS_READY(0) && IS_READY(1))
inline check_gang(p) { assert(!IN_GANG(p) || GANG_IS_READY) }   /* G */

#define IS_REPLACED (REPLACES && pod[0] == GONE && !succeeded && asks && !late && !held[1] && !begun[1] && pod[1] != FREE)
inline check_replaced(p) { assert(p == 1 || !IS_REPLACED) }   /* R */
#define TAKEN_TOGETHER (used[0] + used[1] + held[1] + begun[1] + kept)
inline check_everyone_is_covered() {
  i = 0;
  do
  :: i < PODS ->
     assert(pod[i] != FREE || demand[i] <= used[i] + (creation[i] == CREATED -> 1 : 0) + begun[i] + changed[i]);   /* S2 */
     assert(pod[i] != GATED || waiting[i] || creation[i] == JOINED);                                              /* W */
     assert(!IN_GANG(i) || pod[i] != FREE || GANG_IS_READY);                                                      /* G */
     assert(!RETRIES || begun[i] <= demand[i]);                                                                   /* T */
     i++
  :: else -> break
  od;
  assert(!REPLACES || TAKEN_TOGETHER <= 1)                                                                       /* T */
}

inline written() {           /* the ledger */
  i = 0;
  do
  :: i < CONTROLLERS ->
     seen[i].settled = false;
     j = 0;
     do
     :: j < PODS -> seen[i].tried[j] = false; j++
     :: else -> break
     od;
     i++
  :: else -> break
  od;
  check_everyone_is_covered()
}

/* ---- What tests/test_model.py replays; spin's verifier prints nothing */

inline print_ledger() {
  printf(" ledger hard=%d gang=%d revision=%d replaces=%d kept=%d pods=", hard, GANG, counted_revision, REPLACES, kept);
  i = 0;
  do
  :: i < PODS -> printf("%d/%d/%d/%d/%d/%d/%d/%d/%d,", used[i], waiting[i], creation[i], held[i], begun[i], changed[i], begun_version[i], own_version[i], begun_again[i]); i++
  :: else -> break
  od;
  skip
}
inline print_list(c) {
  printf(" listed=%d succeeded=%d asks=%d late=%d shown=", seen[c].revision, seen[c].succeeded, asks, late);
  i = 0;
  do
  :: i < PODS -> printf("%d/%d/%d/%d/%d/%d,", seen[c].shown[i], seen[c].demand[i], seen[c].version[i], seen[c].creation[i] == 3, seen[c].begun[i] == 3, seen[c].changed[i] == 3); i++
  :: else -> break
  od;
  skip
}

/* ---- serve */

mtype = { RESERVED, EXCEEDED, OTHERS_WAIT, NOT_HELD };

/* policies/quota/ledger/decide.py: _Batch.decide, _Batch._reserve. VerdictReason.RESERVED, VerdictReason.EXCEEDED, VerdictReason.OTHERS_WAIT. */
inline decide_growth(p, amount) {
  verdict = RESERVED;
  if
  :: TOGETHER + amount > hard -> verdict = EXCEEDED
  :: else ->
     if
     :: LINE_DENIES_OTHERS && ANY(WAITS) -> verdict = OTHERS_WAIT
     :: else
     fi
  fi
}

inline creates(p) {
  if
  :: gated[p] ->
     printf("decide JOINS pod=%d demand=0 version=0 verdict=RESERVED", p); print_ledger(); printf("\n");
     creation[p] = (JOINING_IS_RESERVED -> JOINED : 0); create[p] = allowed; written()
  :: else ->
     decide_growth(p, 1);
     printf("decide BEHIND pod=%d demand=1 version=0 verdict=%e", p, verdict); print_ledger(); printf("\n");
     if
     :: verdict == RESERVED -> creation[p] = CREATED; create[p] = allowed; check_fits(); check_nobody_is_passed(p); check_replaced(p); written()
     :: else -> create[p] = ended
     fi
  fi
}

/* policies/quota/ledger/decide.py: _Batch._lift, _Batch._shortfalls. VerdictReason.NOT_HELD. */
#define IS_BEGUN(p, at) (begun[p] && (begun_version[p] == at || !LIFT_AGAIN_OF_ITS_VERSION))
#define IS_HELD_FOR(p, at) (held[p] -> held[p] : (IS_BEGUN(p, at) -> begun[p] : 0))
inline decide_lift(p, at) {
  verdict = RESERVED;
  if
  :: !IS_HELD_FOR(p, at) || (LIFT_IS_COVERED && IS_HELD_FOR(p, at) < demand[p]) -> verdict = NOT_HELD
  :: else ->
     if
     :: LIFT_FITS_HARD && TOGETHER > hard -> verdict = EXCEEDED
     :: else
     fi
  fi
}

inline lifts(p) {            /* the patch of a controller tests the version */
  if
  :: pod[p] != GATED || version[p] != lift_version[p] -> lift[p] = ended
  :: else ->
     review_lift(p, lift[p], lift_version[p], 0)
  fi
}
inline review_lift(p, request, at, is_again) {
  decide_lift(p, at);
  printf("decide LIFTS pod=%d demand=%d version=%d again=%d verdict=%e", p, demand[p], at, is_again, verdict); print_ledger(); printf("\n");
  if
  :: verdict == RESERVED ->
     request = allowed;
     if
     :: LIFT_TAKES_OVER -> take_over(p, at, is_again)
     :: else
     fi;
     check_fits(); check_gang(p); written()
  :: else -> request = ended
  fi
}
inline take_over(p, at, is_again) {
  if
  :: held[p] && !begun[p] -> begun[p] = held[p]; held[p] = 0; has_own_id(p)
  :: else ->
     begun[p] = (LIFT_AGAIN_CARRIES -> (LIFT_AGAIN_REPLACES -> begun[p] : 2 * begun[p]) : 0);
     if
     :: LIFT_AGAIN_IS_SEEN_ANEW -> has_own_id(p)
     :: else
     fi
  fi;
  begun_version[p] = at; begun_again[p] = is_again
}
inline has_own_id(p) { seen[0].begun[p] = 0; seen[CONTROLLERS - 1].begun[p] = 0 }

/* policies/quota/quota_request.py: quota_request_for_pod */
inline lifts_own(p) {
  if
  :: pod[p] != GATED || version[p] != own_version[p] -> own[p] = ended
  :: else ->
     if
     :: !ONLY_CONTROLLERS_LIFT && held[p] >= demand[p] -> verdict = RESERVED; changed[p] = held[p]; held[p] = 0
     :: else ->
        decide_growth(p, demand[p]);
        printf("decide BEHIND pod=%d demand=%d version=%d verdict=%e", p, demand[p], version[p], verdict); print_ledger(); printf("\n");
        if
        :: verdict == RESERVED -> changed[p] = demand[p]
        :: else
        fi
     fi;
     if
     :: verdict == RESERVED -> own[p] = allowed; check_fits(); check_nobody_is_passed(p); check_gang(p); written()
     :: else -> own[p] = ended
     fi
  fi
}

/* ---- controller */

inline look(stage, is_there) {
  if
  :: !(is_there) -> stage = 0
  :: (is_there) && !stage -> stage = 1
  :: else
  fi
}
/* webhook/controller/observed_ledgers.py: ObservedLedgers.observe */
inline see(c) {
  j = 0;
  do
  :: j < PODS -> look(seen[c].creation[j], creation[j]); look(seen[c].begun[j], begun[j]); look(seen[c].changed[j], changed[j]); j++
  :: else -> break
  od;
  skip
}

#define IS_OVER(request, p) (request[p] == ended)      /* it can no longer be stored */
/* The entry is younger than all removals that it covers, so it is old only once they are. With the id of the first one it is as old as that. */
#define LIFTS_ARE_OVER(p) (lift[p] != allowed && (again[p] != allowed || !LIFT_AGAIN_IS_SEEN_ANEW))
#define RIPENS(c, p) ((seen[c].creation[p] == 1 && creation[p] && IS_OVER(create, p)) || \
                      (seen[c].begun[p] == 1 && begun[p] && LIFTS_ARE_OVER(p)) || (seen[c].changed[p] == 1 && changed[p] && IS_OVER(own, p)))
#define IS_RIPE(p) (seen[c].creation[p] == 2 || seen[c].begun[p] == 2 || seen[c].changed[p] == 2)
inline ripen(c, p) {
  if :: seen[c].creation[p] == 1 && creation[p] && IS_OVER(create, p) -> seen[c].creation[p] = 2 :: else fi;
  if :: seen[c].begun[p] == 1 && begun[p] && LIFTS_ARE_OVER(p) -> seen[c].begun[p] = 2 :: else fi;
  if :: seen[c].changed[p] == 1 && changed[p] && IS_OVER(own, p) -> seen[c].changed[p] = 2 :: else fi
}

#define WORTH_LISTING(c) (!seen[c].listed || seen[c].revision != revision || ANY(IS_RIPE))
inline lists(c) {
  see(c);
  seen[c].revision = revision; seen[c].succeeded = succeeded; seen[c].listed = true; seen[c].settled = false;
  j = 0;
  do
  :: j < PODS ->
     seen[c].shown[j] = pod[j]; seen[c].demand[j] = demand[j]; seen[c].version[j] = version[j]; seen[c].tried[j] = false;
     if :: seen[c].creation[j] == 2 -> seen[c].creation[j] = 3 :: else fi;
     if :: seen[c].begun[j] == 2 -> seen[c].begun[j] = 3 :: else fi;
     if :: seen[c].changed[j] == 2 -> seen[c].changed[j] = 3 :: else fi;
     j++
  :: else -> break
  od;
  skip
}

#define SHOWN(c, p) seen[c].shown[p]
#define HAS_ENDED(c, p) (SHOWN(c, p) == FREE || SHOWN(c, p) == GONE)    /* its wait */
#define REACHES(c) (!WAITING_FENCE || seen[c].revision >= counted_revision)
#define COUNTS_AS(c, p) (SHOWN(c, p) == FREE || (SHOWN(c, p) == GATED && !WAITING_IS_FREE) -> seen[c].demand[p] : 0)

/* policies/quota/ledger/keeps.py: with_keeps */
#define IS_ENDED(c) (REPLACES && SHOWN(c, 0) == GONE && (!SUCCEEDED_GIVES_BACK || !seen[c].succeeded))
#define MAY_KEEP (!late && (asks || !KEPT_AS_ASKED))
#define LOSES_KEEP (kept && ((late && KEEP_EXPIRES) || (!asks && KEPT_AS_ASKED)))

/* policies/quota/ledger/reconcile.py: _counted, _is_confirmed, _failed_lifts, _expired_ids */
inline counts(c) {
  see(c);
  is_new = false;
  printf("settle"); print_list(c); print_ledger(); printf(" then");
  if
  :: LOSES_KEEP -> kept = 0; is_new = true
  :: else ->
     if
     :: IS_ENDED(c) && (used[0] || !KEPT_ONCE) && !kept && MAY_KEEP ->
        if
        :: KEPT_WITH_USED -> kept = 1; is_new = true
        :: else -> unkept = true
        fi
     :: else
     fi
  fi;
  j = 0;
  do
  :: j < PODS ->
     if
     :: creation[j] && (SHOWN(c, j) != ABSENT || seen[c].creation[j] == 3) -> creation[j] = 0; is_new = true
     :: else
     fi;
     if
     :: held[j] && (HAS_ENDED(c, j) || !HELD_WHILE_IT_WAITS) -> held[j] = 0; is_new = true
     :: else
     fi;
     if
     :: begun[j] && (HAS_ENDED(c, j) || seen[c].version[j] > begun_version[j] || seen[c].begun[j] == 3) ->
        held[j] = (FAILED_LIFT_IS_HELD && SHOWN(c, j) == GATED -> begun[j] : held[j]); begun[j] = 0; is_new = true
     :: else
     fi;
     if
     :: changed[j] && (HAS_ENDED(c, j) || seen[c].version[j] > own_version[j] || seen[c].changed[j] == 3) -> changed[j] = 0; is_new = true
     :: else
     fi;
     if
     :: used[j] != COUNTS_AS(c, j) || waiting[j] != (SHOWN(c, j) == GATED) ->
        used[j] = COUNTS_AS(c, j); waiting[j] = (SHOWN(c, j) == GATED); is_new = true
     :: else
     fi;
     j++
  :: else -> break
  od;
  if
  :: is_new -> counted_revision = seen[c].revision; written()
  :: else
  fi;
  print_ledger(); printf("\n");
  seen[c].settled = true
}

/* policies/quota/queue_entries.py: entries_in_line; policies/quota/line.py: _without_blocked, _Unheld.of, NamespaceLine.hold */
#define IS_CURRENT(c) (seen[c].listed && seen[c].settled && REACHES(c))
#define WANTS(c, p) (SHOWN(c, p) == GATED && !begun[p] && held[p] < seen[c].demand[p])
#define NEEDS(c, p) (WANTS(c, p) -> seen[c].demand[p] - held[p] : 0)
#define RUNS(c, p) (IN_GANG(p) && (SHOWN(c, p) == FREE || begun[p]))
#define HAS_STARTED(c) (RUNS(c, 0) || RUNS(c, 1))
#define IS_COMPLETE(c) (SHOWN(c, 0) == GATED && SHOWN(c, 1) == GATED)
#define IS_SINGLE(c, p) (!IN_GANG(p) || HAS_STARTED(c) || !GANG_IN_ONE_WRITE)
#define KEPT_FOR(p) (REPLACES && p == 1 && KEEP_BECOMES_LIFT -> kept : 0)
#define MAY_HOLD(c, p) (IS_CURRENT(c) && IS_SINGLE(c, p) && WANTS(c, p) && TOGETHER - KEPT_FOR(p) + NEEDS(c, p) <= hard && \
                        (!IN_GANG(p) || HAS_STARTED(c) || !GANG_IS_COMPLETE || IS_COMPLETE(c)))
#define GANG_MAY_HOLD(c) (GANG && IS_CURRENT(c) && !IS_SINGLE(c, 0) && (IS_COMPLETE(c) || !GANG_IS_COMPLETE) && \
                          (WANTS(c, 0) || WANTS(c, 1)) && TOGETHER + NEEDS(c, 0) + NEEDS(c, 1) <= hard)

inline print_turn(c, gives_back, p) { printf("turn gives_back=%d pod=%d", gives_back, p); print_list(c); print_ledger(); printf("\n") }
inline has_turned(c) { counted_revision = seen[c].revision; written(); see(c); seen[c].settled = true }
inline hold(c, p) {
  print_turn(c, 0, p);
  check_replaced(p);
  held[p] = seen[c].demand[p]; kept = kept - KEPT_FOR(p);
  has_turned(c)
}
inline hold_gang(c) {
  print_turn(c, 0, 0);
  if :: WANTS(c, 0) -> held[0] = seen[c].demand[0] :: else fi;
  if :: WANTS(c, 1) -> held[1] = seen[c].demand[1] :: else fi;
  has_turned(c)
}

#define IS_SHORT(c, p) (SHORT_IS_GIVEN_BACK && SHOWN(c, p) == GATED && held[p] < seen[c].demand[p])
#define CANNOT(c, p) (TOGETHER > hard || IS_SHORT(c, p))
#define GIVES_BACK(c, p) (!IN_GANG(p) && IS_CURRENT(c) && held[p] && CANNOT(c, p))
#define GANG_GIVES_BACK(c) (GANG && IS_CURRENT(c) && (held[0] || held[1]) && !(STARTED_GANG_HOLDS && HAS_STARTED(c)) && \
                            (CANNOT(c, 0) || CANNOT(c, 1) || (GANG_IS_COMPLETE && !IS_COMPLETE(c))))
inline give_back(c, p) { print_turn(c, 1, p); held[p] = 0; has_turned(c) }
inline give_back_gang(c) { print_turn(c, 1, 0); held[0] = 0; held[1] = 0; has_turned(c) }

/* webhook/controller/waiting_line.py: WaitingLine.start */
#define IS_ENOUGH(c, p) (held[p] >= seen[c].demand[p] || SHOWN(c, p) != GATED || !GANG_IN_ONE_WRITE)
#define MAY_SEND(c, p) (IS_CURRENT(c) && SHOWN(c, p) == GATED && !seen[c].tried[p])
#define CAN_BE_SENT(request, p) (request[p] == new || request[p] == ended)
#define MAY_LIFT(c, p) (MAY_SEND(c, p) && held[p] && held[p] >= seen[c].demand[p] && !begun[p] && CAN_BE_SENT(lift, p) && \
                        (!IN_GANG(p) || HAS_STARTED(c) || (IS_ENOUGH(c, 0) && IS_ENOUGH(c, 1))))
#define MAY_LIFT_AGAIN(c, p) (p < RETRIES && MAY_SEND(c, p) && begun[p] && CAN_BE_SENT(again, p))

#define STEPS(p) \
  :: d_step { RIPENS(c, p) -> ripen(c, p) } \
  :: d_step { MAY_HOLD(c, p) -> hold(c, p) } \
  :: d_step { GIVES_BACK(c, p) -> give_back(c, p) } \
  :: d_step { MAY_LIFT(c, p) -> lift[p] = sent; lift_version[p] = seen[c].version[p]; seen[c].tried[p] = true } \
  :: d_step { MAY_LIFT_AGAIN(c, p) -> again[p] = sent; again_version[p] = seen[c].version[p]; seen[c].tried[p] = true }

proctype Controller(byte c) {
end:
  do
  :: d_step { WORTH_LISTING(c) -> lists(c) }
  :: d_step { seen[c].listed && !seen[c].settled && REACHES(c) -> counts(c) }
#if REPLACES
  :: d_step { unkept -> unkept = false; kept = 1; written() }
  :: d_step { !KEEP_BECOMES_LIFT && kept && IS_CURRENT(c) && WANTS(c, 1) -> kept = 0; has_turned(c) }
#endif
  :: d_step { GANG_MAY_HOLD(c) -> hold_gang(c) }
  :: d_step { GANG_GIVES_BACK(c) -> give_back_gang(c) }
  STEPS(0)
  STEPS(1)
#if PODS > 2
  STEPS(2)
#endif
  od;
  skip
}

/* ---- API server and people */

inline stores(p) { revision++; version[p]++; check_everyone_is_covered() }
#define CAN_FAIL (!stopped && failures < FAILURES)
#define MAY_COME(p) (!REPLACES || p != 1 || (pod[0] == GONE && !succeeded && asks))
#define IS_STALE(at, p) (pod[p] != GATED || version[p] != at[p])

#define ACTS(p) \
  :: d_step { !stopped && create[p] == new && MAY_COME(p) -> gated[p] = true; creates(p) } \
  :: d_step { !stopped && create[p] == new && p == NEWCOMER -> gated[p] = false; creates(p) } \
  :: d_step { create[p] == allowed -> create[p] = ended; pod[p] = (gated[p] -> GATED : FREE); stores(p) } \
  :: d_step { create[p] == allowed && CAN_FAIL -> failures++; create[p] = ended } \
  :: d_step { lift[p] == sent -> lifts(p) } \
  :: d_step { lift[p] == allowed && !IS_STALE(lift_version, p) -> lift[p] = ended; pod[p] = FREE; stores(p) } \
  :: d_step { lift[p] == allowed && IS_STALE(lift_version, p) -> lift[p] = ended } \
  :: d_step { lift[p] == allowed && CAN_FAIL -> failures++; lift[p] = ended } \
  :: d_step { again[p] == sent -> again[p] = (IS_STALE(again_version, p) -> ended : read) } \
  :: d_step { again[p] == read -> review_lift(p, again[p], again_version[p], 1) } \
  :: d_step { again[p] == allowed && !IS_STALE(again_version, p) -> again[p] = ended; pod[p] = FREE; stores(p) } \
  :: d_step { again[p] == allowed && IS_STALE(again_version, p) -> again[p] = ended } \
  :: d_step { again[p] == allowed && CAN_FAIL -> failures++; again[p] = ended } \
  :: d_step { !stopped && OWNER_LIFTS && own[p] == new && pod[p] == GATED -> own[p] = sent; own_version[p] = version[p] } \
  :: d_step { own[p] == sent -> lifts_own(p) } \
  :: d_step { own[p] == allowed && !IS_STALE(own_version, p) -> own[p] = ended; pod[p] = FREE; stores(p) } \
  :: d_step { own[p] == allowed && IS_STALE(own_version, p) -> own[p] = ended } \
  :: d_step { !stopped && deletions < DELETIONS && (pod[p] == GATED || pod[p] == FREE) -> deletions++; pod[p] = GONE; stores(p) } \
  :: d_step { !stopped && RAISES && p == 0 && pod[p] == GATED && demand[p] == 1 -> demand[p] = 2; stores(p) }                      /* an owner */ \
  :: d_step { !stopped && RAISES && p == 0 && pod[p] == GATED && demand[p] == 1 && lift[p] != allowed && again[p] != allowed -> demand[p] = 2; revision++ }  /* its nodes */

proctype World() {
end:
  do
  ACTS(0)
  ACTS(1)
#if PODS > 2
  ACTS(2)
#endif
#if REPLACES
  :: d_step { !stopped && pod[0] == FREE -> pod[0] = GONE; stores(0) }
  :: d_step { !stopped && pod[0] == FREE -> pod[0] = GONE; succeeded = true; stores(0) }
  :: d_step { !stopped && asks -> asks = false; revision++ }
  :: d_step { !stopped && kept && !late -> late = true; revision++ }
#endif
  :: d_step { !stopped && LOWERS && moves < 2 -> moves++; hard = (moves == 1 -> HARD - 1 : HARD); written() }
  :: d_step { !stopped -> stopped = true }
  od;
  skip
}

#define IS_GATED(p) (pod[p] == GATED)
#define GANG_RUNS (GANG && (pod[0] == FREE || pod[1] == FREE))
#define SETTLED(p) (!creation[p] && !begun[p] && !changed[p] && (!held[p] || (IS_GATED(p) && IN_GANG(p) && GANG_RUNS)) && used[p] == (pod[p] == FREE -> demand[p] : 0) && waiting[p] == IS_GATED(p))
#define HAS_STARTED_OR_IS_TOO_LARGE(p) (!IS_GATED(p) || (IN_GANG(p) && !GANG_RUNS) || TOGETHER - held[p] - KEPT_FOR(p) + demand[p] > hard)
#define GANG_FITS (GANG && IS_GATED(0) && IS_GATED(1) && TOGETHER - held[0] - held[1] + demand[0] + demand[1] <= hard)

proctype Quiet() {           /* L1 */
  timeout ->
  assert(ALL(SETTLED));
  assert(!kept || IS_REPLACED || !REPLACES);
  assert(ALL(HAS_STARTED_OR_IS_TOO_LARGE) && !GANG_FITS)
}

init {
  atomic {
#if REPLACES
    pod[0] = FREE; create[0] = ended; used[0] = 1;
#endif
    run Controller(0); run World(); run Quiet();
#if CONTROLLERS > 1
    run Controller(1);
#endif
    skip
  }
}
