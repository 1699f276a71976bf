"""Workloads and pods with ResourceClaims: those of a NIC are no GPU workloads, those that nobody can read may be."""

from pathlib import Path
from typing import Any

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import status
from tests.webhook.tools.doctor.objects import NAMESPACES, OURS, excluding, namespace
from tests.webhook.tools.installed_clusters import checked

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
