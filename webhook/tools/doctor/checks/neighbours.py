"""Neighbours: mutating webhooks that run after ours, and GPU pods in namespaces that the webhook never sees."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from policies.pods.label_selector import LabelSelector
from policies.pods.pod import decode_pod
from webhook.cluster.api import api_path
from webhook.cluster.objects import WEBHOOK_CONFIGURATION
from webhook.tools.doctor.check import Observation, doctor_check, warning
from webhook.tools.doctor.checks.configurations import APPLY, GROUP, READS, excluded_by_name, place
from webhook.tools.doctor.cluster import ADMISSION, InstalledCluster, Right
from webhook.tools.doctor.expected import expected_objects

MUTATING = "mutatingwebhookconfigurations"
PODS_ENTRY = "pods.mutate.gpu-admission.dev"
SYSTEM = frozenset({"kube-system", "kube-public", "kube-node-lease"})


@doctor_check(
    "later-webhooks",
    "No other mutating webhook runs after ours",
    Right("list", MUTATING, GROUP),
)
def _later(cluster: InstalledCluster) -> Iterator[Observation]:
    for document in cluster.items(f"{ADMISSION}/{MUTATING}"):
        name = document["metadata"]["name"]
        entries = [
            entry["name"]
            for entry in document.get("webhooks") or ()
            if any(map(_takes_new_pods, entry.get("rules") or ()))
        ]
        if entries and name > WEBHOOK_CONFIGURATION:
            yield warning(
                "later-webhook",
                f"MutatingWebhookConfiguration/{name}",
                f"{', '.join(entries)} may undo what gpu-admission changed in a pod: webhooks run in the order of their names",
                "give it a name that sorts before zz-gpu-admission, or make sure that it does not change tolerations, "
                "node selectors and containers of GPU pods",
            )


def _takes_new_pods(rule: Mapping[str, Any]) -> bool:
    fitting = {"apiGroups": {"", "*"}, "resources": {"pods", "*", "*/*"}, "operations": {"CREATE", "*"}}
    return all(values & set(rule.get(key) or ()) for key, values in fitting.items())


@doctor_check(
    "excluded-namespaces",
    "No GPU pods in namespaces that are not looked at",
    *(*READS, Right("list", "namespaces"), Right("list", "pods")),
)
def _unseen(cluster: InstalledCluster) -> Iterator[Observation]:
    entry = next((e for e in cluster.entries(MUTATING) if e["name"] == PODS_ENTRY), None)
    if entry is None:
        return
    resource_mapping = cluster.resource_mapping
    selector = msgspec.convert(entry.get("namespaceSelector") or {}, LabelSelector)
    expected = expected_objects(cluster.names.namespace).configurations[MUTATING][PODS_ENTRY]
    excluded = (excluded_by_name(expected.get("namespaceSelector") or {}) or frozenset()) | SYSTEM

    def name_of_gpu_pod(raw: msgspec.Raw) -> str | None:
        pod = decode_pod(raw)
        asks = resource_mapping.pod_asks(pod) and not pod.is_terminal
        return ((pod.metadata and pod.metadata.name) or "") if asks else None

    for namespace in cluster.items("/api/v1/namespaces"):
        name, labels = namespace["metadata"]["name"], namespace["metadata"].get("labels") or {}
        if name in excluded or selector.matches(labels):
            continue
        pods = cluster.listed(api_path("/api/v1", "namespaces", name, "pods"), name_of_gpu_pod)
        if pods:
            where = place(MUTATING, PODS_ENTRY)
            yield warning(
                "unseen-gpu-pods",
                f"Namespace/{name}",
                f"has {len(pods)} GPU pods (such as {pods[0]}) and is excluded by {where}",
                f"remove {name} from the selector (webhooks.excludedNamespaces of the chart), unless it is the GPU stack; "
                f"or {APPLY}",
            )


CHECKS = (_later, _unseen)
