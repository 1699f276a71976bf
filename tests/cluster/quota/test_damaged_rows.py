"""Rows with lines that cannot be read, through the API server: denied, said, observed for the bound, and dropped."""

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cluster.controllers import Running, eventually, uses
from tests.cluster.quota.burst import PODS, gpu_pod
from tests.cluster.quota.referee import GPU
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import Webhook
from webhook.cluster.objects import Condition
from webhook.commands.quota import quota
from webhook.quota.documents import quota_path

EXPIRY = 4.0
READABLE = "gpus=1 | 5f0c7a38-0000-4000-8000-000000000000:pods/phantom"


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Running]:
    with Webhook(plane, arguments=("--kubeconfig", plane.kubeconfig())) as webhook:
        webhook.register()
        with Running(plane, expiry=EXPIRY) as running:
            yield running
        webhook.unregister()


@pytest.fixture
def team(plane: ControlPlane, running: Running) -> Namespace:  # noqa: ARG001 - it has to run
    team = Namespace(plane)
    team.quota({"gpus": "8"})
    assert eventually(lambda: team.used() is not None)
    return team


def create(team: Namespace, name: str) -> tuple[int, Any]:
    return team.client.post(PODS.format(team.name), gpu_pod(name, GPU, 1))


def damage(team: Namespace, *lines: str) -> None:
    status, answer = team.client.patch(
        f"{quota_path(team.name)}/status", {"status": {"reservations": "\n".join(lines)}}
    )
    assert status == 200, answer


def ready(team: Namespace) -> Condition:
    condition = team.condition("Ready")
    assert condition is not None
    return condition


def shown(plane: ControlPlane, team: Namespace) -> str:
    return CliRunner().invoke(quota, ["--kubeconfig", str(plane.kubeconfig()), "-n", team.name]).output


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("gpus=1 | x x", id="a-uid-with-a-space"),
        pytest.param("gpus=1 | ", id="an-empty-uid"),
        pytest.param("77ab", id="what-followed-a-newline-in-a-uid"),
        pytest.param("gpus=one | 77ab", id="an-amount-that-is-none"),
    ],
)
def test_a_row_with_a_line_that_cannot_be_read_heals(
    plane: ControlPlane, running: Running, team: Namespace, line: str
) -> None:
    assert create(team, "before")[0] == 201
    assert uses(team, 1)
    damage(team, READABLE, line)

    status, answer = create(team, "meanwhile")
    assert status == 403, answer["message"]
    assert "cannot be decided: its status.reservations has lines that cannot be read" in answer["message"]
    assert eventually(lambda: ready(team).status == "False", seconds=3)
    assert ready(team).reason == "Unreadable"
    assert f"1 line, the first {line!r}: requests are denied until" in ready(team).message
    assert "not readable: every GPU pod is denied" in shown(plane, team)
    assert READABLE in team.row().reservations.text
    assert team.row().reservations.unreadable == (line,)

    assert eventually(lambda: team.row().reservations.text == "", seconds=EXPIRY + 5)
    assert eventually(lambda: ready(team).status == "True", seconds=3)
    assert create(team, "after")[0] == 201
    events = team.client.get(team.path("events"))[1]["items"]
    (event,) = [each for each in events if each["source"]["component"] == "gpu-admission-controller"]
    assert (event["reason"], event["type"]) == ("UnreadableReservations", "Warning")
    assert event["involvedObject"]["kind"] == "GPUQuota"
    assert event["message"] == (
        f"dropped what could not be read in status.reservations: 1 line, the first {line!r}"
    )
    assert running.metrics.unreadable.labels(team.name)._value.get() == 1


@pytest.mark.parametrize(
    ("field", "want"),
    [
        pytest.param({"used": {"gpus": "many"}}, "must be an amount such as 16", id="used"),
        pytest.param({"storedNames": {"pods/a": {"gpus": "-1"}}}, "must be an amount such as", id="names"),
        pytest.param({"revisions": {"pods": "newest"}}, "Expected `int`, got `str`", id="revisions"),
    ],
)
def test_any_other_field_that_cannot_be_read_waits_for_somebody(
    plane: ControlPlane, team: Namespace, field: dict[str, Any], want: str
) -> None:
    before = team.client.get(quota_path(team.name))[1]["status"]
    assert team.client.patch(f"{quota_path(team.name)}/status", {"status": field})[0] == 200

    status, answer = create(team, "meanwhile")
    assert status == 403, answer["message"]
    assert "the quota could not be checked: the GPUQuota cannot be read: " in answer["message"]
    assert want in answer["message"]
    assert "error: the GPUQuota cannot be read" in shown(plane, team)

    correct = {key: before.get(key) for key in field}
    assert team.client.patch(f"{quota_path(team.name)}/status", {"status": correct})[0] == 200
    assert eventually(lambda: create(team, "after")[0] == 201)


def test_the_crd_has_every_field_of_a_row_that_moves(plane: ControlPlane, team: Namespace) -> None:
    new = {"nextCatalogue": "5e1f/TotalOnly", "storedNames": {"pods/a": {"gpus": "2/7"}}}
    path = f"{quota_path(team.name)}/status"
    status, answer = plane.client().patch(path, {"status": new}, {"fieldValidation": "Strict"})

    assert status == 200, answer
    assert {key: answer["status"][key] for key in new} == new
