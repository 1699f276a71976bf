/* The quota protocol, for spin: every interleaving of a small instance.

One quota and its ledger, serve processes that reserve on the ledger, controllers that count and bring the quota's spec into the
ledger, an API server that stores and deletes, an administrator.
`tests/model/run` checks each instance whole, and once without each rule, whose comment says what then goes wrong.

What each inline stands for is named above it; tests/test_model.py replays what the inlines decide with those functions.

  S1  what is admitted fits: what is stored or admitted never grows beyond the `hard` in force, which is that of the ledger; and that is
      never older than one that was in force
  S2  every stored, live object that was admitted under the quota is in `used` or in entries
  L1  once nothing arrives any more, entries are empty and `used` is what is stored: no run is infinite (pan -l), and the
      state in which every run ends is such a one (Quiet)

Time is order. A request ends when nothing of it can be stored any more (it failed, or the API server's bound has passed); an
entry matures in a controller that saw it only after that. A pause is a step not taken, and a crash one that is never taken:
a restarted controller knows no more than one that looks for the first time.

Not modelled, because they only refuse: VerdictReason.FULL, VerdictReason.UNCOUNTABLE, Refused.OTHER_CATALOGUE, Refused.UNMARKED. Nor that a catalogue is published
before a ledger names it as its catalogue version: a serve that does not know a catalogue version refuses.
*/

/* ---- Rules: each can be switched off with -D<RULE>=0 */

/* serve writes by swap; without it: two decisions on one ledger, or a count overwritten: the quota is exceeded. Replayed:
   two_replicas_decide_on_one_ledger */
#ifndef SWAP_IN_SERVE
#define SWAP_IN_SERVE 1
#endif
/* the controller writes by swap; without it: a reservation that was added meanwhile is lost: the quota is exceeded. Replayed:
   serve_reserves_while_a_controller_counts */
#ifndef SWAP_IN_CONTROLLER
#define SWAP_IN_CONTROLLER 1
#endif
/* hard is of the same ledger; without it: a decision on an old hard: the quota is exceeded. Replayed: hard_is_lowered_under_a_decision */
#ifndef HARD_IN_LEDGER
#define HARD_IN_LEDGER 1
#endif
/* fence by revision of the lists; without it: C0 lists; a pod is stored; C1 lists and reconciles, its reservation goes; C0 reconciles
   with the old list: the pod is in neither used nor a reservation. Replayed: an_old_list_comes_late */
#ifndef FENCE
#define FENCE 1
#endif
/* the fence lets equal revisions pass; without it: the revision does not move: a reservation is never given up. Replayed:
   nothing_moves_while_an_entry_waits */
#ifndef FENCE_NOT_STRICT
#define FENCE_NOT_STRICT 1
#endif
/* claims have a fence of their own; without it: the same list of pods with an older one of claims: the claim is in neither used nor a
   reservation. Replayed: an_old_list_of_claims_with_a_new_one_of_pods */
#ifndef FENCE_CLAIMS
#define FENCE_CLAIMS 1
#endif
/* nodes have a fence of their own; without it: the same with nodes: the class of a bound pod is lost. Replayed: nodes_are_fenced_too */
#ifndef FENCE_NODES
#define FENCE_NODES 1
#endif
/* a reservation goes only with the used that replaces it; without it: the reservation goes first: a gap in which another pod fits.
   Replayed: an_entry_goes_before_it_is_counted */
#ifndef ENTRY_GOES_WITH_USED
#define ENTRY_GOES_WITH_USED 1
#endif
/* expiry by what this process has seen; without it: another clock: given up while it can still be stored. Replayed:
   a_foreign_clock_says_expired */
#ifndef EXPIRY_BY_OWN_SIGHT
#define EXPIRY_BY_OWN_SIGHT 1
#endif
/* expiry by a list begun after that; without it: a list from before: it lacks the pod that was stored meanwhile. Replayed:
   a_list_from_before_the_bound */
#ifndef EXPIRY_BY_LATER_LIST
#define EXPIRY_BY_LATER_LIST 1
#endif
/* expiry; without it: the creation fails after it was admitted: the reservation is held forever. Replayed:
   a_create_fails_after_it_was_allowed */
#ifndef EXPIRY
#define EXPIRY 1
#endif
/* gone is what a watch showed deleted, or a list lacks that was held before, not all that a list lacks; without it: a list lacks what is
   still being created: its reservation goes, and it is stored uncounted. Replayed: a_list_lacks_what_is_being_created */
#ifndef GONE_IS_TOLD
#define GONE_IS_TOLD 1
#endif
/* what was not counted denies; without it: what runs already counts as zero: the quota is exceeded. Replayed:
   a_quota_for_what_runs_already */
#ifndef UNINITIALISED_DENIES
#define UNINITIALISED_DENIES 1
#endif
/* initialised by lists begun after the quota was read; without it: a list from before, a pod stored, the quota replaced: the pod is in
   neither used nor a reservation. Replayed: a_list_from_before_the_quota */
#ifndef INITIALISE_BY_LATER_LIST
#define INITIALISE_BY_LATER_LIST 1
#endif
/* "no quota" is believed for D at most after a read of the quota or the epoch; without it: a replica still believes it of a quota in
   force: admitted uncounted. Replayed: a_replica_still_believes_in_no_quota */
#ifndef NO_QUOTA_IS_RECENT
#define NO_QUOTA_IS_RECENT 1
#endif
/* nothing is initialised before D; without it: the same as without NO_QUOTA_IS_RECENT. Replayed: a_replica_still_believes_in_no_quota */
#ifndef INITIALISE_AFTER_WAIT
#define INITIALISE_AFTER_WAIT 1
#endif
/* it is believed only in the epoch in which it was read; without it: the epoch is raised, and a replica that reads it believes on: the
   same. Replayed: a_replica_knows_of_another_epoch */
#ifndef BELIEF_IS_OF_THE_EPOCH
#define BELIEF_IS_OF_THE_EPOCH 1
#endif
/* that is the epoch known when the read began; without it: the epoch is raised during the read, whose answer is of before: the same.
   Replayed: an_epoch_is_raised_during_a_read */
#ifndef BELIEF_FROM_BEFORE_THE_READ
#define BELIEF_FROM_BEFORE_THE_READ 1
#endif
/* a GET of the epoch is as old as its begin; without it: it is answered, the epoch is raised, and the answer comes late: it is believed
   for too long. Replayed: a_get_of_the_epoch_takes_long */
#ifndef EPOCH_FROM_ITS_BEGIN
#define EPOCH_FROM_ITS_BEGIN 1
#endif
/* D counts from after the swap that raises the epoch; without it: a GET comes before the swap, which takes long: it is believed for too
   long. Replayed: an_epoch_is_raised_slowly */
#ifndef WAIT_FROM_AFTER_THE_SWAP
#define WAIT_FROM_AFTER_THE_SWAP 1
#endif
/* "no quota" is checked again right before the answer; without it: a replica is stopped after it asked, and goes on when the quota
   counts: admitted uncounted. Replayed: a_replica_is_stopped_before_its_answer */
#ifndef BELIEVED_AT_THE_ANSWER
#define BELIEVED_AT_THE_ANSWER 1
#endif
/* a dimension that used lacks denies; without it: hard gains a class, which reads as zero: the quota is exceeded. Replayed:
   a_class_is_added_that_used_lacks */
#ifndef MISSING_KEY_DENIES
#define MISSING_KEY_DENIES 1
#endif
/* a reservation has every dimension; without it: hard gains a class; a creation in flight holds nothing of it: the quota is exceeded.
   Replayed: an_entry_knows_only_what_was_granted */
#ifndef ENTRY_IS_FULL
#define ENTRY_IS_FULL 1
#endif
/* every change has a reservation of its own; without it: the second change of a pod finds the first one's: uncounted. Replayed:
   two_changes_of_one_pod */
#ifndef CHANGE_HAS_OWN_ENTRY
#define CHANGE_HAS_OWN_ENTRY 1
#endif
/* a change's reservation stays until the pod is listed in a later version than was reviewed; without it: it goes because the pod is
   listed: the change is stored uncounted. Replayed: a_change_is_listed_before_it_is_stored */
#ifndef CHANGE_STAYS_UNTIL_NEWER
#define CHANGE_STAYS_UNTIL_NEWER 1
#endif
/* a change's reservation expires; without it: the update fails: the reservation is held forever. Replayed: a_change_that_fails */
#ifndef CHANGE_EXPIRES
#define CHANGE_EXPIRES 1
#endif
/* only what grows is reserved; without it: A → B frees A at once, and the update fails: the quota of A is exceeded. Replayed:
   a_change_frees_before_it_is_stored */
#ifndef CHANGE_ONLY_GROWS
#define CHANGE_ONLY_GROWS 1
#endif
/* a repeated call counts nothing; without it: counted twice. Replayed: a_call_is_repeated */
#ifndef RETRY_IS_IDEMPOTENT
#define RETRY_IS_IDEMPOTENT 1
#endif
/* serve removes no reservation; without it: one call takes back what another call was admitted on: the pod is in neither used nor a
   reservation. Replayed: a_repeated_call_gives_back */
#ifndef SERVE_NEVER_REMOVES
#define SERVE_NEVER_REMOVES 1
#endif
/* creations of one name hold the largest amount among them; without it: the smaller one comes first, and the larger one is stored: the
   quota is exceeded. Replayed: two_creations_of_one_name */
#ifndef NAME_HOLDS_LARGEST
#define NAME_HOLDS_LARGEST 1
#endif
/* less what is stored under the name, as the used of the same write has it; without it: that is deleted and counted, the creation goes
   on holding less: the quota is exceeded. Replayed: what_is_stored_under_a_name_is_deleted */
#ifndef STORED_NAME_IS_OF_USED
#define STORED_NAME_IS_OF_USED 1
#endif
/* a line that cannot be read denies; without it: it counts as nothing, and what it was for is stored: the quota is exceeded. Replayed:
   a_line_cannot_be_read */
#ifndef UNREADABLE_DENIES
#define UNREADABLE_DENIES 1
#endif
/* such a line waits for the bound; without it: it goes at once, and what it was for is stored uncounted. Replayed:
   a_line_that_cannot_be_read_is_dropped */
#ifndef UNREADABLE_WAITS
#define UNREADABLE_WAITS 1
#endif
/* while the ledger moves to another catalogue version, requests count under both; without it: a creation holds what it costs under the
   old one, and is counted by the next: the quota is exceeded. Replayed: a_creation_while_the_ledger_moves */
#ifndef CHARGED_BY_BOTH
#define CHARGED_BY_BOTH 1
#endif
/* the ledger flips once every reservation is marked with the next catalogue version; without it: the same, for a creation that was
   admitted before. Replayed: a_creation_from_before_the_ledger_moved */
