"""Neighbours: mutating webhooks that run after ours, webhooks that review our ledgers, and namespaces that ours never sees."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from policies.pods.label_selector import LabelSelector
from webhook.cluster.api import api_path
from webhook.cluster.objects import WEBHOOK, WEBHOOK_CONFIGURATION, service_account
from webhook.configuration import documents
from webhook.quota.ledger_objects import KIND, PLURAL
from webhook.tools.doctor.check import Observation, doctor_check, warning
from webhook.tools.doctor.checks.configurations import (
    APPLY_AGAIN,
    GROUP,
    KINDS,
    READ_WEBHOOKS,
    entry_title,
    excluded_by_name,
    expected_objects,
)
from webhook.tools.installed_cluster import ADMISSION, InstalledCluster, Permission

MUTATING = "mutatingwebhookconfigurations"
PODS_ENTRY = "pods.mutate.gpu-admission.dev"
SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})
GPU_OPERATOR = "gpu-operator"
"""Namespace of NVIDIA's GPU operator, whose validator pods request GPUs before a node is ready."""


@doctor_check(
    "later-webhooks", "No other mutating webhook runs after ours", Permission("list", MUTATING, GROUP)
)
def _check_later_webhooks(cluster: InstalledCluster) -> Iterator[Observation]:
    for document in cluster.items(f"{ADMISSION}/{MUTATING}"):
        name = document["metadata"]["name"]
        entries = [
            entry["name"]
            for entry in document.get("webhooks") or ()
            if _has_rule_for(entry, "", "pods", "CREATE")
        ]
        if entries and name > WEBHOOK_CONFIGURATION:
            yield warning(
                "later-webhook",
                f"MutatingWebhookConfiguration/{name}",
                f"{', '.join(entries)} may undo what gpu-admission changed in a pod: webhooks run in the order of their names",
                "give it a name that sorts before zz-gpu-admission, or make sure that it does not change tolerations, "
                "node selectors and containers of GPU pods",
            )


@doctor_check(
    "ledger-webhooks",
    "No other webhook reviews the ledgers of quotas",
    *(Permission("list", kind, GROUP) for kind in KINDS),
    Permission("list", "namespaces"),
)
def _check_ledger_webhooks(cluster: InstalledCluster) -> Iterator[Observation]:
    own = cluster.names.namespace
    labels = cluster.namespaces.get(own, {})
    request = {
        "namespace": own,
        "kind": {"group": documents.GROUP, "kind": KIND},
        "resource": {"group": documents.GROUP, "resource": PLURAL},
        "userInfo": {"username": service_account(own, WEBHOOK)},
    }
    for plural, kind in KINDS.items():
        for document in cluster.items(f"{ADMISSION}/{plural}"):
            name = document["metadata"]["name"]
            entries = [
                entry["name"]
                for entry in document.get("webhooks") or ()
                if any(
                    _has_rule_for(entry, documents.GROUP, PLURAL, operation)
                    and not _is_excluded_by_condition(entry, {**request, "operation": operation})
                    for operation in ("CREATE", "UPDATE")
                )
                and msgspec.convert(entry.get("namespaceSelector") or {}, LabelSelector).matches(labels)
            ]
            if entries and name != WEBHOOK_CONFIGURATION:
                yield warning(
                    "ledger-webhook",
                    f"{kind}/{name}",
                    f"{', '.join(entries)} may deny GPUQuotaLedgers in {own}, or not answer: then GPU pods are denied, since "
                    "each review of one writes the ledger of its quota",
                    f"exclude namespace {own} in its namespaceSelector, or in the settings of what writes that",
                )


def _has_rule_for(entry: Mapping[str, Any], group: str, resource: str, operation: str) -> bool:
    """Whether a rule of the webhook is of a resource and an operation."""
    fitting = {
        "apiGroups": {group, "*"},
        "resources": {resource, "*", "*/*"},
        "operations": {operation, "*"},
    }
    return any(
        all(values & set(rule.get(key) or ()) for key, values in fitting.items())
        for rule in entry.get("rules") or ()
    )


