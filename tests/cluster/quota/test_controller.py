"""The controller on a real API server: it counts what is stored, and gives back what ends."""

import pytest

from tests.cluster.controllers import Running, eventually, is_ready, uses
from tests.cluster.quota.quotas import in_force
from tests.controlplane import CLAIMS_API, ControlPlane
from tests.controlplane.gpuquota import Namespace, install_quota_kind


def test_a_quota_is_counted_from_what_is_stored(team: Namespace) -> None:
    team.pod("first", 2)
    team.pod("second", 1)
    team.quota({"gpus": "8"})

    assert uses(team, 3)
    ledger = team.ledger_object()
    assert ledger.uncounted == ()
    assert eventually(lambda: team.status().used == ledger.used and team.condition("UnmappedResources"))
    statuses = {condition.type: condition.status for condition in team.status().conditions}
    del statuses["UnmappedResources"]  # other tests have DeviceClasses
    assert statuses == {"Ready": "True", "Exceeded": "False", "Stale": "False"}
    assert team.status().hard == ledger.hard


@pytest.mark.parametrize("end", ["Succeeded", "Failed", "deleted"])
def test_what_ends_is_given_back_within_seconds(team: Namespace, end: str) -> None:
    in_force(team, {"gpus": "8"})
    team.pod("stays", 1)
    team.pod("ends", 4)
    assert uses(team, 5)

    if end == "deleted":
        team.delete_pod("ends")
    else:
        team.set_phase("ends", end)

    assert uses(team, 1)


def test_a_quota_below_what_is_used_says_by_how_much(team: Namespace) -> None:
    in_force(team, {"gpus": "8"})
    team.pod("trainer", 5)
    assert uses(team, 5)

    team.change_quota({"hard": {"gpus": "3"}})

    exceeded = eventually(lambda: (found := team.condition("Exceeded")) and found.status == "True" and found)
    assert exceeded, team.status()
    assert exceeded.message == "gpus: 5 used of 3, 2 too many"
    assert (
        team.status().observed_generation == exceeded.observed_generation == team.ledger_object().generation
    )
    events = eventually(lambda: team.client.get(team.path("events"))[1]["items"])
    assert [(event["type"], event["reason"], event["message"]) for event in events] == [
        ("Warning", "Exceeded", "gpus: 5 used of 3, 2 too many")
    ]


@pytest.mark.slow
def test_a_quota_is_counted_where_no_claims_are_served() -> None:
    with ControlPlane(claims=False) as plane:
        install_quota_kind(plane.client())
        assert plane.client().get(CLAIMS_API)[0] == 404
        with Running(plane):
            team = Namespace(plane)
            team.pod("train", 2)
            team.quota({"gpus": "8"})

            assert uses(team, 2)
            assert eventually(lambda: is_ready(team))
