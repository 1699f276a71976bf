"""A controller is killed while it removes the gates of a gang. Another one goes on: the gang starts whole, and before others."""

import pytest

from policies.quota.ledger.decide import Line, ReservationRequest
from policies.quota.ledger.reservations import Reservation, lift_id
from tests.all_faults import longer
from tests.cluster.controllers import Command, Running, eventually, gpus
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.gangs import create, member, pod_group
from tests.cluster.waiting.line import Line as Team
from tests.cluster.waiting.line import account_api
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import INSTALLATION
from tests.controlplane.webhook import Webhook
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.loader import load_directory

PODS = 8
TAKES_UP_SECONDS = 10
"""Of a new leader, on a busy machine. What was admitted expires 40 s later only."""


def admit_lifts(team: Team, names: list[str]) -> None:
    """Admit the removal of these gates, as serve does. The controller was killed before the API server stored any of them."""
    ledger = team.ledger_object()
    pods = [team.get(name)["metadata"] for name in names if team.waits(name)]
    held = ledger.reservations.lifts
    team.reserve(
        *(
            ReservationRequest(
                reservation=Reservation(
                    lift_id(pod["uid"], "lost"), held[pod["uid"]].demand, int(pod["resourceVersion"])
                ),
                catalogue_versions=ledger.catalogue_versions,
                line=Line.LIFTS,
            )
            for pod in pods
        )
    )
    assert all(each.is_begun_lift for each in team.ledger_object().reservations.lifts.values())


@pytest.mark.parametrize("are_admitted", [False, True], ids=["sent", "admitted"])
@pytest.mark.parametrize(
    "lifts",
    [
        3,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (0, 7)),
        *(pytest.param(each, marks=[pytest.mark.slow, longer]) for each in (1, 2, 4, 5, 6)),
    ],
)
def test_a_gang_starts_whole_though_the_controller_is_killed(
    plane: ControlPlane, webhook: Webhook, lifts: int, are_admitted: bool
) -> None:
    program = ("tests.cluster.waiting.killed", str(lifts))
    killed = Command(
        plane, f"killed-{lifts}-{are_admitted}", "--config", str(webhook.config), program=program
    )
    killed.kubeconfig = plane.account_kubeconfig(INSTALLATION, CONTROLLER)
    killed.start()
    team = Team(plane)
    in_force(team, {"gpus": str(PODS)})
    team.pod("holder", PODS)
    assert not team.waits("holder")
    metadata = member(create(plane, team, pod_group(PODS)))
    names = [f"gang-{number}" for number in range(PODS)]
    for name in names:
        team.pod(name, metadata=metadata)
    team.in_a_later_second("rival")
    assert all(map(team.waits, [*names, "rival"]))
    configuration = load_directory(webhook.config)
    with Running(plane, lease=CONTROLLER, api=account_api(plane), configuration=configuration) as other:
        assert not other.leader.is_leader()
        team.delete_pod("holder")
        assert eventually(lambda: killed.exit_status() is not None), killed.log()
        assert sum(not team.waits(name) for name in names) == lifts
        if are_admitted:
            admit_lifts(team, names)
        assert eventually(other.leader.is_leader)
        assert team.starts(*names, seconds=TAKES_UP_SECONDS)
        assert eventually(lambda: gpus(team) == PODS)
        # Gates never come back, so it has waited all the time.
        assert team.waits("rival")
        assert eventually(lambda: not len(team.ledger_object().reservations))
        for name in names:
            team.delete_pod(name)
        assert team.starts("rival")
