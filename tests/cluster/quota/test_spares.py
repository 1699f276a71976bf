"""What a replica has reserved ahead goes with it, and denies nobody anything that fits."""

import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.quota.amounts import GPUS
from policies.quota.ledger.quota_ledger import (
    CREATION_SECONDS,
    EXPIRY_SECONDS,
    SPARE_SECONDS,
    QuotaLedger,
)
from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.spares import SettledSpares, settled
from tests.cluster.controllers import Running, eventually
from tests.cluster.quota.burst import PODS, Burst, crowd, gpu_pod
from tests.cluster.quota.referee import GPU
from tests.cluster.quota.spares_used import SPARE
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import Webhook
from webhook.quota.spares import SETTLED_WITHIN
from webhook.quota.store import LedgerConflict

ASSIGNED = "gpu_admission_quota_spares_assigned_total"
FOREIGN = f"{SPARE}another-replica-"


@pytest.fixture(scope="module")
def served(plane: ControlPlane) -> Iterator[Webhook]:
    with Webhook(plane, arguments=("--kubeconfig", plane.kubeconfig())) as webhook:
        webhook.register()
        with Running(plane):
            yield webhook
        webhook.unregister()


@pytest.fixture
def team(plane: ControlPlane, served: Webhook) -> Namespace:  # noqa: ARG001 - it has to run
    return Namespace(plane)


def in_force(team: Namespace, gpus: int) -> None:
    team.quota({"gpus": str(gpus)})
    assert eventually(lambda: team.used() is not None)


def spares(team: Namespace) -> list[str]:
    return [each for each in team.row().reservations.ids if each.startswith(SPARE)]


def held(team: Namespace) -> int:
    return len(team.client.get(PODS.format(team.name))[1]["items"])


@pytest.mark.parametrize(
    ("end", "soonest", "latest"),
    [
        pytest.param(Webhook.stop, 0.0, CREATION_SECONDS / 2, id="terminated"),
        pytest.param(
            Webhook.kill, CREATION_SECONDS, EXPIRY_SECONDS + 20, id="killed", marks=pytest.mark.slow
        ),
    ],
)
def test_spares_of_a_replica_that_ends(
    plane: ControlPlane,
    served: Webhook,
    team: Namespace,
    end: Callable[[Webhook], None],
    soonest: float,
    latest: float,
) -> None:
    """A replica that is stopped gives them back itself. What pods were admitted by stays charged."""
    in_force(team, 1000)
    burst = Burst(plane.client(), crowd(team.name, 300))
    burst.per_second = 60
    with burst:
        assert eventually(lambda: served.total(ASSIGNED) > 20 and spares(team))
        end(served)
        began = time.monotonic()
        left = eventually(lambda: not spares(team), seconds=latest)
        seconds = time.monotonic() - began
        served.start()

    assert left, spares(team)
    assert seconds >= soonest
    assert burst.undecided == []
    assert eventually(lambda: (team.used() or {}).get(GPUS) == held(team) == len(burst.admitted))


def reserve_elsewhere(team: Namespace, number: int) -> Callable[[], None]:
    """Reserve ahead as another replica does, and return what gives it back."""
    ours = [Reservation(f"{FOREIGN}{each}", {GPUS: Fraction(1)}) for each in range(number)]
    swap(team, lambda ledger: replace(ledger, reservations=ledger.reservations.plus(ours)))
    settling = SettledSpares({}, frozenset(each.id for each in ours))
    return lambda: swap(team, lambda ledger: settled(ledger, settling))


def swap(team: Namespace, change: Callable[[QuotaLedger], QuotaLedger]) -> None:
    while True:
        before = team.store.read(team.name, 10)
        assert before is not None
        try:
            team.store.compare_and_swap(team.name, before, change(before.ledger), 10)
        except LedgerConflict:
            continue
        return


def test_what_fits_but_for_spares_of_another_replica_waits_for_them(team: Namespace) -> None:
    in_force(team, 8)
    give_back = reserve_elsewhere(team, 8)
    later = threading.Timer(SPARE_SECONDS / 2, give_back)
    later.start()

    status, answer = team.client.post(PODS.format(team.name), gpu_pod("fits", GPU, 8))

    later.join()
    assert status == 201, answer


def test_what_does_not_fit_beside_what_is_used_waits_for_no_spares(team: Namespace) -> None:
    in_force(team, 8)
    team.client.post(PODS.format(team.name), gpu_pod("holds", GPU, 4))
    assert eventually(lambda: (team.used() or {}).get(GPUS) == 4)
    reserve_elsewhere(team, 1)
    taken = []
    for _ in range(3):
        began = time.monotonic()
        status, answer = team.client.post(PODS.format(team.name), gpu_pod("large", GPU, 5))
        taken.append(time.monotonic() - began)
        assert status == 403, answer

    assert min(taken) < SETTLED_WITHIN, "which each of them would have waited"


def test_what_fits_but_for_what_is_counted_twice_waits_for_the_count(team: Namespace) -> None:
    """Another replica has put the reservation of a pod in the place of its spare; that pod is counted already."""
    in_force(team, 8)
    uid = team.pod("holds", 4)
    assert eventually(lambda: (team.used() or {}).get(GPUS) == 4 and not team.row().reservations)
    assigned = Reservation(f"{FOREIGN}1", {GPUS: Fraction(4)})
    swap(team, lambda ledger: replace(ledger, reservations=ledger.reservations.plus([assigned])))
    settling = SettledSpares({assigned.id: replace(assigned, id=uid, name="pods/holds")}, frozenset())
    swap(team, lambda ledger: settled(ledger, settling))

    status, answer = team.client.post(PODS.format(team.name), gpu_pod("fits", GPU, 4))

    assert status == 201, answer
