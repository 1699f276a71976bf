"""Kueue beside gpu-admission: what its flavors tolerate, and whether it admits what a GPUQuota denies."""

from collections.abc import Iterator

import msgspec

from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.tolerations import tolerated, toleration_text, toleration_yaml
from policies.quota.amounts import GPUS, ZERO, format_amount
from policies.registry import QUOTA_RULE
from webhook.cluster.kueue import GROUP, VERSIONS, FlavorSpec, Queue, most_admitted
from webhook.cluster.nodes import is_permanent_taint
from webhook.tools.doctor.check import Observation, doctor_check, warning
from webhook.tools.doctor.checks.control_plane import OUR_GROUP
from webhook.tools.doctor.checks.nodes import LIST_NODES, tolerations_by_document
from webhook.tools.installed_cluster import InstalledCluster, Permission


@doctor_check(
    "kueue-flavors",
    "Flavors of Kueue have the tolerations that GPU pods get",
    LIST_NODES,
    Permission("list", "resourceflavors", GROUP),
)
def _check_flavors(cluster: InstalledCluster) -> Iterator[Observation]:
    """Warn of a topology or `nodeTaints` whose taints Kueue compares with templates: only pods get our tolerations."""
    version = cluster.api.served_version(GROUP, VERSIONS)
    given = [
        toleration for of_document in tolerations_by_document(cluster).values() for toleration in of_document
    ]
    for flavor in cluster.items(f"/apis/{GROUP}/{version}/resourceflavors") if version else ():
        spec = msgspec.convert(flavor.get("spec") or {}, FlavorSpec)
        taints = list(spec.node_taints or ())
        if spec.topology_name:
            nodes = (node for node in cluster.gpu_nodes if spec.node_labels.items() <= node.labels.items())
            taints += [taint for node in nodes for taint in node.spec.taints if is_permanent_taint(taint)]
        missing = {
            toleration_text(taint): taint
            for taint in taints
            if not tolerated(taint, spec.tolerations) and tolerated(taint, given)
        }
        if missing:
            lacking = ", ".join(str(toleration_yaml(taint)) for taint in missing.values())
            message = f"must tolerate {', '.join(missing)}: Kueue compares templates with it, and only pods get the toleration"
            how = (
                ", in a new ResourceFlavor: one with topologyName is immutable" if spec.topology_name else ""
            )
            remedy = f"set spec.tolerations: [{lacking}]{how}"
            yield warning(
                "flavor-without-toleration", f"ResourceFlavor/{flavor['metadata']['name']}", message, remedy
            )


@doctor_check(
    "kueue-quotas",
    "No queue of Kueue admits more GPUs than the GPUQuota of a namespace that uses it",
    Permission("list", "localqueues", GROUP),
    Permission("list", "clusterqueues", GROUP),
    Permission("list", "cohorts", GROUP),
    Permission("list", "gpuquotas", OUR_GROUP),
)
def _check_queue_quotas(cluster: InstalledCluster) -> Iterator[Observation]:
    """Warn where Kueue admits more than a GPUQuota grants: the pods of a workload that it shows as admitted are then denied."""
    version = cluster.api.served_version(GROUP, VERSIONS)
    if version is None:
        return
    read = (
        [msgspec.convert(each, Queue) for each in cluster.items(f"/apis/{GROUP}/{version}/{plural}")]
        for plural in ("localqueues", "clusterqueues", "cohorts")
    )
    local_queues, cluster_queues, cohorts = read
    by_name, mapping = (
        {queue.metadata.name: queue for queue in cluster_queues},
        cluster.configuration.resource_mapping,
    )
    hard = {quota.namespace: quota.hard.get(GPUS) for quota in cluster.quotas if quota.spec is not None}
    for local_queue in local_queues:
        namespace, name = local_queue.metadata.namespace or "", local_queue.spec.cluster_queue
        granted, queue = hard.get(namespace), by_name.get(name)
        in_force = cluster.policy_of(namespace).in_force(QUOTA_RULE.id, cluster.now)
        if granted is None or queue is None or (in_force and in_force[0].options.respects_kueue):
            continue
        max_admitted = most_admitted(queue, cluster_queues, cohorts, mapping)
        card_amounts = {key: amount for key, amount in max_admitted.items() if _counts_cards(key[1], mapping)}
        admitted = sum(card_amounts.values(), ZERO)
        own = sum((queue.nominal(*key) for key in card_amounts), ZERO)
        if admitted > granted:
            amount, limit = format_amount(admitted), format_amount(granted)
            borrowed = f", {format_amount(admitted - own)} of them by borrowing" if admitted > own else ""
            message = (
                f"admits {amount} GPUs{borrowed}, and the GPUQuota of namespace {namespace} grants {limit}: Kueue shows "
                "workloads as admitted whose pods are denied"
            )
            remedy = f"set hard.gpus of the GPUQuota to {amount} or more, or waitForPodsReady in Kueue's configuration"
            yield warning("queue-above-quota", f"ClusterQueue/{name}", message, remedy)


def _counts_cards(resource: str, mapping: ResourceMapping) -> bool:
    """Whether an amount of the resource is a number of whole cards."""
    found = mapping.resource(resource)
    return found is not None and found.measure is Measure.DEVICES


CHECKS = (_check_flavors, _check_queue_quotas)
