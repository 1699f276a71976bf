"""ineffective-fields denies what the API server refuses by itself, and nothing else; kubectl shows its warnings."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from policies.finding import Severity
from policies.rules.ineffective_fields import RULE, check
from tests.builders import JSON, container, context, gpu_container, pod, view
from tests.cluster.test_admission import apply
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook
from webhook.configuration.loader import load_objects

BUILT_IN = load_objects([]).resource_mapping
DRY_RUN = {"dryRun": "All"}


def limited(name: str) -> JSON:
    return pod(gpu_container(resource=name))


@pytest.mark.parametrize(
    ("document", "severity"),
    [
        pytest.param(limited("gpu"), Severity.DENIAL, id="gpu"),
        pytest.param(limited("nvidia-gpu"), Severity.DENIAL, id="nvidia-gpu"),
        pytest.param(limited("NVIDIA.com/gpu"), Severity.DENIAL, id="domain-in-capitals"),
        pytest.param(limited("requests.nvidia.com/gpu"), Severity.DENIAL, id="key-of-a-quota"),
        pytest.param(
            pod(container(), resources={"limits": {"nvidia.com/gpu": 1}}), Severity.DENIAL, id="pod-level"
        ),
        pytest.param(
            pod(container(), resources={"limits": {"gpu": 1, "cpu": 1}}), Severity.DENIAL, id="pod-level-gpu"
        ),
        pytest.param(limited("limits.nvidia.com/gpu"), Severity.WARNING, id="key-of-a-limit"),
        pytest.param(limited("nvidia.com/gpus"), Severity.WARNING, id="plural"),
        pytest.param(limited("nvidia.com/GPU"), Severity.WARNING, id="name-in-capitals"),
        pytest.param(limited("nvidia/gpu"), Severity.WARNING, id="half-a-domain"),
        pytest.param(limited("alpha.kubernetes.io/nvidia-gpu"), Severity.WARNING, id="former-name"),
    ],
)
def test_a_denial_is_one_of_the_api_server_too(
    plane: ControlPlane, document: JSON, severity: Severity
) -> None:
    document["metadata"]["namespace"] = "default"
    found = list(check(view(document), RULE.options(), context(resource_mapping=BUILT_IN)))
    status, answer = plane.client().post("/api/v1/namespaces/default/pods", document, DRY_RUN)

    assert [finding.severity for finding in found] == [severity]
    assert status == (422 if severity is Severity.DENIAL else 201), answer


@pytest.mark.parametrize(
    ("document", "said"),
    [
        pytest.param(
            {"apiVersion": "apps/v1", "kind": "Job", "metadata": {"name": "train"}},
            'no matches for kind "Job" in version "apps/v1"',
            id="job-in-apps",
        ),
        pytest.param(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "chat"},
                "spec": {"containers": [container()]},
            },
            'unknown field "spec.containers"',
            id="containers-below-spec",
        ),
        pytest.param(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "train"},
                "spec": {"template": {"containers": [container()]}},
            },
            'unknown field "spec.template.containers"',
            id="containers-below-template",
        ),
    ],
)
def test_a_misplaced_field_never_reaches_the_webhook(plane: ControlPlane, document: JSON, said: str) -> None:
    applied = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(document), check=False)

    assert applied.returncode != 0
    assert said in applied.stderr


NAMESPACE = "words"
POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec: {}
"""


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    config = tmp_path_factory.mktemp("config")
    (config / "policy.yaml").write_text(POLICY)
    plane.kubectl("create", "namespace", NAMESPACE)
    with Webhook(plane, config=config) as running:
        running.register()
        yield running
        running.unregister()
    plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def workload(kind: str, one: JSON, **metadata: Any) -> JSON:
    template = {"metadata": {"labels": {"app": "words"}}, "spec": {"containers": [one]}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": kind.lower(), "namespace": NAMESPACE, **metadata},
        "spec": {"selector": {"matchLabels": {"app": "words"}}, "template": template},
    }


def named(document: JSON) -> JSON:
    return {**document, "metadata": {**document["metadata"], "name": "slip", "namespace": NAMESPACE}}


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize(
    ("document", "accepted", "said"),
    [
        pytest.param(
            named(limited("nvidia.com/gpus")),
            True,
            (
                'Warning: spec.containers[0].resources.limits[nvidia.com/gpus] (container "main"): did you mean '
                "nvidia.com/gpu? Is a resource of no device plugin that is known: the pod stays pending unless a node "
                "has it [ineffective-fields]"
            ),
            id="misspelt-resource",
        ),
        pytest.param(
            named(limited("NVIDIA.com/gpu")),
            False,
            "did you mean nvidia.com/gpu? Must be the name of an extended resource, domain/name in small letters",
            id="refused-resource",
        ),
        pytest.param(
            workload(
                "Deployment", gpu_container(), annotations={"gpu-admission.dev/gpu-class": "nvidia-a100"}
            ),
            True,
            (
                "Warning: metadata.annotations[gpu-admission.dev/gpu-class]: write it into "
                "spec.template.metadata.annotations; has no effect here: the pods of a Deployment do not get its "
                "annotations [ineffective-fields]"
            ),
            id="annotation-of-a-deployment",
        ),
        pytest.param(
            workload("StatefulSet", gpu_container(2, args=["vllm", "serve", "--tensor-parallel-size", "4"])),
            True,
            (
                'Warning: containers[0].args[2] (container "main") = "--tensor-parallel-size 4": '
                "set 2 or request 4 GPUs; should be at most 2, the GPUs of the container [parallelism]"
            ),
            id="more-processes-than-gpus",
        ),
        pytest.param(
            workload("DaemonSet", gpu_container()),
            True,
            'Warning: containers[0].resources.limits[nvidia.com/gpu] (container "main") = "1": remove the request if it only '
            "monitors GPUs; is held on every node of this DaemonSet",
            id="daemonset-with-gpus",
        ),
    ],
)
def test_kubectl_shows_it(plane: ControlPlane, document: JSON, accepted: bool, said: str) -> None:
    applied, shown = apply(plane, yaml.safe_load(json.dumps(document)), "--dry-run=server")

    assert applied is accepted
    assert said in " ".join(shown.split())
