"""How denials are gathered: by owner, once a window, never without a bound."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from policies.finding import Finding, Reason
from policies.pods.pod import Metadata, OwnerReference
from policies.quota.quota_request import ReservationOutcome
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT, QUOTA_EXCEEDED
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.cluster.event_writer import Writer
from webhook.cluster.events import EventQueue, EventWriter, Regarding
from webhook.evaluation.decision import Decision, Outcome, Violation
from webhook.serving.denials import Denial, DenialReports, denial_of

TOO_MANY = "pod team/train-x: exceeded quota"


def denial(
    owner: str = "ReplicaSet/train",
    namespace: str = "team",
    message: str = TOO_MANY,
    reason: str = "",
    quota_uid: str = "",
) -> Denial:
    return Denial(namespace=namespace, owner=owner, message=message, reason=reason, quota_uid=quota_uid)


def denied_by_quota(owner: str, message: str = TOO_MANY, namespace: str = "team") -> Denial:
    return denial(owner, namespace, message, "QuotaExceeded", f"quota-of-{namespace}")


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> DenialReports:
    caplog.set_level("INFO", "gpu_admission.denials")
    return DenialReports()


def test_a_storm_of_one_owner_is_one_line(reports: DenialReports, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(57):
        reports.add(denial(message=f"pod team/train-{number}: exceeded quota"))
    reports.stop()
    assert caplog.messages == [
        "team: 57 requests of ReplicaSet/train denied within 0 s; the last: pod team/train-56: exceeded quota"
    ]


@cases(
    ("owner", "line"),
    of_a_controller=("Job/train", "team: 1 request of Job/train denied: pod team/train-x: exceeded quota"),
    of_a_person=("", "team: 1 request denied: pod team/train-x: exceeded quota"),
)
def test_a_line(reports: DenialReports, caplog: pytest.LogCaptureFixture, owner: str, line: str) -> None:
    reports.add(denial(owner))
    reports.stop()
    assert caplog.messages == [line]


KUEUE = "system:serviceaccount:kueue-system:kueue-controller-manager"
OWNED = Metadata(owner_references=(OwnerReference(kind="Job", name="train", controller=True),))
SAID = SimpleNamespace(message=f"{TOO_MANY}\nask the platform team")


def by_quota(reason: Reason) -> list[Any]:
    """Return the decisions on a request that a quota denied."""
    violation = Violation(Finding(rule="gpu-quota", reason=reason, message=TOO_MANY), Outcome.DENIED)
    reservation = ReservationOutcome(cast("Any", SimpleNamespace(quota_uid="q")))
    return [Decision(policy=cast("Any", None), violations=(violation,), reservation=reservation)]


@cases(
    ("kind", "metadata", "status", "decisions", "want"),
    pod_of_a_controller=("Pod", OWNED, SAID, [], ("Job/train", TOO_MANY, "", "")),
    pod_of_a_person=("Pod", Metadata(), SAID, [], ("", TOO_MANY, "", "")),
    workload=("Deployment", None, SAID, [], ("Deployment/chat", TOO_MANY, "", "")),
    nothing_said=("Pod", None, None, [], ("", "", "", "")),
    by_a_full_quota=(
        "Pod",
        None,
        SAID,
        by_quota(QUOTA_EXCEEDED),
        ("", TOO_MANY, "QuotaExceeded", "q"),
    ),
    by_a_full_quota_beside_another_policy=(
        "Pod",
        None,
        SAID,
        [*by_quota(QUOTA_EXCEEDED), Decision(policy=cast("Any", None), violations=())],
        ("", TOO_MANY, "QuotaExceeded", "q"),
    ),
    by_a_small_quota=(
        "Pod",
        None,
        SAID,
        by_quota(QUOTA_CAN_NEVER_FIT),
        ("", TOO_MANY, "QuotaCanNeverFit", "q"),
    ),
)
def test_the_denial_of_a_review(
    kind: str, metadata: Metadata | None, status: Any, decisions: list[Any], want: tuple[str, str, str, str]
) -> None:
    owner, message, reason, quota_uid = want
    found = denied(kind, metadata, status, decisions)
    assert found == replace(denial(owner, "team", message, reason, quota_uid), user=KUEUE)


def denied(
    kind: str,
    metadata: Metadata | None,
    status: Any = SAID,
    decisions: Sequence[Any] = (),
    *,
    operation: str = "CREATE",
    user: str = KUEUE,
    by_controller: bool = False,
) -> Denial:
    request = SimpleNamespace(
        namespace="team",
        name="chat",
        kind=SimpleNamespace(kind=kind, key=("", kind)),
        operation=operation,
        user_info=SimpleNamespace(username=user),
        old_object=msgspec.Raw(msgspec.json.encode({"metadata": metadata})),
    )
    result = SimpleNamespace(response=SimpleNamespace(status=status), metadata=metadata, decisions=decisions)
    review = SimpleNamespace(request=request, by_controller=by_controller)
    return denial_of(cast("Any", review), cast("Any", result))


UID = "5f0c7a3e-1111-2222-3333-000000000001"


def of_owner(name: str = "train", kind: str = "Job", version: str = "batch/v1", uid: str = UID) -> Metadata:
    job = OwnerReference(api_version=version, kind=kind, name=name, uid=uid, controller=True)
    return Metadata(uid="p", owner_references=(job,))


POD = Regarding("v1", "Pod", "chat", "p", "team")
BARE = Regarding("v1", "Pod", "bare", "b", "team")
JOB = Regarding("batch/v1", "Job", "train", UID, "team")


@cases(
    ("given", "changed"),
    of_a_pod_of_a_controller=({"metadata": of_owner("train")}, (POD, JOB)),
    of_a_pod_without_one=({"metadata": Metadata(uid="p")}, (POD,)),
    of_a_pod_whose_owner_nothing_can_have_that_name=({"metadata": of_owner("../x")}, (POD,)),
    of_a_pod_with_an_owner_of_no_kind=({"metadata": of_owner(kind="Job\nforged line")}, (POD,)),
    of_a_pod_with_an_owner_of_no_version=({"metadata": of_owner(version="batch/" + "v" * 9999)}, (POD,)),
    of_a_pod_with_an_owner_of_no_uid=({"metadata": of_owner(uid="x" * 9999)}, (POD,)),
    by_a_controller_of_kubernetes=(
        {"metadata": Metadata(uid="p"), "user": "system:kube-controller-manager"},
        (POD,),
    ),
    by_a_person=({"metadata": Metadata(uid="p"), "user": "anna"}, ()),
    by_an_administrator=({"metadata": Metadata(uid="p"), "user": "system:admin"}, ()),
    by_our_controller=({"metadata": Metadata(uid="p"), "by_controller": True}, ()),
    of_a_creation=({"metadata": Metadata(uid="p"), "operation": "CREATE"}, ()),
    of_another_kind=({"kind": "ResourceClaim", "metadata": Metadata(uid="p")}, ()),
    unread=({"metadata": None}, ()),
)
def test_a_change_of_a_pod_by_a_program_is_about_the_pod_and_its_controller(
    given: dict[str, Any], changed: tuple[Regarding, ...]
) -> None:
    assert denied(**{"kind": "Pod", "operation": "UPDATE", **given}).changed_objects == changed


def test_the_first_comes_at_once_and_the_others_together(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpu_admission.denials")
    reports = DenialReports(window=3600)
    reports.start()
    reports.add(denial())
    assert eventually(lambda: caplog.messages)
    for _ in range(9):
        reports.add(denial())
    reports.stop()
    assert [message.split(" denied")[0] for message in caplog.messages] == [
        "team: 1 request of ReplicaSet/train",
        "team: 9 requests of ReplicaSet/train",
    ]


def test_after_a_window_without_a_denial_the_next_one_comes_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpu_admission.denials")
    reports = DenialReports(window=0.1)
    reports.start()
    reports.add(denial())
    assert eventually(lambda: len(caplog.messages) == 1)
    reports.add(denial())
    assert eventually(lambda: len(caplog.messages) == 2)
    reports.stop()
    assert len(caplog.messages) == 2


def test_owners_that_a_tenant_makes_up_are_bounded(
    reports: DenialReports, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(520):
        reports.add(denial(f"ReplicaSet/train-{number}"))
    reports.add(denial("Job/other", namespace="neighbour"))
    reports.stop()
    assert len(caplog.messages) == 22
    assert caplog.messages[-2].startswith("team: 500 requests of others denied")
    assert caplog.messages[-1].startswith("neighbour: 1 request of Job/other denied")


def test_owners_that_fell_silent_make_room(reports: DenialReports, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(20):
        reports.add(denial(f"ReplicaSet/train-{number}"))
    for moment in (monotonic(), monotonic() + 1e6):
        reports._take_due(moment)

    reports.add(denial("ReplicaSet/late"))
    reports.stop()

    assert [message.split(" denied")[0] for message in caplog.messages] == [
        "team: 1 request of ReplicaSet/late"
    ]


def test_what_is_gathered_is_bounded(reports: DenialReports, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(505):
        reports.add(denial(namespace=f"team-{number}"))
    reports.stop()
    assert len(caplog.messages) == 500


def test_nothing_is_lost_between_threads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpu_admission.denials")
    reports = DenialReports(window=0.01)
    reports.start()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: reports.add(denial()), range(2000)))
    reports.stop()
    assert sum(int(message.split()[1]) for message in caplog.messages) == 2000


@pytest.fixture
def written() -> Iterator[Writer]:
    written = Writer()
    written.answers.set()
    yield written
    written.answers.set()


def reports_with(written: Writer, *, window: float = 60.0) -> tuple[DenialReports, EventQueue]:
    events = EventQueue(cast(EventWriter, written), lambda: None)
    events.start()
    return DenialReports(events, window=window), events


def test_what_a_quota_denied_is_one_event_of_each_owner(written: Writer) -> None:
    before = datetime.now(UTC)
    reports, events = reports_with(written)
    for number in range(3):
        reports.add(denied_by_quota("ReplicaSet/train", f"pod train-{number}: exceeded quota"))
    reports.add(denied_by_quota(""))
    reports.add(denial("Job/of-a-rule"))
    reports.stop()
    events.stop()
    assert [(each.reason, each.cause, each.message, each.count) for each in written.requested] == [
        ("QuotaExceeded", "ReplicaSet/train", "ReplicaSet/train: pod train-2: exceeded quota", 3),
        ("QuotaExceeded", "", TOO_MANY, 1),
    ]
    train = written.requested[0]
    assert (train.regarding.namespace, train.regarding.uid) == ("team", "quota-of-team")
    assert train.first
    assert before <= train.first <= train.last <= datetime.now(UTC)


def test_a_denied_change_is_an_event_of_the_pod_and_one_of_its_controller(written: Writer) -> None:
    reports, events = reports_with(written)
    other = replace(POD, name="chat-1", uid="p1")
    for pod in (POD, POD, other):
        message = f"pod team/{pod.name}: class"
        reports.add(replace(denial("Job/train", message=message), changed_objects=(pod, JOB), user=KUEUE))
    reports.add(replace(denial("", message="pod team/bare: class"), changed_objects=(BARE,), user=KUEUE))
    reports.stop()
    events.stop()
    said = f'change by {KUEUE}: admission webhook "pod-placement.validate.gpu-admission.dev" denied the request: '
    assert [
        (each.reason, each.regarding, each.related, each.message, each.count) for each in written.requested
    ] == [
        ("FailedUpdate", POD, JOB, f"{said}pod team/chat: class", 2),
        ("FailedUpdate", JOB, None, f"{said}pod team/chat-1: class", 3),
        ("FailedUpdate", other, JOB, f"{said}pod team/chat-1: class", 1),
        ("FailedUpdate", BARE, None, f"{said}pod team/bare: class", 1),
    ]


def test_a_gang_whose_changes_are_denied_has_an_event_for_each_of_eight_objects(written: Writer) -> None:
    reports, events = reports_with(written)
    for number in range(200):
        pod = replace(POD, name=f"chat-{number}", uid=f"p{number}")
        reports.add(replace(denial("Job/train"), changed_objects=(pod, JOB)))
    reports.stop()
    events.stop()
    assert len(written.requested) == 8
    assert [each.count for each in written.requested if each.regarding == JOB] == [200]


def test_what_is_being_written_when_it_stops_is_written(
    reports: DenialReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def write(_now: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert not ended.wait(0.2)
            ended.set()

    monkeypatch.setattr(reports, "_write", write)
    reports.start()
    assert begun.wait(20)

    reports.stop()

    assert ended.is_set()


def test_an_api_server_that_does_not_answer_delays_no_line(
    written: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpu_admission.denials")
    written.answers.clear()
    reports, events = reports_with(written, window=0.01)
    reports.start()
    for owner in ("Job/x", "Job/y", "Job/z"):
        reports.add(denied_by_quota(owner))
        assert eventually(lambda: caplog.messages), f"the line of {owner}"
        caplog.clear()
    reports.stop()
    assert written.requested == []
    written.answers.set()
    events.stop()
    assert [each.cause for each in written.requested] == ["Job/x", "Job/y", "Job/z"]
