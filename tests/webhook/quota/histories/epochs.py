"""Histories of the epoch: a replica remembers "no quota", and a controller is about to count one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from policies.quota.ledger.quota_ledger import NO_QUOTA_SECONDS
from tests.builders import quota_ledger
from tests.webhook.quota.ledger_api import LedgerApi
from tests.webhook.quota.quota_and_ledger_object import keeper
from tests.webhook.quota.world import NAMESPACE
from webhook.controller import observed_ledgers, reconciler
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.no_quota import NoQuota
from webhook.quota.store import VersionedLedger

GET_SECONDS = 1.9


class Replica:
    """A replica and a controller of one clock. The quota may count as soon as the controller may initialise its ledger."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = LedgerApi().store()
        self.observed = ObservedLedgers()
        self.during_get: Callable[[], object] = lambda: None
        self.during_swap: Callable[[], object] = lambda: None
        self.no_quota = NoQuota(self._get, clock=lambda: self.now)
        self.broken: list[str] = []

    def finds_none(self) -> None:
        self.no_quota.read()
        self.no_quota.note_no_quota(NAMESPACE, self.now, self.no_quota.epoch())

    def quota_appears(self) -> None:
        """Let a controller observe its ledger, and raise the epoch."""

        def raised(store: ClusterStore, seconds: float) -> None:
            self.during_swap()
            swap(store, seconds)

        swap = ClusterStore.raise_epoch
        with self.in_its_time(), patch.object(ClusterStore, "raise_epoch", raised):
            self.observed.observe(NAMESPACE, VersionedLedger(quota_ledger(hard={}), "1"))
            keeper(self.store, self.observed)._initialization_wait(NAMESPACE)

    def answers(self, *, by: bool | None = None) -> "Replica":
        """Answer once the quota may count, by what the replica believes then, or by what it believed before."""
        with self.in_its_time():
            self.now += self.observed.initialization_wait(NAMESPACE) + 0.01
        if self.no_quota.is_current(NAMESPACE) if by is None else by:
            self.broken.append("S2: admitted without a reservation, and the quota counts")
        return self

    @contextmanager
    def in_its_time(self) -> Iterator[None]:
        modules = observed_ledgers, reconciler
        with (
            patch.object(modules[0], "monotonic", self._time),
            patch.object(modules[1], "monotonic", self._time),
        ):
            yield

    def _time(self) -> float:
        return self.now

    def _get(self, seconds: float) -> int:
        found = self.store.epoch(seconds)
        self.during_get()
        return found


def a_replica_knows_of_another_epoch(*, rule: bool) -> Replica:
    """Believe only what was read in the epoch."""
    replica = Replica()
    replica.finds_none()
    replica.quota_appears()
    replica.now += NO_QUOTA_SECONDS - 0.1
    replica.no_quota.read()
    if not rule:
        replica.no_quota.note_no_quota(NAMESPACE, 100.0, replica.no_quota.epoch())
    return replica.answers()


def an_epoch_is_raised_during_a_read(*, rule: bool) -> Replica:
    """Take for the epoch of a belief the one that was known when its read began."""
    replica = Replica()
    replica.no_quota.read()
    begun, epoch = replica.now, replica.no_quota.epoch()
    replica.quota_appears()
    replica.no_quota.read()
    replica.no_quota.note_no_quota(NAMESPACE, begun, epoch if rule else replica.no_quota.epoch())
    replica.now += NO_QUOTA_SECONDS - 0.1
    replica.no_quota.read()
    return replica.answers()


def a_get_of_the_epoch_takes_long(*, rule: bool) -> Replica:
    """Count the age of a GET from its begin."""
    replica = Replica()
    replica.finds_none()

    def goes_on() -> None:
        replica.during_get = lambda: None
        replica.quota_appears()
        replica.now += GET_SECONDS

    replica.during_get = goes_on
    replica.no_quota.read()
    if not rule:
        replica.no_quota._epoch_read = replica.no_quota._epoch_read[0], replica.now
    return replica.answers()


def an_epoch_is_raised_slowly(*, rule: bool) -> Replica:
    """Wait from after the swap."""
    replica = Replica()
    replica.finds_none()

    def a_get_comes_before_it() -> None:
        replica.now += GET_SECONDS
        replica.no_quota.read()

    replica.during_swap = a_get_comes_before_it
    replica.quota_appears()
    if not rule:
        (begun, _), raised = replica.observed.raised[-1], replica.observed.raised
        raised[-1] = begun, begun
    return replica.answers()


def a_replica_is_stopped_before_its_answer(*, rule: bool) -> Replica:
    """Check what is believed again, right before the answer."""
    replica = Replica()
    replica.finds_none()
    believed = replica.no_quota.is_current(NAMESPACE)
    replica.quota_appears()
    return replica.answers(by=None if rule else believed)