#ifndef FLIP_WAITS_FOR_MARKS
#define FLIP_WAITS_FOR_MARKS 1
#endif
/* the flip is a count under the next catalogue version; without it: used is by the old one, and what is admitted by the next: the quota
   is exceeded. Replayed: a_pod_from_before_the_ledger_moved */
#ifndef FLIP_COUNTS_BY_NEXT
#define FLIP_COUNTS_BY_NEXT 1
#endif
/* a request is decided only if it was counted under every catalogue version of the ledger; without it: a replica that does not know the
   next catalogue version admits what costs more: the quota is exceeded. Replayed: a_replica_knows_only_the_old_version */
#ifndef VERSIONS_ARE_COUNTED
#define VERSIONS_ARE_COUNTED 1
#endif
/* slices of devices have a fence of their own; without it: the same with ResourceSlices: what a claim's devices became is lost.
   Replayed: slices_are_fenced_too */
#ifndef FENCE_SLICES
#define FENCE_SLICES 1
#endif
/* an allocated claim counts for its devices only once its pod is bound; without it: the binding fails, and the claim is allocated again, and
   larger: the quota is exceeded. Replayed: a_binding_fails */
#ifndef EXACT_ONCE_BOUND
#define EXACT_ONCE_BOUND 1
#endif
/* and only if it was generated for that pod; without it: the pod ends, and another one has the claim allocated again, and larger: the quota
   is exceeded. Replayed: a_claim_is_used_by_one_pod_after_another */
#ifndef EXACT_IF_GENERATED
#define EXACT_IF_GENERATED 1
#endif
/* by a list of claims that is not older than the binding; without it: it shows an allocation from before the binding failed once: the quota
   is exceeded. Replayed: a_list_of_claims_from_before_the_binding */
#ifndef ALLOCATION_IS_OF_THE_BINDING
#define ALLOCATION_IS_OF_THE_BINDING 1
#endif
/* what an allocation gives back is given back by a count; without it: the scheduler's update is reviewed, and fails: the quota is exceeded.
   Replayed: an_allocation_is_reviewed_and_fails */
#ifndef SHRINKS_BY_LIST
#define SHRINKS_BY_LIST 1
#endif
/* nobody takes a claim from the pod for which it was made; without it: its owner is removed, the pod ends, and another pod has the claim
   allocated again, and larger: the quota is exceeded. Replayed: a_claim_is_taken_from_its_pod */
#ifndef CLAIM_KEEPS_ITS_POD
#define CLAIM_KEEPS_ITS_POD 1
#endif
/* the garbage collector neither; without it: the pod is deleted with --cascade=orphan: the same. Replayed: a_claim_is_orphaned */
#ifndef COLLECTOR_KEEPS_ITS_POD
#define COLLECTOR_KEEPS_ITS_POD 1
#endif
/* nobody gives a claim to a pod but who makes claims for pods; without it: a pod may name the claim before, and has it allocated again, and
   larger, after the one that it was given to: the quota is exceeded. Replayed: a_claim_is_given_to_a_pod */
#ifndef CLAIM_IS_GIVEN_TO_NO_POD
#define CLAIM_IS_GIVEN_TO_NO_POD 1
#endif
/* no pod names a claim that was made for another; without it: the same, of a claim that still has its pod. Replayed:
   a_pod_names_the_claim_of_another */
#ifndef CLAIM_IS_ITS_PODS_ALONE
#define CLAIM_IS_ITS_PODS_ALONE 1
#endif
/* nor one that could not be read; without it: the same. Replayed: a_pod_names_a_claim_that_was_not_read */
#ifndef UNREAD_CLAIM_IS_NOT_NAMED
#define UNREAD_CLAIM_IS_NOT_NAMED 1
#endif
/* a claim from which a pod takes its devices counts for what it has beyond that pod; without it: it counts as part of the pod, whatever
   it has: the quota is exceeded. Replayed: a_claim_is_made_for_a_pod */
#ifndef CLAIM_IS_CHARGED_BEYOND
#define CLAIM_IS_CHARGED_BEYOND 1
#endif
/* and in full once the pod has ended; without it: the pod's part is counted for nobody: the quota is exceeded. Replayed:
   a_claim_outlives_its_pod */
#ifndef CLAIM_IS_CHARGED_ALONE
#define CLAIM_IS_CHARGED_ALONE 1
#endif
/* a claim that is gone counts until the pods for which it was reserved have ended; without it: the finalizer is removed by force: the
   devices are in use, and counted for nobody: the quota is exceeded. Replayed: a_claim_that_is_gone_before_its_pod */
#ifndef GONE_CLAIM_IS_CHARGED
#define GONE_CLAIM_IS_CHARGED 1
#endif
/* a pod that is not held has ended if a list of pods shows that which began after the claim was gone; without it: a list from before: it
   lacks a pod that runs. Replayed: a_claim_is_gone_beside_an_old_list_of_pods */
#ifndef GONE_CLAIM_AWAITS_LIST
#define GONE_CLAIM_AWAITS_LIST 1
#endif
/* the GPUQuota is read after the ledger that its spec goes into; without it: one controller reads the spec; it is lowered, and another
   one brings that in; the first one swaps: an older hard is in force. Replayed: a_spec_that_was_read_before_the_ledger */
#ifndef SPEC_IS_READ_AFTER_LEDGER
#define SPEC_IS_READ_AFTER_LEDGER 1
#endif
/* and after the ledger that goes because there is no GPUQuota; without it: the quota is there again, and the ledger is its own: what is
   reserved is lost. Replayed: a_quota_that_was_gone_before_its_ledger_was_read */
#ifndef GONE_IS_READ_AFTER_LEDGER
#define GONE_IS_READ_AFTER_LEDGER 1
#endif
/* only that version of a ledger is deleted after which the GPUQuota was read; without it: the same as without GONE_IS_READ_AFTER_LEDGER.
   Replayed: a_ledger_is_deleted_late */
#ifndef LEDGER_GOES_BY_SWAP
#define LEDGER_GOES_BY_SWAP 1
#endif
/* a ledger is initialised after the epoch was raised, and that after this very object was first seen, by lists begun after that; without
   it: a controller creates it late, of a quota that has gone: a controller that knew that quota counts it at once, by an old list, while
   a replica believes in none; the next quota takes it over. Replayed: a_ledger_of_a_quota_that_was_known_before */
#ifndef SEEN_IS_THE_LEDGER
#define SEEN_IS_THE_LEDGER 1
#endif
/* sums, objects and revision of a count are of one moment; without it: the reservation goes with a pod that is not in the sums yet: the
   pod is in neither used nor a reservation. Replayed: sums_that_lag_behind_their_revision */
#ifndef SUMS_ARE_OF_THE_REVISION
#define SUMS_ARE_OF_THE_REVISION 1
#endif
/* what the watch showed later than a list stays when the list is complete; without it: what the list lacks is lost, and the revision
   says that it was counted: the pod is in neither used nor a reservation. Replayed: a_list_ends_while_the_watch_goes_on */
#ifndef LATER_EVENT_WINS
#define LATER_EVENT_WINS 1
#endif

/* ---- Vectors of two keys in one byte: VECTOR(gpus, a class) */

#define VECTOR(first, second) ((first) + 4 * (second))
#define AMOUNT(vector, key) (((vector) >> (2 * (key))) & 3)
#define UNLIMITED 3
#define TERMINAL_SHOWN 255

/* ---- Instances. Objects 0.. are created by requests of the same number; requests OBJECTS.. change object 0. */

#define PODS 0
#define CLAIMS 1
#define NODES 2
#define SLICES 3

#ifdef CORE              /* two pods of which one fits, deletions, terminal pods */
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define HARD(generation) VECTOR(1, UNLIMITED)
#define DELETIONS 1
#endif
#ifdef LOWERED           /* `hard` lowered and raised again while two pods are created */
#define CONTROLLERS 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define GENERATIONS 3
#define HARD(generation) VECTOR((generation == 1 -> 1 : 2), UNLIMITED)
#endif
#ifdef SWAPPED           /* `hard` changes twice while two controllers bring it into the ledger */
#define SERVES 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define GENERATIONS 3
#define HARD(generation) VECTOR((generation == 1 -> 1 : 2), UNLIMITED)
#define UNCALLED 1
#endif
#ifdef RECREATED         /* a quota is created, and replaced, while two controllers create and remove the ledger */
#define SERVES 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define HARD(generation) VECTOR(1, UNLIMITED)
#define FIRST_UID 0
#define UIDS 2
#define UNCALLED 1
#endif
#ifdef REPLACED          /* a quota is created, and replaced, while pods are created by a replica that remembers "no quota" */
#define SERVES 1
#define CONTROLLERS 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define HARD(generation) VECTOR(1, UNLIMITED)
#define FIRST_UID 0
#define UIDS 2
#define EPOCHS 1
#endif
#ifdef GAINED            /* `hard` gains a key while two pods are created of which one fits then */
#define CONTROLLERS 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 1)
#define GENERATIONS 2
#define HARD(generation) VECTOR(2, (generation == 0 -> UNLIMITED : 1))
#endif
#ifdef CHANGED           /* a stored pod moves from one class to the other and grows there, another pod wants the first */
#define CONTROLLERS 1
#define OBJECTS 2
#define CHANGES 2
#define CREATED(object) VECTOR(1, 0)
#define TARGET(change) (change == 0 -> VECTOR(0, 1) : VECTOR(0, 2))
#define HARD(generation) VECTOR(1, 2)
#define STORED_AT_START 1
#define DELETIONS 1
#endif
#ifdef BACK_AND_FORTH    /* a stored pod moves to another class, and back */
#define CONTROLLERS 1
#define OBJECTS 2
#define CHANGES 2
#define CREATED(object) VECTOR(1, 0)
#define TARGET(change) (change == 0 -> VECTOR(0, 1) : VECTOR(1, 0))
#define HARD(generation) VECTOR(2, 2)
#define STORED_AT_START 1
#endif
#ifdef CLAIMED           /* a pod and a claim, counted from lists of their own */
#define SERVES 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define HARD(generation) VECTOR(1, UNLIMITED)
#define COLLECTIONS 2
#define COLLECTION(object) (object == 1 -> CLAIMS : PODS)
#define DELETIONS 1
#endif
#ifdef BOUND             /* object 1 is what a node's label adds to a pod: it passes no admission */
#define SERVES 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define HARD(generation) VECTOR(2, UNLIMITED)
#define COLLECTIONS 3
#define COLLECTION(object) (object == 1 -> NODES : PODS)
#define LABELLED 1
#endif
#ifdef RETRIED           /* each request is called twice */
#define CONTROLLERS 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define HARD(generation) VECTOR(2, UNLIMITED)
#define CALLS 2
#endif

