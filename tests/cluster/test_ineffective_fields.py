"""ineffective-fields denies what the API server refuses by itself, and nothing else."""

import json

from policies.finding import Severity
from policies.rules.ineffective_fields import RULE, check
from tests.builders import JSON, container, context, gpu_container, pod, view
from tests.cases import cases
from tests.controlplane import ControlPlane
from webhook.configuration.loader import load_objects

BUILT_IN = load_objects([]).resource_mapping
DRY_RUN = {"dryRun": "All"}


def limited(name: str) -> JSON:
    return pod(gpu_container(resource=name))


@cases(
    ("document", "severity"),
    {
        "gpu": (limited("gpu"), Severity.DENIAL),
        "nvidia-gpu": (limited("nvidia-gpu"), Severity.DENIAL),
        "domain-in-capitals": (limited("NVIDIA.com/gpu"), Severity.DENIAL),
        "key-of-a-quota": (limited("requests.nvidia.com/gpu"), Severity.DENIAL),
        "pod-level": (pod(container(), resources={"limits": {"nvidia.com/gpu": 1}}), Severity.DENIAL),
        "pod-level-gpu": (pod(container(), resources={"limits": {"gpu": 1, "cpu": 1}}), Severity.DENIAL),
        "key-of-a-limit": (limited("limits.nvidia.com/gpu"), Severity.WARNING),
        "plural": (limited("nvidia.com/gpus"), Severity.WARNING),
        "name-in-capitals": (limited("nvidia.com/GPU"), Severity.WARNING),
        "half-a-domain": (limited("nvidia/gpu"), Severity.WARNING),
        "former-name": (limited("alpha.kubernetes.io/nvidia-gpu"), Severity.WARNING),
    },
)
def test_a_denial_is_one_of_the_api_server_too(
    plane: ControlPlane, document: JSON, severity: Severity
) -> None:
    document["metadata"]["namespace"] = "default"
    found = list(check(view(document), RULE.options(), context(resource_mapping=BUILT_IN)))
    status, answer = plane.client().post("/api/v1/namespaces/default/pods", document, DRY_RUN)

    assert [finding.severity for finding in found] == [severity]
    assert status == (422 if severity is Severity.DENIAL else 201), answer


@cases(
    ("document", "said"),
    {
        "job-in-apps": (
            {"apiVersion": "apps/v1", "kind": "Job", "metadata": {"name": "train"}},
            'no matches for kind "Job" in version "apps/v1"',
        ),
        "containers-below-spec": (
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "chat"},
                "spec": {"containers": [container()]},
            },
            'unknown field "spec.containers"',
        ),
        "containers-below-template": (
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "train"},
                "spec": {"template": {"containers": [container()]}},
            },
            'unknown field "spec.template.containers"',
        ),
    },
)
def test_a_misplaced_field_never_reaches_the_webhook(plane: ControlPlane, document: JSON, said: str) -> None:
    applied = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(document), check=False)

    assert applied.returncode != 0
    assert said in applied.stderr
