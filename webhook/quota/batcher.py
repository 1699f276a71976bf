"""One write for all requests that wait for a ledger.

The first request to an object leads. It takes all waiting requests, reads the object, decides, swaps, wakes them, and hands the
lead to the next one. So each process has one writer for an object, and a burst of n creations needs far fewer than n writes. An
object has the ledger of one namespace, or those of the namespaces of one team.
No lock is held during I/O. No request waits beyond its deadline; if a write in flight reserves for it after that, the controller
removes the reservation. Each review computes its demand in its own thread before it waits, by the catalogue versions of the
ledger that was last seen.

Replicas that write one ledger take turns. After a write, it leaves the ledger to others for the time of YIELDED_WRITES, and
after a conflict for the time of one to two. Requests gather meanwhile, so there are fewer writes and fewer conflicts. A replica
that writes alone lets them gather for the time of one write, after a batch of several. Every other write starts at once.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic, sleep, time

import msgspec

from policies.quota.demand import Catalogue
from policies.quota.ledger.decide import ReservationRequest, decide
from policies.quota.ledger.quota_ledger import DemandKey, QuotaLedger
from policies.quota.quota_request import LedgerError, ReservationOutcome, decide_alone
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.no_quota import NoQuota
from webhook.quota.store import LedgerConflict, Store, VersionedLedger

FIRST_PAUSE, LONGEST_PAUSE = 0.004, 0.25
"""Upper bounds in seconds of the random pause before a second attempt, doubled with each further attempt, and of all pauses.
LONGEST_PAUSE also bounds the time that a replica leaves to other replicas after its own write."""

COPY_SECONDS = 1.0
"""Maximum age of the ledger that `copy` returns. It decides only whether a new pod gets the scheduling gate."""

NEARLY_FULL = 8

REMEMBERED_SECONDS = 0.1
"""How long a replica assumes that the ledger is what it wrote. After a longer time, another replica has usually written it."""

RIVAL_SECONDS = 1.0
"""How long a replica reads before each write, and takes turns, after it saw the write of another one."""

YIELDED_WRITES = 3
"""Measured with three and five replicas: with 1 there are a third more writes, with 5 as many as with 3."""

GATHERING_SECONDS = 0.05
"""Longest wait of a lone replica after its write. Within it, the replica still trusts the ledger and does not read it again."""

NAMESPACES_REMEMBERED = 4096

NO_QUOTA = ReservationOutcome()

RequestOf = Callable[[QuotaLedger, Mapping[str, Catalogue]], ReservationRequest]
"""Computes a review's request by the catalogue versions of a ledger, some of them published by others."""

CataloguesOf = Callable[[QuotaLedger, float], Mapping[str, Catalogue]]
"""Reads the catalogues that a ledger names, by digest; the second argument is a timeout. Raises LedgerError."""


class _NoTimeLeftError(LedgerError):
    """The store was not called; report the error before this one."""


def _contended() -> LedgerError:
    return LedgerError("too many others write to the ledger of the quota", transient=True)


class _Moved:
    """The outcome of a review that waited for an object whose ledger has moved to another object."""


class _WaitingReview(msgspec.Struct, eq=False):
    """A review that waits for its outcome. `woken` is set when there is one, or when the review is to lead.

    `requests` holds its request by demand key. If the ledger has another key, the outcome is the ledger: the thread of the
    review then computes the request by it and waits again.
    """

    namespace: str
    requests: Mapping[DemandKey, ReservationRequest]
    deadline: float
    woken: threading.Event = msgspec.field(default_factory=threading.Event)
    leads: bool = False
    given_up: bool = False
    outcome: ReservationOutcome | QuotaLedger | _Moved | Exception | None = None

    def finish(self, outcome: ReservationOutcome | QuotaLedger | _Moved | Exception) -> None:
        self.outcome = outcome
        self.woken.set()

    def lead(self) -> None:
        self.leads = True
        self.woken.set()