#ifdef TOLD              /* watches tell of deletions: two pods of which one fits are deleted before they are counted */
#define SERVES 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define HARD(generation) VECTOR(1, UNLIMITED)
#define DELETIONS 1
#define TELLS 1
#endif
#ifdef TOLD_CHANGED      /* the same, of a stored pod that is being changed */
#define SERVES 1
#define CONTROLLERS 1
#define OBJECTS 2
#define CHANGES 2
#define CREATED(object) VECTOR(1, 0)
#define TARGET(change) (change == 0 -> VECTOR(0, 1) : VECTOR(0, 2))
#define HARD(generation) VECTOR(1, 2)
#define STORED_AT_START 1
#define DELETIONS 1
#define TELLS 1
#endif

#ifdef NAMED             /* two pods of one name, the second one larger, and another pod */
#define SERVES 1
#define CONTROLLERS 1
#define OBJECTS 3
#define CREATED(object) VECTOR((object == 1 -> 2 : 1), 0)
#define HARD(generation) VECTOR(2, UNLIMITED)
#define OF_ONE_NAME 2
#define DELETIONS 1
#endif
#ifdef DAMAGED   /* two pods of which one fits; the line of the first one's reservation cannot be read */
#define SERVES 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define HARD(generation) VECTOR(1, UNLIMITED)
#define UNREADABLE_ENTRY 0
#define DELETIONS 1
#endif
#ifdef REMADE            /* object 1 is a claim that pod 0 takes its devices from, and asks for more; another pod wants the rest */
#define SERVES 1
#define CONTROLLERS 1
#define OBJECTS 3
#define CREATED(object) VECTOR(1, (object == 1 -> 1 : 0))
#define HARD(generation) VECTOR(2, 1)
#define COLLECTIONS 2
#define COLLECTION(object) (object == 1 -> CLAIMS : PODS)
#define BESIDE 1
#define DELETIONS 1
#endif
#ifdef VANISHED          /* object 1 is a claim whose devices pod 0 has, and is deleted while that runs; another claim wants them */
#define SERVES 1
#define CONTROLLERS 1
#define OBJECTS 3
#define CREATED(object) (object == 0 -> VECTOR(0, 1) : VECTOR(1, 0))
#define HARD(generation) VECTOR(1, UNLIMITED)
#define COLLECTIONS 2
#define COLLECTION(object) (object == 0 -> PODS : CLAIMS)
#define TAKEN 1
#define DELETIONS 1
#endif
#ifdef ALLOCATED         /* object 1 is a claim that was generated for pod 0, and gets a small device or a large one; another pod wants the rest */
#define SERVES 1
#define CONTROLLERS 1
#ifndef OBJECTS
#define OBJECTS 3
#endif
#define CREATED(object) (object == 0 -> VECTOR(0, 1) : (object == 1 -> VECTOR(2, 0) : VECTOR(1, 0)))
#define HARD(generation) VECTOR(2, UNLIMITED)
#define COLLECTIONS 2
#define COLLECTION(object) (object == 1 -> CLAIMS : PODS)
#define ALLOCATES 1
#define GENERATED 1
#define DELETIONS 1
#endif
#ifdef STANDALONE        /* the same, of a claim that other pods may use after pod 0 */
#define SERVES 1
#define CONTROLLERS 1
#ifndef OBJECTS
#define OBJECTS 3
#endif
#define CREATED(object) (object == 0 -> VECTOR(0, 1) : (object == 1 -> VECTOR(2, 0) : VECTOR(1, 0)))
#define HARD(generation) VECTOR(2, UNLIMITED)
#define COLLECTIONS 2
#define COLLECTION(object) (object == 1 -> CLAIMS : PODS)
#define ALLOCATES 1
#define GENERATED 0
#define DELETIONS 1
#endif
#ifdef RESLICED          /* object 1 is what the devices of an allocated claim became more when slices changed: it passes no admission */
#define SERVES 1
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define HARD(generation) VECTOR(2, UNLIMITED)
#define COLLECTIONS 4
#define COLLECTION(object) (object == 1 -> SLICES : PODS)
#define LABELLED 1
#endif
#ifdef MOVED             /* the ledger moves to a catalogue version by which the first pod costs more; the second serve knows only the old one */
#define OBJECTS 2
#define CREATED(object) VECTOR(1, 0)
#define CREATED_BY_NEXT(object) VECTOR((object == 0 -> 2 : 1), 0)
#define HARD(generation) VECTOR(2, UNLIMITED)
#endif

#ifdef CREATED_BY_NEXT
#define MOVES 1
#else
#define MOVES 0
#define CREATED_BY_NEXT(object) 0
#endif
#ifndef BESIDE
#define BESIDE 255           /* the claim that is charged beside pod 0 */
#endif
#ifndef TAKEN
#define TAKEN 255            /* the claim whose devices pod 0 has once it is reserved for that */
#endif
#ifndef ALLOCATES
#define ALLOCATES 255        /* the claim that is allocated for pod 0 */
#define GENERATED 0          /* a controller made it for that pod */
#endif
#ifndef OF_ONE_NAME
#define OF_ONE_NAME 0        /* so many of the first objects have one name */
#endif
#ifndef UNREADABLE_ENTRY
#define UNREADABLE_ENTRY 255
#endif
#ifndef CHANGES
#define CHANGES 0
#define TARGET(change) 0
#endif
#ifndef GENERATIONS
#define GENERATIONS 1
#endif
#ifndef FIRST_UID
#define FIRST_UID 1
#endif
#ifndef UIDS
#define UIDS 1
#endif
#ifndef EPOCHS
#define EPOCHS 0             /* without, a replica believes only what it read itself less than D ago */
#endif
#define SPEC_MOVES (GENERATIONS > 1 || UIDS > 1)
#ifndef COLLECTIONS
#define COLLECTIONS 1
#define COLLECTION(object) PODS
#endif
#ifndef CALLS
#define CALLS 1
#endif
#ifndef DELETIONS
#define DELETIONS 0
#endif
#ifndef TELLS
#define TELLS 0
#endif
#ifndef STORED_AT_START
#define STORED_AT_START 0
#endif
#ifndef LABELLED
#define LABELLED 255
#endif
#ifndef UNCALLED
#define UNCALLED LABELLED    /* an object that no request creates */
#endif

#ifndef SERVES
#define SERVES 2
#endif
#ifndef CONTROLLERS
#define CONTROLLERS 2
#endif
#define REQUESTS (OBJECTS + CHANGES)
#define WRITERS (SERVES + CONTROLLERS)
#define NOBODY 255

/* ---- The ledger, and the copies that writers without a swap would write back */

typedef Ledger {
  byte quota_uid;            /* of which quota, and as of which generation of it `hard` is */
  byte generation;
  bool counted;              /* `used` is not None */
  bool second_key;           /* `used` has the second key */
  byte used[OBJECTS];        /* `used`, by the object it was counted from: its sum is what the code stores */
  byte entry[REQUESTS];      /* 0: none, or one of those below */
  byte stored_name;          /* what `used` holds of what is stored under the one name, if there are entries of it */
  bool counted_by_next;      /* `used` is counted by the next catalogue version, */
  bool moving;               /* or it is on the way to it */
  byte revision[COLLECTIONS]
};

#define FULL 1               /* charged by the catalogue version of the ledger, */
#define FIRST_KEY 2          /* the same, without the second key, */
#define BY_BOTH 3            /* by both catalogue versions, and marked with the next one, */
#define BY_NEXT 4            /* by the next one, once it is that of the ledger, */
#define ONLY_MARKED 5        /* or marked only */

Ledger ledger;
byte ledger_uid;             /* of the ledger as an object; 0: there is none */
byte ledgers_made;
byte uid = FIRST_UID;        /* of the quota; 0: there is none */
byte generation = 0;
bool fresh[WRITERS];         /* the ledger is still as this writer read it: resourceVersion */

#if SWAP_IN_SERVE == 0 || SWAP_IN_CONTROLLER == 0
Ledger copy[WRITERS];
#endif

/* ---- What the API server has */

mtype = { new, begun, allowed, ended };
mtype request[REQUESTS] = new;    /* ended: nothing of it can be stored any more */
byte calls[REQUESTS];
byte base[REQUESTS];              /* of a change: what the object shows when it is reviewed */

byte shows[OBJECTS];              /* of a stored live object: its demand */
bool terminal[OBJECTS];
byte revision[COLLECTIONS];
byte version[OBJECTS];            /* the object's own resourceVersion */
byte deleted_at[OBJECTS];         /* the revision at which it was deleted, for good; 0: it was not, or no watch tells of it */
byte base_version[REQUESTS];
#if TAKEN < OBJECTS
bool reserved_for_pod;            /* the claim, for good: a controller that clears it when the pod has ended changes nothing here */
#define IS_TAKEN(o) ((o) == TAKEN && reserved_for_pod && shows[0] != 0 && !terminal[0])
#else
#define IS_TAKEN(o) 0
#endif
#if ALLOCATES < OBJECTS
byte allocated;                   /* the demand of the devices that the claim has; 0: none */
byte allocations;                 /* so often, at most twice */
bool bound;                       /* pod 0, for good, */
byte bound_at;                    /* when the claims were at this revision, */
byte had;                         /* and with these devices */
bool owned = GENERATED;           /* pod 0 is the controller of the claim, and uses it as one that was made for it */
bool named = !GENERATED;          /* another pod names the claim, and may use it whenever pod 0 does not */
#define SMALL VECTOR(1, 0)
#define IS_FINAL (bound && (LIVE(0) || GENERATED))   /* nobody allocates it again */
#define TAKES(o) (((o) == ALLOCATES && IS_FINAL) -> allocated : (shows[o] -> shows[o] : CREATED(o)))
#define CHARGED(o) (((o) == ALLOCATES && GENERATED && bound && LIVE(0)) -> allocated : (shows[o] -> shows[o] : CREATED(o)))
#else
#define TAKES(o) (shows[o] -> shows[o] : CREATED(o))
#define CHARGED(o) TAKES(o)
#endif
bool stopped;                     /* nothing arrives any more; what was begun goes on */
bool promised[OBJECTS];           /* ghost: the quota's promise covers it */

/* ---- What processes know */

/* The epoch is raised at moments, and D is a time: who began something before a moment has done so longer than D ago once that was
   waited for. Both count from 1, so 0 is none. */
