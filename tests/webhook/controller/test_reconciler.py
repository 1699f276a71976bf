"""What a reconciliation writes, by counts that are given to it; and how a ledger follows its GPUQuota while others write."""

from fractions import Fraction
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace

from policies.quota.catalogue import CatalogueVersion
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import StoredObject
from policies.quota.ledger.reservations import Reservation, Reservations
from policies.quota.quota_request import LedgerError
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.controller.ledger_cluster import BY, LATER, NEW, OLD, Cluster
from tests.webhook.quota.quota_and_ledger_object import (
    INSTALLATION,
    QuotaAndLedger,
    keeper,
)
from webhook.cluster.api import ApiClient
from webhook.controller import reconciler
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.reconciler import LISTS_POLL_SECONDS, QuotaReconciler
from webhook.controller.usage_counter import Counted
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.ledger_objects import PLURAL, decode_ledger_object
from webhook.quota.store import LedgerConflict, VersionedLedger

ONE = {"gpus": Fraction(1)}
SERIES = ("reservations_confirmed", "reservations_expired", "unreadable_lines_dropped")


def holding(reservations: Reservations) -> QuotaLedger:
    """Return a ledger that was counted, with these reservations."""
    return replace(
        NEW, used={"gpus": Fraction(0)}, class_catalogue=BY, revisions=OLD, reservations=reservations
    )


OF_U1, DAMAGED = Reservations.of(Reservation("u1", ONE)), Reservations.parse("gpus=1 | x x")
CONFIRMED, EXPIRED, DROPPED = SERIES
SAID = {
    EXPIRED: ["team: 1 reservations expired"],
    DROPPED: ["team: dropped reservations that could not be read: 1 line, the first 'gpus=1 | x x'"],
}


@cases(
    ("reservations", "stored", "expiry", "left", "series"),
    its_pod_is_stored=(OF_U1, ["u1"], 40, (), CONFIRMED),
    its_pod_may_come=(OF_U1, [], 40, ("u1",), ""),
    its_pod_never_came=(OF_U1, [], 0, (), EXPIRED),
    nobody_can_read_it=(DAMAGED, [], 0, (), DROPPED),
    a_pod_without_one=(Reservations.of(), ["u2"], 40, (), ""),
    nothing=(Reservations.of(), [], 40, (), ""),
)
def test_what_becomes_of_a_reservation(
    caplog: pytest.LogCaptureFixture,
    reservations: Reservations,
    stored: list[str],
    expiry: float,
    left: tuple[str, ...],
    series: str,
) -> None:
    caplog.set_level("INFO")
    objects = dict.fromkeys(stored, StoredObject(ONE))
    cluster = Cluster(LATER, LATER, ledger=holding(reservations), objects=objects)

    again = cluster.reconcile(expiry=expiry)

    ledger = cluster.ledger_object.ledger
    assert (ledger.used, tuple(ledger.reservations.ids)) == ({"gpus": Fraction(len(stored))}, left)
    assert (again is not None) is bool(left)
    assert again is None or 30 < again < 42
    assert cluster.ledger_object.version == ("2" if series or stored else "1")
    counted = {each: cluster.counted(each) or 0 for each in SERIES}
    assert counted == {**dict.fromkeys(counted, 0), **({series: 1} if series else {})}
    assert caplog.messages == SAID.get(series, [])
    assert [f"team: {each}" for each in cluster.warned] == (SAID[DROPPED] if series == DROPPED else [])


def test_nothing_expires_by_a_list_from_before_its_bound() -> None:
    cluster = Cluster(LATER, LATER, ledger=holding(OF_U1))
    count = cluster.counter.count

    def from_before(*given: object) -> Counted:
        missed = Counted(count(*given).listing, list_started=0.0)
        cluster.objects, cluster.counter.count = {"u1": StoredObject(ONE)}, count
        return missed

    cluster.counter.count = from_before
    cluster.reconcile(expiry=0)

    assert cluster.ledger_object.ledger.used == ONE
    assert [cluster.counted(each) for each in SERIES] == [1, None, None]


