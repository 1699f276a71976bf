"""Workloads that the quota has no room for, by what runs in the cluster; nothing is reserved for any of them.

Without a cluster: tests/policies/quota/test_fit.py.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import JSON, gpu_container
from tests.cluster.controllers import Running, eventually
from tests.cluster.test_admission import apply
from tests.cluster.test_workload_kinds import CRDS, install
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import Webhook

KINDS = (("keda.sh", "v1alpha1", "ScaledObject"),)
RAISE = "ask the platform team to raise spec.hard.classes[nvidia-a100-80gb]"
ON_A100 = {"nodeSelector": {"accelerator": "nvidia-a100-80gb"}}


@pytest.fixture(scope="module")
def served(quotas: ControlPlane) -> Iterator[ControlPlane]:
    client = quotas.client()
    for ledger_object in KINDS:
        install(client, *ledger_object)
    with Webhook(quotas, host=33, arguments=("--kubeconfig", quotas.kubeconfig())) as webhook:
        webhook.register()
        with Running(quotas):
            team = team_of(quotas)
            assert eventually(lambda: "Warning" in apply(quotas, deployment(team, 99))[1])
            yield quotas
        webhook.unregister()
    for group, _, kind in KINDS:
        client.delete(f"{CRDS}/{kind.lower()}s.{group}")


@pytest.fixture
def team(served: ControlPlane) -> Namespace:
    return team_of(served)


def team_of(plane: ControlPlane) -> Namespace:
    team = Namespace(plane)
    team.quota({"gpus": "16", "classes": {"nvidia-a100-80gb": "8"}})
    assert eventually(lambda: team.used() is not None)
    return team


def template(gpus: int, **spec: Any) -> JSON:
    return {
        "metadata": {"labels": {"app": "chat"}},
        "spec": {"containers": [gpu_container(str(gpus), "pytorch")], **spec},
    }


def applied(team: Namespace, api_version: str, kind: str, spec: JSON) -> JSON:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "chat", "namespace": team.name},
        "spec": spec,
    }


def deployment(team: Namespace, replicas: int, gpus: int = 1) -> JSON:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "chat"}}}
    return applied(team, "apps/v1", "Deployment", {**spec, "template": template(gpus, **ON_A100)})


def hpa(team: Namespace, most: int) -> JSON:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    spec = {"maxReplicas": most, "scaleTargetRef": target}
    return applied(team, "autoscaling/v2", "HorizontalPodAutoscaler", spec)


def scaled_object(team: Namespace, **spec: Any) -> JSON:
    return applied(team, "keda.sh/v1alpha1", "ScaledObject", {"scaleTargetRef": {"name": "chat"}, **spec})


def warned(team: Namespace, plane: ControlPlane, document: JSON) -> list[str]:
    """Return what kubectl prints of the quota, by a dry run and then in earnest."""
    said = []
    for dry_run in (True, False):
        accepted, output = apply(plane, document, dry_run=dry_run)
        assert accepted, output
        said.append([line for line in output.splitlines() if "[gpu-quota]" in line])
    assert said[0] == said[1]
    assert not team.ledger_object().reservations
    return [line.removeprefix("Warning: ").removesuffix(" [gpu-quota]") for line in said[0]]


def test_what_runs_already_is_not_free(served: ControlPlane, team: Namespace) -> None:
    running = {**template(6, **ON_A100), "metadata": {"name": "runs"}}
    status, answer = team.client.post(team.path("pods"), running)
    assert status == 201, answer
    assert eventually(lambda: (team.used() or {}).get("gpus") == 6 and not team.ledger_object().reservations)

    assert warned(team, served, deployment(team, 4)) == [
        f"spec.replicas: set replicas: 2; needs 4 nvidia-a100-80gb; {team.name} has 2 of 8 free: 2 of 4 pods will start"
    ]


@pytest.mark.parametrize("scaler", ["hpa", "keda"])
def test_an_autoscaler(served: ControlPlane, team: Namespace, scaler: str) -> None:
    apply(served, deployment(team, 1, 2))
    path = f"/apis/apps/v1/namespaces/{team.name}/deployments/chat/status"
    assert team.client.patch(path, {"status": {"replicas": 1}})[0] == 200
    most, field = (5, "spec.maxReplicas") if scaler == "hpa" else (100, "spec.maxReplicaCount")

    document = hpa(team, most) if scaler == "hpa" else scaled_object(team)
    fitting = hpa(team, 4) if scaler == "hpa" else scaled_object(team, maxReplicaCount=4)

    assert warned(team, served, document) == [
        f"{field}: set {field.removeprefix('spec.')}: 4; may grow to {most} pods and then needs {2 * most} nvidia-a100-80gb, "
        f"which can never fit: the GPUQuota of {team.name} grants 8 in all; 4 of {most} pods will start; or {RAISE}"
    ]
    assert warned(team, served, fitting) == []


def test_an_autoscaler_of_nothing_that_is_there(served: ControlPlane, team: Namespace) -> None:
    assert warned(team, served, hpa(team, 5)) == []