def _is_excluded_by_condition(entry: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Whether one of its matchConditions is false of these fields of a review: one that reads others is an error."""
    from cel_expr_python import cel  # noqa: PLC0415 - one check of many needs it

    environment = cel.NewEnv(variables={"request": cel.Type.DYN, "object": cel.Type.DYN})
    for condition in entry.get("matchConditions") or ():
        with suppress(RuntimeError):
            value = environment.compile(condition["expression"]).eval(data={"request": request}).value()
            if value is False:
                return True
    return False


@doctor_check(
    "excluded-namespaces",
    "Excluded namespaces exist, and have no GPU pods",
    *(*READ_WEBHOOKS, Permission("list", "namespaces"), Permission("list", "pods")),
)
def _check_excluded_namespaces(cluster: InstalledCluster) -> Iterator[Observation]:
    selector = pod_selector(cluster)
    if selector is None:
        return
    expected = expected_objects(cluster.names.namespace).configurations[MUTATING][PODS_ENTRY]
    system = excluded_by_name(expected.get("namespaceSelector") or {}) | SYSTEM_NAMESPACES
    excluded = excluded_by_name(selector)
    chooses = msgspec.convert(selector, LabelSelector).matches
    unchosen = []
    namespaces = cluster.namespaces
    yield from _missing_namespaces(cluster, system | namespaces.keys())
    if GPU_OPERATOR in namespaces and chooses(namespaces[GPU_OPERATOR]):
        yield (
            f"pods of {GPU_OPERATOR} that request GPUs are reviewed, and start only while the webhook answers: "
            "name it in webhooks.excludedNamespaces of the chart where only administrators create pods in it"
        )
    for name, labels in namespaces.items():
        if name in system | {GPU_OPERATOR} or chooses(labels):
            continue
        pods = cluster.gpu_pods(api_path("/api/v1", "namespaces", name, "pods"))
        if pods and name not in excluded:
            unchosen.append(name)
        elif pods:
            has, where = (
                f"has GPU pods ({len(pods)}, such as {pods[0].name})",
                entry_title(MUTATING, PODS_ENTRY),
            )
            remove = f"remove {name} from the selector (webhooks.excludedNamespaces of the chart)"
            remedy = f"{remove}, unless it is the GPU stack; or {APPLY_AGAIN}"
            yield warning("unseen-gpu-pods", f"Namespace/{name}", f"{has} and is excluded by {where}", remedy)
    if unchosen:
        number = f"{len(unchosen)}, such as {unchosen[0]}"
        yield f"webhooks.namespaceSelector of the chart does not choose all namespaces with GPU pods ({number})"


@doctor_check(
    "unseen-quotas",
    "GPUQuotas are in namespaces whose pods the webhook sees",
    *(*READ_WEBHOOKS, Permission("list", "namespaces"), Permission("list", "gpuquotas", "gpu-admission.dev")),
)
def _check_unseen_quotas(cluster: InstalledCluster) -> Iterator[Observation]:
    selector = msgspec.convert(pod_selector(cluster) or {}, LabelSelector)
    for quota in cluster.quotas:
        if not selector.matches(cluster.namespaces.get(quota.namespace, {})):
            entry = entry_title(MUTATING, PODS_ENTRY)
            message = f"does not hold: {entry} does not choose the namespace, so its pods are not reviewed"
            labels = "the labels of webhooks.namespaceSelector of the chart"
            remedy = f"give the namespace {labels}, or take it from excludedNamespaces"
            if quota.namespace in SYSTEM_NAMESPACES | {cluster.names.namespace}:
                remedy = f"kubectl -n {quota.namespace} delete gpuquota default: pods of this namespace are never reviewed"
            yield warning("unseen-quota", f"GPUQuota/default in {quota.namespace}", message, remedy)


def pod_selector(cluster: InstalledCluster) -> dict[str, Any] | None:
    """Return the namespaceSelector for pods; None if that webhook is not installed."""
    entry = next((webhook for webhook in cluster.webhooks(MUTATING) if webhook["name"] == PODS_ENTRY), None)
    return None if entry is None else entry.get("namespaceSelector") or {}


def _missing_namespaces(cluster: InstalledCluster, known: Collection[str]) -> Iterator[Observation]:
    """Yield a finding for every excluded namespace that is not `known`, and the first webhook that excludes it."""
    excluding: dict[str, str] = {}
    for kind in KINDS:
        for entry in cluster.webhooks(kind):
            for name in excluded_by_name(entry.get("namespaceSelector") or {}):
                excluding.setdefault(name, entry_title(kind, entry["name"]))
    for name, where in sorted(excluding.items()):
        if name not in known:
            message = f"does not exist and is excluded by {where}: a user who creates it runs GPU pods without any review"
            remedy = (
                f"remove {name} from webhooks.excludedNamespaces of the chart until it exists, or create it"
            )
            yield warning("excluded-namespace-missing", f"Namespace/{name}", message, remedy)


CHECKS = (_check_later_webhooks, _check_ledger_webhooks, _check_excluded_namespaces, _check_unseen_quotas)