byte epoch = 1;
byte moment = 1;
bool none[SERVES];                /* "this namespace has no quota", remembered: */
byte none_at[SERVES];             /* when its read began; 0: that was longer ago than D */
byte none_of[SERVES];             /* the epoch that was known then */
byte gets_at[SERVES];              /* when a GET of the epoch that has not ended began, */
byte gets[SERVES];                 /* and what it shows */
byte knows_at[SERVES];            /* the same of the last GET that ended; 0: it began longer ago than D */
byte knows[SERVES];
bool again[SERVES];               /* two GETs began since the last moment: a third one is like the second */
byte hard_seen[SERVES];
mtype = { NOTHING, FOR_SWAP, FOR_CREATE };
mtype reads[CONTROLLERS] = NOTHING;   /* for what it has read the quota, */
byte read_uid[CONTROLLERS];           /* and what it has read: its uid, 0 if it is gone */
byte read_generation[CONTROLLERS];
byte seen_ledger[CONTROLLERS];
byte seen_uid[CONTROLLERS];
byte seen_generation[CONTROLLERS];
byte waits_from[CONTROLLERS];      /* the moment from which it waits for D before it initialises; 0: not yet */
bool waited[CONTROLLERS];
#if WAIT_FROM_AFTER_THE_SWAP == 0
bool raised[CONTROLLERS];
#endif
bool tried[CONTROLLERS];          /* nothing is new since the last count */

typedef Sight { byte stage[REQUESTS] };
Sight sight[CONTROLLERS];         /* 0: not seen, 1: seen, 2: seen for longer than the bound */

typedef List {
  byte shown[OBJECTS];
  byte version[OBJECTS];
  byte revision[COLLECTIONS];
  byte matured[REQUESTS];         /* bit per collection: seen for longer than the bound when its list began */
  byte ledger_uid[COLLECTIONS];      /* what was seen before the list began */
  byte quota_uid[COLLECTIONS];
  byte generation[COLLECTIONS];
#if SUMS_ARE_OF_THE_REVISION == 0
  byte summed[OBJECTS];
#endif
#if LATER_EVENT_WINS == 0
  byte partial[OBJECTS];          /* what a list shows that is not complete yet */
  bool listing;
#endif
#if ALLOCATES < OBJECTS
  byte allocated;                 /* the claim is shown with this allocation, */
  bool owned;                     /* and as one of pod 0, */
  byte for_good;                  /* and had these devices for good when it was shown before */
  bool bound;                     /* the pod as bound */
#endif
#if TAKEN < OBJECTS
  bool reserved;                  /* the claim is shown, or was shown last, as reserved for the pod */
  bool kept;                      /* it is gone, and it is not known that the pod has ended */
#endif
  byte gone                       /* bit per object: the watch told that it was deleted */
};
List list[CONTROLLERS];

hidden byte i; hidden byte key; hidden byte at; hidden short sum; hidden short more; hidden short cost; hidden byte shown; hidden byte ok;
hidden byte changed; hidden byte flips; hidden byte before; hidden byte in_force; hidden mtype verdict;

#define OF(q) (q < OBJECTS -> q : 0)
#define AFTER(q) (q < OBJECTS -> CREATED(q) : TARGET(q - OBJECTS))
#define IS_CHANGE(q) (q >= OBJECTS)
#if CHANGE_HAS_OWN_ENTRY
#define SLOT(q) (q)
#else
#define SLOT(q) (q < OBJECTS -> q : OBJECTS)
#endif
#define LIVE(o) (shows[o] != 0 && !terminal[o])
#define HAS_DEVICES(o) (LIVE(o) || IS_TAKEN(o))   /* a claim that is gone, too, while its pod runs */
#define DEMAND(o) TAKES(o)
#define LIMIT(k) AMOUNT(HARD(ledger.generation), k)
#define CONSTRAINED(g, k) (AMOUNT(HARD(g), k) != UNLIMITED)
#define UNCOUNTED (CONSTRAINED(ledger.generation, 1) && !ledger.second_key)
#define ALL_COLLECTIONS ((1 << (COLLECTIONS > 2 -> 2 : COLLECTIONS)) - 1)   /* nodes and slices store nothing that entries wait for */

/* policies/quota/amounts.py: positive_difference */
/* policies/quota/quota_request.py: QuotaRequest._demand */
#if CHANGE_ONLY_GROWS
#define GROWTH(q, k) (AMOUNT(AFTER(q), k) > AMOUNT(base[q], k) -> AMOUNT(AFTER(q), k) - AMOUNT(base[q], k) : 0)
#else
#define GROWTH(q, k) (AMOUNT(AFTER(q), k) - AMOUNT(base[q], k))
#endif

#define COST_BY_NEXT(o, k) AMOUNT(CREATED_BY_NEXT(o), k)
#define LARGER(a, b) ((a) > (b) -> (a) : (b))
#define GROWTH_BY(q, k, next, both) (!(next) -> GROWTH(q, k) : ((both) -> LARGER(GROWTH(q, k), COST_BY_NEXT(OF(q), k)) : COST_BY_NEXT(OF(q), k)))
#define HOLDS(q, k) (ledger.entry[q] == 0 || (ledger.entry[q] == FIRST_KEY && k) -> 0 \
                     : GROWTH_BY(q, k, ledger.entry[q] == BY_BOTH || ledger.entry[q] == BY_NEXT, ledger.entry[q] == BY_BOTH))
#define COST(o, code, k) (MOVES && ledger.counted_by_next -> COST_BY_NEXT(o, k) : AMOUNT(code, k))

/* ---- Properties */

#define IN_USED(o, k) ((k) == 1 && !ledger.second_key -> 0 : AMOUNT(ledger.used[o], k))

inline sum_entries(k, object) {   /* of one object, or of all: NOBODY */
  at = 0;
  do
  :: at < REQUESTS ->
     if
     :: ledger.entry[at] && (object == NOBODY || OF(at) == object) -> sum = sum + HOLDS(at, k)
     :: else
     fi;
     at++
  :: else -> break
  od;
  skip
}

inline check_everyone_is_covered() {   /* S2 */
  i = 0;
  do
  :: i < OBJECTS && ledger_uid && ledger.counted ->
     key = 0;
     do
     :: key < 2 ->
        if
        :: HAS_DEVICES(i) && promised[i] && CONSTRAINED(ledger.generation, key) && (key == 0 || ledger.second_key) ->
           sum = IN_USED(i, key);
           sum_entries(key, i);
           if
           :: BESIDE < OBJECTS && i < 2 ->           /* the pod and its claim have the same devices: together they cover them */
              sum = sum + IN_USED(1 - i, key);
              sum_entries(key, 1 - i)
           :: else
           fi;
           assert(COST(i, DEMAND(i), key) <= sum)   /* S2: what is stored is in `used` or in entries */
        :: else
        fi;
        key++
     :: else -> break
     od;
     i++
  :: else -> break
  od;
  skip
}

inline add_cost() {   /* of one name only one is stored at a time; a pod and its claim have the same devices */
  if
  :: i < OF_ONE_NAME || (BESIDE < OBJECTS && i < 2) -> more = LARGER(more, cost)
  :: else -> sum = sum + cost
  fi
}

inline check_fits(q) {   /* S1 */
  key = 0;
  do
  :: key < 2 && ledger_uid && promised[OF(q)] ->
     sum = 0;
     more = 0;
     i = 0;
     do
     :: i < REQUESTS ->
        if
        :: i < OBJECTS && HAS_DEVICES(i) && promised[i] -> cost = COST(i, DEMAND(i), key); add_cost()
        :: else
        fi;
        if
        :: request[i] == allowed && promised[OF(i)] && (!IS_CHANGE(i) || (LIVE(0) && version[0] == base_version[i])) && COST(OF(i), AFTER(i), key) > AMOUNT(base[i], key) ->
           cost = COST(OF(i), AFTER(i), key) - AMOUNT(base[i], key); add_cost()
        :: else
        fi;
        i++
     :: else -> break
     od;
     sum = sum + more;
     assert(!CONSTRAINED(ledger.generation, key) || AMOUNT(AFTER(q), key) <= AMOUNT(base[q], key) || sum <= LIMIT(key));   /* S1 */
     key++
  :: else -> break
  od;
  skip
}

inline written() {
  i = 0;
  do
  :: i < WRITERS -> fresh[i] = false; i++
  :: else -> break
  od;
  skip
}

#if SWAP_IN_SERVE == 0 || SWAP_IN_CONTROLLER == 0
inline move_ledger(from, to) {
  to.quota_uid = from.quota_uid; to.generation = from.generation;
  to.counted = from.counted; to.second_key = from.second_key; to.stored_name = from.stored_name;
  to.counted_by_next = from.counted_by_next; to.moving = from.moving;
  i = 0;
  do
  :: i < OBJECTS -> to.used[i] = from.used[i]; i++
  :: else -> break
  od;
  i = 0;
  do
  :: i < REQUESTS -> to.entry[i] = from.entry[i]; i++
  :: else -> break
  od;
  i = 0;
  do
  :: i < COLLECTIONS -> to.revision[i] = from.revision[i]; i++
  :: else -> break
  od;
  skip
}
#endif
#if SWAP_IN_SERVE == 0 || SWAP_IN_CONTROLLER == 0
inline keep_copy(writer) { move_ledger(ledger, copy[writer]) }
inline write_back(writer) { move_ledger(copy[writer], ledger) }
#else
inline keep_copy(writer) { skip }   /* a ledger that is fresh is the ledger */
#endif

/* ---- What tests/test_model.py replays; spin's verifier prints nothing */

inline print_ledger() {
  printf(" ledger ledger_uid=%d counted=%d second_key=%d generation=%d uid=%d hard=%d,%d of_one_name=%d stored_name=%d", ledger_uid, ledger.counted, ledger.second_key, ledger.generation, ledger.quota_uid, LIMIT(0), LIMIT(1), OF_ONE_NAME, ledger.stored_name);
  printf(" unreadable=%d counted_by_next=%d moving=%d used=", UNREADABLE_ENTRY, ledger.counted_by_next, ledger.moving);
  i = 0;
  do
  :: i < OBJECTS -> printf("%d,", ledger.used[i]); i++
  :: else -> break
  od;
  printf(" entries=");
  i = 0;
  do
  :: i < REQUESTS -> printf("%d/%d/%d/%d/%d,", ledger.entry[i], base[i], AFTER(i), base_version[i], CREATED_BY_NEXT(OF(i))); i++
  :: else -> break
  od;
  printf(" revisions=");
  i = 0;
  do
  :: i < COLLECTIONS -> printf("%d,", ledger.revision[i]); i++
  :: else -> break
  od;
  skip
}

/* ---- serve */

mtype = { RESERVED, ALREADY_RESERVED, NOTHING_TO_RESERVE, EXCEEDED, UNCOUNTED_LEDGER, UNREADABLE, OTHER_CATALOGUE };

