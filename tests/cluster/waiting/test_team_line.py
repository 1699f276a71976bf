"""The namespaces of a team share one line, on a real API server. None of them has a GPUQuota, if a test creates none."""

import time
from collections.abc import Iterator
from fractions import Fraction

import pytest

from tests.cluster.controllers import Running, eventually, uses
from tests.cluster.waiting.conftest import queueing
from tests.cluster.waiting.gangs import create, job, member
from tests.cluster.waiting.line import POLICY, Line
from tests.cluster.waiting.team import DENY, POD, Team
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import install_kinds
from webhook.quota.team_documents import TEAM_PLURAL

SECOND = 1.1
"""A creationTimestamp has whole seconds."""


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Running]:
    install_kinds(plane.client(), TEAM_PLURAL)
    with queueing(plane, POLICY + DENY) as running:
        yield running


@pytest.fixture
def teams(running: Running) -> Iterator[list[Team]]:
    assert not running.why_unready()
    made: list[Team] = []
    yield made
    for each in made:
        each.delete()


def test_a_gang_that_its_team_has_no_room_for_keeps_what_is_free(
    plane: ControlPlane, teams: list[Team]
) -> None:
    """But what is within a guarantee starts. Who does not queue is denied meanwhile."""
    teams.append(team := Team(plane, 4, "cv", "prod", "denies", prod=1))
    cv, prod, denies = team.lines.values()
    cv.pod("holder", 2)
    assert uses(cv, 2)
    metadata = member(create(plane, cv, job("train", 2)))
    for name in ("gang-0", "gang-1"):
        cv.pod(name, metadata=metadata)
        assert cv.waits(name)
    time.sleep(SECOND)

    assert eventually(lambda: cv.ledger_object().waiting_for_team == 2)
    status, answer = denies.create({"metadata": {"name": "late"}, "spec": POD})
    assert status == 403
    assert f"2 pods of other namespaces in line for ClusterGPUQuota {team.name}" in answer["message"]
    prod.pod("own")
    assert not prod.waits("own")
    prod.pod("more", 2)
    assert prod.waits("more")
    assert eventually(lambda: _said(cv, "gang-0"))
    assert _said(cv, "gang-0")[0].startswith(
        f"waiting for quota: in line of its namespace, needs 2 GPUs, 1 of 4 of ClusterGPUQuota {team.name} free"
    )

    cv.delete_pod("holder")
    assert cv.starts("gang-0", "gang-1", seconds=10)
    assert prod.waits("more"), "the team has only one GPU left"
    cv.set_phase("gang-0", "Succeeded")
    assert prod.starts("more", seconds=10)
    assert eventually(lambda: not prod.ledger_object().all_waiting)
    held = {line.name: line.ledger_object().used for line in team.lines.values()}
    assert eventually(
        lambda: sum((line.ledger_object().used or {}).get("gpus", 0) for line in team.lines.values()) == 4
    ), held


def test_the_namespace_that_holds_less_goes_first(plane: ControlPlane, teams: list[Team]) -> None:
    teams.append(team := Team(plane, 4, "one", "two"))
    one, two = team.lines.values()
    for name in "abc":
        one.pod(name)
    two.pod("a")
    one.pod("next")
    assert one.waits("next")
    two.in_a_later_second("next")
    assert two.waits("next")
    assert one.is_counted()
    assert two.is_counted()

    one.delete_pod("a")
    assert two.starts("next", seconds=10)
    assert one.waits("next")
    one.delete_pod("b")
    assert one.starts("next", seconds=10)


def test_a_namespace_whose_own_quota_has_no_room_lets_the_others_pass(
    plane: ControlPlane, teams: list[Team]
) -> None:
    teams.append(team := Team(plane, 4, "small", "other"))
    small, other = team.lines.values()
    small.quota({"gpus": "1"})
    assert eventually(lambda: small.ledger_object().hard == {"gpus": Fraction(1)})
    small.pod("holder")
    small.pod("next")
    assert small.waits("next")
    other.pod("first", 3)
    assert not other.waits("first")
    other.pod("second")
    assert other.waits("second")
    other.delete_pod("first")
    assert other.starts("second", seconds=10)
    small.change_quota({"hard": {"gpus": "2"}})
    assert small.starts("next", seconds=10)


def _said(line: Line, pod: str) -> list[str]:
    found = line.client.get(line.path("events"))[1]["items"]
    return [each["message"] for each in found if each["involvedObject"]["name"] == pod]
