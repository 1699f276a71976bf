"""Decide together, with one write, on the requests that wait for one ledger.

A request that finds nobody at work on its namespace leads: it takes all that wait, reads the ledger, decides, swaps, wakes
them, and hands the lead to the next that came meanwhile. So a namespace has one writer per process at a time, and a burst of n
creations costs far fewer than n writes. The lock guards queues in memory and is held over no I/O. Nothing waits beyond its own
deadline: what a write in flight then still reserves for it, the controller gives back. Where creations of one demand come fast,
some are reserved ahead with a write, and cost none when they come: `spares`.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep

from policies.quota.charge_request import LedgerError, ReservationOutcome
from policies.quota.ledger.decide import Reason, ReservationVerdict, decide
from policies.quota.ledger.quota_ledger import NO_QUOTA_SECONDS, QuotaLedger
from policies.quota.ledger.spares import counts_twice, settled
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.spares import SETTLE_SECONDS, Spares
from webhook.quota.store import LedgerConflict, QuotaGone, Store, VersionedLedger
from webhook.quota.waiting import CataloguesOf, RequestOf, Waiting

log = logging.getLogger("gpu_admission.quota")

FIRST_PAUSE, LONGEST_PAUSE = 0.004, 0.25
"""Seconds before a second attempt, at most; doubled with each further one, and drawn at random below that."""

CONFLICT_PAUSE = 0.016
"""The longest pause after a conflict: somebody else got on, so nothing is overloaded."""

REMEMBERED_SECONDS = 0.1
"""How long the ledger that we wrote is taken for that of the row. Where writes come more seldom, others have mostly written."""

RIVAL_SECONDS = 1.0
"""How long the ledger is read before each write, after another replica was seen to write it."""

SETTLE_AT_MOST = 2.0
"""Seconds for all swaps that settle where nobody waits, at one time."""

VANISHED_SECONDS = 60.0
"""How long after a quota was there "no quota" is read anew every time: who deletes one mostly makes another at once, as
`kubectl replace --force` does, and belief in an old answer would admit everything meanwhile."""

NAMESPACES_REMEMBERED = 4096

NO_QUOTA = ReservationOutcome()


class _NoTimeLeftError(LedgerError):
    """Nothing was asked: what went wrong before is the reason."""


def _contended() -> LedgerError:
    return LedgerError("too many others write to the ledger of the quota", transient=True)


class ReservationBatcher:
    """Decides on requests by the ledgers of a store. Any number of threads may call it."""

    def __init__(
        self,
        store: Store,
        metrics: QuotaMetrics,
        clock: Callable[[], float] = monotonic,
        *,
        catalogues_of: CataloguesOf = lambda _ledger, _seconds: {},
    ) -> None:
        self._store = store
        self._catalogues_of = catalogues_of
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Waiting]] = {}  # a namespace is in it while somebody leads
        self._known: dict[str, tuple[VersionedLedger, float]] = {}  # and until when it may be used
        self._rivals: dict[str, float] = {}
        self._spares = Spares(clock)
        self._stopped = threading.Event()
        self._settling = threading.Thread(target=self._settle_what_is_due, name="spares", daemon=True)
        self._without_quota: dict[str, float] = {}
        self._quota_seen: dict[str, float] = {}

    def start(self) -> None:
        """Reserve ahead where creations come fast, and settle what was."""
        self._spares.reserves_ahead = True
        self._settling.start()

    def stop(self) -> None:
        """Reserve nothing ahead any more, and give back what was not assigned."""
        self._spares.reserves_ahead = False
        self._stopped.set()
        self._settling.join()
        self.settle_due(last=True)

    def reserve(self, namespace: str, request_of: RequestOf, deadline: float) -> ReservationOutcome:
        """Decide and reserve by `deadline`, a moment of the clock. Raises LedgerError if that cannot be done."""
        if self.has_no_quota(namespace):
            return NO_QUOTA
        waiting = Waiting(request_of, deadline)
        if not self._assigned(namespace, waiting):
            with self._lock:
                if namespace in self._queues:
                    self._queues[namespace].append(waiting)
                else:
                    self._queues[namespace] = deque()
                    waiting.lead()
        while waiting.outcome is None:
            if not waiting.turn.wait(max(0.0, deadline - self._clock())) and self._give_up(waiting):
                problem = "other requests for the same quota were not decided in time"
                raise LedgerError(problem, transient=True)
            if waiting.leads and waiting.outcome is None:
                self._lead(namespace, waiting)
        if isinstance(waiting.outcome, Exception):
            raise waiting.outcome
        return waiting.outcome

    def try_out(self, namespace: str, request_of: RequestOf, deadline: float) -> ReservationOutcome:
        """Decide as `reserve` does, and reserve nothing: for dry runs."""
        ledger = self.ledger(namespace, deadline)
        if ledger is None:
            return NO_QUOTA
        charged = request_of(ledger, self._catalogues_of(ledger, self._seconds_until(deadline)))
        if charged.request is None:
            return ReservationOutcome(ledger, charged.charge)
        (verdict,) = decide(ledger, [charged.request], limit=self._store.reservations_limit).verdicts
        return ReservationOutcome(ledger, charged.charge, verdict)

    def ledger(self, namespace: str, deadline: float) -> QuotaLedger | None:
        """Return the ledger, read by `deadline`; None where there is no quota. Raises LedgerError."""
        found = self._store.read(namespace, self._seconds_until(deadline))
        return None if found is None else found.ledger

    @staticmethod
    def is_denied_by_spares(outcome: ReservationOutcome) -> bool:
        """Whether a request that does not fit may do so in a moment, once spares are settled and counted."""
        ledger, verdict = outcome.ledger, outcome.verdict
        if ledger is None or verdict is None or verdict.reason is not Reason.EXCEEDED:
            return False
        return counts_twice(ledger) and all(
            each.used + each.requested <= each.hard for each in verdict.shortfalls
        )

    def has_no_quota(self, namespace: str) -> bool:
        """Whether a read that began at most D ago found none; cheap, and most namespaces have none."""
        begun = self._without_quota.get(namespace)
        return begun is not None and self._clock() - begun <= NO_QUOTA_SECONDS

    def _give_up(self, waiting: Waiting) -> bool:
        """Stop waiting, unless an outcome or the lead has come at this very moment."""
        with self._lock:
            waiting.given_up = not waiting.turn.is_set()
            return waiting.given_up

    def _gather(self, namespace: str, batch: list[Waiting]) -> None:
        """Take everyone who waits into the batch, and leave out those who have given up or got their outcome."""
        with self._lock:
            queue = self._queues[namespace]
            batch.extend(queue)
            queue.clear()
            batch[:] = [waiting for waiting in batch if not waiting.given_up and waiting.outcome is None]

    def _lead(self, namespace: str, leader: Waiting) -> None:
        batch = [leader]
        try:
            self._decide(namespace, batch, leader.deadline)
        except LedgerError as error:
            self._metrics.errors.inc()
            for waiting in [leader, *batch]:  # an error that may pass fails only those that have no time left
                if waiting is leader or not error.transient or waiting.deadline <= self._clock():
                    waiting.finish(error)
        except Exception as error:  # noqa: BLE001 - raised again in the thread of every request of the batch
            for waiting in [leader, *batch]:
                waiting.finish(error)
        finally:
            self._hand_over(namespace, batch)

    def _hand_over(self, namespace: str, batch: list[Waiting]) -> None:
        with self._lock:
            queue = self._queues[namespace]
            queue.extendleft(waiting for waiting in reversed(batch) if waiting.outcome is None)
            while queue:
                following = queue.popleft()
                if not following.given_up:
                    following.lead()
                    return
            del self._queues[namespace]

    def _decide(
        self, namespace: str, batch: list[Waiting], deadline: float, *, settles: bool = False
    ) -> None:
        """Decide on the batch and on what joins it meanwhile. Raises LedgerError once the deadline has passed.

        `settles`: write even if nobody waits.
        """
        pause, fresh = FIRST_PAUSE, False
        last = _contended()
        while True:
            self._gather(namespace, batch)
            batch[:] = [waiting for waiting in batch if not self._assigned(namespace, waiting)]
            if not batch and not settles:
                return
            if deadline <= self._clock():
                raise last
            try:
                self._attempt(namespace, batch, deadline, fresh=fresh)
            except (LedgerConflict, QuotaGone):
                self._metrics.conflicts.inc()
                last = _contended()
                pause = min(pause, CONFLICT_PAUSE) if fresh else 0.0
            except LedgerError as error:
                if not error.transient:
                    raise
                if not isinstance(error, _NoTimeLeftError):
                    last = error
            else:
                return
            self._sleep(random.uniform(0, pause), deadline)  # noqa: S311 - jitter, no secret
            pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)
            fresh = True

    def _sleep(self, seconds: float, deadline: float) -> None:
        if seconds > 0:
            sleep(min(seconds, max(0.0, deadline - self._clock())))

    def _attempt(self, namespace: str, batch: list[Waiting], deadline: float, *, fresh: bool) -> None:
        """Decide on the batch by the ledger as we left it, or else as it is; and write what is reserved.

        A ledger that is only remembered may justify nothing but a write, which fails if it is not the ledger any more.
        """
        known, until = self._known.get(namespace, (None, 0.0))
        now = self._clock()
        is_usable = not fresh and self._rivals.get(namespace, 0.0) <= now < until
        if known is not None and is_usable and self._decide_on(namespace, known, batch, deadline):
            return
        begun = self._clock()
        before = self._store.read(namespace, self._seconds_until(deadline))
        if before is None:
            self._forget(namespace, begun)
            for waiting in batch:
                waiting.finish(NO_QUOTA)
            return
        self._without_quota.pop(namespace, None)
        if known is not None and not set(before.ledger.reservations.ids).issubset(
            known.ledger.reservations.ids
        ):
            self._rivals[namespace] = self._clock() + RIVAL_SECONDS
        self._remember(namespace, before)
        asked = frozenset(batch)
        self._gather(namespace, batch)
        self._decide_on(namespace, before, batch, deadline, asked=asked)

    def _decide_on(
        self,
        namespace: str,
        before: VersionedLedger,
        batch: list[Waiting],
        deadline: float,
        *,
        asked: frozenset[Waiting] | None = None,
    ) -> bool:
        """Decide on the batch by this ledger, and return whether that was done.

        `asked` are those that came before it was read; of others it may justify nothing but a write: they wait for the next read.
        None: it is only remembered, and decides on nobody unless all is reserved.
        """
        published = self._catalogues_of(before.ledger, self._seconds_until(deadline))
        found = [(waiting, waiting.charged(before.ledger, published)) for waiting in batch]
        charged = [(waiting, each) for waiting, each in found if each is not None]
        asking = [(waiting, each.charge, each.request) for waiting, each in charged if each.request]
        requests, limit = [request for _, _, request in asking], self._store.reservations_limit
        settling = self._spares.retire(namespace)
        decided = decide(settled(before.ledger, settling), requests, limit=limit)
        reserved = [
            request
            for request, verdict in zip(requests, decided.verdicts, strict=True)
            if verdict.reason is Reason.RESERVED
        ]
        if asked is None and len(reserved) < len(batch):
            return False
        if decided.ledger is not before.ledger:
            self._known[namespace] = before, 0.0
            after, wanted = self._spares.reserve(namespace, decided.ledger, reserved, limit)
            with self._metrics.write_seconds.time():
                begun, left = self._clock(), self._seconds_until(deadline)
                written = self._store.compare_and_swap(namespace, before, after, left)
            self._remember(namespace, written)
            self._spares.written(namespace, written.ledger, reserved, wanted, begun)
        if decided.ledger is not before.ledger or asked is not None:
            self._spares.settled(namespace, settling)  # last: a ledger without spares of ours is not kept
        if batch:
            self._metrics.batch_size.observe(len(batch))
        for (waiting, charge, _), verdict in zip(asking, decided.verdicts, strict=True):
            if verdict.reason is Reason.RESERVED or waiting in (asked or ()):
                waiting.finish(ReservationOutcome(before.ledger, charge, verdict))
        for waiting, each in charged:
            if each.request is None and waiting in (asked or ()):
                waiting.finish(ReservationOutcome(before.ledger, each.charge))
        return True

    def _assigned(self, namespace: str, waiting: Waiting) -> bool:
        """Finish a request by a spare, and return whether it is finished."""
        ledger = self._spares.ledger(namespace)
        if ledger is None:
            return False
        try:
            published = self._catalogues_of(ledger, self._seconds_until(waiting.deadline))
        except LedgerError:
            return False
        charged = waiting.charged(ledger, published)
        if charged is None or charged.request is None:
            return charged is None
        assigned = self._spares.assign(namespace, charged.request)
        if assigned is None:
            return False
        self._metrics.assigned.inc()
        ledger, reserved = assigned
        verdict = ReservationVerdict(Reason.RESERVED, reserved=reserved)
        waiting.finish(ReservationOutcome(ledger, charged.charge, verdict))
        return True

    def _settle_what_is_due(self) -> None:
        while not self._stopped.wait(SETTLE_SECONDS):
            self.settle_due()

    def settle_due(self, *, last: bool = False) -> None:
        """Settle the spares that are due; at the `last` time all."""
        deadline = self._clock() + SETTLE_AT_MOST
        for namespace in self._spares.due(last=last):
            self._settle(namespace, deadline)

    def _settle(self, namespace: str, deadline: float) -> None:
        """Settle what is due, unless somebody leads, who will do that with the next write."""
        with self._lock:
            if namespace in self._queues:
                return
            self._queues[namespace] = deque()
        batch: list[Waiting] = []
        try:
            self._decide(namespace, batch, deadline, settles=True)
        except LedgerError:
            log.debug(
                "spares of namespace %s are settled later", namespace, exc_info=True
            )  # nobody was denied
        except Exception:
            log.exception("spares of namespace %s could not be settled", namespace)
        finally:
            self._hand_over(namespace, batch)

    def _remember(self, namespace: str, ledger: VersionedLedger) -> None:
        now = self._clock()
        if len(self._quota_seen) >= NAMESPACES_REMEMBERED and namespace not in self._quota_seen:
            # All of it only saves reads and conflicts, and most may be of namespaces that are gone.
            for remembered in (self._known, self._quota_seen, self._rivals):
                remembered.clear()
            self._spares.forget_idle()
        self._known[namespace] = ledger, now + REMEMBERED_SECONDS
        self._quota_seen[namespace] = now

    def _forget(self, namespace: str, begun: float) -> None:
        self._known.pop(namespace, None)
        self._rivals.pop(namespace, None)
        self._spares.forget(namespace)
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
            raise _NoTimeLeftError("no time was left to read the quota", transient=True)
        return left
