"""How denials are gathered: by owner, once a window, never without a bound."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest

from policies.finding import Finding, Reason
from policies.pods.pod import Metadata, OwnerReference
from policies.quota.quota_request import ReservationOutcome
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.cluster.event_writer import Writer
from webhook.cluster.events import EventQueue, EventWriter
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
        by_quota(Reason.QUOTA_EXCEEDED),
        ("", TOO_MANY, "QuotaExceeded", "q"),
    ),
    by_a_full_quota_beside_another_policy=(
        "Pod",
        None,
        SAID,
        [*by_quota(Reason.QUOTA_EXCEEDED), Decision(policy=cast("Any", None), violations=())],
        ("", TOO_MANY, "QuotaExceeded", "q"),
    ),
    by_a_small_quota=(
        "Pod",
        None,
        SAID,
        by_quota(Reason.QUOTA_CAN_NEVER_FIT),
        ("", TOO_MANY, "QuotaCanNeverFit", "q"),
    ),
)
def test_the_denial_of_a_review(
    kind: str, metadata: Metadata | None, status: Any, decisions: list[Any], want: tuple[str, str, str, str]
) -> None:
    request = SimpleNamespace(namespace="team", name="chat", kind=SimpleNamespace(kind=kind))
    response = SimpleNamespace(status=status)
    result = SimpleNamespace(response=response, metadata=metadata, decisions=decisions)

    found = denial_of(cast("Any", SimpleNamespace(request=request)), cast("Any", result))

    owner, message, reason, quota_uid = want
    assert found == denial(owner, "team", message, reason, quota_uid)


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
