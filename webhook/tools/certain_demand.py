"""The part of a stored pod's demand that is certain, even if the caller may not list nodes."""

import msgspec

from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.quota.amounts import CLASSES, RESOURCES, Vector
from policies.quota.demand import UnclassifiedPods
from webhook.quota.counted_records import PodRecord, RecordReader


def certain_demand(
    reader: RecordReader, pod: PodRecord, unclassified_pods: UnclassifiedPods, nodes: NodeIndex | None
) -> Vector:
    """Return the demand of a pod. If the caller may not list nodes, return only the dimensions that do not depend on the node.

    nodes: None if the caller may not list them. A bound pod counts for the class of its node, which is unknown then. So classes
    are omitted if the pod pins none, and `gpus` if it is not the same on all classes on which the pod may be.
    """
    if nodes is not None or not pod.node_name:
        return reader.demand_of_pod(pod, unclassified_pods, nodes or NO_NODES)
    unbound = msgspec.structs.replace(pod, node_name="")
    demand, on_any = (
        reader.demand_of_pod(unbound, each, NO_NODES)
        for each in (UnclassifiedPods.TOTAL_ONLY, UnclassifiedPods.MOST_EXPENSIVE)
    )
    # MostExpensive has an amount for each possible class. If all are equal, so is `gpus` on any of them.
    if len({amount for key, amount in on_any.items() if key.startswith(CLASSES)}) <= 1:
        return demand
    return {key: amount for key, amount in demand.items() if key.startswith(RESOURCES)}
