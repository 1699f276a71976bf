"""A ledger in memory behind a network, and the batcher of a replica that asks it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

from prometheus_client import CollectorRegistry

from policies.quota.ledger.decide import VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError, ReservationOutcome
from tests.reservation_requests import creation_request
from tests.webhook.quota.ledgers import MemoryLedger
from tests.webhook.quota.world import NAMESPACE, vector
from webhook.quota.batcher import RequestOf, ReservationBatcher
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.store import LedgerConflict, VersionedLedger

LIMIT = 8 * 1024 * 1024


class SlowStore:
    """The memory store behind a network: every call takes a while, is counted, and can be made to fail."""

    reservations_limit = LIMIT

    def __init__(self, ledger: MemoryLedger, seconds: float = 0.0) -> None:
        self._store = ledger.store
        self.seconds = seconds
        self.reads = 0
        self.writes = 0
        self.at_work = 0
        self.most_at_work = 0
        self.fails: Callable[[str], None] = lambda _what: None
        self._lock = threading.Lock()

    def object_name(self, namespace: str) -> str:
        return self._store.object_name(namespace)

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:
        with self._counted("read", seconds):
            self.reads += 1
            return self._store.read(namespace, seconds)

    def compare_and_swap(
        self, namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        with self._counted("swap", seconds):
            self.writes += 1
            return self._store.compare_and_swap(namespace, before, ledger, seconds)

    @contextmanager
    def _counted(self, what: str, seconds: float) -> Iterator[None]:
        if self.seconds > seconds:
            sleep(seconds)
            raise LedgerError("timed out", transient=True)
        sleep(self.seconds)
        self.fails(what)
        with self._lock:
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            yield
        finally:
            with self._lock:
                self.at_work -= 1


class Bench:
    def __init__(self, gpus: int, seconds: float = 0.0, clock: Callable[[], float] = monotonic) -> None:
        self.ledger = MemoryLedger(vector(gpus=gpus))
        self.store = SlowStore(self.ledger, seconds)
        self.registry = CollectorRegistry()
        self.batches = ReservationBatcher(self.store, QuotaMetrics(self.registry), clock)
        self.clock = clock

    def ask(self, uid: str, gpus: int = 1) -> RequestOf:
        requested = creation_request(uid, vector(gpus=gpus), self.ledger.catalogue)
        return lambda _ledger_object, _published: requested

    def reserve(self, uid: str, gpus: int = 1, seconds: float = 20.0) -> ReservationOutcome:
        return self.batches.reserve(NAMESPACE, self.ask(uid, gpus), self.clock() + seconds)

    def held(self) -> list[str]:
        ledger = self.ledger.store.read(NAMESPACE, 1.0)
        assert ledger is not None
        return [reservation.id for reservation in ledger.ledger.reservations]

    def metric(self, name: str) -> float:
        return self.registry.get_sample_value(f"gpu_admission_quota_{name}") or 0.0


def reason(answer: ReservationOutcome) -> VerdictReason | None:
    return answer.verdict.reason if answer.verdict else None


def reads_of(bench: Bench, uid: str) -> int:
    """Reserve, and return how often the ledger was read for it."""
    before = bench.store.reads
    assert reason(bench.reserve(uid)) is VerdictReason.RESERVED
    return bench.store.reads - before


def failing(what: str, *failures: LedgerConflict | LedgerError | None) -> Callable[[str], None]:
    """Return what fails that call in turn, None for not at all, and the last failure each time after that."""
    left = list(failures)

    def fail(called: str) -> None:
        if called == what and (error := left.pop(0) if len(left) > 1 else left[0]) is not None:
            raise error

    return fail
