"""Two controllers, as installed: how long nobody leads when the leader stops or is killed, and what a budget misses meanwhile."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from time import sleep, time
from typing import NamedTuple
from uuid import uuid4

import pytest

from policies.quota.budget import Spending
from tests.cluster.controllers import Command, eventually, is_leader, uses
from tests.cluster.pulse import delay, pulse
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.reservation_requests import creation_request
from webhook.cluster.leader import LeaseTimings
from webhook.controller.shared_informers import FOLLOW_SECONDS

LEASE_SECONDS = LeaseTimings().lease
OVERLAP_SECONDS = 3.0
"""So long both controllers live in which one takes the knowledge of the other: see docs/operate/budget.md."""


@pytest.fixture
def pair(quotas: ControlPlane) -> Iterator[tuple[Command, Command]]:
    lease = f"pair-{uuid4()}"
    first, second = (Command(quotas, f"{lease}-{number}", "--lease", lease) for number in (1, 2))
    first.start()
    assert eventually(lambda: is_leader(first), seconds=30), first.log()
    second.start()
    yield first, second
    for each in (first, second):
        if each.exit_status() is None:
            quotas.processes.terminate(each.name, grace=30)


def stop_in_order(plane: ControlPlane, leader: Command) -> None:
    plane.processes.terminate(leader.name, grace=30)
    assert leader.exit_status() == 0


def kill(plane: ControlPlane, leader: Command) -> None:
    plane.processes.kill(leader.name)


@pytest.mark.parametrize(
    ("end", "within"),
    [
        pytest.param(stop_in_order, LEASE_SECONDS - 1, id="stopped-lets-the-lease-go"),
        pytest.param(kill, LEASE_SECONDS + 20, id="killed-lets-the-lease-run-out", marks=pytest.mark.slow),
    ],
)
def test_follower_takes_over(
    quotas: ControlPlane,
    pair: tuple[Command, Command],
    end: Callable[[ControlPlane, Command], None],
    within: float,
) -> None:
    leader, follower = pair
    assert not is_leader(follower)
    end(quotas, leader)
    assert eventually(lambda: is_leader(follower), seconds=within), follower.log()


TAKE_OVER = LEASE_SECONDS + 4
"""Seconds from the death of a leader until another one has counted: the rest is for its next look at the Lease, and the count."""
WRITES = 3
"""Of the Lease, the ledger, and what is read of both."""


@pytest.mark.slow
def test_what_ends_while_leaders_are_killed_in_turn_is_free_after_a_take_over(
    quotas: ControlPlane, pair: tuple[Command, Command]
) -> None:
    """A pod ends, and another one comes and goes. The leader comes back after 7 s, and the follower is killed then."""
    team = Namespace(quotas)
    team.quota({"gpus": 8})
    assert eventually(lambda: team.used() is not None)
    team.pod("train", 4)
    assert uses(team, 4)
    catalogue = team.ledger_object().class_catalogue or ""
    leader, follower = pair

    with pulse(quotas) as writes:
        kill(quotas, leader)
        killed = time()
        team.delete_pod("train")
        team.reserve(creation_request(team.pod("brief", 2), {"gpus": Fraction(2)}, catalogue))
        assert len(team.ledger_object().reservations) == 1
        team.delete_pod("brief")
        freed: list[float] = []

        def is_free() -> bool:
            ledger = team.ledger_object()
            return ledger.used == {"gpus": Fraction(0)} and not len(ledger.reservations)

        def watch(until: float) -> None:
            while time() < until:
                sleep(0.1)
                if is_free():
                    freed.append(time() - killed)

        watch(killed + 7)
        leader.start()
        watch(killed + 12)
        kill(quotas, follower)
        assert eventually(is_free, seconds=90)
        freed.append(time() - killed)
    first = freed[0]
    assert first - delay(WRITES, writes, killed, killed + first) < TAKE_OVER


@pytest.mark.slow
def test_controllers_that_are_killed_in_turn_miss_no_second_of_a_budget(
    quotas: ControlPlane, pair: tuple[Command, Command]
) -> None:
    team = Namespace(quotas)
    team.quota({"gpus": 16}, budget={"gpuHours": 1000})
    assert eventually(lambda: team.used() is not None)
    train = Held(8, span(lambda: team.pod("train", 8)))
    assert uses(team, 8)
    sleep(FOLLOW_SECONDS + 1)  # the follower knows the ledger
    held = [train]
    for leader, follower in (pair, tuple(reversed(pair))):
        kill(quotas, leader)
        created = span(lambda: team.pod("brief", 2))
        sleep(5)
        held.append(Held(2, created, span(lambda: team.delete_pod("brief"))))
        before = spending_of(team).until
        assert eventually(partial(is_leader, follower), seconds=LEASE_SECONDS + 20)
        leader.start()
        team.pod("another", 1)  # something to write
        assert uses(team, 9)
        team.delete_pod("another")
        assert uses(team, 8)
        assert spending_of(team).until > before
        sleep(FOLLOW_SECONDS + 1)
    found = spending_of(team)
    assert is_exact(found, held)
    assert not any(found.unknown.values())


@pytest.mark.slow
def test_a_follower_that_is_killed_before_it_leads_has_counted_what_came_and_went(
    quotas: ControlPlane, pair: tuple[Command, Command]
) -> None:
    leader, follower = pair
    team = Namespace(quotas)
    team.quota({"gpus": 16}, budget={"gpuHours": 1000})
    assert eventually(lambda: team.used() is not None)
    train = Held(8, span(lambda: team.pod("train", 8)))
    assert uses(team, 8)
    sleep(FOLLOW_SECONDS + 1)  # the follower knows the ledger
    kill(quotas, leader)
    created = span(lambda: team.pod("brief", 6))
    sleep(5)
    brief = Held(6, created, span(lambda: team.delete_pod("brief")))
    leader.start()
    sleep(OVERLAP_SECONDS)
    kill(quotas, follower)
    assert eventually(partial(is_leader, leader), seconds=LEASE_SECONDS + 20)
    team.pod("another", 1)  # something to write
    assert uses(team, 9)
    found = spending_of(team)
    assert not any(found.unknown.values())
    assert is_exact(found, [train, brief])


Span = tuple[float, float]
"""When a call began and ended, in seconds since 1970. What it changes is stored in between."""


class Held(NamedTuple):
    """GPUs of a pod, and the calls that created and deleted it; without a deletion it is still there."""

    gpus: int
    created: Span
    deleted: Span | None = None


def span(call: Callable[[], object]) -> Span:
    began = time()
    call()
    return began, time()


def is_exact(found: Spending, held: list[Held]) -> bool:
    """Whether the GPU-seconds are those of these pods. Each change is seen within a second: with these pods, 12 GPU-seconds."""
    least = most = 0.0
    for gpus, created, deleted in held:
        ended = deleted or (found.until / 1000,) * 2
        least += gpus * (ended[0] - created[1])
        most += gpus * (ended[1] - created[0])
    return least - 12 <= found.spent["gpus"] / 1e6 <= most + 12


def spending_of(team: Namespace) -> Spending:
    spending = team.ledger_object().spending
    assert spending
    return spending