def test_a_new_dimension_is_counted_before_it_grants() -> None:
    more = {"gpus": Fraction(8), "resources/nvidia.com/gpu": Fraction(6)}
    pod = {"gpus": Fraction(1), "resources/nvidia.com/gpu": Fraction(1)}
    ledger = replace(holding(Reservations.of()), hard=more)
    cluster = Cluster(LATER, LATER, ledger=ledger, objects={"u1": StoredObject(pod)})

    cluster.reconcile()

    assert cluster.ledger_object.ledger.used == pod


FORMER = str(CatalogueVersion("f" * 16, UnclassifiedPods.TOTAL_ONLY))


@cases(
    ("is_published", "counted_by", "want"),
    every_replica_can_read_it=(True, FORMER, (FORMER, BY)),
    not_every_one_can=(False, BY, (None, None)),
)
def test_another_catalogue_takes_over_without_a_pause_where_it_is_published(
    is_published: bool, counted_by: str, want: tuple[str | None, str | None]
) -> None:
    """While a reservation by the former one is in flight."""
    cluster = Cluster(LATER, LATER, ledger=replace(holding(OF_U1), class_catalogue=FORMER))
    cluster.usage_cache.publish, cluster.by = lambda _: is_published, counted_by

    cluster.reconcile()

    ledger = cluster.ledger_object.ledger
    assert (ledger.class_catalogue, ledger.next_catalogue) == want


def test_after_a_conflict_the_ledger_is_read_again() -> None:
    cluster = Cluster(
        LATER, LATER, ledger=holding(Reservations.of()), objects={"u": StoredObject(ONE)}, conflicts=1
    )

    cluster.watched = cluster.ledger_object.ledger
    assert cluster.reconcile(no_quota=60.0) is None, "one that was counted before does not wait"

    assert cluster.reads == [False, True]
    assert cluster.ledger_object.ledger.used == ONE
    assert cluster.registry.get_sample_value("gpu_admission_quota_reconcile_conflicts_total") == 1


def test_a_ledger_that_is_newer_than_the_lists() -> None:
    ledger = replace(holding(Reservations.of()), revisions=LATER)

    with pytest.raises(LedgerError) as refused:
        Cluster(OLD, OLD, OLD, ledger=ledger).reconcile()

    assert str(refused.value) == (
        "the ledger was counted from newer lists than the API server has: was etcd restored from a backup? See Ledgers in "
        "docs/operate/operations.md"
    )


@cases(("quota", "want"), its_own=("quota", "quota quota"), of_its_team=("", "the quota of its team"))
def test_a_first_count_is_logged(quota: str, want: str, caplog: pytest.LogCaptureFixture) -> None:
    ledger = replace(NEW, quota_uid=quota, used={"gpus": Fraction(0)}, revisions=OLD)
    with caplog.at_level("INFO"):
        Cluster(LATER, LATER, ledger=ledger).reconcile()
    assert caplog.messages == [f"team: counted by {BY}; {want} is in force"]


def test_a_ledger_that_others_keep_writing_is_left_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "CONTEND_SECONDS", 0.05)
    ledger, objects = holding(Reservations.of()), {"u": StoredObject(ONE)}
    cluster = Cluster(*[LATER] * 1000, ledger=ledger, objects=objects, conflicts=1000)

    assert cluster.reconcile() == 0.5


def test_without_a_quota_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    monkeypatch.setattr(cluster, "current", lambda *_, **__: None)

    assert cluster.reconcile() is None
    assert cluster.refreshed == []


@cases(
    ("is_listed", "is_longer", "another_lists", "want"),
    it_was_listed=(True, True, False, (None, [])),
    so_few_are_listed_each=(False, False, False, (None, [])),
    very_many_wait_for_one_list=(False, True, False, (None, ["all"])),
    another_thread_lists=(False, True, True, (LISTS_POLL_SECONDS, [])),
)
def test_new_ledgers_share_lists(
    is_listed: bool, is_longer: bool, another_lists: bool, want: tuple[float | None, list[str]]
) -> None:
    cluster, listed = Cluster(LATER), list[str]()
    cluster.counter.is_listed = lambda _namespace, _since: is_listed
    cluster.counter.pods = SimpleNamespace(is_longer=lambda waiting: is_longer and waiting == 1)
    cluster.counter.refresh_all = lambda _since: listed.append("all")
    cluster.another_lists = another_lists

    assert (cluster.reconcile(), listed) == want


