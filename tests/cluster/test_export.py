"""What `gpu-admission export` writes, on a real API server without our webhook: the rules hold all the same."""

import json
from functools import partial

import pytest
import yaml
from click.testing import CliRunner

from tests.builders import JSON, container, gpu_container, pod
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.exported import ALL, EXEMPTED, LABELLED, TEAM, WARNED, create
from tests.controlplane import ControlPlane, minor_version
from tests.controlplane.webhook import ROOT
from webhook.commands import main

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


@pytest.fixture(scope="module")
def plane(exported: ControlPlane) -> ControlPlane:
    return exported


def test_every_expression_type_checks(plane: ControlPlane) -> None:
    status, listed = plane.client().get(POLICIES)
    assert status == 200
    ours = [each for each in listed["items"] if each["metadata"]["name"].startswith("gpu-admission.")]

    assert len(ours) >= 13
    for policy in ours:
        name, generation = policy["metadata"]["name"], policy["metadata"]["generation"]
        checked = eventually(partial(type_checked, plane, name, generation), seconds=90)
        assert checked["typeChecking"] == {}


def type_checked(plane: ControlPlane, name: str, generation: int) -> JSON:
    """Return what the API server says of the policy's types, nothing before it has looked at this generation."""
    status = plane.client().get(f"{POLICIES}/{name}")[1].get("status", {})
    return (
        {"typeChecking": status.get("typeChecking", {})}
        if status.get("observedGeneration") == generation
        else {}
    )


# ---- what is added; whether it is what the engine says: test_export_differential.py


def env_of(document: JSON) -> dict[str, list[JSON]]:
    spec = document["spec"]
    return {each["name"]: each.get("env", []) for each in spec["containers"] + spec.get("initContainers", [])}


def test_device_plugins_and_exporters_are_denied_unless_exempted(plane: ControlPlane) -> None:
    mounts = [{"name": "plugins", "mountPath": "/var/lib/kubelet/device-plugins"}]
    volumes = [{"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]
    plugin = pod(container("a", volumeMounts=mounts), volumes=volumes)

    refused, reason = create(plane.client(), plugin)
    exempted, answer = create(plane.client(), plugin, EXEMPTED)

    assert (refused, exempted) == (403, 201)
    assert "device plugins and exporters need an exemption in the GPUPolicy" in reason["message"]
    assert env_of(answer) == {"a": []}


@pytest.mark.parametrize("namespace", [EXEMPTED, WARNED, "default"])
def test_nothing_is_added_where_the_rule_does_not_say_so(mutating: ControlPlane, namespace: str) -> None:
    status, answer = create(mutating.client(), pod(container("a"), gpu_container(name="b")), namespace)

    assert status == 201, answer
    assert env_of(answer) == {"a": [], "b": []}
    assert all(each["key"].startswith("node.kubernetes.io/") for each in answer["spec"]["tolerations"])


# ---- what is refused

SIDECARS = [
    gpu_container("4", name="a", restartPolicy="Always"),
    gpu_container("4", name="b"),
    gpu_container("1", name="c", restartPolicy="Always"),
]


@cases(
    ("namespace", "document", "told"),
    {
        "variable": (
            TEAM,
            pod(gpu_container(name="a"), container("b", env=[ALL])),
            [
                'spec.containers[1].env[0] (container "b") = "all": request nvidia.com/gpu: 1 in resources.limits or remove'
            ],
        ),
        "more-than-a-container-may-have": (
            TEAM,
            pod(gpu_container("5")),
            [
                'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "5": set nvidia.com/gpu: 4'
            ],
        ),
        "more-than-a-pod-may-have": (
            TEAM,
            pod(*(gpu_container("3", name=name) for name in "abc")),
            [
                "request nvidia.com/gpu: 8 or less; the pod needs 9 nvidia.com/gpu at one time: must be at most 8 per pod"
            ],
        ),
        "sidecars-count-for-the-whole-life": (
            TEAM,
            pod(gpu_container("4"), initContainers=SIDECARS),
            ["the pod needs 9 nvidia.com/gpu at one time"],
        ),
        "percentage": (
            TEAM,
            pod(gpu_container("101", resource="nvidia.com/gpucores")),
            ["must be at most 100 percent of a GPU"],
        ),
        "policy-by-labels": (
            LABELLED,
            pod(gpu_container("2")),
            [
                "request nvidia.com/gpu: 1 or less; the pod needs 2 nvidia.com/gpu at one time: must be at most 1"
            ],
        ),
    },
)
def test_refused(plane: ControlPlane, namespace: str, document: JSON, told: list[str]) -> None:
    status, answer = create(plane.client(), document, namespace)

    assert status == 403, answer
    assert all(words in answer["message"] for words in told), answer["message"]


def test_the_documents_of_the_cluster(plane: ControlPlane) -> None:
    for path in sorted((ROOT / "deploy/chart/files/crds").glob("*.yaml")):
        plane.kubectl("apply", "--server-side", "-f", path)
    stored = {
        "apiVersion": "gpu-admission.dev/v1alpha1",
        "kind": "GPUPolicy",
        "metadata": {"name": "stored"},
        "spec": {"match": {"namespaces": ["exported-stored"]}, "rules": {"gpu-requests": {"maxPerPod": 3}}},
    }
    plane.kubectl("wait", "--for=condition=Established", "crd/gpupolicies.gpu-admission.dev", "--timeout=90s")
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(stored))
    of_it = ("--kubeconfig", str(plane.kubeconfig()), "--kubernetes", f"1.{minor_version()}")
    result = CliRunner().invoke(main, ["export", *of_it, "-o", "json"])
    plane.kubectl("delete", "gpupolicy", "stored")

    assert result.exit_code == 0, result.stderr
    names = {each["metadata"]["name"] for each in json.loads(result.stdout)["items"]}
    assert {"gpu-admission.stored.gpu-requests", "gpu-admission.built-in.gpu-requests"} <= names
    # kubectl takes the List with what is beside its items.
    applied = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=result.stdout)
    assert len(applied.stdout.splitlines()) == len(json.loads(result.stdout)["items"])
