"""The gate of a pod that waits stays, whatever its author does to the manifest: only its turn comes, or the policy changes."""

import json
from typing import Any

import pytest

from policies.quota.waiting import GATE
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane
from tests.controlplane.client import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, accepted

REMOVE = [{"op": "remove", "path": "/spec/schedulingGates"}]
NO_GATE_EDITOR = f"sed -i '/schedulingGates/d; \\,name: {GATE},d'"


def manifest(namespace: str) -> dict[str, Any]:
    container = {"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mine", "namespace": namespace},
        "spec": {"containers": [container]},
    }


@pytest.fixture
def full(line: Line) -> Line:
    """Return a namespace whose only GPU is taken."""
    in_force(line, {"gpus": "1"})
    line.pod("holder")
    return line


@pytest.mark.parametrize("how", [("apply",), ("apply", "--server-side")], ids=["client-side", "server-side"])
def test_a_second_apply(full: Line, plane: ControlPlane, how: tuple[str, ...]) -> None:
    text = json.dumps(manifest(full.name))
    for _ in range(2):
        plane.kubectl(*how, "-f", "-", stdin=text)
        assert full.waits("mine")

    labelled = manifest(full.name)
    labelled["metadata"]["labels"] = {"a": "b"}
    said = plane.kubectl(*how, "-f", "-", stdin=json.dumps(labelled)).stdout

    assert full.waits("mine")
    assert full.get("mine")["metadata"]["labels"] == {"a": "b"}, said
    full.delete_pod("holder")
    assert full.starts("mine", seconds=10)
    plane.kubectl(*how, "-f", "-", stdin=text)


def test_kubectl_replace(full: Line, plane: ControlPlane) -> None:
    text = json.dumps(manifest(full.name))
    plane.kubectl("create", "-f", "-", stdin=text)
    assert full.waits("mine")

    plane.kubectl("replace", "-f", "-", stdin=text)

    assert full.waits("mine")


def test_kubectl_edit(full: Line, plane: ControlPlane) -> None:
    plane.kubectl("create", "-f", "-", stdin=json.dumps(manifest(full.name)))

    said = plane.kubectl("edit", "pod", "mine", "-n", full.name, editor=NO_GATE_EDITOR, check=False)

    assert full.waits("mine"), said


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ({"spec": {"schedulingGates": []}}, MERGE_PATCH),
        ({"spec": {"schedulingGates": None}}, MERGE_PATCH),
        (REMOVE, JSON_PATCH),
        ({"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}, STRATEGIC_PATCH),
    ],
    ids=["empty", "null", "removed", "strategic"],
)
def test_a_patch(full: Line, body: Any, content_type: str) -> None:
    full.pod("mine")

    accepted(full.client.patch(full.path("pods", "mine"), body, content_type=content_type))

    assert full.waits("mine")


def test_what_another_manager_applies(full: Line) -> None:
    full.pod("mine")
    applied = {**manifest(full.name), "spec": {"schedulingGates": []}}
    query = {"fieldManager": "other", "force": "true"}

    accepted(full.client.patch(full.path("pods", "mine"), applied, query, content_type=APPLY_PATCH))

    assert full.waits("mine")
