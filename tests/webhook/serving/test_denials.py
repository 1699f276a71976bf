"""How denials are gathered: by owner, once a window, never without a bound."""

import threading

import pytest

from tests.cluster.controllers import eventually
from webhook.serving.denials import MOST_GATHERED, MOST_OWNERS, Denial, DenialReports

TOO_MANY = "pod team/train-x: exceeded quota"


def denial(owner: str = "ReplicaSet/train", namespace: str = "team", message: str = TOO_MANY) -> Denial:
    return Denial(namespace=namespace, owner=owner, message=message)


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> DenialReports:
    caplog.set_level("INFO", "gpu_admission.denials")
    return DenialReports(None)


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
    reports = DenialReports(None, window=3600)
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
    reports = DenialReports(None, window=0.1)
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
    reports = DenialReports(None, window=0.01)
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
