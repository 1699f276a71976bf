"""Webhook configurations as doctor finds them."""

from typing import Any

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
