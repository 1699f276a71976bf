"""What stands beside us: mutating webhooks that run after ours, and GPU pods in namespaces that the webhook never sees."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from policies.pods.label_selector import LabelSelector
from policies.pods.pod import decode_pod
from webhook.tools.doctor.check import Check, Finding, Severity, Told
from webhook.tools.doctor.checks.configurations import APPLY, READS, excluded_by_name, place
from webhook.tools.doctor.cluster import ADMISSION, CONFIGURATION, Cluster
from webhook.tools.doctor.expected import wanted
from webhook.tools.doctor.rights import Right

MUTATING = "mutatingwebhookconfigurations"
PODS_ENTRY = "pods.mutate.gpu-admission.dev"
SYSTEM = frozenset({"kube-system", "kube-public", "kube-node-lease"})


def _later(cluster: Cluster) -> Iterator[Told]:
    for document in cluster.items(f"{ADMISSION}/{MUTATING}"):
        name = document["metadata"]["name"]
        if name <= CONFIGURATION:
            continue
        entries = [
            entry["name"]
            for entry in document.get("webhooks") or ()
            if any(_takes_new_pods(rule) for rule in entry.get("rules") or ())
        ]
        if entries:
            yield Finding(
                id="later-webhook",
                severity=Severity.WARNING,
                object=f"MutatingWebhookConfiguration/{name}",
                message=f"{', '.join(entries)} may change pods after gpu-admission has: they run in the order of their names",
                remedy="give it a name that sorts before zz-gpu-admission, or see that it leaves tolerations, "
                "node selectors and containers of GPU pods alone",
            )


def _takes_new_pods(rule: Mapping[str, Any]) -> bool:
    wanted_of = {"apiGroups": "", "resources": "pods", "operations": "CREATE"}
    return all(
        {value, "*", *(("*/*",) if key == "resources" else ())} & set(rule.get(key) or ())
        for key, value in wanted_of.items()
    )


class _Held(msgspec.Struct, frozen=True):
    name: str


def _unseen(cluster: Cluster) -> Iterator[Told]:
    entry = next((e for e in cluster.entries(MUTATING) if e["name"] == PODS_ENTRY), None)
    if entry is None:
        return
    resource_mapping = cluster.resource_mapping
    selector = msgspec.convert(entry.get("namespaceSelector") or {}, LabelSelector)
    meant = (
        wanted(cluster.names.namespace).configurations[MUTATING][PODS_ENTRY].get("namespaceSelector") or {}
    )
    expected = (excluded_by_name(meant) or frozenset()) | SYSTEM

    def gpu_pod(raw: msgspec.Raw) -> _Held | None:
        pod = decode_pod(raw)
        asks = resource_mapping.pod_asks(pod) and not pod.is_terminal
        return _Held((pod.metadata and pod.metadata.name) or "") if asks else None

    for namespace in cluster.items("/api/v1/namespaces"):
        name, labels = namespace["metadata"]["name"], namespace["metadata"].get("labels") or {}
        if name in expected or selector.matches(labels):
            continue
        pods = cluster.listed(f"/api/v1/namespaces/{name}/pods", gpu_pod)
        if pods:
            yield Finding(
                id="unseen-gpu-pods",
                severity=Severity.WARNING,
                object=f"Namespace/{name}",
                message=f"has {len(pods)} GPU pods (such as {pods[0].name}) and is excluded by {place(MUTATING, PODS_ENTRY)}",
                remedy=f"take {name} out of the selector (webhooks.excludedNamespaces of the chart), unless it is the GPU stack; "
                f"or {APPLY}",
            )


CHECKS = (
    Check(
        id="later-webhooks",
        title="No other mutating webhook runs after ours",
        reads=(Right("list", MUTATING, "admissionregistration.k8s.io"),),
        run=_later,
    ),
    Check(
        id="excluded-namespaces",
        title="No GPU pods in namespaces that are not looked at",
        reads=(*READS, Right("list", "namespaces"), Right("list", "pods")),
        run=_unseen,
    ),
)
