"""How long a replica believes that a namespace has no quota, and what that costs."""

import pytest

from policies.quota.ledger.quota_ledger import NO_QUOTA_SECONDS
from policies.quota.quota_request import LedgerError
from tests.cases import cases
from tests.webhook.quota.ledger_api import INSTALLATION, LedgerApi
from tests.webhook.quota.ledgers import configuration
from tests.webhook.quota.slow_store import Bench
from webhook.quota.ledger_objects import EPOCH_OBJECT, ledger_objects_path
from webhook.quota.no_quota import LISTED_SECONDS, READ_SECONDS, REMEMBERED_SECONDS, NoQuota
from webhook.quota.store import LedgerConflict

PATH = ledger_objects_path(INSTALLATION, EPOCH_OBJECT)
OWN_SECONDS = NO_QUOTA_SECONDS - LISTED_SECONDS


class Replica:
    def __init__(self) -> None:
        self.now, self.api = 100.0, LedgerApi()
        self.store = self.api.store()
        self.no_quota = NoQuota(self.store.epoch, lambda: self.now)
        self.no_quota.read()

    def finds_none(self, *namespaces: str) -> None:
        for namespace in namespaces:
            self.no_quota.note_no_quota(namespace, self.now, self.no_quota.epoch())

    def goes_on(self, seconds: float, *, reads: bool = True) -> None:
        until = self.now + seconds
        while reads and self.now + READ_SECONDS < until:
            self.now += READ_SECONDS
            self.no_quota.read()
        self.now = until


@cases(
    ("reads", "seconds", "believed"),
    while_the_epoch_is_read=(True, REMEMBERED_SECONDS - 0.1, True),
    no_longer_though_no_controller_raises_it=(True, REMEMBERED_SECONDS + 0.1, False),
    without_a_route=(False, NO_QUOTA_SECONDS - 0.1, True),
    without_a_route_for_longer=(False, NO_QUOTA_SECONDS + 0.1, False),
)
def test_for_so_long_it_is_believed(reads: bool, seconds: float, believed: bool) -> None:
    replica = Replica()
    replica.finds_none("cv")
    replica.goes_on(seconds, reads=reads)
    assert replica.no_quota.is_current("cv") is believed


@cases(("seconds", "believed"), a_moment_ago=(OWN_SECONDS - 0.1, True), before=(OWN_SECONDS + 0.1, False))
def test_an_epoch_that_was_never_read_leaves_the_own_read(seconds: float, believed: bool) -> None:
    now = 100.0
    no_quota = NoQuota(clock=lambda: now)
    no_quota.note_no_quota("cv", now, no_quota.epoch())
    now += seconds
    assert no_quota.is_current("cv") is believed


def test_a_raised_epoch_ends_it() -> None:
    replica = Replica()
    for _ in range(2):  # it is created, and then raised
        replica.finds_none("cv")
        replica.store.raise_epoch(1.0)
        replica.goes_on(OWN_SECONDS + READ_SECONDS)
        assert not replica.no_quota.is_current("cv")
        replica.finds_none("cv")
        replica.goes_on(OWN_SECONDS + READ_SECONDS)
        assert replica.no_quota.is_current("cv"), "it was read in the new epoch"
    assert replica.api.writes[PATH] == 2


def test_an_epoch_that_is_deleted_and_raised_is_another_one() -> None:
    replica = Replica()
    replica.store.raise_epoch(1.0)
    replica.no_quota.read()
    replica.finds_none("cv")
    replica.api.delete(PATH, version=str(replica.store.epoch(1.0)))
    replica.store.raise_epoch(1.0)
    replica.goes_on(OWN_SECONDS + READ_SECONDS)
    assert not replica.no_quota.is_current("cv")


def test_of_two_that_raise_it_at_once_one_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = LedgerApi().store()
    store.raise_epoch(1.0)
    stale = store.epoch(1.0)
    store.raise_epoch(1.0)
    monkeypatch.setattr(store, "epoch", lambda _seconds: stale)
    with pytest.raises(LedgerConflict):
        store.raise_epoch(1.0)


def test_an_epoch_that_cannot_be_read_stays_as_it_was() -> None:
    epochs = [7]

    def read_epoch(_seconds: float) -> int:
        if not epochs:
            raise LedgerError("away", transient=True)
        return epochs.pop()

    no_quota = NoQuota(read_epoch)
    for _ in range(2):
        no_quota.read()
    assert no_quota.epoch() == 7


def test_nothing_else_is_kept_of_namespaces_without_a_quota() -> None:
    bench = Bench(gpus=1)
    bench.ledger.configuration = configuration()
    for number in range(10):
        bench.batches.reserve(f"namespace-{number}", bench.ask(f"pod{number}"), bench.clock() + 5.0)
    kept = {
        name: len(each)
        for held in (bench.batches, bench.batches.no_quota)
        for name, each in vars(held).items()
        if isinstance(each, dict) and each
    }
    assert kept == {"_found_at": 10}