/* The catalogue versions by which serve s charges: all versions of the ledger if s knows the next one, else only the old one. */
#define KNOWS_NEXT(s) (MOVES && s == 0)
#define IS_CHARGED(s) (KNOWS_NEXT(s) || !(ledger.moving || ledger.counted_by_next))
#define ASKED(s, q, k) GROWTH_BY(q, k, KNOWS_NEXT(s) && (ledger.counted_by_next || (ledger.moving && CHARGED_BY_BOTH)), ledger.moving)
#define NEW_ENTRY(s) (!KNOWS_NEXT(s) -> FULL : (ledger.counted_by_next -> BY_NEXT : (!ledger.moving -> FULL : (CHARGED_BY_BOTH -> BY_BOTH : ONLY_MARKED))))

#define IS_UNREADABLE(q) (q == UNREADABLE_ENTRY)
#define SOME_UNREADABLE (UNREADABLE_ENTRY < REQUESTS && ledger.entry[(UNREADABLE_ENTRY < REQUESTS -> UNREADABLE_ENTRY : 0)])

/* policies/quota/ledger/decide.py: _Batch._growth, _Batch._held */
/* policies/quota/ledger/reservations.py: Reservations.held, Reservations.largest */
inline sum_reserved(s, q, k) {   /* with what q asks */
  more = 0;
  sum = sum + (q >= OF_ONE_NAME -> ASKED(s, q, k) : 0);
  at = 0;
  do
  :: at < REQUESTS ->
     if
     :: !UNREADABLE_DENIES && IS_UNREADABLE(at)
     :: else ->
        if
        :: at >= OF_ONE_NAME -> sum = sum + HOLDS(at, k)
        :: at < OF_ONE_NAME && (NAME_HOLDS_LARGEST || !more) -> more = LARGER(more, HOLDS(at, k));
           if
           :: at == q && (NAME_HOLDS_LARGEST || !more) -> more = LARGER(more, ASKED(s, q, k))
           :: else
           fi
        :: else
        fi
     fi;
     at++
  :: else -> break
  od;
  sum = sum + (more > AMOUNT(ledger.stored_name, k) -> more - AMOUNT(ledger.stored_name, k) : 0)
}

/* policies/quota/ledger/decide.py: _Batch.decide, _Batch._shortfalls.
   VerdictReason.RESERVED, VerdictReason.ALREADY_RESERVED, VerdictReason.NOTHING_TO_RESERVE, VerdictReason.EXCEEDED, VerdictReason.UNCOUNTED, VerdictReason.UNREADABLE,
   VerdictReason.OTHER_CATALOGUE. */
inline decide(s, q) {
  verdict = RESERVED;
  if
  :: GROWTH(q, 0) == 0 && GROWTH(q, 1) == 0 -> verdict = NOTHING_TO_RESERVE
  :: else ->
     if
     :: RETRY_IS_IDEMPOTENT && ledger.entry[SLOT(q)] && !IS_UNREADABLE(q) -> verdict = ALREADY_RESERVED
     :: else ->
        if
        :: UNREADABLE_DENIES && SOME_UNREADABLE -> verdict = UNREADABLE
        :: else ->
        if
        :: (UNINITIALISED_DENIES && !ledger.counted) || (MISSING_KEY_DENIES && UNCOUNTED) -> verdict = UNCOUNTED_LEDGER
        :: else ->
        if
        :: VERSIONS_ARE_COUNTED && !IS_CHARGED(s) -> verdict = OTHER_CATALOGUE
        :: else ->
           key = 0;
           do
           :: key < 2 ->
              if
              :: ASKED(s, q, key) > 0 && CONSTRAINED(in_force, key) ->
                 sum = 0;
                 i = 0;
                 do
                 :: i < OBJECTS -> sum = sum + IN_USED(i, key); i++
                 :: else -> break
                 od;
                 sum_reserved(s, q, key);
                 if
                 :: sum > AMOUNT(HARD(in_force), key) -> verdict = EXCEEDED
                 :: else
                 fi
              :: else
              fi;
              key++
           :: else -> break
           od
        fi
        fi
        fi
     fi
  fi;
  printf("decide request=%d knows_next=%d verdict=%e", q, KNOWS_NEXT(s), verdict); print_ledger(); printf("\n")
}

inline arrives(s, q) {
  if
  :: request[q] == new ->
     request[q] = begun;
     if
     :: IS_CHANGE(q) -> base[q] = shows[0]; base_version[q] = version[0]
     :: else -> promised[q] = (ledger_uid && ledger.counted)
     fi
  :: else
  fi;
  calls[q]++;
  hard_seen[s] = ledger.generation
}

inline answers_no_quota(q) {   /* it is as if the request came now */
  promised[q] = promised[q] || (ledger_uid && ledger.counted);
  answers_yes(q)
}

inline answers_yes(q) {
  if
  :: request[q] == begun -> request[q] = allowed; check_fits(q)
  :: else
  fi;
  skip
}

#define IS_YES (verdict == RESERVED || verdict == ALREADY_RESERVED || verdict == NOTHING_TO_RESERVE)

#define CALLABLE(q) (!stopped && calls[q] < CALLS && q != UNCALLED && request[q] != ended \
                     && (!IS_CHANGE(q) || (LIVE(0) && promised[0])))

#if CHANGES
#define SOMETHING_CALLABLE (CALLABLE(0) || CALLABLE(1) || CALLABLE(2) || CALLABLE(3))
#elif OBJECTS > 2
#define SOMETHING_CALLABLE (CALLABLE(0) || CALLABLE(1) || CALLABLE(2))
#else
#define SOMETHING_CALLABLE (CALLABLE(0) || CALLABLE(1))
#endif

/* webhook/quota/no_quota.py: NoQuota.is_current */
#define REMEMBERS(s) (none[s] && (none_at[s] || (knows[s] && none_of[s] && (none_of[s] == knows[s] || !BELIEF_IS_OF_THE_EPOCH))))

/* webhook/quota/batcher.py: ReservationBatcher._try_batch, ReservationBatcher._decide_by_object */
/* webhook/quota/cluster_store.py: ClusterStore.read */
proctype Serve(byte s) {
  byte q; bool reserved;
end:
  do
  :: atomic {
       SOMETHING_CALLABLE ->
       if
       :: CALLABLE(0) -> q = 0
       :: CALLABLE(1) -> q = 1
#if CHANGES || OBJECTS > 2
       :: CALLABLE(2) -> q = 2
#endif
#if CHANGES
       :: CALLABLE(3) -> q = 3
#endif
       fi;
       arrives(s, q)
     };
     do
     :: atomic { REMEMBERS(s) ->
#if BELIEVED_AT_THE_ANSWER == 0
          skip
        };
        atomic {
#endif
          answers_no_quota(q) };
        break
     :: atomic { !REMEMBERS(s) && !ledger_uid -> none[s] = false; none_at[s] = moment; none_of[s] = knows[s] };
        if
        :: atomic { uid -> none_at[s] = 0; none_of[s] = 0 }                /* it has not been counted yet */
        :: atomic { !uid ->
             none[s] = true;
             none_of[s] = (BELIEF_FROM_BEFORE_THE_READ -> none_of[s] : knows[s])
           };                                             /* and again, as one that is remembered */
           if
           :: atomic { REMEMBERS(s) -> answers_no_quota(q) }
           :: !REMEMBERS(s)
           fi
        fi;
        break
     :: atomic { !REMEMBERS(s) && ledger_uid -> none[s] = false; none_at[s] = 0; none_of[s] = 0; fresh[s] = true; keep_copy(s) };
        if
        :: atomic { ledger_uid && (fresh[s] || !SWAP_IN_SERVE) ->
#if SWAP_IN_SERVE == 0
             write_back(s);
#endif
             in_force = (HARD_IN_LEDGER -> ledger.generation : hard_seen[s]);
             decide(s, q);
             reserved = (verdict == RESERVED);
             if
             :: reserved ->
                assert(!ledger.entry[SLOT(q)]);             /* S1: nobody is charged twice */
                promised[OF(q)] = true;
                ledger.entry[SLOT(q)] = (ENTRY_IS_FULL || CONSTRAINED(ledger.generation, 1) -> NEW_ENTRY(s) : FIRST_KEY);
                written()
             :: else
             fi;
             if
             :: SERVE_NEVER_REMOVES && IS_YES -> answers_yes(q)
             :: !SERVE_NEVER_REMOVES && !reserved && IS_YES -> answers_yes(q)
             :: else
             fi;
             check_everyone_is_covered()
           };
#if SERVE_NEVER_REMOVES == 0
           if
           :: atomic { reserved -> answers_yes(q) }
           :: atomic { reserved -> ledger.entry[SLOT(q)] = 0; written(); check_everyone_is_covered() }
           :: !reserved
           fi;
#endif
           break
        :: !fresh[s] && SWAP_IN_SERVE                        /* conflict: again, */
        :: !fresh[s] && SWAP_IN_SERVE -> break               /* or its deadline has passed */
        fi
     od;
     atomic { q = 0; reserved = false; fresh[s] = false; hard_seen[s] = 0 }
  od;
  skip
}

/* ---- controller */

#define IS_SEEN(c) (SEEN_IS_THE_LEDGER -> seen_ledger[c] == ledger_uid : seen_uid[c] == ledger.quota_uid)

/* webhook/controller/observed_ledgers.py: ObservedLedgers.observe */
inline see(c) {
  fresh[SERVES + c] = true;
  tried[c] = false;
  keep_copy(SERVES + c);
  i = 0;
  do
  :: i < REQUESTS ->
     if
     :: !IS_SEEN(c) || !ledger.entry[i] -> sight[c].stage[i] = 0; list[c].matured[i] = 0
     :: else
     fi;
     if
     :: ledger.entry[i] && sight[c].stage[i] == 0 -> sight[c].stage[i] = 1
     :: else
     fi;
     i++
  :: else -> break
  od;
  if
  :: !IS_SEEN(c) -> waited[c] = false; waits_from[c] = 0
  :: else
  fi;
  seen_ledger[c] = ledger_uid;
  seen_uid[c] = ledger.quota_uid;
  seen_generation[c] = ledger.generation;
  if
  :: reads[c] == FOR_SWAP && (read_uid[c] -> SPEC_IS_READ_AFTER_LEDGER : GONE_IS_READ_AFTER_LEDGER) -> forget_quota(c)
  :: else
  fi
}

inline forget_quota(c) { reads[c] = NOTHING; read_uid[c] = 0; read_generation[c] = 0 }

