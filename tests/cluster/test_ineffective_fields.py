"""ineffective-fields denies what the API server refuses by itself, and nothing else."""

import json

import pytest

from policies.finding import Severity
from policies.rules.ineffective_fields import RULE, check
from tests.builders import JSON, container, context, gpu_container, pod, view
from tests.controlplane import ControlPlane
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
