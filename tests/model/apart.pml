/* Objects that never wait under our gate, beside a line that is never empty, for spin: every history of rounds of a small instance.

In a round, who wants to come comes in any order, what runs may end, and has ended a round later, and a controller counts once and takes a turn.
Strangers come without end: pods under the gate, and a tenant who polls with objects that never wait, and may stay away at any time.
`tests/model/run` checks each instance whole, and once without each rule.

What each inline stands for is named above it. tests/policies/quota/test_apart_histories.py draws such histories, and does them with those functions.

  S1  what runs and what is held never exceeds `hard`
  F   who is watched starts before it was in line for ROUNDS: a pod, or an object that never waits and keeps coming while others wait. Where
      nobody waits in line there is none: such objects compete for what is free, as in a namespace that does not queue

What waiting.pml checks is taken as given: a decision and its write are one step, and what is held for a pod starts it.
*/

/* ---- Rules: each can be switched off with -D<RULE>=0 */

/* what the first in line lacks is closed; without it: each GPU that becomes free is taken at once: a head of two never starts (F) */
#ifndef SCARCE_IS_CLOSED
#define SCARCE_IS_CLOSED 1
#endif
/* who is denied has a mark; without it: each GPU that becomes free is the line's: an object of two never comes (F) */
#ifndef DENIED_IS_MARKED
#define DENIED_IS_MARKED 1
#endif
/* the mark keeps its place when its object is denied again; without it: it is always the last (F) */
#ifndef MARK_KEEPS_ITS_PLACE
#define MARK_KEEPS_ITS_PLACE 1
#endif
/* the quota is held for the mark whose turn it is; without it: when its object comes, others have it (F) */
#ifndef MARK_IS_HELD_FOR
#define MARK_IS_HELD_FOR 1
#endif
/* the mark goes with its object; without it: who polls is always the first (F) */
#ifndef MARK_GOES_WITH_ITS_OBJECT
#define MARK_GOES_WITH_ITS_OBJECT 1
#endif
/* the mark goes if nobody comes; without it: what is held for it stays held, and nobody uses it (F) */
#ifndef LATE_MARK_GOES
#define LATE_MARK_GOES 1
#endif

/* ---- Instances. Two GPUs; strangers need one each, who is watched needs both. */

#ifdef IN_LINE               /* a pod under the gate */
#define IS_APART 0
#endif
#ifdef KEEPS_COMING          /* an object that never waits, whose owner tries again in each round */
#define IS_APART 1
#endif

#define HARD 2
#define LONGEST 3            /* strangers under the gate in line */
#define ROUNDS 8
#define LATE 2               /* rounds without another attempt after which a mark goes */

/* ---- The line: places by age. A place has a stranger under the gate, a mark, or who is watched. */

#define NOBODY 0
#define POD 1
#define STRANGERS_MARK 2
#define WATCHED 3            /* a pod, or a mark */
#define PLACES 6
byte place[PLACES];
byte held[PLACES];           /* for a mark whose turn it is */
bool scarce;                 /* the first in line lacks a GPU */

byte young;                  /* GPUs of strangers that started since the last count, */
byte old;                    /* and earlier */
byte silent;                 /* rounds since the polling tenant came */
byte rounds;                 /* in line of who is watched */
bool came;
bool denied;                 /* while others waited */
bool started;

hidden byte i; hidden byte j; hidden byte found; hidden byte sum; hidden byte wants_to_poll; hidden byte wants_to_come; hidden byte comes;

#define NEEDS(kind) ((kind) == WATCHED -> 2 : 1)
#define HELD (held[0] + held[1] + held[2] + held[3] + held[4] + held[5])
#define TAKEN (young + old + HELD)
#define ARE(kind) ((place[0] == (kind)) + (place[1] == (kind)) + (place[2] == (kind)) + (place[3] == (kind)) + (place[4] == (kind)) + (place[5] == (kind)))

inline check_fits() { assert(TAKEN <= HARD) }   /* S1 */