#define MATURED_NOW(c, q) (sight[c].stage[q] == 2)
#define MATURED_IN(c, k, q) ((list[c].matured[q] >> k) & 1)
#define NEWS(c, k, q) (k < NODES && MATURED_NOW(c, q) && !MATURED_IN(c, k, q))
#if TAKEN < OBJECTS
#define IS_AWAITED(c, k) (k == PODS && list[c].kept && !list[c].shown[0])
#else
#define IS_AWAITED(c, k) 0
#endif
#define WORTH_LISTING(c, k) (seen_ledger[c] && (list[c].revision[k] != revision[k] || IS_AWAITED(c, k) || list[c].ledger_uid[k] != seen_ledger[c] || list[c].quota_uid[k] != seen_uid[c] \
                            || list[c].generation[k] != seen_generation[c] || NEWS(c, k, 0) || NEWS(c, k, 1) \
                            || (REQUESTS > 2 && (NEWS(c, k, (REQUESTS - 2)) || NEWS(c, k, (REQUESTS - 1))))))

#define IS_GONE(c, o) ((list[c].gone >> o) & 1)
#define ENDED(c, o) (GONE_IS_TOLD -> IS_GONE(c, o) : !shows[o])   /* what a list lacks was deleted, or is yet to come */

/* webhook/quota/counted_records.py: ClaimHistory.add_deleted, ClaimHistory.gone */
#if TAKEN < OBJECTS
#define KEEPS(c, o) ((o) == TAKEN && GONE_CLAIM_IS_CHARGED && !shows[o] && list[c].reserved)
inline keep_gone_claim(c, k) {
  if
  :: k == CLAIMS -> list[c].kept = KEEPS(c, TAKEN); list[c].reserved = (list[c].kept || (shows[TAKEN] && reserved_for_pod))
  :: else
  fi;
  if
  :: list[c].kept && (list[c].shown[0] == TERMINAL_SHOWN || (!list[c].shown[0] && (k == PODS || !GONE_CLAIM_AWAITS_LIST))) ->
     list[c].kept = false; list[c].reserved = false; list[c].shown[TAKEN] = TERMINAL_SHOWN
  :: else
  fi
}
#else
#define KEEPS(c, o) 0
inline keep_gone_claim(c, k) { skip }
#endif

#define POD_COUNTS(c) (list[c].shown[0] && list[c].shown[0] != TERMINAL_SHOWN)
/* webhook/controller/allocations.py: Allocations.kinds, Allocations.note, Allocations.with_devices, Allocations.pod_changed, Allocations.reached */
#if ALLOCATES < OBJECTS
#define SHOWS_BINDING(c) ((POD_COUNTS(c) && list[c].bound) || !EXACT_ONCE_BOUND)
#define IS_OF_BINDING(c) (list[c].revision[CLAIMS] >= bound_at || !ALLOCATION_IS_OF_THE_BINDING)
#define IS_EXACT(c, o) (IS_CLAIM(c, o) && list[c].allocated && SHOWS_BINDING(c) && IS_OF_BINDING(c) && (list[c].owned || !EXACT_IF_GENERATED))
#define IS_CLAIM(c, o) ((o) == ALLOCATES && list[c].shown[o] && list[c].shown[o] != TERMINAL_SHOWN)
#define HAD_FOR_GOOD(c, o) (IS_CLAIM(c, o) && list[c].for_good && list[c].owned)
#define EXACTLY(c, o) (IS_EXACT(c, o) -> list[c].allocated : (HAD_FOR_GOOD(c, o) -> list[c].for_good : list[c].shown[o]))
#else
#define EXACTLY(c, o) (list[c].shown[o])
#endif
/* webhook/controller/usage_counter.py: UsageCounter.refresh, UsageCounter.count */
/* webhook/cluster/collection.py: MergedCollection.merge, MergedCollection.position */
inline list_collection(c, k) {
  list[c].revision[k] = revision[k];
  list[c].ledger_uid[k] = seen_ledger[c];
  list[c].quota_uid[k] = seen_uid[c];
  list[c].generation[k] = seen_generation[c];
  tried[c] = false;
  i = 0;
  do
  :: i < OBJECTS ->
     if
     :: COLLECTION(i) == k && !KEEPS(c, i) ->
        list[c].shown[i] = (terminal[i] || ENDED(c, i) -> TERMINAL_SHOWN : shows[i]);
        list[c].version[i] = version[i]
     :: else
     fi;
     i++
  :: else -> break
  od;
  keep_gone_claim(c, k);
#if ALLOCATES < OBJECTS
  if
  :: k == CLAIMS -> list[c].allocated = allocated; list[c].owned = owned
  :: else -> list[c].bound = bound
  fi;
  if
  :: IS_EXACT(c, ALLOCATES) -> list[c].for_good = list[c].allocated
  :: !IS_EXACT(c, ALLOCATES) && !IS_CLAIM(c, ALLOCATES) -> list[c].for_good = 0
  :: else
  fi;
#endif
  i = 0;
  do
  :: i < REQUESTS ->
     if
     :: NEWS(c, k, i) -> list[c].matured[i] = list[c].matured[i] | (1 << k)
     :: else
     fi;
     i++
  :: else -> break
  od;
  skip
}

/* The watch tells of a deletion together with its revision. That matters only while there is an entry of the object. */
#define RESERVED_FOR(o) (ledger.entry[o] || (CHANGES && o == 0 && (ledger.entry[REQUESTS - 2] || ledger.entry[REQUESTS - 1])))
#define TELLABLE(c, o) (GONE_IS_TOLD && deleted_at[o] && list[c].revision[COLLECTION(o)] >= deleted_at[o] && RESERVED_FOR(o) \
                        && !IS_GONE(c, o))

/* webhook/cluster/collection.py: MergedCollection.event, MergedCollection._remember_deleted, MergedCollection.deleted */
/* webhook/controller/usage_counter.py: UsageCounter.count */
inline is_told(c, o) {
  list[c].gone = list[c].gone | (1 << o);
  list[c].shown[o] = TERMINAL_SHOWN;
  tried[c] = false
}

#define LISTED(c, k) (list[c].ledger_uid[k] != 0)
#define ALL_LISTED(c) (LISTED(c, 0) && (COLLECTIONS < 2 || LISTED(c, (COLLECTIONS > 1 -> 1 : 0))) \
                       && (COLLECTIONS < 3 || LISTED(c, (COLLECTIONS > 2 -> 2 : 0))) && (COLLECTIONS < 4 || LISTED(c, (COLLECTIONS > 3 -> 3 : 0))))
#define MATURED(c, q) (MATURED_NOW(c, q) && (list[c].matured[q] == ALL_COLLECTIONS || !EXPIRY_BY_LATER_LIST))

/* policies/quota/ledger/reconcile.py: _is_confirmed */
inline is_shown(c, q) {
  before = list[c].shown[OF(q)];
  shown = (before != 0);
  if
  :: shown && before != TERMINAL_SHOWN && IS_CHANGE(q) && CHANGE_STAYS_UNTIL_NEWER ->
     shown = (list[c].version[0] > base_version[q])
  :: else
  fi;
  skip
}

/* policies/quota/ledger/reconcile.py: initialise. Else Refused.TOO_EARLY. */
/* webhook/controller/observed_ledgers.py: ObservedLedgers.spec_since */
/* webhook/controller/usage_counter.py: UsageCounter.refresh. Lists that began before are not counted: it lists again. */
inline may_initialise(c) {
  ok = (waited[c] || !INITIALISE_AFTER_WAIT);
  key = 0;
  do
  :: key < COLLECTIONS ->
     if
     :: INITIALISE_BY_LATER_LIST && ((SEEN_IS_THE_LEDGER && list[c].ledger_uid[key] != ledger_uid) || list[c].quota_uid[key] != ledger.quota_uid || list[c].generation[key] != ledger.generation) -> ok = false
     :: else
     fi;
     key++
  :: else -> break
  od;
  skip
}

/* policies/quota/ledger/quota_ledger.py: Revisions.reaches. Else Refused.OLDER. */
inline reaches(c) {
  key = 0;
  do
  :: key < COLLECTIONS ->
     if
     :: FENCE && (key != CLAIMS || FENCE_CLAIMS) && (key != NODES || FENCE_NODES) && (key != SLICES || FENCE_SLICES) &&
        (list[c].revision[key] < ledger.revision[key] ||
            (!FENCE_NOT_STRICT && list[c].revision[key] == ledger.revision[key])) -> ok = false
     :: else
     fi;
     key++
  :: else -> break
  od;
  skip
}

#define IS_MARKED(q) (ledger.entry[q] == 0 || ledger.entry[q] == BY_BOTH || ledger.entry[q] == ONLY_MARKED)
#define ALL_MARKED (IS_MARKED(0) && IS_MARKED(1))

/* policies/quota/ledger/reconcile.py: _are_marked, catalogue_version_to_count_by, _stored_names */
#define COUNTED_BESIDE(c, o) ((o) == BESIDE && list[c].shown[o] && list[c].shown[o] != TERMINAL_SHOWN && (POD_COUNTS(c) || !CLAIM_IS_CHARGED_ALONE))
/* webhook/quota/counted_records.py: RecordReader.demand_of_claim */
#define SHOWN(c, o) (!COUNTED_BESIDE(c, o) -> EXACTLY(c, o) : (CLAIM_IS_CHARGED_BEYOND -> list[c].shown[o] - CREATED(0) : 0))

inline count_used(c) {
  flips = (MOVES && ledger.moving && (ALL_MARKED || !FLIP_WAITS_FOR_MARKS));
  if
  :: flips -> ledger.counted_by_next = true; ledger.moving = false; changed = true
  :: else
  fi;
  before = ledger.stored_name;
  if
  :: STORED_NAME_IS_OF_USED -> ledger.stored_name = 0
  :: else
  fi;
  i = 0;
  do
  :: i < OF_ONE_NAME ->
     if
     :: list[c].shown[i] && list[c].shown[i] != TERMINAL_SHOWN && (ledger.entry[0] || ledger.entry[1]) -> ledger.stored_name = list[c].shown[i]
     :: else
     fi;
     i++
  :: else -> break
  od;
  changed = changed || (before != ledger.stored_name);
  i = 0;
  do
  :: i < OBJECTS ->
     before = (list[c].shown[i] == TERMINAL_SHOWN -> 0 : SHOWN(c, i));
#if SUMS_ARE_OF_THE_REVISION == 0
     before = list[c].summed[i];
#endif
     if
     :: MOVES && before && ledger.counted_by_next && (FLIP_COUNTS_BY_NEXT || !flips) -> before = CREATED_BY_NEXT(i)
     :: else
     fi;
     if
     :: before -> promised[i] = true
     :: else
     fi;
     if
     :: ledger.used[i] != before -> ledger.used[i] = before; changed = true
     :: else
     fi;
     i++
  :: else -> break
  od;
  ledger.second_key = CONSTRAINED(ledger.generation, 1);
  if
  :: changed ->              /* a count that only is newer is not written */
     ledger.counted = true;
     i = 0;
     do
     :: i < COLLECTIONS -> ledger.revision[i] = list[c].revision[i]; i++
     :: else -> break
     od
  :: else
  fi;
  skip
}

