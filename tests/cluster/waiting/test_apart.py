"""Objects that never wait under our gate pass nobody on a real API server, and nobody passes them without end.

A tenant polls with them, as a controller does that is denied, while what becomes free is too little for the first pod in line.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import Running, eventually, uses
from tests.cluster.quota.quotas import CLAIMS, claim, gpu_pod, in_force
from tests.cluster.waiting.conftest import queueing
from tests.cluster.waiting.line import POLICY, Line
from tests.cluster.waiting.team import DENY, Team
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import install_kinds
from webhook.quota.team_documents import TEAM_PLURAL

pytestmark = pytest.mark.usefixtures("running")

FORGED = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d0", "controller": True}
CONTROLLER_MANAGER = "system:kube-controller-manager"

SECOND = 1.1
"""A creationTimestamp has whole seconds; pods of the same second have the order of their uids."""

Attempt = Callable[[Line, str], tuple[int, Any]]


def with_node_name(line: Line, name: str) -> tuple[int, Any]:
    return line.create(gpu_pod(name, nodeName="nowhere"))


def as_a_claim(line: Line, name: str) -> tuple[int, Any]:
    return line.client.post(CLAIMS.format(line.name), claim(name, 1))


def with_a_forged_owner(line: Line, name: str) -> tuple[int, Any]:
    return line.create(gpu_pod(name) | {"metadata": {"name": name, "ownerReferences": [FORGED]}})


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Running]:
    install_kinds(plane.client(), TEAM_PLURAL)
    with queueing(plane, POLICY + DENY) as running:
        yield running


class Poll:
    """What came of the attempts of a tenant who does not give up."""

    def __init__(self) -> None:
        self.admitted: list[str] = []
        self.said: list[str] = []


@contextmanager
def polling(line: Line, attempt: Attempt, name: str = "poll") -> Iterator[Poll]:
    """Create such objects again and again, 10 in a second, and at most 300."""
    poll, stopped = Poll(), threading.Event()

    def run() -> None:
        for number in itertools.count():
            if stopped.wait(0.1) or number >= 300:
                return
            status, answer = attempt(line, f"{name}-{number}")
            if status == 201:
                gates = answer["spec"].get("schedulingGates")
                poll.said.append("waits") if gates else poll.admitted.append(f"{name}-{number}")
            else:
                poll.said.append(answer["message"])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield poll
    finally:
        stopped.set()
        thread.join()


@cases(
    ("attempt",),
    with_node_name=(with_node_name,),
    as_a_claim=(as_a_claim,),
    with_the_forged_owner_of_a_daemonset=(with_a_forged_owner,),
)
def test_a_head_that_needs_all_of_its_namespace_starts(plane: ControlPlane, attempt: Attempt) -> None:
    line = Line(plane)
    in_force(line, {"gpus": "4"})
    for number in range(4):
        line.pod(f"holder-{number}")
    assert uses(line, 4)
    line.pod("head", 4)
    assert line.waits("head")
    time.sleep(SECOND)
    assert eventually(lambda: line.ledger_object().scarce == {"gpus": False})

    with polling(line, attempt) as poll:
        assert eventually(lambda: len(poll.said) >= 3)
        for number in range(4):
            line.delete_pod(f"holder-{number}")
            assert uses(line, 3 - number) or number == 3
        assert line.starts("head", seconds=10)
        assert poll.admitted == []
    assert uses(line, 4)


@cases(
    ("attempt",),
    with_node_name=(with_node_name,),
    as_a_claim=(as_a_claim,),
)
def test_the_head_of_another_namespace_of_the_team_starts(plane: ControlPlane, attempt: Attempt) -> None:
    team = Team(plane, 4, "own", "other")
    own, other = team.lines.values()
    for number in range(4):
        other.pod(f"holder-{number}")
    assert uses(other, 4)
    own.pod("head", 2)
    assert own.waits("head")
    time.sleep(SECOND)
    assert eventually(lambda: own.ledger_object().scarce == {"gpus": True})

    with polling(other, attempt) as poll:
        assert eventually(lambda: len(poll.said) >= 3)
        other.delete_pod("holder-0")
        assert uses(other, 3)
        other.delete_pod("holder-1")
        assert own.starts("head", seconds=10)
        assert poll.admitted == []
    team.delete()


def test_one_that_keeps_coming_has_its_turn_in_a_line_that_is_never_empty(plane: ControlPlane) -> None:
    """It has the place of when it was denied first, also if it needs more than is ever free at one time without a turn."""
    line = Line(plane)
    in_force(line, {"gpus": "2"})
    line.pod("first", 1)
    line.pod("second", 1)
    line.pod("before", 1)
    assert line.waits("before")
    time.sleep(SECOND)
    assert eventually(lambda: line.ledger_object().scarce == {"gpus": False})

    def both(line: Line, name: str) -> tuple[int, Any]:
        return line.create(gpu_pod(name, 2, nodeName="nowhere"))

    with polling(line, both) as poll:
        assert eventually(lambda: len(line.ledger_object().marks) == 1)
        assert eventually(lambda: poll.said), "the ledger has the mark before the answer is read"
        assert "does not wait in line for quota" in poll.said[-1]
        time.sleep(SECOND)
        for number in range(3):
            line.pod(f"after-{number}", 1)
            assert line.waits(f"after-{number}")
        line.delete_pod("first")
        assert line.starts("before", seconds=10)
        line.delete_pod("second")
        line.delete_pod("before")
        assert eventually(lambda: len(poll.admitted) == 1)
        assert all(line.waits(f"after-{number}") for number in range(3))
        line.delete_pod(poll.admitted[0])
        assert eventually(lambda: sum(line.waits(f"after-{number}") for number in range(3)) == 1, seconds=10)
        assert len(poll.admitted) == 1


def test_the_pods_of_a_daemonset_have_their_turn_beside_those_of_another_namespace(
    plane: ControlPlane,
) -> None:
    """Also where the namespace denies instead of queueing."""
    team = Team(plane, 2, "own", "agents-denies")
    own, agents = team.lines.values()
    agents.bind_role(CONTROLLER_MANAGER, "system:aggregate-to-edit")
    controller = plane.client(CONTROLLER_MANAGER)
    own.pod("first")
    own.pod("second")
    own.pod("third")
    assert own.waits("third")
    assert eventually(lambda: own.ledger_object().scarce == {"gpus": True})

    def agent(line: Line, name: str) -> tuple[int, Any]:
        body: JSON = gpu_pod(name) | {"metadata": {"name": name, "ownerReferences": [FORGED]}}
        return controller.post(line.path("pods"), body)

    with polling(agents, agent) as poll:
        assert eventually(lambda: len(poll.said) >= 3)
        own.delete_pod("first")
        assert eventually(lambda: len(poll.admitted) == 1 or not own.waits("third"), seconds=10)
        own.delete_pod("second")
        assert eventually(lambda: len(poll.admitted) == 1 and not own.waits("third"), seconds=10)
    agents.delete_pod(poll.admitted[0])
    team.delete()


@pytest.mark.slow
def test_a_mark_whose_owner_stays_away_holds_nothing_for_long(plane: ControlPlane) -> None:
    line = Line(plane)
    in_force(line, {"gpus": "1"})
    line.pod("holder")
    line.pod("next")
    assert line.waits("next")
    time.sleep(SECOND)
    assert eventually(lambda: line.ledger_object().scarce == {"gpus": False})
    assert with_node_name(line, "once")[0] == 403
    time.sleep(SECOND)
    line.pod("last")
    line.delete_pod("holder")
    assert line.starts("next", seconds=10)
    line.delete_pod("next")
    assert eventually(lambda: len(line.ledger_object().reservations.lifts) == 1)
    assert line.waits("last")
    assert line.starts("last", seconds=90)
    assert line.ledger_object().marks == {}
