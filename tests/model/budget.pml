/* Budgets of GPU-hours, for spin: every interleaving of a small instance.

Two controllers that watch, compute, swap and crash, a clock of each, the ledger, the note of a deleted quota, and people who delete the quota,
create it again and change its spec. `tests/model/run` checks each instance whole, and once without each rule.

What each inline stands for is named above it. One GPU is held all the time, so an interval of one tick adds one.

  B1  no interval is in a sum twice
  B2  every interval from the first count to `until` is in the sum, or reported as unknown
  B3  of two controllers the one that is killed has counted until the other one watched, if that one has watched for a while, and
      the killed one led, or outlived the leader for long enough to see its Lease late. So nothing between is unknown
  L1  no run is infinite

What quota.pml checks is taken as given: who may create and delete a ledger, and when. Not modelled: what is held, the end of a period, at which a sum
begins again, and VerdictReason.BUDGET_SPENT, which compares the sum with what is granted.
*/

/* ---- Rules: each can be switched off with -D<RULE>=0 */

/* the sum is written by swap; without it: a late write of an older count replaces a newer one, whose beginning nobody remembers (B2) */
#ifndef SPENDING_GOES_BY_SWAP
#define SPENDING_GOES_BY_SWAP 1
#endif
/* a count adds from the moment in the ledger; without it: from its own last count: an interval that another one counted is added again,
   or is missed (B1, B2) */
#ifndef FROM_THE_LEDGERS_MOMENT
#define FROM_THE_LEDGERS_MOMENT 1
#endif
/* that moment never goes back; without it: a clock is behind: what was counted is counted again (B1) */
#ifndef UNTIL_NEVER_GOES_BACK
#define UNTIL_NEVER_GOES_BACK 1
#endif
/* what nobody watched is reported; without it: a restart: an interval is missing (B2) */
#ifndef GAP_IS_REPORTED
#define GAP_IS_REPORTED 1
#endif
/* a Lease runs out soon; without it: the leader is killed, comes back, and then the follower is killed before it led: what it saw is
   unknown (B3) */
#ifndef FOLLOWER_TAKES_OVER_SOON
#define FOLLOWER_TAKES_OVER_SOON 1
#endif
/* a changed spec keeps the sum; without it: the sum is lost (B2) */
#ifndef SPEC_KEEPS_SPENDING
#define SPEC_KEEPS_SPENDING 1
#endif
/* the sum is noted before its ledger is deleted; without it: the same as without SPEC_KEEPS_SPENDING */
#ifndef NOTED_BEFORE_DELETED
#define NOTED_BEFORE_DELETED 1
#endif
/* and taken up by the next ledger; without it: the same as without NOTED_BEFORE_DELETED */
#ifndef NOTE_IS_TAKEN_UP
#define NOTE_IS_TAKEN_UP 1
#endif
/* a note never replaces a later one; without it: a controller notes late, after another one counted on: the sum goes back (B2) */
#ifndef NOTE_NEVER_GOES_BACK
#define NOTE_NEVER_GOES_BACK 1
#endif
/* only that version of a ledger is deleted that was noted; without it: what was counted in between is lost (B2) */
#ifndef NOTED_LEDGER_GOES_BY_SWAP
#define NOTED_LEDGER_GOES_BY_SWAP 1
#endif

/* ---- Instances */

#ifdef SPENT             /* a clock that lags, a crash, a changed spec */
#define TICKS 4
#define CRASHES 1
#define SPECS 1
#define LAG 1
#endif
#ifdef NOTED             /* the quota is deleted and created again, twice */
#define TICKS 3
#define DELETIONS 2
#endif
#ifdef KILLED            /* the leader is killed, comes back, and then the follower is killed. Every tick something comes and goes */
#define TICKS 5
#define CRASHES 2
#define LEASE 3
#endif
#ifndef LEASE
#define LEASE 0          /* 0: every controller counts at any time */
#endif
#define LATE 1
#ifndef CONTROLLERS
#define CONTROLLERS 2
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef SPECS
#define SPECS 0
#endif
#ifndef DELETIONS
#define DELETIONS 0
#endif
#ifndef LAG
#define LAG 0
#endif

