"""Two controllers, as installed: how long nobody leads when the leader stops in order, and when it is killed."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from tests.cluster.controllers import Command, eventually
from tests.controlplane import ControlPlane
from webhook.cluster.leader import LeaseTimings

LEASE_SECONDS = LeaseTimings().lease


def is_leader(controller: Command) -> bool:
    return controller.metric("gpu_admission_controller_leader ") == ["gpu_admission_controller_leader 1.0"]


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
        pytest.param(stop_in_order, LEASE_SECONDS - 5, id="stopped-lets-the-lease-go"),
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
