"""ineffective-fields denies what the API server rejects by itself, and nothing else."""

import json

from policies.finding import Severity
from policies.rules.ineffective_fields import RULE, check
from tests.builders import JSON, container, context, gpu_container, manifest, pod, view
from tests.cases import cases
from tests.controlplane import ControlPlane
from webhook.configuration.loader import load_objects

BUILT_IN = load_objects([]).resource_mapping
DRY_RUN = {"dryRun": "All"}


def limited(name: str) -> JSON:
    return pod(gpu_container(resource=name))


@cases(
    ("document", "severity"),
    gpu=(limited("gpu"), Severity.DENIAL),
    nvidia_gpu=(limited("nvidia-gpu"), Severity.DENIAL),
    domain_in_capitals=(limited("NVIDIA.com/gpu"), Severity.DENIAL),
    key_of_a_quota=(limited("requests.nvidia.com/gpu"), Severity.DENIAL),
    pod_level=(pod(container(), resources={"limits": {"nvidia.com/gpu": 1}}), Severity.DENIAL),
    pod_level_gpu=(pod(container(), resources={"limits": {"gpu": 1, "cpu": 1}}), Severity.DENIAL),
    key_of_a_limit=(limited("limits.nvidia.com/gpu"), Severity.WARNING),
    plural=(limited("nvidia.com/gpus"), Severity.WARNING),
    name_in_capitals=(limited("nvidia.com/GPU"), Severity.WARNING),
    half_a_domain=(limited("nvidia/gpu"), Severity.WARNING),
    former_name=(limited("alpha.kubernetes.io/nvidia-gpu"), Severity.WARNING),
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
    job_in_apps=(
        manifest("apps/v1", "Job", "x", {}),
        'no matches for kind "Job" in version "apps/v1"',
    ),
    containers_below_spec=(
        manifest("apps/v1", "Deployment", "chat", {"containers": [container()]}),
        'unknown field "spec.containers"',
    ),
    containers_below_template=(
        manifest("batch/v1", "Job", "train", {"template": {"containers": [container()]}}),
        'unknown field "spec.template.containers"',
    ),
)
def test_a_misplaced_field_never_reaches_the_webhook(plane: ControlPlane, document: JSON, said: str) -> None:
    applied = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(document), check=False)

    assert applied.returncode != 0
    assert said in applied.stderr
