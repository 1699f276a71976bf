"""How long a replica believes that a namespace has no quota, and what that costs."""

from typing import cast

import pytest

from policies.quota.ledger.decide import VerdictReason
from policies.quota.ledger.quota_ledger import NO_QUOTA_SECONDS
from tests.cases import cases
from tests.webhook.quota.ledger_api import INSTALLATION, LedgerApi
from tests.webhook.quota.ledgers import configuration
from tests.webhook.quota.slow_store import Bench, reason
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.quota import epoch
from webhook.quota.epoch import NAMED, Epoch, EpochObject
from webhook.quota.ledger_objects import EPOCH_OBJECT, ledger_objects_path
from webhook.quota.no_quota import READ_EVERY, REMEMBERED_SECONDS, VANISHED_SECONDS, NoQuota
from webhook.quota.team_lookup import LISTED_SECONDS

PATH = ledger_objects_path(INSTALLATION, EPOCH_OBJECT)
OWN_SECONDS = NO_QUOTA_SECONDS - LISTED_SECONDS


class Replica:
    def __init__(self, *, there: bool = True) -> None:
        self.now, self.api = 100.0, LedgerApi()
        self.object = EpochObject(cast(ApiClient, self.api), INSTALLATION)
        if there:
            self.object.swap(())
        self.no_quota = NoQuota(self.object.read, lambda: self.now)
        self.no_quota.read_epoch()

    def finds_none(self, *namespaces: str) -> None:
        for namespace in namespaces:
            self.no_quota.found(namespace, self.now, self.no_quota.version())

    def goes_on(self, seconds: float, *, reads: bool) -> None:
        until = self.now + seconds
        while reads and self.now + READ_EVERY < until:
            self.now += READ_EVERY
            self.no_quota.read_epoch()
        self.now = until


@cases(
    ("there", "reads", "seconds", "remembered"),
    while_the_epoch_is_read=(True, True, REMEMBERED_SECONDS - 0.1, True),
    and_no_longer_without_a_controller=(True, True, REMEMBERED_SECONDS + 0.1, False),
    without_a_route=(True, False, NO_QUOTA_SECONDS - 0.1, True),
    without_a_route_for_longer=(True, False, NO_QUOTA_SECONDS + 0.1, False),
    without_an_epoch=(False, True, OWN_SECONDS - 0.1, True),
    without_an_epoch_for_longer=(False, True, OWN_SECONDS + 0.1, False),
)
def test_for_so_long_it_is_believed(there: bool, reads: bool, seconds: float, remembered: bool) -> None:
    replica = Replica(there=there)
    replica.finds_none("cv")
    replica.goes_on(seconds, reads=reads)
    assert replica.no_quota.is_remembered("cv") is remembered


def test_a_raised_epoch_ends_it_in_its_namespaces_alone() -> None:
    replica = Replica()
    replica.finds_none("cv", "speech", "other")
    replica.object.swap(["cv", "speech"])
    replica.goes_on(OWN_SECONDS + READ_EVERY, reads=True)
    assert [replica.no_quota.is_remembered(each) for each in ("cv", "speech", "other")] == [
        False,
        False,
        True,
    ]
    replica.finds_none("cv")
    replica.goes_on(OWN_SECONDS + READ_EVERY, reads=True)
    assert replica.no_quota.is_remembered("cv"), "it was read in the new epoch"


def test_a_quota_that_is_made_again_and_again_costs_other_namespaces_nothing() -> None:
    replica = Replica()
    replica.finds_none("other")
    for _ in range(7):
        replica.object.swap(["circle"])
        replica.goes_on(READ_EVERY, reads=False)
        replica.no_quota.read_epoch()
    assert replica.no_quota.is_remembered("other")
    assert replica.api.writes[PATH] == 8


@cases("namespaces", few=NAMED, many=NAMED + 1, two_thousand=2000)
def test_an_epoch_for_more_namespaces_than_it_names_is_one_for_all(namespaces: int) -> None:
    replica = Replica()
    replica.finds_none("other")
    replica.object.swap([f"team-{number}" for number in range(namespaces)])
    replica.goes_on(OWN_SECONDS + READ_EVERY, reads=True)
    assert replica.no_quota.is_remembered("other") is (namespaces <= NAMED)
    assert len(replica.object.read().namespaces) == min(NAMED, namespaces)


def test_an_epoch_that_is_deleted_and_made_again_is_a_later_one() -> None:
    replica = Replica()
    for _ in range(3):
        replica.object.swap(["elsewhere"])
    replica.no_quota.read_epoch()
    replica.finds_none("cv")
    replica.api.delete(PATH, version=str(replica.object.read().version))
    replica.object.swap(["cv"])
    replica.goes_on(OWN_SECONDS + READ_EVERY, reads=True)
    assert not replica.no_quota.is_remembered("cv")


def test_an_epoch_that_cannot_be_read_lets_nobody_believe_and_is_replaced() -> None:
    replica = Replica()
    replica.finds_none("cv")
    document = {"metadata": {"name": EPOCH_OBJECT}, "ledger": "what is this"}
    replica.api._stored(PATH, document | {"metadata": {"name": EPOCH_OBJECT, "uid": "x"}})
    replica.goes_on(OWN_SECONDS + READ_EVERY, reads=True)
    assert not replica.no_quota.is_remembered("cv")
    replica.object.swap(["elsewhere"])
    assert set(replica.object.read().namespaces) == {"elsewhere"}


def test_of_two_that_raise_it_at_once_one_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica()
    stale = [replica.object.read()]
    replica.object.swap(["cv"])
    read = EpochObject.read
    monkeypatch.setattr(EpochObject, "read", lambda self: stale.pop() if stale else read(self))
    replica.object.swap(["speech"])
    assert set(replica.object.read().namespaces) == {"cv", "speech"}


def test_others_that_raise_it_without_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica()
    monkeypatch.setattr(epoch, "ATTEMPTS", 2)
    monkeypatch.setattr(EpochObject, "read", lambda _: Epoch(version=7))
    with pytest.raises(errors.Conflict, match="others kept writing to epoch"):
        replica.object.swap(["cv"])


@cases(("seconds", "believed"), just_now=(VANISHED_SECONDS - 1, False), long_ago=(VANISHED_SECONDS + 1, True))
def test_no_quota_is_not_remembered_where_one_was_just_now(seconds: float, believed: bool) -> None:
    now = 100.0
    bench = Bench(gpus=1, clock=lambda: now)
    granted = bench.ledger.configuration
    assert reason(bench.reserve("pod1")) is VerdictReason.RESERVED
    now += seconds
    bench.ledger.configuration = configuration()
    assert bench.reserve("pod2").ledger is None
    assert bench.batches.no_quota.still_holds("ledgers"), "the review that found it is answered"
    bench.ledger.configuration = granted
    assert (bench.reserve("pod3").ledger is None) is believed


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
    assert kept == {"_found": 10}
