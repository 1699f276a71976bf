"""Requests of a team's namespaces share reads and writes of one object, and find a ledger that moves."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from policies.quota.ledger.decide import VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.quota_request import LedgerError, ReservationOutcome
from tests.builders import quota_ledger
from tests.cases import cases
from tests.reservation_requests import creation_request
from tests.webhook.quota.ledger_api import LEDGERS, LedgerApi
from tests.webhook.quota.world import SECONDS, vector
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.ledger_objects import NO_LEDGER_OBJECT, VersionedTeamLedgers, team_object_name
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.store import LedgerConflict, VersionedLedger

TEAM = "team-vision"
PLACE = team_object_name(TEAM)
OBJECT = f"{LEDGERS}/{PLACE}"


def ledger(gpus: int, **fields: object) -> QuotaLedger:
    """Return a counted ledger that grants so many GPUs, and of which none is used."""
    return quota_ledger(hard=vector(gpus=gpus), used=vector(gpus=0), class_catalogue="c", **fields)


class StoredTeam:
    """A team of namespaces a, b, …, and a namespace `apart` without a team."""

    def __init__(self, hard: int, namespaces: str, *, each: int = 1000, guaranteed: int = 0) -> None:
        self.api = LedgerApi()
        store = self.api.store()
        of_team = Team(
            name=TEAM,
            uid="t",
            generation=1,
            hard=vector(gpus=hard),
            guaranteed={"a": vector(gpus=guaranteed)} if guaranteed else {},
        )
        ledgers = {}
        for namespace in namespaces:
            own = store.compare_and_swap(namespace, NEW, replace(NEW.ledger, moved_to=PLACE), SECONDS)
            ledgers[namespace] = ledger(each, ledger_uid=own.ledger.ledger_uid)
        store.swap_team(NO_LEDGER_OBJECT, TeamLedgers(of_team, ledgers), SECONDS)
        store.compare_and_swap("apart", NEW, ledger(each), SECONDS)

    def replica(self) -> ReservationBatcher:
        return ReservationBatcher(self.api.store(), QuotaMetrics(CollectorRegistry()))

    def team(self) -> VersionedTeamLedgers:
        found = self.api.store().read_team(TEAM, SECONDS)
        assert found is not None
        return found

    def held(self, namespace: str) -> list[str]:
        found = self.api.store().read(namespace, SECONDS)
        assert found is not None
        return sorted(each.id for each in found.ledger.reservations)


NEW = VersionedLedger(quota_ledger(), NO_LEDGER_OBJECT)


def reserve(replica: ReservationBatcher, namespace: str, uid: str, gpus: int = 1) -> ReservationOutcome:
    request = creation_request(uid, vector(gpus=gpus), "c")
    return replica.reserve(namespace, lambda _ledger, _published: request, monotonic() + 20)


def reason(outcome: ReservationOutcome) -> VerdictReason | None:
    return outcome.verdict.reason if outcome.verdict else None


def test_a_namespace_is_denied_what_others_of_its_team_hold() -> None:
    stored = StoredTeam(4, "ab")
    replica = stored.replica()
    assert reason(reserve(replica, "a", "1", gpus=3)) is VerdictReason.RESERVED
    denied = reserve(replica, "b", "2", gpus=2)
    assert reason(denied) is VerdictReason.EXCEEDED
    assert denied.verdict is not None
    assert [each.team for each in denied.verdict.shortfalls] == [TEAM]
    assert reason(reserve(replica, "b", "3", gpus=1)) is VerdictReason.RESERVED
    assert (stored.held("a"), stored.held("b")) == (["1"], ["3"])


def test_requests_of_all_namespaces_of_a_team_share_writes() -> None:
    stored = StoredTeam(100, "abcde")
    stored.api.write_seconds = 0.002  # else each request is answered before the next one comes
    replicas = [stored.replica() for _ in range(3)]
    with ThreadPoolExecutor(32) as pool:
        outcomes = list(
            pool.map(
                lambda number: reserve(replicas[number % 3], "abcde"[number % 5], f"{number}"), range(160)
            )
        )
    counts = Counter(map(reason, outcomes))
    assert counts == {VerdictReason.RESERVED: 100, VerdictReason.EXCEEDED: 60}
    assert sum(len(stored.held(namespace)) for namespace in "abcde") == 100
    assert stored.api.writes[OBJECT] < 100, "batches are larger than one"


def test_a_namespace_without_a_team_reads_and_writes_only_its_own_object() -> None:
    stored = StoredTeam(4, "ab")
    before = stored.api.writes[OBJECT]
    assert reason(reserve(stored.replica(), "apart", "1", gpus=9)) is VerdictReason.RESERVED
    assert stored.api.writes[OBJECT] == before
    assert stored.held("apart") == ["1"]


def leave(store: ClusterStore, namespace: str) -> None:
    """Move the ledger of a namespace out of the team, and try again if others write meanwhile."""
    _again(lambda: _frozen(store, namespace))
    found, own = store.read_team(TEAM, SECONDS), store.read_own(namespace, SECONDS)
    assert found is not None
    assert own is not None
    store.compare_and_swap(
        namespace, own, replace(found.team_ledgers.ledgers[namespace], moved_to=""), SECONDS
    )
    _again(lambda: _removed(store, namespace))


def join(store: ClusterStore, namespace: str) -> None:
    _again(lambda: _left_home(store, namespace))
    _again(lambda: _added(store, namespace))


def _frozen(store: ClusterStore, namespace: str) -> None:
    found = store.read_team(TEAM, SECONDS)
    assert found is not None
    store.swap_team(found.version, found.team_ledgers.leave(namespace), SECONDS)


def _removed(store: ClusterStore, namespace: str) -> None:
    found = store.read_team(TEAM, SECONDS)
    assert found is not None
    store.swap_team(found.version, found.team_ledgers.without(namespace), SECONDS)


def _left_home(store: ClusterStore, namespace: str) -> None:
    own = store.read_own(namespace, SECONDS)
    assert own is not None
    store.compare_and_swap(namespace, own, replace(own.ledger, moved_to=PLACE), SECONDS)


def _added(store: ClusterStore, namespace: str) -> None:
    found, own = store.read_team(TEAM, SECONDS), store.read_own(namespace, SECONDS)
    assert found is not None
    assert own is not None
    store.swap_team(found.version, found.team_ledgers.with_ledger(namespace, own.ledger), SECONDS)


def _again(step: Callable[[], None]) -> None:
    while True:
        try:
            step()
        except LedgerConflict:
            continue
        return


def test_a_replica_finds_a_ledger_that_has_moved() -> None:
    stored = StoredTeam(4, "ab")
    replica = stored.replica()
    assert reason(reserve(replica, "a", "1", gpus=3)) is VerdictReason.RESERVED
    leave(stored.api.store(), "a")
    assert reason(reserve(replica, "a", "2", gpus=9)) is VerdictReason.RESERVED, "its own quota has room"
    assert reason(reserve(replica, "b", "3", gpus=4)) is VerdictReason.RESERVED, (
        "it holds nothing there any more"
    )
    join(stored.api.store(), "a")
    assert reason(reserve(replica, "a", "4")) is VerdictReason.EXCEEDED
    assert stored.held("a") == ["1", "2"]


def test_while_it_moves_a_request_waits_and_then_says_so() -> None:
    stored = StoredTeam(4, "ab")
    store = stored.api.store()
    _frozen(store, "a")
    request = creation_request("1", vector(gpus=1), "c")
    with pytest.raises(LedgerError, match="the ledger of a is moving into or out of a team"):
        stored.replica().reserve("a", lambda _ledger, _published: request, monotonic() + 0.3)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_over_or_lost_while_ledgers_move(seed: int) -> None:
    stored = StoredTeam(40, "abc", each=1000)
    replicas = [stored.replica() for _ in range(2)]
    stop = threading.Event()

    def mover() -> None:
        store = stored.api.store()
        while not stop.is_set():
            leave(store, "b")
            join(store, "b")

    thread = threading.Thread(target=mover)
    thread.start()
    try:
        with ThreadPoolExecutor(16) as pool:
            outcomes = list(
                pool.map(
                    lambda number: reserve(replicas[number % 2], "abc"[(number + seed) % 3], f"{number}"),
                    range(240),
                )
            )
    finally:
        stop.set()
        thread.join()
    reserved = {f"{number}" for number, each in enumerate(outcomes) if reason(each) is VerdictReason.RESERVED}
    held = {namespace: stored.held(namespace) for namespace in "abc"}
    assert {uid for ids in held.values() for uid in ids} == reserved
    assert len(held["a"]) + len(held["c"]) <= 40


@cases(
    ("fields",),
    whole=({},),
    in_a_move=({"leaving": frozenset({"a"})},),
)
def test_the_object_of_a_team_is_read_as_it_was_written(fields: dict[str, frozenset[str]]) -> None:
    stored = StoredTeam(4, "ab", guaranteed=2)
    found = stored.team()
    written = replace(found.team_ledgers, **fields)
    stored.api.store().swap_team(found.version, written, SECONDS)
    assert stored.team().team_ledgers == written