def test_nothing_is_counted_before_everything_is_listed() -> None:
    cluster = Cluster()
    cluster.counter.synced = False

    assert cluster.reconcile() == LISTS_POLL_SECONDS


def test_a_new_ledger_takes_no_count_at_no_revision() -> None:
    whole = Revisions(pods=7, resource_claims=7, nodes=7)
    cluster = Cluster(Revisions(pods=0, resource_claims=7, nodes=7), whole)

    cluster.reconcile()

    assert cluster.ledger_object.ledger.revisions == whole
    assert len(cluster.refreshed) == 3, "before each count, and after the one that was refused"


@pytest.mark.parametrize("has_spec", [True, False], ids=["without-a-call", "with-the-spec-of-its-quota"])
def test_a_new_ledger_waits_until_it_may_be_counted(monkeypatch: pytest.MonkeyPatch, has_spec: bool) -> None:
    cluster = Cluster()
    cluster.watched = NEW if has_spec else None
    if has_spec:
        monkeypatch.setattr(cluster, "current", None)

    wait = cluster.reconcile(no_quota=60.0)

    assert wait is not None
    assert 30 < wait <= 61


TEAM = "team"


def spec(hard: int, generation: int, *, uid: str = "quota", used: int | None = None) -> QuotaLedger:
    """Return the ledger that a GPUQuota calls for, with `used` a counted one."""
    counted = None if used is None else {"gpus": Fraction(used)}
    return quota_ledger(quota_uid=uid, generation=generation, hard={"gpus": Fraction(hard)}, used=counted)


def stored(quota: QuotaLedger | None, ledger: QuotaLedger | None = None) -> QuotaAndLedger:
    """Return the GPUQuota that calls for `quota`, and the ledger."""
    around = QuotaAndLedger()
    if quota is not None:
        identity = {"uid": quota.quota_uid, "generation": quota.generation, "resourceVersion": "1"}
        metadata = {"name": "default", "namespace": TEAM, **identity}
        around.quota = {"metadata": metadata, "spec": {"hard": {"gpus": int(quota.hard["gpus"])}}}
    if ledger is not None:
        around.write(ledger)
    return around


def keeping(around: QuotaAndLedger, watched: QuotaLedger | None) -> QuotaReconciler:
    """Return a reconciler that has observed the stored ledger, and whose watch showed the quota as `watched`."""
    observed = ObservedLedgers()
    if around.ledger_object is not None:
        observed.observe(TEAM, decode_ledger_object(msgspec.json.encode(around.ledger_object)))
    return keeper(ClusterStore(cast(ApiClient, around), INSTALLATION), observed, watched)


def shown(ledger: QuotaLedger | None) -> tuple[int, int | None] | None:
    if ledger is None:
        return None
    return int(ledger.hard["gpus"]), None if ledger.used is None else int(ledger.used["gpus"])


READ, QUOTA = f"GET {PLURAL}", "GET gpuquotas"
CREATE, WRITE, DELETE = (f"{method} {PLURAL}" for method in ("POST", "PUT", "DELETE"))


