"""Pending pods that hold quota, by owner: since when, and why they have no node, or do not start on it.

A pod that waits in line for quota holds none, and is not among them.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction

import msgspec

from policies.finding import truncate
from policies.placement.nodes import NO_NODES, NodeIndex
from policies.quota.amounts import CLASSES, GPUS, RESOURCES, Amounts, total
from policies.quota.demand import UnclassifiedPods
from webhook.cluster.api import ApiClient
from webhook.configuration.loader import Configuration
from webhook.quota.counted_records import PODS, CountedPod, RecordReader
from webhook.tools.json_struct import JsonStruct
from webhook.tools.stored_pod import StoredPod, decode_stored

PENDING_QUERY = {"fieldSelector": "status.phase=Pending"}
PENDING_AFTER = timedelta(minutes=1)
"""A younger pod may just be starting."""
LONGEST_REASON = 200
NOT_CONSIDERED = "not considered by a scheduler yet"


class PendingOwner(JsonStruct, frozen=True):
    """Pending pods of one owner that hold quota: their number, what they hold, and the creation of the oldest one.

    has_node: whether they are on nodes, or without one. reason: why most of them do not run.
    """

    namespace: str
    owner: str
    pods: int
    held: dict[str, Fraction]
    since: datetime
    has_node: bool
    reason: str

    @property
    def gpus(self) -> Fraction | None:
        """None where it depends on a node, and the caller may not list nodes."""
        return self.held.get(GPUS)

    @property
    def order(self) -> tuple[datetime, str, str, bool]:
        """The sort key: the longest first."""
        return self.since, self.namespace, self.owner, self.has_node


def pending_owners(
    api: ApiClient,
    configuration: Configuration,
    unclassified_pods: Mapping[str, UnclassifiedPods],
    nodes: NodeIndex | None,
    namespace: str,
) -> tuple[PendingOwner, ...]:
    """Return the owners of pending pods that hold quota, of all namespaces if it is "", the longest first.

    unclassified_pods: how pods without a class count, by namespace; pods of other namespaces hold no quota. Raises
    `errors.ApiError`.
    """
    reader = RecordReader(configuration)

    def read(raw: msgspec.Raw) -> tuple[CountedPod, Amounts, str] | None:
        """Return a pod, what it holds, and why it does not run; None if it holds nothing."""
        pod = reader.read_pod(raw)
        if pod is None or pod.namespace not in unclassified_pods or not pod.holds_quota:
            return None
        held = certain_demand(reader, pod, unclassified_pods[pod.namespace], nodes)
        return (pod, held, _why_pending(decode_stored(raw))) if held else None

    owners: dict[tuple[str, str, bool], list[tuple[Amounts, str, str]]] = defaultdict(list)
    for pod, held, reason in api.list(PODS.path(namespace), read, query=PENDING_QUERY).items:
        owners[pod.namespace, pod.holder, bool(pod.node_name)].append((held, pod.since, reason))
    all_pending = (
        PendingOwner(
            namespace=namespace,
            owner=owner,
            pods=len(pods),
            held=_total_of_certain([held for held, _, _ in pods]),
            since=min(datetime.fromisoformat(since) for _, since, _ in pods),
            has_node=has_node,
            reason=Counter(reason for _, _, reason in pods).most_common(1)[0][0],
        )
        for (namespace, owner, has_node), pods in owners.items()
    )
    return tuple(sorted(all_pending, key=lambda owner: owner.order))


def _total_of_certain(amounts: Sequence[Amounts]) -> Amounts:
    """Return the sum, without dimensions that one of the pods leaves open."""
    is_certain = all(GPUS in amount for amount in amounts)
    return {key: amount for key, amount in total(amounts).items() if is_certain or key.startswith(RESOURCES)}


def _why_pending(pod: StoredPod) -> str:
    if pod.spec.node_name:
        return truncate("; ".join(pod.waiting), LONGEST_REASON) or "on its node, and not started there yet"
    if pod.gates:
        return truncate(f"scheduling gates: {', '.join(pod.gates)}", LONGEST_REASON)
    return truncate(pod.unscheduled.partition("\n")[0], LONGEST_REASON) or NOT_CONSIDERED


def certain_demand(
    reader: RecordReader, pod: CountedPod, unclassified_pods: UnclassifiedPods, nodes: NodeIndex | None
) -> Amounts:
    """Return the demand of a pod. If the caller may not list nodes, return only the dimensions that do not depend on the node.

    nodes: None if the caller may not list them. A bound pod counts for the class of its node, which is unknown then. So classes
    are omitted if the pod pins none, and `gpus` if it is not the same on all classes on which the pod may be.
    """
    if nodes is not None or not pod.node_name:
        return reader.demand_of_pod(pod, unclassified_pods, nodes or NO_NODES)
    unbound = msgspec.structs.replace(pod, node_name="")
    demand, most_expensive = (
        reader.demand_of_pod(unbound, value, NO_NODES)
        for value in (UnclassifiedPods.TOTAL_ONLY, UnclassifiedPods.MOST_EXPENSIVE)
    )
    # MostExpensive has an amount for each possible class. If all are equal, so is `gpus` on any of them.
    if len({amount for key, amount in most_expensive.items() if key.startswith(CLASSES)}) <= 1:
        return demand
    return {key: amount for key, amount in demand.items() if key.startswith(RESOURCES)}
