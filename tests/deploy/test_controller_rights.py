"""What the chart lets the controller read, and the admission policies that bound what it writes."""

from typing import Any

import pytest

from tests.cases import cases
from tests.deploy.manifests import of_kind, rendered, roles
from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import plural
from webhook.workloads.gang_sources import GANG_MARKERS, POD_GROUPS, SCHEDULING, may_be_gang

pytestmark = pytest.mark.usefixtures("rendering")
MADE_BY_OTHERS = {
    ("trainer.kubeflow.org", "trainjobs"),
    ("disaggregatedset.x-k8s.io", "disaggregatedsets"),
    ("batch.volcano.sh", "cronjobs"),
    ("grove.io", "podcliquesets"),
    ("serving.kserve.io", "inferenceservices"),
    ("serving.kserve.io", "llminferenceservices"),
    ("ome.io", "inferenceservices"),
    ("nvidia.com", "dynamocomponentdeployments"),
    ("nvidia.com", "dynamographdeployments"),
    ("apps.nvidia.com", "nimpipelines"),
    ("apps.nvidia.com", "nimservices"),
    ("workload.serving.volcano.sh", "modelboosters"),
    ("orchestration.aibrix.ai", "stormservices"),
    ("inference.llmaz.io", "services"),
    ("workloads.x-k8s.io", "rolebasedgroups"),
}
"""Kinds whose pods are made by an object of another kind, which has the size of the gang, or by a Deployment."""


def read_by_the_controller(*arguments: str) -> set[tuple[str, str]]:
    return {
        (group, resource)
        for role in of_kind("ClusterRole", rendered(*arguments))
        if role["metadata"]["name"] == "gpu-admission-controller"
        for rule in role["rules"]
        if "get" in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_controller_may_read_how_many_pods_a_gang_needs() -> None:
    own = 'webhooks.extraWorkloads=[{"apiGroup": "example.com", "resources": ["trainingjobs"]}]'
    readable = read_by_the_controller()
    assert read_by_the_controller("--set-json", own) - readable == {("example.com", "trainingjobs")}
    kinds = load_directory(None).workload_kinds.values()
    gangs = {(each.group, each.plural) for each in kinds if may_be_gang(each) and not each.templates_only}
    groups = {(source.rpartition("/")[0], "podgroups") for _, _, source in POD_GROUPS}
    links = {(group, plural(kind)) for group, kind in GANG_MARKERS}

    assert gangs >= MADE_BY_OTHERS
    assert not readable & MADE_BY_OTHERS
    read = gangs - MADE_BY_OTHERS | groups | links | {(SCHEDULING, "podgroups")}
    assert not read - readable, "deploy/chart/templates/rbac-controller.yaml must grant them"


CERTIFICATES = {"secrets", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"}


@cases(
    ("values", "resources", "namespaces"),
    default=("", {"pods", "leases", *CERTIFICATES}, ["gpu-admission", "gpu-admission-canary"]),
    cert_manager_writes_secrets_and_bundles=(
        "certificates.certManager.enabled=true",
        {"pods", "leases"},
        ["gpu-admission", "gpu-admission-canary"],
    ),
    without_canary=(
        "canary.enabled=false,certificates.certManager.enabled=true",
        {"pods", "leases"},
        ["gpu-admission"],
    ),
)
def test_the_policy_bounds_all_that_the_controller_may_create(
    values: str, resources: set[str], namespaces: list[str]
) -> None:
    documents = rendered("--set", values)
    policy = admission_policy(documents, "gpu-admission-controller")
    constraints = policy["spec"]["matchConstraints"]
    created = {
        resource
        for role in roles(documents)
        if role["metadata"]["name"] in {"gpu-admission-controller", "gpu-admission-canary"}
        for rule in role["rules"]
        if "create" in rule["verbs"]
        or ("admissionregistration.k8s.io" in rule["apiGroups"] and "patch" in rule["verbs"])
        for resource in rule["resources"]
    }

    bounded = {resource for rule in constraints["resourceRules"] for resource in rule["resources"]}
    assert bounded == resources
    # Events are in the namespaces of all quotas, which the policy does not match; nothing acts on one. A ledger may have the
    # name of any namespace, and the controller writes all of them anyway.
    assert created - {"events", "gpuquotaledgers"} <= bounded
    assert constraints["namespaceSelector"]["matchExpressions"][0]["values"] == namespaces
    assert [v["reason"] for v in policy["spec"]["validations"]] == ["Forbidden"] * len(
        policy["spec"]["validations"]
    )


def admission_policy(documents: list[dict[str, Any]], name: str) -> dict[str, Any]:
    policies = of_kind("ValidatingAdmissionPolicy", documents)
    return next(each for each in policies if each["metadata"]["name"] == name)


def test_the_policy_bounds_every_change_of_a_pod_by_the_controller() -> None:
    documents = rendered()
    policy = admission_policy(documents, "gpu-admission-controller-pods")
    changed = {
        (resource, verb)
        for role in roles(documents)
        if role["metadata"]["name"] == "gpu-admission-controller"
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if resource.partition("/")[0] == "pods" and verb not in {"get", "list", "watch"}
    }

    assert changed == {("pods", "patch")}
    assert policy["spec"]["matchConstraints"] == {
        "resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["UPDATE"]}
        ]
    }


def test_where_policies_may_not_be_installed_there_is_none() -> None:
    kinds = {document["kind"] for document in rendered("--set", "admissionPolicy.enabled=false")}

    assert not [kind for kind in kinds if kind.startswith("ValidatingAdmissionPolicy")]
