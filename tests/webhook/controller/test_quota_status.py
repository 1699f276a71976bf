"""What is written into the status of a GPUQuota, and how often; and what becomes an Event."""

import threading
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from policies.quota.ledger.keeping_objects import Keeper
from policies.quota.ledger.quota_ledger import Holder
from policies.quota.ledger.reservations import Reservation, keep_id
from tests.builders import quota_ledger
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.controller.informers import unstarted
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.collection import Subscribers
from webhook.cluster.events import EventQueue, EventRecord, EventWriter
from webhook.controller import status_writer
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.quota_status import QuotaStatusWriter, UnmappedResourcesWatch
from webhook.controller.waiting_reports import WaitingReports
from webhook.quota.documents import IdleGPUs, KeptQuota, QuotaRecord, decode_quota
from webhook.quota.ledger_objects import LedgerRecord
from webhook.quota.store import VersionedLedger

LEDGER = quota_ledger(
    Reservation("pod", {"gpus": Fraction(2), "resources/example.com/x": Fraction(2)}),
    quota_uid="u",
    generation=3,
    hard={"gpus": Fraction(8)},
    used={"gpus": Fraction(5)},
    class_catalogue="c",
    holders={"gpus": (Holder("Job/train", "5"),)},
)


class World:
    """The quotas of the namespaces `team` and `broken` and their ledger, an API server for statuses, and a clock.

    The API server rejects each status of `broken`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.pauses = 1000.0, list[float]()
        self.leads, self.stale = True, ""
        self.idle: IdleGPUs | None = None
        self.ledger_object = LedgerRecord("r", "team", VersionedLedger(LEDGER, "1"))
        self.writes = self.refused = 0
        self.failures: list[errors.ApiError] = []
        self.happened: list[EventRecord] = []
        identity = {
            "name": "default",
            "namespace": "team",
            "uid": "u",
            "resourceVersion": "1",
            "generation": 3,
        }
        self.document: dict[str, Any] = {"metadata": identity, "spec": {"hard": {"gpus": "8"}}}
        monkeypatch.setattr(status_writer, "monotonic", lambda: self.now)
        monkeypatch.setattr(status_writer, "sleep", self.pauses.append)
        self.events = EventQueue(cast(EventWriter, self), lambda: None)
        informers: Any = unstarted()
        informers.quotas.items, informers.quotas.namespaces = self.items, lambda: ["team"]
        informers.ledger_objects.items = lambda _namespace: (self.ledger_object,)
        informers.why_stale = lambda: self.stale
        gpu_use: Any = SimpleNamespace(
            idle_status=lambda _namespace: self.idle,
            holders_changed=Subscribers("idle GPUs"),
            outage_changed=Subscribers("idle GPUs"),
        )
        usage, configuration = informers.usage, informers.configuration
        reports = WaitingReports(self.events, ControllerMetrics(CollectorRegistry()))
        self.writer = QuotaStatusWriter(
            cast(ApiClient, self),
            informers,
            UnmappedResourcesWatch(usage, configuration, names=()),
            reports,
            gpu_use,
            is_ready_leader=lambda: self.leads,
            events=self.events,
        )

    def put(self, path: str, body: bytes, *, timeout: float, accept: str) -> None:
        del timeout, accept
        if self.failures:
            raise self.failures.pop()
        if "/broken/" in path:
            self.refused += 1
            raise errors.Unavailable("a webhook failed")
        assert path == "/apis/gpu-admission.dev/v1alpha1/namespaces/team/gpuquotas/default/status"
        written, metadata = msgspec.json.decode(body), self.document["metadata"]
        assert written["metadata"]["resourceVersion"] == metadata["resourceVersion"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        self.document["status"] = written["status"]
        self.writes += 1

    def items(self, namespace: str) -> tuple[QuotaRecord, ...]:
        document = dict(self.document)
        if namespace == "broken":
            document["metadata"] = {**document["metadata"], "namespace": namespace}
            document.pop("status", None)
        record = decode_quota(msgspec.json.encode(document))
        assert record is not None
        return (record,)

    def write(self, event_record: EventRecord) -> bool:
        self.happened.append(event_record)
        return True

    @property
    def shown(self) -> dict[str, Any]:
        return {each["type"]: each for each in self.document["status"]["conditions"]}

    def counted(self, **changes: Any) -> None:
        ledger = msgspec.structs.replace(LEDGER, **changes)
        self.ledger_object = LedgerRecord("r", "team", VersionedLedger(ledger, "2"))
        self.writer.changed("team")

    def change(self) -> float:
        """Have something change, and a second pass."""
        self.writer.changed("team")
        return self.wait(1.0)

    def wait(self, seconds: float) -> float:
        self.now += seconds
        return self.writer.sync()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@cases(
    ("idle", "want", "shown"),
    not_configured=(None, None, None),
    not_measured=(IdleGPUs(measured="away"), {"measured": "away"}, None),
    nothing_idle=(IdleGPUs(gpus=Fraction(0)), {"gpus": "0"}, {"gpus": "0"}),
    a_part_of_a_card=(IdleGPUs(gpus=Fraction(9, 7)), {"gpus": "9/7"}, {"gpus": "1.29"}),
)
def test_idle_gpus_are_shown_where_their_use_is_measured(
    idle: IdleGPUs | None, want: object, shown: object, world: World
) -> None:
    world.idle = idle
    world.counted(used={"gpus": Fraction(2)})
    world.wait(1.0)

    status = world.document["status"]
    assert (status.get("idle"), status["shown"].get("idle")) == (want, shown)


def test_of_a_ledger_that_cannot_be_read_only_that_is_known(world: World) -> None:
    world.counted(used={"gpus": Fraction(9)})
    world.wait(1.0)
    before = world.shown
    world.ledger_object = LedgerRecord("r", "team", problem="the GPUQuotaLedger cannot be read: used")
    world.change()

    ready = world.shown.pop("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Unreadable")
    assert ready["message"] == "the GPUQuotaLedger cannot be read: used: requests are denied"
    assert {**world.shown, "Ready": None} == {**before, "Ready": None}


def test_the_status_shows_the_ledger_and_none_of_its_protocol(world: World) -> None:
    world.document["status"] = {"reservations": "gpus=1 | x", "revisions": {"pods": "7"}}
    world.counted(used={"gpus": Fraction(23, 7)})
    world.wait(1.0)

    status = world.document["status"]
    assert abs(datetime.now(UTC) - datetime.fromisoformat(status["countedAt"])) < timedelta(minutes=1)
    assert {key: status[key] for key in status if key not in {"conditions", "countedAt"}} == {
        "hard": {"gpus": "8"},
        "used": {"gpus": "23/7"},
        "reserved": {"gpus": "2"},
        "shown": {"used": {"gpus": "3.29"}, "reserved": {"gpus": "2"}},
        "holders": {"gpus": [{"name": "Job/train", "amount": "5"}]},
        "observedGeneration": 3,
    }
    assert sorted(world.shown) == ["Exceeded", "Ready", "Stale", "UnmappedResources"]


def test_what_objects_keep_is_shown_by_object() -> None:
    ray, torch = (Keeper("v1", kind, "train", kind, kind) for kind in ("RayCluster", "PyTorchJob"))
    keeps = [(ray, "worker-1", 2), (ray, "worker-2", 1), (torch, "worker-0", 4)]
    ledger = quota_ledger(
        *(Reservation(keep_id(uid, keeper.uid), {"gpus": Fraction(gpus)}) for keeper, uid, gpus in keeps),
        keepers=(ray, torch, Keeper("v1", "Job", "before", "Job", "Job")),
    )
    assert KeptQuota.of(ledger) == (
        KeptQuota("PyTorchJob/train", {"gpus": Fraction(4)}),
        KeptQuota("RayCluster/train", {"gpus": Fraction(3)}),
    )


def test_a_status_is_written_once_a_second_and_only_if_it_differs(world: World) -> None:
    for change in range(12):
        world.counted(used={"gpus": Fraction(change % 8)})
        world.wait(0.25)
    assert world.document["status"]["used"] == {"gpus": "3"}
    assert world.writes == 3

    world.change()
    assert world.writes == 3
    assert len(world.pauses) == 3


def test_a_status_that_changed_meanwhile_is_written_a_second_later(world: World) -> None:
    world.failures = [errors.Conflict("changed")]
    world.change()
    assert world.writes == 0
    world.wait(1.0)
    assert world.writes == 1


def test_a_write_that_fails_is_repeated_and_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.failures = [errors.Unreachable("no answer")]
    assert world.change() == status_writer.FAILED_SECONDS
    assert caplog.messages == ["team: the status of the GPUQuota cannot be written: no answer"]
    assert world.wait(status_writer.FAILED_SECONDS) == status_writer.LOOK_SECONDS
    assert world.writes == 1


def test_a_status_that_is_refused_delays_no_other_one(world: World) -> None:
    for _ in range(4):
        world.writer.changed("broken")
        world.counted(used={"gpus": Fraction(world.writes)})
        assert world.wait(1.0) == status_writer.LOOK_SECONDS
    assert (world.writes, world.refused) == (4, 1)

    world.wait(status_writer.FAILED_SECONDS)
    assert (world.writes, world.refused) == (4, 2)


def test_a_ledger_of_the_quota_before_says_nothing_of_this_one(world: World) -> None:
    world.counted(quota_uid="before")
    world.wait(1.0)
    assert world.writes == 0


def test_a_ledger_that_cannot_be_read_is_shown_on_the_quota(world: World) -> None:
    world.change()
    problem = "the GPUQuotaLedger cannot be read: hard"
    world.ledger_object = LedgerRecord("r", "team", problem=problem)
    world.change()
    assert (world.shown["Ready"]["status"], world.shown["Ready"]["reason"]) == ("False", "Unreadable")
    assert problem in world.shown["Ready"]["message"]
    assert world.document["status"]["used"] == {"gpus": "5"}


def test_silent_watches_are_shown_on_every_quota_without_a_change_of_it(world: World) -> None:
    world.wait(1.0)
    world.wait(1.0)
    assert world.writes == 0, "nothing has changed"
    world.change()
    assert world.shown["Stale"]["status"] == "False"
    world.stale = "no message about pods for 200 s"
    world.wait(0.1)
    world.wait(1.0)
    assert world.shown["Stale"]["status"] == "True"
    world.stale = "no message about pods for 201 s"
    world.wait(1.0)
    world.wait(1.0)
    assert world.writes == 2, "a text that grows is no reason to write"


@cases(
    ("ages", "want"),
    all_speak=({"pods": 150.0, "nodes": 0.0}, ""),
    one_is_silent=({"pods": 151.0, "nodes": 0.0}, "no message about pods for 151 s"),
    both_are_silent=(
        {"pods": 200.0, "nodes": 300.0},
        "no message about pods for 200 s; no message about nodes for 300 s",
    ),
)
def test_how_long_watches_may_be_silent(ages: dict[str, float], want: str) -> None:
    informers: Any = unstarted()
    informers.usage.own_counter = SimpleNamespace(
        informers={name: SimpleNamespace(age=age) for name, age in ages.items()}
    )
    assert informers.why_stale() == want


def test_only_the_leader_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_writer, "LOOK_SECONDS", 0.01)
    world.leads = False
    world.writer.changed("team")
    world.now += 5.0
    stopping = threading.Event()
    thread = threading.Thread(target=world.writer.run, args=(stopping,))
    thread.start()
    stopping.wait(0.1)
    assert world.writes == 0
    world.leads = True
    assert eventually(lambda: world.writes)
    stopping.set()
    thread.join(60)
    assert world.writes == 1


def test_an_exceeded_quota_has_one_event_for_each_time(world: World) -> None:
    for used in (9, 10, 5, 11):
        world.counted(used={"gpus": Fraction(used)})
        world.wait(1.0)
    world.events.start()
    world.events.stop()

    assert [(each.reason, each.message) for each in world.happened] == [
        ("Exceeded", "gpus: 9 used of 8, 1 too many"),
        ("Exceeded", "gpus: 11 used of 8, 3 too many"),
    ]
    assert world.happened[0].regarding.uid == "u"