inline count(c) {
  changed = !ledger.counted || UNCOUNTED;
  shown = false;
  i = 0;
  do
  :: i < REQUESTS ->
     is_shown(c, i);
     if
     :: IS_UNREADABLE(i) -> shown = !UNREADABLE_WAITS
     :: else
     fi;
     if
     :: ledger.entry[i] && (shown || (EXPIRY && MATURED(c, i) && (CHANGE_EXPIRES || !IS_CHANGE(i)))) ->
        ledger.entry[i] = 0;
        changed = true
     :: else
     fi;
     i++
  :: else -> break
  od;
#if ENTRY_GOES_WITH_USED == 0
  if
  :: changed && ledger.counted && !UNCOUNTED -> tried[c] = false
  :: else -> count_used(c)
  fi;
#else
  count_used(c);
#endif
  if
  :: changed -> written()
  :: else
  fi;
  check_everyone_is_covered()
}

/* policies/quota/ledger/reconcile.py: reconcile, _counted, _expired_ids. What reconcile would answer with Refused.UNCOUNTED is initialised. */
/* webhook/controller/reconciler.py: QuotaReconciler._write */
inline settle(c) {
  tried[c] = true;
#if SWAP_IN_CONTROLLER == 0
  write_back(SERVES + c);
#endif
  printf("settle waited=%d matured=", waited[c] || !INITIALISE_AFTER_WAIT);
  i = 0;
  do
  :: i < REQUESTS -> printf("%d,", MATURED(c, i)); i++
  :: else -> break
  od;
  printf(" shown=");
  i = 0;
  do
  :: i < OBJECTS -> printf("%d/%d,", SHOWN(c, i), list[c].version[i]); i++
  :: else -> break
  od;
  printf(" listed=");
  i = 0;
  do
  :: i < COLLECTIONS -> printf("%d/%d/%d/%d,", list[c].revision[i], list[c].ledger_uid[i], list[c].quota_uid[i], list[c].generation[i]); i++
  :: else -> break
  od;
  print_ledger();
  ok = true;
  if
  :: !ledger.counted || UNCOUNTED -> may_initialise(c)
  :: else
  fi;
  if
  :: ok -> reaches(c)
  :: else
  fi;
  printf(" counts=%d", ok);
  if
  :: ok -> count(c)
  :: else
  fi;
  printf(" then"); print_ledger(); printf("\n")
}

#define IS_AWAITED_BY(c, at) (waits_from[c] && !waited[c] && (at) && (at) < waits_from[c])
#define MAY_BE_BELIEVED(c, s) (IS_AWAITED_BY(c, none_at[s]) || IS_AWAITED_BY(c, knows_at[s]) || (EPOCH_FROM_ITS_BEGIN && IS_AWAITED_BY(c, gets_at[s])))

/* webhook/controller/reconciler.py: QuotaReconciler._initialization_wait */
/* webhook/controller/observed_ledgers.py: ObservedLedgers.initialization_wait */
inline begins_to_wait(c) {
  moment++;
  again[0] = false;
  waits_from[c] = moment;
#if WAIT_FROM_AFTER_THE_SWAP
  epoch++
#else
  raised[c] = false
#endif
}

/* webhook/quota/no_quota.py: NoQuota.read */
#if EPOCHS
#define IS_OLD(at) (IS_AWAITED_BY(0, at) || IS_AWAITED_BY(CONTROLLERS - 1, at))
#else
#define IS_OLD(at) (at)
#endif
inline begins_get(s) { again[s] = (knows_at[s] == moment); gets_at[s] = moment; gets[s] = epoch }
inline ends_get(s) {
  knows_at[s] = (EPOCH_FROM_ITS_BEGIN -> gets_at[s] : moment);
  knows[s] = gets[s];
  gets_at[s] = 0; gets[s] = 0
}
inline forgets(s) { none[s] = false; none_at[s] = 0; none_of[s] = 0 }

#define DIFFERS (ledger_uid && (ledger.quota_uid != uid || (uid && ledger.generation != generation)))

/* webhook/controller/reconciler.py: QuotaReconciler.current, QuotaReconciler._follow_spec, QuotaReconciler.swap */
inline reads_quota(c, what) {
  reads[c] = what;
  read_uid[c] = uid;
  read_generation[c] = (uid -> generation : 0)
}

inline swaps_spec(c) {
  assert(read_uid[c] > ledger.quota_uid || (read_uid[c] == ledger.quota_uid && read_generation[c] > ledger.generation));   /* S1: never an older `hard` */
  if
  :: read_uid[c] != ledger.quota_uid && !ledger.counted -> promise_begins()
  :: else
  fi;
  ledger.quota_uid = read_uid[c];
  ledger.generation = read_generation[c];
  forget_quota(c);
  written()
}

inline promise_begins() {   /* with what is stored */
  i = 0;
  do
  :: i < OBJECTS -> promised[i] = (shows[i] != 0); i++
  :: else -> break
  od;
  skip
}

/* webhook/quota/cluster_store.py: ClusterStore.delete */
inline removes_ledger(c) {
  assert(ledger.quota_uid != uid);   /* S2: what it holds is still promised */
  empty_ledger();
  ledger_uid = 0; ledger.quota_uid = 0; ledger.generation = 0;
  forget_quota(c);
  written()
}

inline empty_ledger() {
  ledger.counted = false; ledger.second_key = false; ledger.stored_name = 0;
  i = 0;
  do
  :: i < OBJECTS -> ledger.used[i] = 0; i++
  :: else -> break
  od;
  i = 0;
  do
  :: i < REQUESTS -> ledger.entry[i] = 0; i++
  :: else -> break
  od;
  i = 0;
  do
  :: i < COLLECTIONS -> ledger.revision[i] = 0; i++
  :: else -> break
  od;
  skip
}

inline creates_ledger(c) {   /* the API server creates it whatever was there before, if nothing is there now */
  if
  :: ledger_uid
  :: else ->
     ledgers_made++;
     ledger_uid = ledgers_made;
     ledger.quota_uid = read_uid[c];
     ledger.generation = read_generation[c];
     promise_begins();
     written();
     check_everyone_is_covered()
  fi;
  forget_quota(c)
}

#if SUMS_ARE_OF_THE_REVISION == 0
inline sums(c) {
  list[c].summed[0] = (list[c].shown[0] == TERMINAL_SHOWN -> 0 : list[c].shown[0]);
  list[c].summed[1] = (list[c].shown[1] == TERMINAL_SHOWN -> 0 : list[c].shown[1]);
  tried[c] = false
}
#endif

#if LATER_EVENT_WINS == 0
inline begins_list(c) {
  list[c].listing = true;
  list[c].partial[0] = (terminal[0] -> TERMINAL_SHOWN : shows[0]);
  list[c].partial[1] = (terminal[1] -> TERMINAL_SHOWN : shows[1])
}
inline ends_list(c) {
  list[c].listing = false;
  list[c].shown[0] = list[c].partial[0];
  list[c].shown[1] = list[c].partial[1];
  list[c].generation[0] = 255;          /* and is listed again some time */
  tried[c] = false
}
#endif

proctype Controller(byte c) {
  byte q;
end:
  do
  :: d_step { ledger_uid && !fresh[SERVES + c] && (SWAP_IN_CONTROLLER || tried[c] || !seen_ledger[c]) -> see(c) }
  :: d_step { WORTH_LISTING(c, 0) -> list_collection(c, 0) }
#if COLLECTIONS > 1
  :: d_step { WORTH_LISTING(c, 1) -> list_collection(c, 1) }
#endif
#if COLLECTIONS > 2
  :: d_step { WORTH_LISTING(c, 2) -> list_collection(c, 2) }
#endif
#if COLLECTIONS > 3
  :: d_step { WORTH_LISTING(c, 3) -> list_collection(c, 3) }
#endif
  :: d_step { sight[c].stage[0] == 1 && (request[0] == ended || !EXPIRY_BY_OWN_SIGHT) -> sight[c].stage[0] = 2 }
  :: d_step { sight[c].stage[1] == 1 && (request[1] == ended || !EXPIRY_BY_OWN_SIGHT) -> sight[c].stage[1] = 2 }
#if CHANGES || OBJECTS > 2
  :: d_step { sight[c].stage[2] == 1 && (request[2] == ended || !EXPIRY_BY_OWN_SIGHT) -> sight[c].stage[2] = 2 }
#endif
#if CHANGES
  :: d_step { sight[c].stage[3] == 1 && (request[3] == ended || !EXPIRY_BY_OWN_SIGHT) -> sight[c].stage[3] = 2 }
#endif
#if TELLS
  :: d_step { TELLABLE(c, 0) -> is_told(c, 0) }
  :: d_step { TELLABLE(c, 1) -> is_told(c, 1) }
#endif
#if SPEC_MOVES
  :: d_step { DIFFERS && reads[c] == NOTHING && (fresh[SERVES + c] || !(uid -> SPEC_IS_READ_AFTER_LEDGER : GONE_IS_READ_AFTER_LEDGER)) -> reads_quota(c, FOR_SWAP) }
  :: d_step { reads[c] == FOR_SWAP && ledger_uid && read_uid[c] && fresh[SERVES + c] -> swaps_spec(c) }
  :: d_step { reads[c] == FOR_SWAP && ledger_uid && !read_uid[c] && (fresh[SERVES + c] || !LEDGER_GOES_BY_SWAP) -> removes_ledger(c) }
  :: d_step { uid && !ledger_uid && reads[c] == NOTHING -> reads_quota(c, FOR_CREATE) }
  :: d_step { reads[c] == FOR_CREATE -> creates_ledger(c) }
#endif
#if ALLOCATES < OBJECTS
  :: d_step { list[c].for_good && !POD_COUNTS(c) -> list[c].for_good = 0; tried[c] = false }        /* it is another process */
#endif
#if SUMS_ARE_OF_THE_REVISION == 0
  :: d_step { list[c].summed[0] != list[c].shown[0] || list[c].summed[1] != list[c].shown[1] -> sums(c) }
#endif
#if LATER_EVENT_WINS == 0
  :: d_step { !list[c].listing && !stopped -> begins_list(c) }
  :: d_step { list[c].listing -> ends_list(c) }
#endif
#if EPOCHS == 0
  :: d_step { ledger_uid && IS_SEEN(c) && !waited[c] && (!ledger.counted || UNCOUNTED) &&
              ((!none_at[0] && !none_at[SERVES - 1]) || !NO_QUOTA_IS_RECENT) -> waited[c] = true; tried[c] = false }
#else
  :: d_step { ledger_uid && IS_SEEN(c) && !waits_from[c] && (!ledger.counted || UNCOUNTED) -> begins_to_wait(c) }
#if WAIT_FROM_AFTER_THE_SWAP == 0
  :: d_step { waits_from[c] && !raised[c] -> epoch++; raised[c] = true }
#define IS_RAISED(c) raised[c]
#else
#define IS_RAISED(c) 1
#endif
  :: d_step { ledger_uid && IS_SEEN(c) && waits_from[c] && !waited[c] && IS_RAISED(c) &&
              ((!MAY_BE_BELIEVED(c, 0) && !MAY_BE_BELIEVED(c, SERVES - 1)) || !NO_QUOTA_IS_RECENT) -> waited[c] = true; tried[c] = false }
#endif
#if MOVES
     /* policies/quota/ledger/reconcile.py: begin_transition */
  :: d_step { !stopped && fresh[SERVES + c] && !ledger.moving && !ledger.counted_by_next -> ledger.moving = true; tried[c] = false; written() }
#endif
  :: d_step { ledger_uid && seen_ledger[c] && ALL_LISTED(c) && !tried[c] && (fresh[SERVES + c] || !SWAP_IN_CONTROLLER) -> settle(c) }
  od;
  skip
}

