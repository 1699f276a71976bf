"""The controller on a real API server: it counts what is stored, gives back what ends, and gives up what never came."""

from collections.abc import Iterator
from fractions import Fraction

import pytest

from policies.ledger.decide import Reservation
from tests.cluster.controllers import Running, eventually
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.gpuquota import Namespace, install_quota_kind

GPUS = "gpus"


@pytest.fixture(scope="module")
def quotas(plane: ControlPlane) -> ControlPlane:
    install_quota_kind(plane.client())
    return plane


@pytest.fixture(scope="module")
def running(quotas: ControlPlane) -> Iterator[Running]:
    with Running(quotas, expiry=2.0) as controller:
        yield controller


@pytest.fixture
def team(running: Running, quotas: ControlPlane) -> Namespace:  # noqa: ARG001 - the controller has to run
    return Namespace(quotas)


def gpus(team: Namespace) -> Fraction | None:
    used = team.used()
    return None if used is None else used.get(GPUS, Fraction(0))


def uses(team: Namespace, amount: int, *, seconds: float = 5) -> bool:
    return eventually(lambda: gpus(team) == amount, seconds=seconds)


def test_a_quota_is_counted_from_what_is_stored(team: Namespace) -> None:
    team.pod("first", 2)
    team.pod("second", 1)
    team.quota({"gpus": "8"})

    assert uses(team, 3)
    row = team.row()
    assert row.uncounted == ()
    assert {condition.type: condition.status for condition in row.conditions} == {
        "Ready": "True",
        "Exceeded": "False",
        "Stale": "False",
    }


@pytest.mark.parametrize("end", ["Succeeded", "Failed", "deleted"])
def test_what_ends_is_given_back_within_seconds(team: Namespace, end: str) -> None:
    team.quota({"gpus": "8"})
    team.pod("stays", 1)
    team.pod("ends", 4)
    assert uses(team, 5)

    if end == "deleted":
        team.delete_pod("ends")
    else:
        team.set_phase("ends", end)

    assert uses(team, 1, seconds=3)


def test_a_reservation_becomes_use_once_its_pod_is_stored(team: Namespace, running: Running) -> None:
    team.quota({"gpus": "8"})
    assert uses(team, 0)
    uid = team.pod("trainer", 2)
    assert uses(team, 2)

    team.reserve(Reservation.creation(uid, {GPUS: Fraction(2)}, running.controller.counting.catalogue))

    assert eventually(lambda: not team.row().entries)
    assert gpus(team) == 2


def test_a_reservation_for_what_is_never_stored_is_given_up(team: Namespace, running: Running) -> None:
    team.quota({"gpus": "8"})
    assert uses(team, 0)
    team.reserve(Reservation.creation("never", {GPUS: Fraction(2)}, running.controller.counting.catalogue))

    assert len(team.row().entries) == 1
    assert eventually(lambda: not team.row().entries, seconds=6)
    assert gpus(team) == 0


def test_a_bound_pod_counts_for_the_class_of_its_node(team: Namespace, quotas: ControlPlane) -> None:
    create_gpu_node(quotas.client(), f"node-of-{team.name}", labels={"accelerator": "nvidia-a100-80gb"})
    team.quota({"gpus": "8", "classes": {"nvidia-a100": "8", "nvidia-a100-80gb": "8"}})
    team.pod("trainer", 2)
    assert uses(team, 2)
    assert "classes/nvidia-a100" in team.row().hard
    assert (team.used() or {})["classes/nvidia-a100"] == 0

    team.bind("trainer", f"node-of-{team.name}")

    assert eventually(lambda: (team.used() or {})["classes/nvidia-a100-80gb"] == 2)
    assert (team.used() or {})["classes/nvidia-a100"] == 2
