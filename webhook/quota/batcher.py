"""Requests that wait for one row are decided together, with one write.

Whoever finds nobody at work on a namespace leads: it takes everyone who waits, reads the row, decides, swaps, wakes them, and
hands the lead to the next who came meanwhile. So a namespace has one writer per process at a time, and a burst of n creations
costs far fewer than n writes. The lock guards queues in memory and is held over no I/O. Nobody waits beyond its own deadline:
what a write in flight then still reserves for it, the controller gives back.
"""

import random
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep

import msgspec

from policies.quota.ledger.bounds import NO_QUOTA_SECONDS
from policies.quota.ledger.decide import Decided, Reason, ReservationRequest, Verdict, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.store import Conflict, Gone, LedgerError, Store, Versioned

FIRST_PAUSE, LONGEST_PAUSE = 0.004, 0.25
"""Seconds before a second attempt, at most; doubled with each further one, and drawn at random below that."""

CONFLICT_PAUSE = 0.016
"""The longest pause after a conflict: somebody else got on, so nothing is overloaded."""

VANISHED_SECONDS = 60.0
"""How long after a quota was there "no quota" is read anew every time: who deletes one mostly makes another at once, as
`kubectl replace --force` does, and belief in an old answer would let everybody in meanwhile."""

NAMESPACES_REMEMBERED = 4096

Ask = Callable[[QuotaLedger], ReservationRequest | None]
"""What a request asks of a row, which says what unpinned pods are charged. None: nothing, it is refused anyway."""


class Answer(msgspec.Struct, frozen=True):
    """The row on which a request was decided, None if there is no quota; and the verdict, None if it asked nothing."""

    row: QuotaLedger | None
    verdict: Verdict | None = None


NO_QUOTA = Answer(None)


class _Waiting:
    """A request and what has come of it. `turn` is set when there is an outcome, or when it is to lead."""

    def __init__(self, ask: Ask, deadline: float) -> None:
        self.ask = ask
        self.deadline = deadline
        self.turn = threading.Event()
        self.leads = False
        self.given_up = False
        self.outcome: Answer | Exception | None = None

    def finish(self, outcome: Answer | Exception) -> None:
        self.outcome = outcome
        self.turn.set()

    def lead(self) -> None:
        self.leads = True
        self.turn.set()


