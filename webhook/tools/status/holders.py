"""Stored pods and claims that hold quota, and the pods among them that hold it without running."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from fractions import Fraction

import msgspec

from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.quota.amounts import CLASSES, GPUS, NOTHING, RESOURCES, Vector, total
from policies.quota.demand import UnclassifiedPods
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.nodes import NODES, node_reader
from webhook.configuration.dynamic_resources import served_resource
from webhook.configuration.loader import Configuration
from webhook.controller.records import PODS, PodRecord, RecordReader
from webhook.serving.evaluator import fields_of
from webhook.tools.status.report import PendingOwner, Shown

PENDING = {"fieldSelector": "status.phase=Pending"}
PENDING_AFTER = timedelta(minutes=1)
"""A younger pod may just be starting."""


class HolderOfQuota(Shown, frozen=True, kw_only=True):
    """A live pod or claim and its demand. `node` is empty if it is not bound; `pending_since` is None unless it is pending."""

    kind: str
    name: str
    node: str = ""
    demand: dict[str, Fraction]
    pending_since: datetime | None = None


def holders_of_quota(
    api: ApiClient,
    configuration: Configuration,
    namespace: str,
    unclassified_pods: UnclassifiedPods,
    nodes: NodeIndex | None,
) -> list[HolderOfQuota]:
    """Return what holds the quota of a namespace, most GPUs first. Raises `errors.ApiError`."""
    reader, counted = RecordReader(configuration), {}
    found: list[HolderOfQuota] = []

    def read(raw: msgspec.Raw) -> None:
        pod = reader.read_pod(raw)
        if pod is None or pod.is_terminal:
            return
        demand = _demand(reader, pod, configuration, unclassified_pods, nodes)
        counted[pod.uid, pod.extended_claim] = demand
        is_pending = bytes(fields_of(raw, "status").get("phase", b"")) == b'"Pending"'
        since = datetime.fromisoformat(pod.since) if is_pending else None
        found.append(
            HolderOfQuota(kind="Pod", name=pod.name, node=pod.node_name, demand=demand, pending_since=since)
        )

    api.list(PODS.path(namespace), read)
    resource = served_resource(api, "resourceclaims")
    if resource is not None:
        for claim in api.list(resource.path(namespace), reader.read_claim).items:
            demand = reader.demand_of_claim(claim, unclassified_pods, counted)
            found.append(HolderOfQuota(kind="ResourceClaim", name=claim.name, demand=demand))
    holding = (each for each in found if each.demand)
    return sorted(holding, key=lambda each: (-each.demand.get(GPUS, NOTHING), each.name))


def _demand(
    reader: RecordReader,
    pod: PodRecord,
    configuration: Configuration,
    unclassified_pods: UnclassifiedPods,
    nodes: NodeIndex | None,
) -> Vector:
    """Return the demand of a pod; what is certain of it if it is on a node, and the caller may read none.

    The class of that node decides, so a pod that pins no class counts for none. Slices and shares are parts of a card that differ
    by class, so such a pod has its resources alone.
    """
    if nodes is not None or not pod.node_name:
        return reader.demand_of_pod(pod, unclassified_pods, nodes or NO_NODES)
    unbound = msgspec.structs.replace(pod, node_name="")
    demand = reader.demand_of_pod(unbound, UnclassifiedPods.TOTAL_ONLY, NO_NODES)
    if any(key.startswith(CLASSES) for key in demand):
        return demand
    resources = {key: amount for key, amount in demand.items() if key.startswith(RESOURCES)}
    mapped = map(configuration.resource_mapping.resource, (key.removeprefix(RESOURCES) for key in resources))
    equivalents = configuration.classes.equivalents
    varies = any(each and (each.profile is not None or each.name in equivalents) for each in mapped)
    return resources if varies else demand


def cluster_nodes(api: ApiClient, configuration: Configuration) -> NodeIndex | None:
    """Return the nodes; None if the caller may not list them."""
    keys = configuration.classes.label_keys
    try:
        return NodeIndex(keys, api.list(NODES.path(), node_reader(keys)).items)
    except errors.Forbidden:
        return None


def pending_owners(
    api: ApiClient,
    configuration: Configuration,
    namespace: str,
    quotas: Mapping[str, UnclassifiedPods],
    nodes: NodeIndex | None,
) -> tuple[PendingOwner, ...]:
    """Return the owners of pending pods that hold quota, of all namespaces if it is "", the longest first.

    quotas: how pods without a class count, by namespace; pods of other namespaces hold none. Raises `errors.ApiError`.
    """
    reader = RecordReader(configuration)
    owners: dict[tuple[str, str], list[tuple[Vector, str]]] = defaultdict(list)
    for pod in api.list(PODS.path(namespace), reader.read_pod, query=PENDING).items:
        if pod.namespace in quotas:
            held = _demand(reader, pod, configuration, quotas[pod.namespace], nodes)
            if held:
                owners[pod.namespace, pod.holder].append((held, pod.since))
    found = (
        PendingOwner(
            namespace=namespace,
            owner=owner,
            pods=len(pods),
            held=total(held for held, _ in pods),
            since=min(datetime.fromisoformat(since) for _, since in pods),
        )
        for (namespace, owner), pods in owners.items()
    )
    return tuple(sorted(found, key=lambda each: each.order))
