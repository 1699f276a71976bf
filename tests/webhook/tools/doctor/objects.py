"""Objects of a cluster that doctor reads: nodes, GPUPolicies, GPUQuotas, the Lease of the controller, our webhooks."""

from typing import Any

GPU = {"nvidia.com/gpu": "8"}
NVIDIA = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
POLICIES = "/apis/gpu-admission.dev/v1alpha1/gpupolicies"


def node(
    name: str, labels: dict[str, str], taints: list[dict[str, str]] | None = None, **gpus: str
) -> dict[str, Any]:
    allocatable = {"cpu": "64", **(gpus or GPU)}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [NVIDIA] if taints is None else taints},
        "status": {"allocatable": allocatable},
    }


def stored(spec: dict[str, Any], accepted: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the GPUPolicy p as the API server has it, with the spec that was in force last."""
    status = {} if accepted is None else {"status": {"accepted": accepted}}
    return {"metadata": {"name": "p", "uid": "u", "generation": 2}, "spec": spec, **status}


QUOTAS = "/apis/gpu-admission.dev/v1alpha1/gpuquotas"
COUNTED = ("Ready", "True", "")


def conditions(*found: tuple[str, str, str]) -> list[dict[str, Any]]:
    times = {"lastTransitionTime": "2027-01-31T00:00:00Z", "observedGeneration": 1}
    return [
        {"type": kind, "status": holds, "reason": "R", "message": message, **times}
        for kind, holds, message in found
    ]


def quota(*found: tuple[str, str, str], **spec: Any) -> dict[str, Any]:
    identity = {"name": "default", "namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 1}
    status = {"conditions": conditions(*found)}
    return {"metadata": identity, "spec": {"hard": {"gpus": "4"}, **spec}, "status": status}


LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu-admission/leases/gpu-admission-controller"


def lease(renewed: str) -> dict[str, Any]:
    spec = {"holderIdentity": "a", "renewTime": f"2027-01-31T{renewed}.000000Z", "leaseDurationSeconds": 5}
    return {LEASE: {"metadata": {"name": "gpu-admission-controller"}, "spec": spec}}


LEADS = lease("11:59:50")

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations"

OURS, NAMESPACES = f"{MUTATING}/zz-gpu-admission", "/api/v1/namespaces"
ENTRY = "MutatingWebhookConfiguration/zz-gpu-admission webhooks[pods.mutate.gpu-admission.dev]"
"""The first webhook of ours, as findings name it."""


def excluding(*names: str) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(names)}
    selector = {"matchExpressions": [expression]}
    return {"webhooks": [{"name": "pods.mutate.gpu-admission.dev", "namespaceSelector": selector}]}


def namespace(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}


def engine(operator: str = "", **rule: list[str]) -> list[dict[str, Any]]:
    """Return the webhook of a policy engine for everything: `In`, only of our namespace; `NotIn`, of all others."""
    own = {"key": "kubernetes.io/metadata.name", "operator": operator, "values": ["gpu-admission"]}
    selector = {"namespaceSelector": {"matchExpressions": [own]}} if operator else {}
    rules = [{"resources": ["*"], "operations": ["*"], "apiGroups": ["*"], **rule}]
    return [
        {"metadata": {"name": "engine"}, "webhooks": [{"name": "x.example.com", "rules": rules, **selector}]}
    ]
