"""Pods that hold quota and find no node: GPUs that nobody can use."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta

from policies.quota.amounts import GPUS, NOTHING, format_amount, unit
from policies.times import utc
from webhook.cluster.node_informer import readable_node_index
from webhook.quota.counted_records import LONG_PENDING_SECONDS
from webhook.tools.doctor.check import Observation, doctor_check, warning
from webhook.tools.installed_cluster import InstalledCluster, Permission
from webhook.tools.pending_pods import PendingOwner, pending_owners


@doctor_check(
    "pending-pods",
    "Pods that hold quota find a node within 10 minutes",
    Permission("list", "pods"),
    Permission("list", "nodes"),
    Permission("list", "gpuquotas", "gpu-admission.dev"),
)
def _pending_pods(cluster: InstalledCluster) -> Iterator[Observation]:
    counts_as = {quota.namespace: quota.spec.unclassified_pods for quota in cluster.quotas if quota.spec}
    if not counts_as:
        return
    configuration, began = cluster.usable_configuration, cluster.now - timedelta(seconds=LONG_PENDING_SECONDS)
    nodes = readable_node_index(cluster.api, configuration.classes.label_keys)
    by_namespace: dict[str, list[PendingOwner]] = defaultdict(list)
    for pending_owner in pending_owners(cluster.api, configuration, counts_as, nodes, ""):
        if not pending_owner.has_node and pending_owner.since < began:
            by_namespace[pending_owner.namespace].append(pending_owner)
    for namespace, owners in sorted(by_namespace.items()):
        first, gpus = owners[0], sum((owner.gpus or NOTHING for owner in owners), NOTHING)
        more = f"; and {len(owners) - 1} more" if len(owners) > 1 else ""
        yield warning(
            "pending-with-quota",
            f"pods in {namespace}",
            f"hold {format_amount(gpus)} {unit(GPUS, gpus)} of the quota and have no node: {first.owner} since "
            f"{utc(first.since)}, {first.reason}{more}",
            f"gpu-admission why {first.owner} -n {namespace} says what each node lacks; delete what is not needed",
        )


CHECKS = (_pending_pods,)
