"""Ledgers with lines that cannot be read, through the API server: denied, said, observed for the bound, and dropped."""

import json
from fractions import Fraction
from typing import Any

import pytest
from click.testing import CliRunner

from policies.quota.amounts import GPUS
from policies.quota.demand import UnclassifiedPods
from tests.cluster.controllers import Counting, Running, eventually, is_ready, uses
from tests.cluster.quota.quotas import EXPIRY, gpu_pod
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace
from webhook.cluster.objects import Condition
from webhook.commands.quota import quota

READABLE = "gpus=1 | 5f0c7a38-0000-4000-8000-000000000000:pods/phantom"


@pytest.fixture
def running(counted: Counting) -> Running:
    return counted.running


@pytest.fixture
def team(team: Namespace) -> Namespace:
    team.quota({"gpus": "8"})
    assert eventually(lambda: is_ready(team))
    return team


def damage(team: Namespace, **fields: Any) -> dict[str, Any]:
    """Write fields of the ledger; return what they were."""
    ledger_object = accepted(team.client.get(team.ledger_object_path))
    before = json.loads(ledger_object["ledger"])
    written = {key: each for key, each in {**before, **fields}.items() if each is not None}
    accepted(team.client.patch(team.ledger_object_path, {"ledger": json.dumps(written)}))
    return {key: before.get(key) for key in fields}


def ready(team: Namespace) -> Condition:
    condition = team.condition("Ready")
    assert condition is not None
    return condition


def dropped(team: Namespace) -> list[Any]:
    events = team.client.get(team.path("events"))[1]["items"]
    return [each for each in events if each["reason"] == "UnreadableReservations"]


def shown(plane: ControlPlane, team: Namespace) -> str:
    return CliRunner().invoke(quota, ["--kubeconfig", str(plane.kubeconfig()), "-n", team.name]).output


@pytest.mark.slow
def test_a_ledger_with_an_unreadable_reservation_is_repaired(
    plane: ControlPlane, running: Running, team: Namespace
) -> None:
    """Which lines cannot be read: tests/policies/quota/ledger/test_reservations.py."""
    line = "gpus=1 | x x"
    assert team.create(gpu_pod("before"))[0] == 201
    assert uses(team, 1)
    damage(team, reservations=f"{READABLE}\n{line}")

    status, answer = team.create(gpu_pod("meanwhile"))
    assert status == 403, answer["message"]
    assert "cannot be decided: its ledger has reservations that cannot be read" in answer["message"]
    assert eventually(lambda: ready(team).reason == "Unreadable", seconds=EXPIRY)
    assert ready(team).status == "False"
    assert f"1 line, the first {line!r}: requests are denied until" in ready(team).message
    assert "Unreadable: every GPU pod is denied" in shown(plane, team)
    assert READABLE in team.ledger_object().reservations.text
    assert team.ledger_object().reservations.unreadable == (line,)

    assert eventually(lambda: team.ledger_object().reservations.text == "", seconds=EXPIRY + 30)
    assert eventually(lambda: is_ready(team))
    assert team.create(gpu_pod("after"))[0] == 201
    (event,) = eventually(lambda: dropped(team))
    assert (event["source"]["component"], event["type"]) == ("gpu-admission-controller", "Warning")
    assert event["involvedObject"]["kind"] == "GPUQuota"
    assert event["message"] == (f"dropped reservations that could not be read: 1 line, the first {line!r}")
    assert running.metrics.unreadable.labels(team.name)._value.get() == 1


def test_any_other_field_that_cannot_be_read_waits_for_somebody(plane: ControlPlane, team: Namespace) -> None:
    """Which fields cannot be read: tests/webhook/quota/test_ledger_objects.py."""
    before = damage(team, used={"gpus": "many"})

    status, answer = team.create(gpu_pod("meanwhile"))
    assert status == 403, answer["message"]
    assert "the quota could not be checked: the GPUQuotaLedger cannot be read: " in answer["message"]
    assert "must be an amount such as 16" in answer["message"]
    assert eventually(lambda: ready(team).reason == "Unreadable")
    assert "Unreadable: every GPU pod is denied" in shown(plane, team)

    damage(team, **before)
    assert eventually(lambda: team.create(gpu_pod("after"))[0] == 201)


def test_a_ledger_that_grants_more_than_its_quota_is_corrected(team: Namespace) -> None:
    damage(team, hard={"gpus": "1000"}, unclassifiedPods="MostExpensive")

    assert eventually(lambda: team.ledger_object().hard == {GPUS: Fraction(8)})
    assert team.ledger_object().unclassified_pods is UnclassifiedPods.TOTAL_ONLY


def test_a_ledger_of_the_future_is_reported_and_not_listed_for_repeatedly(
    running: Running, team: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """As after etcd was restored from a backup, in which revisions have gone back."""
    metrics = running.metrics
    failed, refused = metrics.failures._value.get(), metrics.refused.labels("older")._value.get()
    revisions = json.loads(team.client.get(team.ledger_object_path)[1]["ledger"])["revisions"]
    damage(team, revisions={kind: str(int(each) + 10**6) for kind, each in revisions.items()})
    assert team.create(gpu_pod("meanwhile"))[0] == 201

    said = f"{team.name}: the ledger was counted from newer lists than the API server has"
    assert eventually(lambda: caplog.text.count(said) >= 2)
    listed = metrics.refused.labels("older")._value.get() - refused
    assert (
        listed <= metrics.failures._value.get() - failed + 1
    )  # once for each failure, and the one under way

    assert team.client.delete(team.ledger_object_path)[0] == 200
    assert uses(team, 1)