@cases(
    ("quota", "before", "watched", "want", "calls"),
    unchanged=(spec(4, 1), spec(4, 1, used=2), spec(4, 1), (4, 2), []),
    changed=(spec(8, 2), spec(4, 1, used=2), spec(8, 2), (8, 2), [QUOTA, WRITE]),
    somebody_raised_the_ledger=(spec(4, 1), spec(1000, 1, used=2), spec(4, 1), (4, 2), [QUOTA, WRITE]),
    somebody_emptied_the_ledger=(
        spec(4, 1),
        msgspec.structs.replace(spec(4, 1, used=2), hard={}),
        spec(4, 1),
        (4, 2),
        [QUOTA, WRITE],
    ),
    the_watch_lags_behind=(spec(8, 2), spec(8, 2, used=2), spec(4, 1), (8, 2), [QUOTA]),
    a_new_quota=(spec(4, 1), None, spec(4, 1), (4, None), [CREATE, QUOTA]),
    another_quota_in_its_place=(
        spec(6, 1, uid="another"),
        spec(4, 1, used=2),
        spec(6, 1, uid="another"),
        (6, 2),
        [QUOTA, WRITE],
    ),
    a_new_quota_gone_meanwhile=(None, None, spec(4, 1), None, [CREATE, QUOTA, DELETE]),
    a_deleted_quota=(None, spec(4, 1, used=2), None, None, [QUOTA, DELETE]),
    neither_ledger_nor_quota=(None, None, None, None, [READ, QUOTA]),
)
def test_the_ledger_follows_its_quota(
    quota: QuotaLedger | None,
    before: QuotaLedger | None,
    watched: QuotaLedger | None,
    want: tuple[int, int | None] | None,
    calls: list[str],
) -> None:
    """`want` is hard and used of the ledger."""
    around = stored(quota, before)

    found = keeping(around, watched).current(TEAM, fresh=False)

    assert not isinstance(found, float)
    assert shown(found.ledger if found else None) == shown(around.ledger) == want
    assert found is None or found.ledger.quota_uid == (quota.quota_uid if quota else "")
    assert around.calls == calls


@cases(
    ("quota", "method", "written"),
    a_newer_spec=(spec(8, 2), "PUT", spec(1, 3, used=2)),
    a_quota_that_is_there_again=(None, "DELETE", spec(6, 1, uid="another", used=2)),
)
def test_a_write_of_another_controller_after_the_quota_was_read_stays(
    quota: QuotaLedger | None, method: str, written: QuotaLedger
) -> None:
    around = stored(quota, spec(4, 1, used=2))
    paused = keeping(around, watched=quota)
    around.before(method, PLURAL, lambda: around.write(written))

    with pytest.raises(LedgerConflict):
        paused.current(TEAM, fresh=False)
    assert shown(around.ledger) == shown(written)


def test_a_ledger_whose_team_the_watch_does_not_show_yet_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    around = stored(None, spec(4, 1, used=2))
    reconciler_of = keeping(around, None)
    monkeypatch.setattr(reconciler_of.store, "has_team", lambda *_: True)

    with pytest.raises(LedgerError) as refused:
        reconciler_of.current(TEAM, fresh=False)

    assert str(refused.value) == "the watch does not show its ClusterGPUQuota yet"
    assert around.ledger is not None


def test_a_new_quota_that_has_a_ledger_already_finds_it() -> None:
    around = stored(spec(4, 1))
    late = keeping(around, watched=spec(4, 1))
    around.write(spec(4, 1, used=2))

    with pytest.raises(LedgerConflict):
        late.current(TEAM, fresh=False)
    found = late.current(TEAM, fresh=True)
    assert isinstance(found, VersionedLedger)
    assert shown(found.ledger) == (4, 2)


def damaged() -> QuotaAndLedger:
    around = QuotaAndLedger(4)
    around.controller().keep()
    assert around.ledger_object is not None
    around.ledger_object["ledger"] = "{"
    return around


def test_a_ledger_that_cannot_be_read_goes_with_its_quota_too() -> None:
    around = damaged()
    around.remove()

    assert around.controller().keep() is None
    assert around.ledger_object is None


def test_a_ledger_that_cannot_be_read_stays_with_its_quota() -> None:
    around = damaged()
    ledger_object = around.ledger_object

    with pytest.raises(LedgerError, match="cannot be read"):
        around.controller().keep()
    assert around.ledger_object is ledger_object


def test_a_ledger_that_is_corrected_meanwhile_stays() -> None:
    around = damaged()
    around.remove()
    around.before(
        "DELETE",
        PLURAL,
        lambda: around.ledger_object and around.ledger_object["metadata"].update(resourceVersion="99"),
    )

    assert around.controller().keep() is None
    assert around.ledger_object is not None