typedef Sum {
  bool begun;
  byte until;                /* intervals before it are counted */
  byte has[TICKS];           /* how often the interval from this tick to the next is in the sum */
  bool reported[TICKS]           /* as unknown */
};

byte now;
byte lag;                    /* of the clock of controller 0 */
byte origin = TICKS;         /* of the first count */
bool quota = true;
byte crashes, specs, deletions;

bool exists;                 /* the ledger */
Sum ledger;
bool is_noted;
Sum note;

/* ---- Controllers */

#define IDLE 0
#define COMPUTED 1
#define HAS_NOTED 2
byte stage[2];
bool fresh[2];               /* the ledger is still what it has read */
Sum copy[2];                 /* and what it makes of it */
byte watches_since[2];
byte forgot[2];              /* what was held before is not remembered */
byte own_last[2];
#define NOBODY 2
byte leader;
byte age;                    /* of the Lease of a leader that was killed */
bool down[2];

#define CLOCK(c) ((c) == 0 && now > lag -> now - lag : now)

/* A follower leads, and counts, once the Lease of the leader has run out. */
#define COUNTS(c) (!down[c] && (!LEASE || leader == c || leader == NOBODY && FOLLOWER_TAKES_OVER_SOON && age >= LATE))
#define IS_COUNTED(c) (!COUNTS(c) || ledger.begun && ledger.until == now)

inline written(c) { fresh[0] = false; fresh[1] = false; fresh[c] = true }

inline assign(to, from) {
  to.begun = from.begun; to.until = from.until;
  i = 0;
  do
  :: i < TICKS -> to.has[i] = from.has[i]; to.reported[i] = from.reported[i]; i++
  :: else -> break
  od;
  skip
}

inline clear(sum) {
  sum.begun = false; sum.until = 0;
  i = 0;
  do
  :: i < TICKS -> sum.has[i] = 0; sum.reported[i] = false; i++
  :: else -> break
  od;
  skip
}

inline check(sum) {
  i = 0;
  do
  :: i < TICKS ->
     assert(sum.has[i] <= 1);                                                            /* B1 */
     assert(!(sum.begun && i >= origin && i < sum.until) || sum.has[i] || sum.reported[i]);  /* B2 */
     i++
  :: else -> break
  od;
  skip
}

/* webhook/controller/usage_counter.py: UsageCounter.follow */
/* webhook/controller/namespace_sum.py: UsageHistory.forget */
inline see(c) {
  assign(copy[c], ledger);
  fresh[c] = true;
  if
  :: ledger.until > forgot[c] -> forgot[c] = ledger.until
  :: else
  fi;
  stage[c] = IDLE;
  skip
}

/* policies/quota/budget.py: advance */
/* webhook/controller/usage_sums.py: UsageSums.spending */
inline advance(c) {
  if
  :: !copy[c].begun && is_noted && NOTE_IS_TAKEN_UP -> assign(copy[c], note)   /* webhook/controller/reconciler.py: QuotaReconciler._with_noted_spending */
  :: else
  fi;
  at = CLOCK(c);
  since = (FROM_THE_LEDGERS_MOMENT -> copy[c].until : own_last[c]);
  if
  :: !copy[c].begun ->
     copy[c].begun = true; copy[c].until = at
  :: copy[c].begun && (at > copy[c].until || !UNTIL_NEVER_GOES_BACK) ->
     i = since;
     do
     :: i < at && i < TICKS ->
        if
        :: i >= watches_since[c] && i >= forgot[c] -> copy[c].has[i] = copy[c].has[i] + 1
        :: i < watches_since[c] && GAP_IS_REPORTED -> copy[c].reported[i] = true
        :: else
        fi;
        i++
     :: else -> break
     od;
     copy[c].until = at;
     own_last[c] = at
  :: else
  fi;
  skip
}

