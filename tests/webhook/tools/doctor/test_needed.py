"""What each ServiceAccount needs, as doctor asks the API server for it."""

from collections import defaultdict
from collections.abc import Iterable

from webhook.cluster.objects import InstallationNames
from webhook.tools.doctor.checks.control_plane import needed
from webhook.tools.installed_cluster import Permission

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
    found = needed(
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
    found = needed(InstallationNames(), karpenter=False, cert_manager=True, autoscalers=False)

    assert by_object(found["gpu-admission-controller"]) == {**OF_BOTH, **OF_THE_CONTROLLER}
