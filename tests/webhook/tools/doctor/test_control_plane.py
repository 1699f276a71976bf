"""Rights of the service accounts: what each needs, what doctor says where one is missing, and policies that bound them."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.doctor.objects import ADMISSION, OURS, POLICIES, stored
from tests.webhook.tools.installed_clusters import assert_found, checked
from webhook.cluster.objects import InstallationNames
from webhook.tools.doctor.checks.control_plane import needed_permissions
from webhook.tools.installed_cluster import Permission

VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations/zz-gpu-admission"
ACCOUNTS = [f"ServiceAccount/gpu-admission-{each} in gpu-admission" for each in ("webhook", "controller")]


@cases(
    ("annotations", "want"),
    of_our_own=({}, ACCOUNTS),
    of_cert_manager=({"cert-manager.io/inject-ca-from": "gpu-admission/gpu-admission"}, []),
)
def test_the_secret_is_needed_only_where_the_certificate_is_ours(
    annotations: dict[str, str], want: list[str], tmp_path: Path
) -> None:
    configuration = {"metadata": {"annotations": annotations}}
    result = checked("service-accounts", {OURS: configuration}, tmp_path, denied=["watch secrets"])

    assert [finding.object for finding in result.findings] == want
    messages = ["watch secrets/gpu-admission-certificates -n gpu-admission"] * 2
    messages[1] += "; watch secrets/gpu-admission-ca -n gpu-admission"
    for finding, missing in zip(result.findings, messages, strict=False):
        assert finding.message == f"must be allowed to {missing}"
        assert finding.remedy == (
            "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict, which has its "
            "ClusterRole and Role"
        )


@cases(
    ("denied", "want"),
    published=(
        ["patch configmaps"],
        [
            "patch configmaps/gpu-admission-catalogues -n gpu-admission; "
            "patch configmaps/gpu-admission-devices -n gpu-admission"
        ],
    ),
    ledgers=(["delete gpuquotaledgers"], ["delete gpuquotaledgers.gpu-admission.dev -n gpu-admission"]),
    events=(["create events"], ["create events", "create events"]),
    limits=(["watch limitranges"], ["watch limitranges"]),
    new_ledgers=(["create gpuquotaledgers"], ["create gpuquotaledgers.gpu-admission.dev -n gpu-admission"]),
    leases=(
        ["update leases"],
        ["update leases.coordination.k8s.io/gpu-admission-controller -n gpu-admission"],
    ),
    counts=(["update gpuquotaledgers"], ["update gpuquotaledgers.gpu-admission.dev -n gpu-admission"] * 2),
)
def test_a_right_that_is_missing(denied: list[str], want: list[str], tmp_path: Path) -> None:
    result = checked("service-accounts", {}, tmp_path, denied=denied)

    assert [finding.message for finding in result.findings] == [f"must be allowed to {each}" for each in want]


@cases(
    ("entries", "want"),
    autoscalers_are_reviewed=(
        [{"name": "autoscalers.validate.gpu-admission.dev"}],
        ["must be allowed to get deployments.apps; get rollouts.argoproj.io"],
    ),
    autoscalers_are_not_reviewed=([], []),
)
def test_what_autoscalers_scale_is_read_only_where_they_are_reviewed(
    entries: list[dict[str, Any]], want: list[str], tmp_path: Path
) -> None:
    objects = {VALIDATING: {"metadata": {}, "webhooks": entries}}
    result = checked("service-accounts", objects, tmp_path, denied=["get deployments", "get rollouts"])

    assert [finding.message for finding in result.findings] == want


@cases(
    ("mode", "want"),
    the_rule_is_on=("enforce", ["must be allowed to get jobs.batch"]),
    the_rule_is_off=("disabled", []),
)
def test_what_makes_pods_is_read_only_where_a_rule_needs_it(
    mode: str, want: list[str], tmp_path: Path
) -> None:
    policy = {POLICIES: [stored({"rules": {"max-runtime": {"mode": mode}}})]}
    result = checked("service-accounts", policy, tmp_path, denied=["get jobs"])

    assert [finding.message for finding in result.findings] == want


def test_without_an_installation_a_missing_account_is_a_few_lines(tmp_path: Path) -> None:
    every = [
        f"{verb} {what}"
        for verb in ("get", "list", "watch")
        for what in ("nodes", "pods", "gpuquotas", "namespaces")
    ]
    found = checked("service-accounts", {}, tmp_path, denied=every).findings

    assert [each.message for each in found] == [
        "must be allowed to get gpuquotas.gpu-admission.dev; get namespaces; list namespaces; watch namespaces; get nodes; "
        "list nodes; and 1 more",
        "must be allowed to get gpuquotas.gpu-admission.dev; list gpuquotas.gpu-admission.dev; "
        "watch gpuquotas.gpu-admission.dev; get namespaces; list namespaces; watch namespaces; and 6 more",
    ]


READING = "get list watch"
OF_BOTH = {
    "gpupolicies.gpu-admission.dev": READING,
    "gpuclasses.gpu-admission.dev": READING,
    "gpuresourcemappings.gpu-admission.dev": READING,
    "namespaces": READING,
    "nodes": READING,
    "deviceclasses.resource.k8s.io": READING,
    "events": "create patch",
}
OF_THE_WEBHOOK = {
    "gpuquotas.gpu-admission.dev": "get",
    "clustergpuquotas.gpu-admission.dev": "list",
    "gpuquotaledgers.gpu-admission.dev -n gpu-admission": "get update",
    "secrets/gpu-admission-certificates -n gpu-admission": READING,
    "resourceclaims.resource.k8s.io": READING,
    "resourceclaimtemplates.resource.k8s.io": READING,
    "limitranges": "list watch",
    "nodepools.karpenter.sh": "list",
    "replicationcontrollers": "get",
    "deployments.apps": "get list",
    "replicasets.apps": "get",
    "statefulsets.apps": "get list",
    "rollouts.argoproj.io": "get",
    "leaderworkersets.leaderworkerset.x-k8s.io": "get",
    "models.example.com": "get",
    "configmaps/gpu-admission-catalogues -n gpu-admission": "get",
    "configmaps/gpu-admission-devices -n gpu-admission": READING,
    "leases.coordination.k8s.io/gpu-admission-controller -n gpu-admission": "get",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io/zz-gpu-admission": READING,
    "validatingwebhookconfigurations.admissionregistration.k8s.io/zz-gpu-admission": READING,
}
OF_THE_CONTROLLER = {
    "gpuquotas.gpu-admission.dev": READING,
    "clustergpuquotas.gpu-admission.dev": READING,
    "gpuquotas/status.gpu-admission.dev": "update",
    "clustergpuquotas/status.gpu-admission.dev": "update",
    "gpuquotaledgers.gpu-admission.dev -n gpu-admission": "list watch create delete get update",
    "gpupolicies/status.gpu-admission.dev": "patch",
    "gpuclasses/status.gpu-admission.dev": "patch",
    "gpuresourcemappings/status.gpu-admission.dev": "patch",
    "pods": "get list watch patch",
    "limitranges": "list",
    "resourceclaims.resource.k8s.io": READING,
    "resourceslices.resource.k8s.io": READING,
    "configmaps/gpu-admission-catalogues -n gpu-admission": "get patch",
    "configmaps/gpu-admission-devices -n gpu-admission": "get list watch patch",
    "leases.coordination.k8s.io/gpu-admission-controller -n gpu-admission": "get update",
    "leases.coordination.k8s.io -n gpu-admission": "create",
    "pods -n gpu-admission-canary": "create",
}
OF_CERTIFICATES = {
    "secrets -n gpu-admission": "create",
    "secrets/gpu-admission-certificates -n gpu-admission": "get list watch patch",
    "secrets/gpu-admission-ca -n gpu-admission": "get list watch patch",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io/zz-gpu-admission": "get list watch patch",
    "validatingwebhookconfigurations.admissionregistration.k8s.io/zz-gpu-admission": "get list watch patch",
}


def by_object(permissions: Iterable[Permission]) -> dict[str, str]:
    """Return the verbs of each resource, as `kubectl auth can-i` takes both."""
    verbs = defaultdict(list)
    for permission in permissions:
        verb, _, what = permission.words.partition(" ")
        verbs[what].append(verb)
    return {what: " ".join(each) for what, each in verbs.items()}


def test_what_both_accounts_need() -> None:
    found = needed_permissions(
        InstallationNames(),
        karpenter=True,
        cert_manager=False,
        autoscalers=True,
        referred=[("example.com", "models")],
    )

    assert {account: by_object(permissions) for account, permissions in found.items()} == {
        "gpu-admission-webhook": {**OF_BOTH, **OF_THE_WEBHOOK},
        "gpu-admission-controller": {**OF_BOTH, **OF_THE_CONTROLLER, **OF_CERTIFICATES},
    }


def test_where_cert_manager_issues_the_certificate_the_controller_does_not() -> None:
    found = needed_permissions(InstallationNames(), karpenter=False, cert_manager=True, autoscalers=False)

    assert by_object(found["gpu-admission-controller"]) == {**OF_BOTH, **OF_THE_CONTROLLER}


POLICY, BINDING = (f"{ADMISSION}/validatingadmissionpolic{end}" for end in ("ies", "ybindings"))
CONTROLLER = "gpu-admission-controller"
PODS_POLICY = f"{CONTROLLER}-pods"
BOUNDED: JSON = {f"{POLICY}/{name}": {"spec": {}} for name in (CONTROLLER, PODS_POLICY)}
ANYWHERE = (
    "controller-unbounded: ValidatingAdmissionPolicy/gpu-admission-controller must exist, with a binding "
    "that denies: without it the controller may send any request of the cluster anywhere\n"
    "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict, with "
    "admissionPolicy.enabled of the chart"
)
ANY_POD = (
    "controller-unbounded: ValidatingAdmissionPolicy/gpu-admission-controller-pods must exist, with a "
    "binding that denies: without it the controller may change any pod"
)


@cases(
    ("policy", "action", "want"),
    it_denies=(BOUNDED, "Deny", []),
    it_only_audits=(BOUNDED, "Audit", [ANYWHERE, ANY_POD]),
    there_is_none=({}, "Deny", [ANYWHERE, ANY_POD]),
    there_is_one=({f"{POLICY}/{CONTROLLER}": {"spec": {}}}, "Deny", [ANY_POD]),
)
def test_the_policy_that_bounds_the_controller(
    policy: JSON, action: str, want: list[str], tmp_path: Path
) -> None:
    bindings = {
        f"{BINDING}/{name}": {"spec": {"policyName": name, "validationActions": [action]}}
        for name in (CONTROLLER, PODS_POLICY)
    }
    assert_found("controller-policy", {**bindings, **policy}, want, tmp_path)