proctype Controller(byte c) {
  byte i, at, since;
end:
  do
     /* webhook/controller/reconciler.py: QuotaReconciler.current */
  :: d_step { exists && !down[c] && !fresh[c] && stage[c] == IDLE -> see(c) }
  :: d_step { quota && !exists && COUNTS(c) && stage[c] == IDLE -> exists = true; clear(ledger); written(c); assign(copy[c], ledger) }
     /* webhook/controller/reconciler.py: QuotaReconciler._count_now, QuotaReconciler._write */
     /* A crash may come between the two. */
  :: d_step { exists && quota && COUNTS(c) && fresh[c] && stage[c] == IDLE && (!copy[c].begun || CLOCK(c) > copy[c].until || !UNTIL_NEVER_GOES_BACK && CLOCK(c) < copy[c].until) ->
              advance(c); stage[c] = COMPUTED }
  :: d_step { stage[c] == COMPUTED ->
              stage[c] = IDLE;
              if
              :: exists && (fresh[c] || !SPENDING_GOES_BY_SWAP) ->
                 assign(ledger, copy[c]);
                 origin = (origin == TICKS -> ledger.until : origin);
                 check(ledger);
                 written(c)
              :: else -> fresh[c] = false
              fi }
     /* webhook/controller/reconciler.py: QuotaReconciler._follow_spec */
  :: d_step { exists && quota && fresh[c] && stage[c] == IDLE && specs < SPECS ->
              specs++;
              if
              :: SPEC_KEEPS_SPENDING
              :: else -> clear(ledger)
              fi;
              written(c); assign(copy[c], ledger) }
     /* webhook/controller/reconciler.py: QuotaReconciler._note_spending */
     /* webhook/quota/config_maps.py: BudgetNotes.put */
  :: d_step { exists && !quota && fresh[c] && stage[c] == IDLE ->
              stage[c] = HAS_NOTED;
              if
              :: copy[c].begun -> advance(c)
              :: else
              fi }
  :: d_step { stage[c] == HAS_NOTED ->
              stage[c] = HAS_NOTED + 1;
              if
              :: copy[c].begun && NOTED_BEFORE_DELETED && (!is_noted || note.until < copy[c].until || !NOTE_NEVER_GOES_BACK) ->
                 assign(note, copy[c]); check(note); is_noted = true
              :: else
              fi }
     /* webhook/quota/cluster_store.py: ClusterStore.delete */
  :: d_step { stage[c] == HAS_NOTED + 1 ->
              stage[c] = IDLE;
              if
              :: exists && !quota && (fresh[c] || !NOTED_LEDGER_GOES_BY_SWAP) -> exists = false; clear(ledger); fresh[0] = false; fresh[1] = false
              :: else -> fresh[c] = false
              fi }
     /* it is killed */
  :: d_step { crashes < CRASHES && !down[c] ->
              if
              :: LEASE && ledger.begun && !down[1 - c] && watches_since[1 - c] < now && (leader == c || leader == NOBODY && age > LATE) ->
                 assert(ledger.until >= watches_since[1 - c])                             /* B3 */
              :: else
              fi;
              crashes++; stage[c] = IDLE; fresh[c] = false; down[c] = true;
              if
              :: leader == c -> leader = NOBODY; age = 0
              :: else
              fi }
     /* it is restarted, and watches from now on */
  :: d_step { down[c] -> down[c] = false; forgot[c] = 0; own_last[c] = CLOCK(c); watches_since[c] = CLOCK(c) }
     /* webhook/cluster/leader.py: LeaderElector.try_once */
  :: d_step { LEASE && leader == NOBODY && age >= LEASE && !down[c] -> leader = c }
  od
}

proctype World() {
end:
  do
     /* What comes and goes is counted before the next tick. */
  :: d_step { now < TICKS && (!LEASE || IS_COUNTED(0) && IS_COUNTED(1)) -> now++; age = (leader == NOBODY -> age + 1 : 0) }
  :: d_step { quota && deletions < DELETIONS -> deletions++; quota = false }
  :: d_step { !quota -> quota = true }
  od
}

init {
  if
  :: lag = 0
  :: lag = LAG
  fi;
  atomic {
    run Controller(0); run World();
#if CONTROLLERS > 1
    run Controller(1);
#endif
    skip
  }
}