inline find(kind) {
  found = 0;
  do
  :: found < PLACES && place[found] != kind -> found++
  :: else -> break
  od
}

inline remove_found() {
  i = found;
  do
  :: i < PLACES - 1 -> place[i] = place[i + 1]; held[i] = held[i + 1]; i++
  :: else -> break
  od;
  place[PLACES - 1] = NOBODY; held[PLACES - 1] = 0
}

inline join(kind) {
  find(NOBODY);
  if
  :: found < PLACES -> place[found] = kind
  :: else
  fi
}

/* policies/quota/ledger/decide.py: _Batch._reserve_without_gate; policies/quota/ledger/credits.py: marked */
inline comes_apart(kind, mark) {
  find(mark);
  if
  :: found < PLACES && held[found] ->
     comes = true; held[found] = 0;
     if
     :: MARK_GOES_WITH_ITS_OBJECT -> remove_found()
     :: else
     fi
  :: else ->
     comes = TAKEN + NEEDS(kind) <= HARD && !(scarce && SCARCE_IS_CLOSED);
     if
     :: comes && found < PLACES -> remove_found()
     :: !comes && found == PLACES && scarce && DENIED_IS_MARKED -> join(mark)
     :: !comes && found < PLACES && !MARK_KEEPS_ITS_PLACE -> remove_found(); join(mark)
     :: else
     fi
  fi;
  if
  :: comes && kind == WATCHED -> started = true
  :: comes && kind != WATCHED -> young++
  :: else
  fi;
  check_fits()
}

/* policies/quota/line.py: next_to_start. What is held for a pod starts it. */
inline takes_turn() {
  scarce = false; j = 0;
  do
  :: j < PLACES && place[j] != NOBODY && !scarce ->
     if
     :: held[j] -> j++
     :: else ->
        if
        :: TAKEN + NEEDS(place[j]) > HARD -> scarce = true
        :: else ->
           found = j;
           if
           :: place[j] == POD -> young++; remove_found()
           :: place[j] == WATCHED && !IS_APART -> started = true; remove_found()
           :: else ->
              if
              :: MARK_IS_HELD_FOR -> held[j] = NEEDS(place[j])
              :: else
              fi;
              j++
           fi
        fi
     fi
  :: else -> break
  od;
  check_fits()
}

/* policies/quota/ledger/quota_ledger.py: QuotaLedger.without_late_marks */
inline late_mark_goes() {
  find(STRANGERS_MARK);
  if
  :: LATE_MARK_GOES && silent >= LATE && found < PLACES -> remove_found()
  :: else
  fi
}

init {
  takes_turn();
  do
  :: !started ->
     atomic {
       assert(rounds < ROUNDS)                       /* F */;
       if
       :: !came -> came = true; if :: !IS_APART -> join(WATCHED) :: else fi
       :: !came
       :: came
       fi;
       wants_to_come = came && IS_APART;
       if :: wants_to_poll = true; silent = 0 :: wants_to_poll = false; silent = (silent < LATE -> silent + 1 : LATE) fi;
       do                                            /* in any order, and the strangers as often as they like */
       :: ARE(POD) < LONGEST -> join(POD)
       :: wants_to_poll && !started -> comes_apart(POD, STRANGERS_MARK); wants_to_poll = false
       :: wants_to_come && !started -> denied = scarce; rounds = rounds + scarce; comes_apart(WATCHED, WATCHED); wants_to_come = false
       :: !wants_to_come || started -> break
       :: old -> old--                               /* ends */
       od;
       if :: wants_to_poll && !started -> comes_apart(POD, STRANGERS_MARK) :: else fi;
       old = young; young = 0;                       /* what started before the last count has ended */
       late_mark_goes();
       takes_turn();
       rounds = rounds + (came && !IS_APART)
     };
     if
     :: !came || (IS_APART && !denied) -> progress_nobody_is_passed: skip
     :: else
     fi
  :: else -> break
  od
}
