"""Objects that workloads refer to and that do not exist; workloads and pods with ResourceClaims."""

from pathlib import Path
from typing import Any

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import status
from tests.webhook.tools.doctor.objects import GPU, NAMESPACES, OURS, POLICIES, excluding, namespace, stored
from tests.webhook.tools.installed_clusters import assert_found, checked

NO_CLASS = (
    "runtime-class-missing: Job/train in team names RuntimeClass missing, which does not exist: the API "
    "server rejects its pods\n"
    "create RuntimeClass missing (the GPU operator brings nvidia), or remove runtimeClassName"
)


@cases(
    ("condition", "status", "want"),
    complete=("Complete", "True", []),
    failed=("Failed", "True", []),
    not_failed=("Failed", "False", [NO_CLASS]),
    suspended=("Suspended", "True", [NO_CLASS]),
)
def test_only_jobs_that_have_not_ended_refer_to_objects(
    condition: str, status: str, want: list[str], tmp_path: Path
) -> None:
    pod = {"runtimeClassName": "missing", "containers": [{"name": "a", "resources": {"limits": GPU}}]}
    job = {
        "metadata": {"name": "train", "namespace": "team", "uid": "u"},
        "spec": {"template": {"spec": pod}},
        "status": {"conditions": [{"type": condition, "status": status}]},
    }
    assert_found("references", {"/apis/batch/v1/jobs": [job]}, want, tmp_path)


def test_workloads_that_name_the_same_missing_class_are_one_finding(tmp_path: Path) -> None:
    pod = {"runtimeClassName": "missing", "containers": [{"name": "a", "resources": {"limits": GPU}}]}
    jobs = [
        {
            "metadata": {"name": name, "namespace": "team", "uid": name},
            "spec": {"template": {"spec": pod}},
        }
        for name in ("train", "tune", "score")
    ]
    want = NO_CLASS.replace("Job/train in team", "Job/train in team and 2 more")
    assert_found("references", {"/apis/batch/v1/jobs": jobs}, [want], tmp_path)


MODELS = "gpu-admission.dev/model-"
WARMING = {"model-warming": {"mode": "enforce", "sources": {"s3": {"credentialsSecret": "aws"}}}}


def test_what_a_workload_with_a_model_refers_to(tmp_path: Path) -> None:
    template = {
        "metadata": {"annotations": {f"{MODELS}uri": "s3://bucket/m", f"{MODELS}cache-claim": "cache"}},
        "spec": {"containers": [{"name": "a", "resources": {"limits": GPU}}]},
    }
    metadata = {"name": "train", "namespace": "team", "uid": "u"}
    objects = {
        "/apis/batch/v1/jobs": [{"metadata": metadata, "spec": {"template": template}}],
        "/api/v1/namespaces/team": namespace("team"),
        POLICIES: [stored({"rules": WARMING})],
    }
    want = [
        "cache-claim-missing: Job/train in team keeps its model in claim cache, which does not exist: its pods cannot start\n"
        "create PersistentVolumeClaim cache in team, or remove gpu-admission.dev/model-cache-claim",
        "credentials-missing: Job/train in team fetches its model with Secret aws, which does not exist in team: its pods "
        "cannot start\n"
        "kubectl -n team create secret generic aws --from-literal=KEY=VALUE, see docs/tenants/model-warming.md",
    ]
    assert_found("references", objects, want, tmp_path)


DRA = "/apis/resource.k8s.io"
TEMPLATES, CLAIMS = f"{DRA}/v1/resourceclaimtemplates", f"{DRA}/v1/resourceclaims"
SERVED = {DRA: {"versions": [{"version": "v1"}]}, TEMPLATES: [], CLAIMS: []}


def template(device_class: str) -> JSON:
    request = {"name": "some", "exactly": {"deviceClassName": device_class}}
    identity = {"name": "mine", "namespace": "team", "uid": "u"}
    return {"metadata": identity, "spec": {"spec": {"devices": {"requests": [request]}}}}


SPEC = {
    "runtimeClassName": "missing",
    "containers": [{"name": "a", "image": "x", "resources": {"claims": [{"name": "it"}]}}],
    "resourceClaims": [{"name": "it", "resourceClaimTemplateName": "mine"}],
}
IDENTITY = {"name": "web", "namespace": "team", "uid": "u"}
WORKLOAD = {"/apis/apps/v1/deployments": [{"metadata": IDENTITY, "spec": {"template": {"spec": SPEC}}}]}
UNSEEN = {
    OURS: excluding("team"),
    NAMESPACES: [namespace("team")],
    f"{NAMESPACES}/team/pods": [{"metadata": IDENTITY, "spec": SPEC}],
}


@cases(
    ("check", "objects", "finding"),
    a_workload=("references", WORKLOAD, "runtime-class-missing"),
    a_pod_that_nobody_reviews=("excluded-namespaces", UNSEEN, "unseen-gpu-pods"),
)
@cases(
    ("devices", "is_found"),
    of_a_nic=({**SERVED, TEMPLATES: [template("dra.net")]}, False),
    of_a_gpu=({**SERVED, TEMPLATES: [template("gpu.nvidia.com")]}, True),
    of_a_template_that_is_not_there=(SERVED, True),
    that_may_not_be_read=({**SERVED, TEMPLATES: status(403, "no", "Forbidden")}, True),
    where_none_are_served=({}, True),
)
def test_a_claim(
    tmp_path: Path, check: str, objects: dict[str, Any], finding: str, devices: JSON, is_found: bool
) -> None:
    result = checked(check, {**objects, **devices}, tmp_path)

    assert [each.id for each in result.findings] == ([finding] if is_found else [])
    assert result.not_checked == ()