/* ---- API server and people */

inline is_stored(q) {
  if
  :: !IS_CHANGE(q) && q < OF_ONE_NAME && (shows[0] || shows[1])        /* already exists */
  :: !IS_CHANGE(q) && !(q < OF_ONE_NAME && (shows[0] || shows[1])) -> shows[q] = CREATED(q); version[q]++; revision[COLLECTION(q)]++
  :: IS_CHANGE(q) && LIVE(0) && version[0] == base_version[q] ->
     shows[0] = AFTER(q); version[0]++; revision[PODS]++
  :: else
  fi;
  request[q] = ended;
  check_everyone_is_covered()
}

#if TAKEN < OBJECTS        /* a claim that came and went while no controller watched is not known to any */
#define IS_SEEN_TAKEN(o) ((o) != TAKEN || !reserved_for_pod || list[0].reserved)
#else
#define IS_SEEN_TAKEN(o) 1
#endif
#if ALLOCATES < OBJECTS        /* the finalizer of a claim in use, without which VANISHED is */
#define IS_PROTECTED(o) ((o) == ALLOCATES && allocated)
#else
#define IS_PROTECTED(o) 0
#endif
#define CAN_GO(o) (DELETIONS && !stopped && shows[o] && o != LABELLED && IS_SEEN_TAKEN(o) && !IS_PROTECTED(o))

#if ALLOCATES < OBJECTS
#define IS_USED_BY_POD (LIVE(0) && (owned || !GENERATED))
#define CAN_BE_ALLOCATED (!stopped && shows[ALLOCATES] && !allocated && allocations < 2 && (IS_USED_BY_POD || named) && !(bound && LIVE(0)))
/* policies/quota/claim_protection.py: borrowed_claims. A pod that names it was reviewed now, and is stored whenever it is allocated. */
#define CAN_BE_NAMED (!stopped && !named && shows[ALLOCATES] && (!owned || !CLAIM_IS_ITS_PODS_ALONE || !UNREAD_CLAIM_IS_NOT_NAMED))
/* policies/quota/claim_protection.py: changed_owner */
#define CAN_BE_TAKEN (!stopped && owned && shows[ALLOCATES] && !CLAIM_KEEPS_ITS_POD)
#define CAN_BE_GIVEN (!stopped && !owned && shows[ALLOCATES] && LIVE(0) && !CLAIM_IS_GIVEN_TO_NO_POD)
#define CAN_BE_ORPHANED (CAN_GO(0) && owned && shows[ALLOCATES] && !COLLECTOR_KEEPS_ITS_POD)        /* else the pod stays, too */
inline gets_owner(is_owned) { owned = is_owned; revision[CLAIMS]++; check_everyone_is_covered() }
inline is_allocated(is_small) {
  allocated = (is_small -> SMALL : CREATED(ALLOCATES));
  allocations++;
  revision[CLAIMS]++;
  sum = allocated;
  i = 0;
  do
  :: i < OBJECTS -> sum = sum + ((i != ALLOCATES && LIVE(i)) -> AMOUNT(shows[i], 0) : 0); i++
  :: else -> break
  od;
  assert(!promised[ALLOCATES] || sum <= LIMIT(0));   /* S1: what is allocated fits */
  check_everyone_is_covered()
}
#endif

inline becomes_terminal(o) { terminal[o] = true; version[o]++; revision[COLLECTION(o)]++ }
inline is_deleted(o, told) {
  shows[o] = 0; terminal[o] = false; revision[COLLECTION(o)]++; deleted_at[o] = (told -> revision[COLLECTION(o)] : 0)
}

proctype World() {
  byte made = uid;
end:
  do
  :: d_step { request[0] == allowed -> is_stored(0) }
  :: d_step { request[1] == allowed -> is_stored(1) }
  :: d_step { request[0] == begun || request[0] == allowed -> request[0] = ended }
  :: d_step { request[1] == begun || request[1] == allowed -> request[1] = ended }
#if CHANGES || OBJECTS > 2
  :: d_step { request[2] == allowed -> is_stored(2) }
  :: d_step { request[2] == begun || request[2] == allowed -> request[2] = ended }
#endif
#if CHANGES
  :: d_step { request[3] == allowed -> is_stored(3) }
  :: d_step { request[3] == begun || request[3] == allowed -> request[3] = ended }
#endif
#if DELETIONS
  :: d_step { CAN_GO(0) && !terminal[0] && COLLECTION(0) == PODS -> becomes_terminal(0) }
  :: d_step { CAN_GO(1) && !terminal[1] && COLLECTION(1) == PODS -> becomes_terminal(1) }
  :: d_step { CAN_GO(0) -> is_deleted(0, false) }        /* no watch was up, and a list has taken its place */
  :: d_step { CAN_GO(1) -> is_deleted(1, false) }
#endif
#if TELLS
  :: d_step { CAN_GO(0) -> is_deleted(0, true) }
  :: d_step { CAN_GO(1) -> is_deleted(1, true) }
#endif
#if TAKEN < OBJECTS
  :: d_step { !stopped && LIVE(0) && shows[TAKEN] && !reserved_for_pod -> reserved_for_pod = true; version[TAKEN]++; revision[CLAIMS]++ }
#endif
#if LABELLED < OBJECTS
  :: d_step { !stopped && LIVE(0) && !shows[LABELLED] -> shows[LABELLED] = CREATED(LABELLED); revision[COLLECTION(LABELLED)]++ }
#endif
#if ALLOCATES < OBJECTS
  :: d_step { CAN_BE_ALLOCATED -> is_allocated(true) }
  :: d_step { CAN_BE_ALLOCATED -> is_allocated(false) }
  :: d_step { allocated && !(bound && LIVE(0)) -> allocated = 0; revision[CLAIMS]++; check_everyone_is_covered() }
  :: d_step { CAN_BE_NAMED -> named = true }
  :: d_step { CAN_BE_TAKEN -> gets_owner(false) }
  :: d_step { CAN_BE_GIVEN -> gets_owner(true) }
  :: d_step { CAN_BE_ORPHANED -> owned = false; revision[CLAIMS]++; is_deleted(0, false) }
  :: d_step { !stopped && allocated && LIVE(0) && !bound -> bound = true; bound_at = revision[CLAIMS]; had = allocated; revision[PODS]++ }
#if SHRINKS_BY_LIST == 0
  :: d_step { CAN_BE_ALLOCATED && ledger.used[ALLOCATES] -> ledger.used[ALLOCATES] = SMALL; written() }
#endif
#endif
#if GENERATIONS > 1
  :: d_step { !stopped && uid && generation + 1 < GENERATIONS -> generation++ }
#endif
#if UIDS > 1
  :: d_step { !stopped && !uid && made < UIDS -> made++; uid = made }
  :: d_step { !stopped && uid && made < UIDS -> uid = 0 }
  :: d_step { none[0] -> forgets(0) }
  :: d_step { IS_OLD(none_at[0]) -> none_at[0] = 0 }
#if SERVES > 1
  :: d_step { none[1] -> forgets(1) }
  :: d_step { IS_OLD(none_at[1]) -> none_at[1] = 0 }
#endif
#if EPOCHS
  :: d_step { !gets_at[0] && (knows_at[0] != moment || !again[0]) -> begins_get(0) }
  :: d_step { gets_at[0] -> ends_get(0) }
  :: d_step { IS_OLD(knows_at[0]) -> knows_at[0] = 0; knows[0] = 0 }
  :: d_step { IS_OLD(gets_at[0]) && EPOCH_FROM_ITS_BEGIN -> gets_at[0] = 0; gets[0] = 0 }
#endif
#endif
  :: d_step { !stopped -> stopped = true }
  od;
  skip
}

#define BY_CATALOGUE(o) (MOVES && ledger.counted_by_next -> CREATED_BY_NEXT(o) : CHARGED(o))
#define TAKEN_OFF(o) ((o) == BESIDE && LIVE(0) -> shows[0] : 0)
#if ALLOCATES < OBJECTS        /* a controller that was not there when it was bound does not know what it had */
#define IS_OF_ENDED_POD(o) ((o) == ALLOCATES && GENERATED && bound && LIVE(o) && ledger.used[o] == had)
#else
#define IS_OF_ENDED_POD(o) false
#endif
#define SETTLED(o) (!ledger.entry[o] && (IS_OF_ENDED_POD(o) || ledger.used[o] == (HAS_DEVICES(o) -> BY_CATALOGUE(o) - TAKEN_OFF(o) : 0)))

proctype Quiet() {   /* L1 */
  timeout ->
  assert(!uid == !ledger_uid &&
         (!uid || (ledger.quota_uid == uid && ledger.generation == generation &&
                   ledger.counted && SETTLED(0) && SETTLED(1) && SETTLED(OBJECTS - 1) && !ledger.moving)));
#if CHANGES
  assert(!ledger.entry[2] && !ledger.entry[3])
#endif
}

init {
  d_step {
    ledger.counted = (uid != 0);
    ledger_uid = uid;
    ledger.quota_uid = uid;
    ledgers_made = uid;
    ledger.second_key = CONSTRAINED(0, 1);
#if STORED_AT_START
    shows[0] = CREATED(0); ledger.used[0] = CREATED(0); request[0] = ended; promised[0] = true; version[0] = 1;
    revision[PODS] = 1; ledger.revision[PODS] = 1;
#endif
    skip
  };
  atomic {
    run Serve(0); run Controller(0); run World(); run Quiet();
#if SERVES > 1
    run Serve(1);
#endif
#if CONTROLLERS > 1
    run Controller(1);
#endif
    skip
  }
}