class ReservationBatcher:
    """Decides requests on the rows of a store. Any number of threads may call it."""

    def __init__(self, store: Store, metrics: QuotaMetrics, clock: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Waiting]] = {}  # a namespace is in it while somebody leads
        self._known: dict[str, Versioned] = {}
        self._contended: set[str] = set()
        self._without_quota: dict[str, float] = {}
        self._quota_seen: dict[str, float] = {}

    def reserve(self, namespace: str, ask: Ask, deadline: float) -> Answer:
        """Decide and reserve by `deadline`, a moment of the clock. Raises LedgerError if that cannot be done."""
        if self.has_no_quota(namespace):
            return NO_QUOTA
        waiting = _Waiting(ask, deadline)
        self._join(namespace, waiting)
        while waiting.outcome is None:
            if not waiting.turn.wait(max(0.0, deadline - self._clock())) and self._give_up(waiting):
                raise LedgerError(
                    "other requests for the same quota were not decided in time", transient=True
                )
            if waiting.leads and waiting.outcome is None:
                self._lead(namespace, waiting)
        if isinstance(waiting.outcome, Exception):
            raise waiting.outcome
        return waiting.outcome

    def try_out(self, namespace: str, ask: Ask, deadline: float) -> Answer:
        """Decide as `reserve` does, and reserve nothing: for dry runs."""
        before = self._store.read(namespace, self._seconds_until(deadline))
        if before is None:
            return NO_QUOTA
        reservation = ask(before.row)
        if reservation is None:
            return Answer(before.row)
        (verdict,) = decide(before.row, [reservation], limit=self._store.entries_limit).verdicts
        return Answer(before.row, verdict)

    def look(self, namespace: str, deadline: float) -> QuotaLedger | None:
        """Return the row as it is, None if there is no quota. Raises LedgerError."""
        if self.has_no_quota(namespace):
            return None
        found = self._store.read(namespace, self._seconds_until(deadline))
        return found.row if found else None

    def has_no_quota(self, namespace: str) -> bool:
        """Whether a read that began at most D ago found none; cheap, and most namespaces have none."""
        begun = self._without_quota.get(namespace)
        return begun is not None and self._clock() - begun <= NO_QUOTA_SECONDS

    def _join(self, namespace: str, waiting: _Waiting) -> None:
        with self._lock:
            queue = self._queues.get(namespace)
            if queue is None:
                self._queues[namespace] = deque()
                waiting.lead()
            else:
                queue.append(waiting)

    def _give_up(self, waiting: _Waiting) -> bool:
        """Stop waiting, unless an outcome or the lead has come at this very moment."""
        with self._lock:
            waiting.given_up = not waiting.turn.is_set()
            return waiting.given_up

    def _gather(self, namespace: str, batch: list[_Waiting]) -> None:
        """Take everyone who waits into the batch, and leave out those who have given up or got their outcome."""
        with self._lock:
            queue = self._queues[namespace]
            batch.extend(queue)
            queue.clear()
            batch[:] = [waiting for waiting in batch if not waiting.given_up and waiting.outcome is None]

    def _lead(self, namespace: str, leader: _Waiting) -> None:
        batch = [leader]
        try:
            self._decide(namespace, batch, leader.deadline)
        except LedgerError as error:
            self._metrics.errors.inc()
            self._tell_failure(leader, batch, error)
        except Exception as error:  # noqa: BLE001 - raised again in the thread of every request of the batch
            for waiting in [leader, *batch]:
                waiting.finish(error)
        finally:
            self._hand_over(namespace, batch)

    def _tell_failure(self, leader: _Waiting, batch: list[_Waiting], error: LedgerError) -> None:
        """Tell it to everyone whom it concerns: one that may pass only to those who have no time left."""
        for waiting in [leader, *batch]:
            if waiting is leader or not error.transient or waiting.deadline <= self._clock():
                waiting.finish(error)

    def _hand_over(self, namespace: str, batch: list[_Waiting]) -> None:
        with self._lock:
            queue = self._queues[namespace]
            queue.extendleft(waiting for waiting in reversed(batch) if waiting.outcome is None)
            while queue:
                following = queue.popleft()
                if not following.given_up:
                    following.lead()
                    return
            del self._queues[namespace]

    def _decide(self, namespace: str, batch: list[_Waiting], deadline: float) -> None:
        """Answer the batch and whoever joins it meanwhile. Raises LedgerError once the deadline has passed.

        Where the batch before met somebody else's write, the row is read first. A controller that writes now and then costs a
        conflict each time, and no read before every write.
        """
        pause = FIRST_PAUSE
        fresh = namespace in self._contended
        self._contended.discard(namespace)
        last: LedgerError | None = None
        while True:
            self._gather(namespace, batch)
            if deadline <= self._clock():
                raise last or LedgerError(
                    "the row of the quota is written by too many at once", transient=True
                )
            try:
                self._attempt(namespace, batch, deadline, fresh=fresh)
            except (Conflict, Gone):
                self._metrics.conflicts.inc()
                self._contended.add(namespace)
                pause = min(pause, CONFLICT_PAUSE)
            except LedgerError as error:
                if not error.transient:
                    raise
                last = error
            else:
                return
            fresh = True
            left = max(0.0, deadline - self._clock())
            sleep(min(random.uniform(0, pause), left))  # noqa: S311 - jitter, no secret
            pause = min(2 * pause, LONGEST_PAUSE)

    def _attempt(self, namespace: str, batch: list[_Waiting], deadline: float, *, fresh: bool) -> None:
        """Decide the batch on the row as we left it, or else as it is; and write what is reserved.

        A row that is only remembered may justify nothing but a write, which fails if it is not the row any more.
        """
        known = None if fresh else self._known.get(namespace)
        if known is not None and self._decide_on(namespace, known, batch, deadline, only_by_write=True):
            return
        begun = self._clock()
        before = self._store.read(namespace, self._seconds_until(deadline))
        if before is None:
            self._forget(namespace, begun)
            for waiting in batch:
                waiting.finish(NO_QUOTA)
            return
        self._without_quota.pop(namespace, None)
        self._remember(namespace, before)
        self._decide_on(namespace, before, batch, deadline, only_by_write=False)

    def _decide_on(
        self,
        namespace: str,
        before: Versioned,
        batch: list[_Waiting],
        deadline: float,
        *,
        only_by_write: bool,
    ) -> bool:
        """Answer the batch on this row; with `only_by_write` only if all of it gets a reservation. Return whether it was."""
        asked = [(waiting, _asked(waiting, before.row)) for waiting in batch]
        asking = [(waiting, reservation) for waiting, reservation in asked if reservation is not None]
        decided = decide(
            before.row, [reservation for _, reservation in asking], limit=self._store.entries_limit
        )
        if only_by_write and (len(asking) < len(batch) or not _all_reserved(decided)):
            return False
        self._swap(namespace, before, decided, deadline)
        self._metrics.batch_size.observe(len(batch))
        for (waiting, _), verdict in zip(asking, decided.verdicts, strict=True):
            waiting.finish(Answer(before.row, verdict))
        for waiting, reservation in asked:
            if reservation is None and waiting.outcome is None:
                waiting.finish(Answer(before.row))
        return True

    def _swap(self, namespace: str, before: Versioned, decided: Decided, deadline: float) -> None:
        if decided.row is before.row:
            return
        self._known.pop(namespace, None)
        with self._metrics.write_seconds.time():
            after = self._store.swap(namespace, before, decided.row, self._seconds_until(deadline))
        self._remember(namespace, after)

    def _remember(self, namespace: str, row: Versioned) -> None:
        self._known[namespace] = row
        self._quota_seen[namespace] = self._clock()

    def _forget(self, namespace: str, begun: float) -> None:
        self._known.pop(namespace, None)
        seen = self._quota_seen.get(namespace)
        if seen is not None and begun - seen <= VANISHED_SECONDS:
            return
        self._quota_seen.pop(namespace, None)
        if len(self._without_quota) >= NAMESPACES_REMEMBERED:
            self._without_quota.clear()
        self._without_quota[namespace] = begun

    def _seconds_until(self, deadline: float) -> float:
        left = deadline - self._clock()
        if left <= 0:
            raise LedgerError("no time was left to ask for the quota", transient=True)
        return left


def _asked(waiting: _Waiting, row: QuotaLedger) -> ReservationRequest | None:
    """Return what the request asks; a defect met on the way is its own outcome, and nobody else's."""
    try:
        return waiting.ask(row)
    except Exception as error:  # noqa: BLE001 - raised again in the thread of the request
        waiting.finish(error)
        return None


def _all_reserved(decided: Decided) -> bool:
    return all(verdict.reason is Reason.RESERVED for verdict in decided.verdicts)