class ReservationBatcher:
    """Decides on requests by the ledgers of a store. Thread-safe."""

    def __init__(
        self,
        store: Store,
        metrics: QuotaMetrics,
        clock: Callable[[], float] = monotonic,
        *,
        utc: Callable[[], float] = time,
        catalogues_of: CataloguesOf = lambda _ledger, _seconds: {},
        no_quota: NoQuota | None = None,
    ) -> None:
        self._store = store
        self._catalogues_of = catalogues_of
        self.metrics = metrics
        self._clock = clock
        self._utc = utc
        self.no_quota = no_quota or NoQuota(clock=clock)
        self._lock = threading.Lock()
        # By the name of an object, as `Store.object_name` has it:
        self._queues: dict[str, deque[_WaitingReview]] = {}  # an object is in it while somebody leads
        self._remembered: dict[str, tuple[VersionedLedger, float]] = {}  # and until when it may be used
        self._rivals: dict[str, float] = {}
        self._paused_until: dict[str, float] = {}  # when we may write again
        self._copies: dict[str, tuple[VersionedLedger, float]] = {}  # and when it was read

    def reserve(self, namespace: str, request_of: RequestOf, deadline: float) -> ReservationOutcome:
        """Decide and reserve by `deadline`, a moment of the clock. Raises LedgerError if that cannot be done."""
        requests: dict[DemandKey, ReservationRequest] = {}
        known, _ = self._remembered.get(self._store.object_name(namespace), (None, 0.0))
        if known is not None and (own := known.of(namespace)) is not None:
            requests[own.ledger.demand_key] = self._request(request_of, own.ledger, deadline)
        while True:
            outcome = self._outcome(_WaitingReview(namespace, requests, deadline))
            if isinstance(outcome, ReservationOutcome):
                return outcome
            if isinstance(outcome, QuotaLedger):
                requests[outcome.demand_key] = self._request(request_of, outcome, deadline)

    def _request(self, request_of: RequestOf, ledger: QuotaLedger, deadline: float) -> ReservationRequest:
        """Compute the request by a ledger, in the thread of its review. Try again after an error that may pass."""
        pause = FIRST_PAUSE
        while True:
            try:
                published = self._catalogues_of(ledger, self._seconds_until(deadline))
            except LedgerError as error:
                if not error.transient or self._clock() + pause >= deadline:
                    self.metrics.errors.inc()
                    raise
            else:
                return request_of(ledger, published)
            pause = self._back_off(pause, deadline)

    def _outcome(self, waiting: _WaitingReview) -> ReservationOutcome | QuotaLedger | _Moved:
        """Wait for the outcome, and lead when it is this review's turn."""
        object_name = self._store.object_name(waiting.namespace)
        with self._lock:
            if object_name in self._queues:
                self._queues[object_name].append(waiting)
            else:
                self._queues[object_name] = deque()
                waiting.lead()
        while waiting.outcome is None:
            seconds = max(0.0, waiting.deadline - self._clock())
            if not waiting.woken.wait(seconds) and self._give_up(waiting):
                problem = "other requests for the same quota were not decided in time"
                raise LedgerError(problem, transient=True)
            if waiting.leads and waiting.outcome is None:
                self._lead(object_name, waiting)
        if isinstance(waiting.outcome, Exception):
            raise waiting.outcome
        return waiting.outcome

    def try_out(self, namespace: str, request_of: RequestOf, deadline: float) -> ReservationOutcome:
        """Decide as `reserve` does, and reserve nothing: for dry runs."""
        ledger = self.ledger(namespace, deadline)
        if ledger is None:
            return NO_QUOTA
        published = self._catalogues_of(ledger, self._seconds_until(deadline))
        return self._decide_alone(ledger, request_of(ledger, published))

    def copy(self, namespace: str, request_of: RequestOf, deadline: float) -> ReservationOutcome:
        """Decide by a ledger that is at most COPY_SECONDS old, and reserve nothing. Raises LedgerError.

        Where there is not room for NEARLY_FULL such requests, the ledger is read: another replica may have reserved the rest.
        """
        known, read_at = self._copies.get(self._store.object_name(namespace), (None, float("-inf")))
        copied = known and known.of(namespace)
        must_read = copied is None or copied.ledger.used is None or self._clock() - read_at > COPY_SECONDS
        while True:
            if must_read:
                copied = self._read_copy(namespace, deadline)
            if copied is None:
                return NO_QUOTA
            ledger = copied.ledger
            request = request_of(ledger, self._catalogues_of(ledger, self._seconds_until(deadline)))
            outcome = self._decide_alone(ledger, request)
            if must_read or (outcome.verdict and not outcome.verdict.allowed):
                return outcome
            must_read = not ledger.has_room(request.demand, times=NEARLY_FULL)
            if not must_read:
                return outcome

    def _decide_alone(self, ledger: QuotaLedger, request: ReservationRequest) -> ReservationOutcome:
        return decide_alone(ledger, request, limit=self._store.reservations_limit, now=self._now_ms())

    def _now_ms(self) -> int:
        """Return the time in ms since 1970, for the periods of budgets."""
        return int(self._utc() * 1000)

    def _read_copy(self, namespace: str, deadline: float) -> VersionedLedger | None:
        read = self._store.read(namespace, self._seconds_until(deadline))
        if len(self._copies) >= NAMESPACES_REMEMBERED:
            self._copies.clear()
        if read is not None:
            self._copies[self._store.object_name(namespace)] = read, self._clock()
        return read

    def ledger(self, namespace: str, deadline: float) -> QuotaLedger | None:
        """Return the ledger, read by `deadline`; None where there is no quota. Raises LedgerError."""
        read = self._store.read(namespace, self._seconds_until(deadline))
        return None if read is None else read.ledger

    def _give_up(self, waiting: _WaitingReview) -> bool:
        """Stop waiting, unless an outcome or the lead has just come."""
        with self._lock:
            waiting.given_up = not waiting.woken.is_set()
            return waiting.given_up

    def _gather(self, object_name: str, batch: list[_WaitingReview]) -> None:
        """Add all waiting requests to the batch, and drop those that gave up or have their outcome."""
        with self._lock:
            queue = self._queues[object_name]
            batch.extend(queue)
            queue.clear()
            batch[:] = [waiting for waiting in batch if not waiting.given_up and waiting.outcome is None]

    def _lead(self, object_name: str, leader: _WaitingReview) -> None:
        batch = [leader]
        try:
            self._decide(object_name, batch, leader.deadline)
        except LedgerError as error:
            self.metrics.errors.inc()
            for waiting in [leader, *batch]:  # an error that may pass fails only those that have no time left
                if waiting is leader or not error.transient or waiting.deadline <= self._clock():
                    waiting.finish(error)
        except Exception as error:  # noqa: BLE001 - raised again in the thread of every request of the batch
            for waiting in [leader, *batch]:
                waiting.finish(error)
        finally:
            self._hand_over(object_name, batch)

    def _hand_over(self, object_name: str, batch: list[_WaitingReview]) -> None:
        with self._lock:
            queue = self._queues[object_name]
            queue.extendleft(waiting for waiting in reversed(batch) if waiting.outcome is None)
            while queue:
                following = queue.popleft()
                if not following.given_up:
                    following.lead()
                    return
            del self._queues[object_name]

    def _decide(self, object_name: str, batch: list[_WaitingReview], deadline: float) -> None:
        """Decide on the batch, and on requests that join it. Raises LedgerError once the deadline has passed."""
        pause, fresh = FIRST_PAUSE, False
        last = _contended()
        self._sleep(self._paused_until.get(object_name, 0.0) - self._clock(), deadline)
        while True:
            self._gather(object_name, batch)
            if not batch:
                return
            begun = self._clock()
            if deadline <= begun:
                raise last
            try:
                self._try_batch(object_name, batch, deadline, fresh=fresh)
            except LedgerConflict:
                self.metrics.conflicts.inc()
                last = _contended()
                if fresh or self._has_rivals(object_name):
                    # The winner writes again after as long. A random pause lets one of several losers be first.
                    took = min(self._clock() - begun, LONGEST_PAUSE / 2)
                    self._sleep(random.uniform(took, 2 * took), deadline)  # noqa: S311 - jitter, no secret
                fresh = True
                continue
            except LedgerError as error:
                if not error.transient:
                    raise
                if not isinstance(error, _NoTimeLeftError):
                    last = error
            else:
                return
            pause = self._back_off(pause, deadline)
            fresh = True

    def _back_off(self, pause: float, deadline: float) -> float:
        """Wait for at most `pause`, and return the next one."""
        self._sleep(random.uniform(0, pause), deadline)  # noqa: S311 - jitter, no secret
        return min(2 * pause, LONGEST_PAUSE)

    def _sleep(self, seconds: float, deadline: float) -> None:
        if seconds > 0:
            sleep(min(seconds, max(0.0, deadline - self._clock())))

    def _try_batch(
        self, object_name: str, batch: list[_WaitingReview], deadline: float, *, fresh: bool
    ) -> None:
        """Decide on the batch by the remembered object, or else by a fresh one, and write the reservations.

        A remembered object justifies only a write, which fails if it has changed.
        """
        known, until = self._remembered.get(object_name, (None, 0.0))
        may_reuse = not fresh and not self._has_rivals(object_name) and self._clock() < until
        if known is not None and may_reuse and self._decide_by_object(object_name, known, batch, deadline):
            return
        begun, epoch, namespace = self._clock(), self.no_quota.epoch(), batch[0].namespace
        before = self._store.read(namespace, self._seconds_until(deadline))
        of_namespace = [waiting for waiting in batch if waiting.namespace == namespace]
        if before is None:
            self._forget(namespace)
            self.no_quota.note_no_quota(namespace, begun, epoch)
            for waiting in of_namespace:
                waiting.finish(NO_QUOTA)
            return
        if self._store.object_name(namespace) != object_name:
            for waiting in of_namespace:
                waiting.finish(_Moved())
            return
        if known is not None and before.reserves_more_than(known):
            self._rivals[object_name] = self._clock() + RIVAL_SECONDS
        self._remember(object_name, before)
        came_before = frozenset(batch)
        self._gather(object_name, batch)
        self._decide_by_object(object_name, before, batch, deadline, came_before=came_before)

    def _decide_by_object(
        self,
        object_name: str,
        before: VersionedLedger,
        batch: list[_WaitingReview],
        deadline: float,
        *,
        came_before: frozenset[_WaitingReview] | None = None,
    ) -> bool:
        """Decide on the batch by this object. Return False if it may not decide.

        `came_before` are the requests that came before the object was read. It denies no others: they wait for the next read, as
        do those of a namespace whose ledger it does not have. None means that the object is only remembered: then it decides only
        if every request can be reserved.
        """
        after, outcomes = self._decide_each(before, batch)
        batch[:] = [waiting for waiting in batch if waiting.outcome is None]
        reserved = [waiting for waiting, outcome in outcomes.items() if outcome.is_reserved]
        if came_before is None and len(reserved) < len(batch):
            return False
        if after is not before:
            self._remembered[object_name] = before, 0.0
            self._write(object_name, after, next(iter(outcomes)).namespace, deadline, gather=len(batch) > 1)
        if outcomes:
            self.metrics.batch_size.observe(len(outcomes))
        for waiting, outcome in outcomes.items():
            if outcome.is_reserved or waiting in (came_before or ()):
                waiting.finish(outcome)
        return True

    def _decide_each(
        self, before: VersionedLedger, batch: list[_WaitingReview]
    ) -> tuple[VersionedLedger, dict[_WaitingReview, ReservationOutcome]]:
        """Return what replaces the object, and the outcomes. Finish those that must compute their request by its ledger first."""
        after, outcomes = before, dict[_WaitingReview, ReservationOutcome]()
        for namespace in dict.fromkeys(waiting.namespace for waiting in batch):
            if (own := after.of(namespace)) is None:
                continue
            ledger = own.ledger
            key, of_namespace = ledger.demand_key, [each for each in batch if each.namespace == namespace]
            for waiting in of_namespace:
                if key not in waiting.requests:
                    waiting.finish(ledger)
            of_namespace = [review for review in of_namespace if key in review.requests]
            requests = [review.requests[key] for review in of_namespace]
            limit = after.reservation_limit(namespace, self._store.reservations_limit)
            decided = decide(ledger, requests, limit=limit, now=self._now_ms())
            if decided.ledger is not ledger:
                after = after.with_ledger(namespace, decided.ledger)
            for waiting, request, verdict in zip(of_namespace, requests, decided.verdicts, strict=True):
                outcomes[waiting] = ReservationOutcome(ledger, request, verdict)
        return after, outcomes

    def _write(
        self, object_name: str, after: VersionedLedger, namespace: str, deadline: float, *, gather: bool
    ) -> None:
        """Write the object, and set when we may write again. `gather`: more requests are likely to come at once."""
        changed = after.of(namespace) or after
        begun, seconds = self._clock(), self._seconds_until(deadline)
        with self.metrics.write_seconds.time():
            written = self._store.compare_and_swap(namespace, after, changed.ledger, seconds)
        self._remember(object_name, written)
        now = self._clock()
        if self._has_rivals(object_name):
            self._paused_until[object_name] = now + min(YIELDED_WRITES * (now - begun), LONGEST_PAUSE)
        elif gather:
            self._paused_until[object_name] = now + min(now - begun, GATHERING_SECONDS)

    def _has_rivals(self, object_name: str) -> bool:
        return self._clock() < self._rivals.get(object_name, 0.0)

    def _remember(self, object_name: str, versioned: VersionedLedger) -> None:
        now = self._clock()
        if len(self._remembered) >= NAMESPACES_REMEMBERED and object_name not in self._remembered:
            # These only save reads and conflicts, and most namespaces may be gone.
            for remembered in (self._remembered, self._rivals, self._paused_until):
                remembered.clear()
        self._remembered[object_name] = versioned, now + REMEMBERED_SECONDS
        if object_name in self._copies:
            self._copies[object_name] = versioned, now

    def _forget(self, namespace: str) -> None:
        for remembered in (self._remembered, self._rivals, self._paused_until):
            remembered.pop(namespace, None)

    def _seconds_until(self, deadline: float) -> float:
        seconds = deadline - self._clock()
        if seconds <= 0:
            raise _NoTimeLeftError("no time was left to read the quota", transient=True)
        return seconds
