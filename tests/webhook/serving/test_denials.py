"""How denials are gathered: by owner, once a window, never without a bound."""

import threading
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from policies.quota.charge_request import LedgerError
from policies.quota.ledger.quota_ledger import DenialNote
from tests.cluster.controllers import eventually
from webhook.serving.denials import MOST_GATHERED, MOST_OWNERS, Denial, DenialReports

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
    return denial(owner, namespace, message, "Refused", f"quota-of-{namespace}")


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> DenialReports:
    caplog.set_level("INFO", "gpu_admission.denials")
    return DenialReports()


def test_a_storm_of_one_owner_is_one_line(reports: DenialReports, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(57):
        reports.take(denial(message=f"pod team/train-{number}: exceeded quota"))
    reports.stop()
    assert caplog.messages == [
        "team: 57 requests of ReplicaSet/train denied within 0 s; the last: pod team/train-56: exceeded quota"
    ]


@pytest.mark.parametrize(
    ("owner", "line"),
    [
        pytest.param(
            "Job/train",
            "team: 1 request of Job/train denied: pod team/train-x: exceeded quota",
            id="of-a-controller",
        ),
        pytest.param("", "team: 1 request denied: pod team/train-x: exceeded quota", id="of-a-person"),
    ],
)
def test_a_line(reports: DenialReports, caplog: pytest.LogCaptureFixture, owner: str, line: str) -> None:
    reports.take(denial(owner))
    reports.stop()
    assert caplog.messages == [line]


def test_the_first_comes_at_once_and_the_others_together(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpu_admission.denials")
    reports = DenialReports(window=3600)
    reports.start()
    reports.take(denial())
    assert eventually(lambda: caplog.messages)
    for _ in range(9):
        reports.take(denial())
    reports.stop()
    assert [message.split(" denied")[0] for message in caplog.messages] == [
        "team: 1 request of ReplicaSet/train",
        "team: 9 requests of ReplicaSet/train",
    ]


def test_after_a_window_without_a_denial_the_next_one_comes_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpu_admission.denials")
    reports = DenialReports(window=0.1)
    reports.start()
    reports.take(denial())
    assert eventually(lambda: len(caplog.messages) == 1)
    reports.take(denial())
    assert eventually(lambda: len(caplog.messages) == 2)
    reports.stop()
    assert len(caplog.messages) == 2


def test_owners_that_a_tenant_makes_up_are_bounded(
    reports: DenialReports, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MOST_OWNERS + 500):
        reports.take(denial(f"ReplicaSet/train-{number}"))
    reports.take(denial("Job/other", namespace="neighbour"))
    reports.stop()
    assert len(caplog.messages) == MOST_OWNERS + 2
    assert caplog.messages[-2].startswith("team: 500 requests of others denied")
    assert caplog.messages[-1].startswith("neighbour: 1 request of Job/other denied")


def test_what_is_gathered_is_bounded(reports: DenialReports, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MOST_GATHERED + 5):
        reports.take(denial(namespace=f"team-{number}"))
    reports.stop()
    assert len(caplog.messages) == MOST_GATHERED


def test_nothing_is_lost_between_threads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpu_admission.denials")
    reports = DenialReports(window=0.01)
    reports.start()

    def deny() -> None:
        for _ in range(500):
            reports.take(denial())

    threads = [threading.Thread(target=deny) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reports.stop()
    assert sum(int(message.split()[1]) for message in caplog.messages) == 2000


class Rows:
    """Takes notes, by namespace and quota, as the ledgers of a cluster do."""

    def __init__(self, *away: str) -> None:
        self.away = away
        self.left: list[tuple[str, str, list[tuple[str, str, str, int]]]] = []

    def __call__(self, namespace: str, quota_uid: str, notes: Sequence[DenialNote]) -> None:
        if namespace in self.away:
            raise LedgerError("the API server does not answer", transient=True)
        said = [(note.owner, note.reason, note.message, note.count) for note in notes]
        self.left.append((namespace, quota_uid, said))


def test_what_a_quota_denied_is_noted_in_one_go() -> None:
    ledger_objects = Rows()
    reports = DenialReports(ledger_objects)
    for number in range(3):
        reports.take(denied_by_quota("ReplicaSet/train", f"pod train-{number}: exceeded quota"))
    reports.take(denied_by_quota("Job/x"))
    reports.take(denial("Job/of-a-rule"))
    reports.stop()
    train = ("ReplicaSet/train", "Refused", "pod train-2: exceeded quota", 3)
    assert ledger_objects.left == [("team", "quota-of-team", [train, ("Job/x", "Refused", TOO_MANY, 1)])]


def test_a_note_says_when() -> None:
    left: list[DenialNote] = []
    reports = DenialReports(lambda _namespace, _uid, notes: left.extend(notes))
    reports.take(denied_by_quota("Job/x"))
    reports.stop()
    assert datetime.fromisoformat(left[0].first) <= datetime.fromisoformat(left[0].last) <= datetime.now(UTC)


def test_a_row_that_cannot_be_written_keeps_no_other_from_its_notes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "gpu_admission.denials")
    ledger_objects = Rows("away")
    reports = DenialReports(ledger_objects)
    reports.take(denied_by_quota("Job/x", namespace="away"))
    reports.take(denied_by_quota("Job/x"))
    reports.stop()
    assert [namespace for namespace, _, _ in ledger_objects.left] == ["team"]
    assert caplog.messages[-1] == "away: no Events of these denials: the API server does not answer"
