"""Nobody closes the other namespaces of a team but pods that wait for it, and lack nothing else: on a real API server.

A tenant makes creations that are refused after us, or pods that wait for something else. Meanwhile somebody in a namespace that
does not queue creates a pod with one GPU again and again: the team has room for it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from policies.quota.waiting import GATE
from tests.cluster.controllers import Running, eventually, uses
from tests.cluster.waiting.conftest import queueing
from tests.cluster.waiting.gangs import create, job, member
from tests.cluster.waiting.line import POLICY, Line
from tests.cluster.waiting.team import DENY, POD, Team
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.gpuquota import install_kinds
from webhook.quota.team_documents import TEAM_PLURAL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SECONDS = 12.0
"""For so long each attack goes on. Reservations expire after 10 s here."""
Attack = Callable[[Line, ControlPlane], Callable[[int], Any]]
"""Prepares a namespace, and returns an attempt, which is made again and again, with its number."""


def asks_for(gpus: int) -> Any:
    container = {"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {**POD, "containers": [container]}


GATED = {**POD, "schedulingGates": [{"name": GATE}]}


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Running]:
    install_kinds(plane.client(), TEAM_PLURAL)
    with queueing(plane, POLICY + DENY) as running:
        yield running


@contextmanager
def four_gpus(running: Running, plane: ControlPlane) -> Iterator[Team]:
    """Have a team of four GPUs, of which somebody holds one."""
    assert not running.why_unready()
    team = Team(plane, 4, "cv", "rogue-denies", "denies")
    team.lines["denies"].pod("holder")
    assert uses(team.lines["denies"], 1)
    yield team
    team.delete()


@pytest.fixture
def team(running: Running, plane: ControlPlane) -> Iterator[Team]:
    with four_gpus(running, plane) as team:
        yield team


def denied(line: Line, seconds: float = SECONDS) -> tuple[int, list[str]]:
    """Create a pod with one GPU and delete it, again and again. Return how often, and the denials."""
    until, tries, found = time.monotonic() + seconds, 0, list[str]()
    while time.monotonic() < until:
        tries += 1
        status, answer = line.create({"metadata": {"name": "late"}, "spec": POD})
        if status != 201:
            found.append(answer["message"])
        else:
            line.delete_pod("late")
        time.sleep(0.3)
    return tries, found


@contextmanager
def repeated(attempt: Callable[[int], Any], every: float) -> Iterator[None]:
    stop = threading.Event()

    def repeat() -> None:
        number = 0
        while not stop.is_set():
            attempt(number)
            number += 1
            stop.wait(every)

    rogue = threading.Thread(target=repeat)
    rogue.start()
    try:
        yield
    finally:
        stop.set()
        rogue.join()


def take_name(line: Line) -> None:
    """Have a pod without GPUs."""
    idle = {"containers": [{"name": "idle", "image": "x"}]}
    accepted(line.create({"metadata": {"name": "taken"}, "spec": idle}))


def full(line: Line, hard: str = "1", **queue: Any) -> None:
    """Have a GPUQuota that is used up."""
    line.quota({"gpus": hard}, **({"queue": queue} if queue else {}))
    assert eventually(lambda: str(line.ledger_object().hard.get("gpus")) == hard)
    if hard != "0":
        line.pod("own-holder", int(hard))
        assert uses(line, int(hard))


def name_that_is_taken(line: Line, _: ControlPlane, spec: Any = GATED) -> Callable[[int], Any]:
    take_name(line)
    return lambda _: line.create({"metadata": {"name": "taken"}, "spec": spec})


def refused_by_a_resource_quota(line: Line, _: ControlPlane) -> Callable[[int], Any]:
    """As the pods of a Deployment are: each has a name of its own."""
    full(line)
    body = {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": "1"}}}
    accepted(line.client.post(line.path("resourcequotas"), body))
    status = {"status": {"hard": {"pods": "1"}, "used": {"pods": "1"}}}
    accepted(line.client.patch(f"{line.path('resourcequotas', 'pods')}/status", status))
    return lambda number: line.create({"metadata": {"generateName": f"more-{number}-"}, "spec": POD})


def created_and_deleted_beside_a_full_quota(line: Line, _: ControlPlane) -> Callable[[int], Any]:
    full(line)

    def attempt(number: int) -> None:
        if line.create({"metadata": {"name": f"short-{number}"}, "spec": POD})[0] == 201:
            line.delete_pod(f"short-{number}")

    return attempt


def of_a_namespace_without_gpus(line: Line, _: ControlPlane) -> Callable[[int], Any]:
    full(line, "0")
    return lambda number: line.create({"metadata": {"name": f"none-{number % 9}"}, "spec": GATED})


def that_others_may_pass(line: Line, _: ControlPlane) -> Callable[[int], Any]:
    line.quota({"gpus": "9"}, queue={"order": "BestEffortFIFO"})
    assert eventually(lambda: line.ledger_object().hard.get("gpus") == 9)
    accepted(line.create({"metadata": {"name": "large"}, "spec": asks_for(4)}))
    return lambda _: None


def of_a_gang_that_stays_incomplete(line: Line, plane: ControlPlane) -> Callable[[int], Any]:
    metadata = member(create(plane, line, job("train", 3)))
    return lambda number: line.create({"metadata": {"name": f"gang-{number % 2}", **metadata}, "spec": POD})


def under_another_gate(line: Line, _: ControlPlane) -> Callable[[int], Any]:
    gates = {"schedulingGates": [{"name": "example.com/later"}, {"name": GATE}]}
    return lambda number: line.create({"metadata": {"name": f"gated-{number % 9}"}, "spec": {**POD, **gates}})


def tried_out(line: Line, _: ControlPlane) -> Callable[[int], Any]:
    full(line)
    return lambda number: line.create({"metadata": {"name": f"dry-{number}"}, "spec": POD}, {"dryRun": "All"})


ATTACKS: dict[str, tuple[str, Attack, float]] = {
    "a name that is taken": ("cv", name_that_is_taken, 1.9),
    "a name that is taken, ten times a second": ("cv", name_that_is_taken, 0.1),
    "a gate where nobody waits": ("rogue-denies", name_that_is_taken, 1.9),
    "refused by a ResourceQuota": ("cv", refused_by_a_resource_quota, 0.5),
    "created and deleted": ("cv", created_and_deleted_beside_a_full_quota, 0.2),
    "of a namespace without GPUs": ("cv", of_a_namespace_without_gpus, 0.5),
    "BestEffortFIFO": ("cv", that_others_may_pass, 1.0),
    "an incomplete gang": ("cv", of_a_gang_that_stays_incomplete, 0.5),
    "another gate": ("cv", under_another_gate, 0.5),
    "dry runs": ("cv", tried_out, 0.2),
}
"""In which namespace, what is attempted there, and every how many seconds."""


@pytest.fixture(scope="module")
def beside_attacks(running: Running, plane: ControlPlane) -> dict[str, tuple[int, list[str]]]:
    """Return what came of pods beside each attack. Up to five go on at the same time, each on a team of its own."""

    def attacked(team: Team, attempt: Callable[[int], Any], every: float) -> tuple[int, list[str]]:
        with repeated(attempt, every):
            return denied(team.lines["denies"])

    with ExitStack() as teams, ThreadPoolExecutor(5) as pool:
        begun = {}
        for name, (where, attack, every) in ATTACKS.items():
            team = teams.enter_context(four_gpus(running, plane))
            begun[name] = pool.submit(attacked, team, attack(team.lines[where], plane), every)
        return {name: each.result() for name, each in begun.items()}


@pytest.mark.parametrize("attack", ATTACKS)
def test_who_does_not_wait_for_the_team_closes_nobody(
    attack: str, beside_attacks: dict[str, tuple[int, list[str]]]
) -> None:
    tries, denials = beside_attacks[attack]

    assert tries > SECONDS
    assert denials == []


def test_creations_that_are_never_stored_leave_a_part_of_the_team(team: Team, plane: ControlPlane) -> None:
    """Until the first of them has expired, they hold what they asked for."""
    attempt = name_that_is_taken(team.lines["rogue-denies"], plane, asks_for(3))
    with repeated(attempt, 3.0):
        _, before = denied(team.lines["denies"], 8.0)
        ledger = team.lines["rogue-denies"].ledger_object
        assert eventually(lambda: ledger().is_bound(int(time.time() * 1000)), seconds=60)
        time.sleep(SECONDS)
        _, denials = denied(team.lines["denies"], 2 * SECONDS)
        # Until the deletion of the last pod is counted, there is no room for it anyway.
        assert eventually(lambda: "never stored" in attempt(0)[1]["message"])

    assert before, "it is an attack"
    assert denials == []


def test_a_gate_of_the_author_goes_where_nobody_waits(team: Team) -> None:
    denies = team.lines["denies"]
    accepted(denies.create({"metadata": {"name": "own-gate"}, "spec": GATED}))

    assert not denies.waits("own-gate")
    assert uses(denies, 2)
