"""What is charged when, through the API server, the webhook and the controller: `kubectl apply` to the ledger and back.

What each pod and claim costs: tests/policies/quota/. What the controller counts: tests/cluster/quota/test_controller.py.
"""

from fractions import Fraction
from typing import Any

from policies.quota.amounts import GPUS
from tests.cluster.controllers import eventually, uses
from tests.cluster.quota.quotas import CLAIMS, PODS, claim, gpu_pod, in_force
from tests.controlplane.client import JSON_PATCH
from tests.controlplane.gpuquota import Namespace

A100, FAMILY, T4 = "nvidia-a100-80gb", "nvidia-a100", "nvidia-t4"
DRY_RUN = {"dryRun": "All"}


def gpu_pods(team: Namespace, *names: str, gpus: int = 1, **spec: Any) -> list[int]:
    return [team.create(gpu_pod(name, gpus, **spec))[0] for name in names]


def used(team: Namespace, key: str) -> Fraction | None:
    return (team.used() or {}).get(key)


def test_a_dry_run_never_changes_the_ledger(team: Namespace) -> None:
    in_force(team, {"gpus": "4"})
    gated = gpu_pod("gated", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    gated["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    del gated["spec"]["containers"][0]["resources"]
    assert team.create(gated)[0] == 201
    assert eventually(lambda: used(team, GPUS) == Fraction(1, 2) and not team.ledger_object().reservations)
    before = team.client.get(team.ledger_object_path)[1]["metadata"]["resourceVersion"]
    more = {"metadata": {"annotations": {"gpu-fraction": "0.9"}}}

    created = team.create(gpu_pod("dry", 3), DRY_RUN)
    refused = team.create(gpu_pod("dry", 4), DRY_RUN)
    claimed = team.client.post(CLAIMS.format(team.name), claim("dry", 2), DRY_RUN)
    changed = team.client.patch(f"{PODS.format(team.name)}/gated", more, DRY_RUN)

    assert (created[0], refused[0], claimed[0], changed[0]) == (201, 403, 201, 200)
    assert "requested 4 GPUs, 0.5 of 4 used" in refused[1]["message"]
    assert team.client.get(team.ledger_object_path)[1]["metadata"]["resourceVersion"] == before


def test_creations_of_a_name_that_is_taken_hold_nothing(team: Namespace) -> None:
    in_force(team, {"gpus": "100"})
    assert gpu_pods(team, "train", gpus=7) == [201]

    again = gpu_pods(team, *["train"] * 14, gpus=7)

    assert again == [409] * 14, "each was admitted, and none could be stored"
    assert eventually(lambda: gpu_pods(team, "rider", gpus=93) == [201])


def test_a_gate_is_not_lifted_for_a_class_that_has_no_room(team: Namespace) -> None:
    """For one that has: tests/neighbours/test_kueue.py."""
    in_force(team, {"gpus": "8", "classes": {FAMILY: "2"}}, unclassifiedPods="TotalOnly")
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    assert gpu_pods(team, "gated", gpus=3, schedulingGates=gates) == [201]
    assert uses(team, 3)

    status, answer = _lift(team, "gated", A100)

    assert status == 403
    assert "request 2 nvidia-a100 or fewer; exceeded quota: " in answer["message"]
    assert "counted for nvidia-a100: " in answer["message"]
    assert team.client.get(f"{PODS.format(team.name)}/gated")[1]["spec"]["schedulingGates"] == gates
    assert eventually(lambda: not team.ledger_object().reservations)
    assert used(team, GPUS) == 3
    assert used(team, f"classes/{FAMILY}") == 0


def _lift(team: Namespace, name: str, accelerator: str) -> tuple[int, Any]:
    """Do in one change what Kueue does."""
    operations = [
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/spec/nodeSelector", "value": {"accelerator": accelerator}},
    ]
    return team.client.patch(f"{PODS.format(team.name)}/{name}", operations, content_type=JSON_PATCH)


def test_a_share_of_a_card_that_grows_is_charged(team: Namespace) -> None:
    in_force(team, {"gpus": "1"})
    pod = gpu_pod("notebook")
    pod["metadata"]["annotations"] = {"gpu-fraction": "0.25"}
    del pod["spec"]["containers"][0]["resources"]
    assert team.create(pod)[0] == 201
    assert gpu_pods(team, "whole") == [403]
    path = f"{PODS.format(team.name)}/notebook"

    grown = team.client.patch(path, {"metadata": {"annotations": {"gpu-fraction": "0.75"}}})
    several = team.client.patch(path, {"metadata": {"annotations": {"gpu-fraction-num-devices": "2"}}})

    assert grown[0] == 200
    assert eventually(lambda: used(team, GPUS) == Fraction(3, 4) and not team.ledger_object().reservations)
    assert several[0] == 403
    assert "requested 0.75 GPUs, " in several[1]["message"]
