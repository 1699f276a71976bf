"""Annotations of one's own that ask for a part of a GPU: reviewed where the registration knows them, said where it does not."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cluster.controllers import counting, eventually, is_ready, is_there
from tests.cluster.deploy.installed import conditions_with
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import CONFIGURATION_PATHS
from webhook.commands import main

KEY = "example.com/gpu-part"
KEYS = [KEY, *(f"part.of-{number}.example.com/gpu_{number}" for number in range(15))]


@pytest.fixture(scope="module")
def team(plane: ControlPlane) -> Iterator[Namespace]:
    with counting(plane, host=58):
        team = Namespace(plane, "gpu-parts")
        team.quota({"gpus": "1"})
        assert is_there(plane, f"{team.path('serviceaccounts')}/default")
        assert eventually(lambda: is_ready(team))
        yield team
        plane.kubectl("delete", "gpuresourcemapping", "parts")


def apply_mapping(plane: ControlPlane, *, schedulers: list[str]) -> str:
    """Apply a mapping that names the key; return kubectl's warnings."""
    annotations = [{"key": KEY, "measure": "fraction"}]
    document = {
        "apiVersion": "gpu-admission.dev/v1alpha1",
        "kind": "GPUResourceMapping",
        "metadata": {"name": "parts"},
        "spec": {"fractionAnnotations": annotations, "fractionSchedulers": schedulers},
    }
    return plane.kubectl("apply", "-f", "-", stdin=json.dumps(document)).stderr


def found_by_doctor(plane: ControlPlane) -> list[tuple[str, str]]:
    """Return id and object of what doctor says of the registration's conditions."""
    done = CliRunner().invoke(main, ["doctor", "-o", "json", "--kubeconfig", str(plane.kubeconfig())])
    checks = {each["id"]: each["findings"] for each in json.loads(done.stdout)["checks"]}
    differing = [each for each in checks["entries"] if "matchConditions" in each["message"]]
    return [(each["id"], each["object"]) for each in (*checks["fraction-annotations"], *differing)]


def register(plane: ControlPlane, keys: list[str]) -> None:
    """Have the registered conditions be those that the chart makes with these keys."""
    conditions = conditions_with(*keys)
    for path in CONFIGURATION_PATHS:
        stored = plane.client().get(path)[1]
        for entry in stored["webhooks"]:
            entry["matchConditions"] = conditions[entry["name"]]
        accepted(plane.client().put(path, stored))


def part(name: str, amount: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "annotations": {KEY: amount}},
        "spec": {"containers": [{"name": "main", "image": "x"}], "schedulerName": "our-scheduler"},
    }


def tried(team: Namespace, amount: str) -> int:
    return team.client.post(team.path("pods"), part("tried", amount), query={"dryRun": "All"})[0]


def created(team: Namespace, name: str, amount: str) -> int:
    return team.client.post(team.path("pods"), part(name, amount))[0]


def test_annotations_of_ones_own(plane: ControlPlane, team: Namespace) -> None:
    warned = apply_mapping(plane, schedulers=[])

    assert (
        f'spec.fractionAnnotations[0].key = "{KEY}": add it to webhooks.fractionAnnotations of the chart'
        in warned
    )
    assert "neither they nor changes of it are reviewed" in warned
    assert ("annotation-not-sent", "GPUResourceMapping/parts") in found_by_doctor(plane)

    register(plane, KEYS)
    assert apply_mapping(plane, schedulers=["our-scheduler"]) == ""
    assert found_by_doctor(plane) == []

    # The API server takes some moments to learn the conditions, and the quota to be counted by the mapping.
    assert eventually(lambda: tried(team, "2") == 403)
    assert eventually(lambda: tried(team, "0.8") == 201)
    amounts = {"most": "0.8", "more": "0.8", "rest": "0.1"}
    assert [created(team, name, amount) for name, amount in amounts.items()] == [201, 403, 201]

    change = {"metadata": {"annotations": {KEY: "0.3"}}}
    status, answer = team.client.patch(team.path("pods", "rest"), change)
    assert (status, "exceeded quota" in answer.get("message", "")) == (403, True), answer
    accepted(team.client.patch(team.path("pods", "rest"), {"metadata": {"annotations": {KEY: "0.2"}}}))
