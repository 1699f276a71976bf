"""The demand of stored pods, and the nodes that it depends on. The caller may lack the right to list nodes."""

import msgspec

from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.quota.amounts import CLASSES, RESOURCES, Vector
from policies.quota.demand import UnclassifiedPods
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.nodes import NODES, node_reader
from webhook.configuration.loader import Configuration
from webhook.quota.counted_records import PodRecord, RecordReader


def certain_demand(
    reader: RecordReader, pod: PodRecord, unclassified_pods: UnclassifiedPods, nodes: NodeIndex | None
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
    mapping, equivalents = reader.catalogues.resource_mapping, reader.catalogues.classes.equivalents
    mapped = (mapping.resource(key.removeprefix(RESOURCES)) for key in resources)
    varies = any(each and (each.profile is not None or each.name in equivalents) for each in mapped)
    return resources if varies else demand


def readable_node_index(api: ApiClient, configuration: Configuration) -> NodeIndex | None:
    """Return the nodes; None if the caller may not list them."""
    keys = configuration.classes.label_keys
    try:
        return NodeIndex(keys, api.list(NODES.path(), node_reader(keys)).items)
    except errors.Forbidden:
        return None
