"""Kueue beside gpu-admission: what its flavors tolerate, and whether it admits what a GPUQuota denies."""

from collections.abc import Iterator

import msgspec

from policies.pods.pod import Toleration, View
from policies.pods.tolerations import describe_toleration, tolerated, toleration_of
from policies.quota.amounts import GPUS, NOTHING, format_amount
from webhook.cluster.kueue import GROUP, VERSIONS, Queue, nominal_gpus
from webhook.cluster.taints import is_lasting
from webhook.tools.doctor.check import Observation, doctor_check, warning
from webhook.tools.doctor.checks.control_plane import OURS
from webhook.tools.doctor.checks.nodes import READ, tolerations_by_document
from webhook.tools.installed_cluster import InstalledCluster, Permission


class _Flavor(View, frozen=True):
    """The spec of a ResourceFlavor (Kueue)."""

    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    node_taints: tuple[Toleration, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_name: str = ""


@doctor_check(
    "kueue-flavors",
    "Flavors of Kueue have the tolerations that GPU pods get",
    READ,
    Permission("list", "resourceflavors", GROUP),
)
def _flavors(cluster: InstalledCluster) -> Iterator[Observation]:
    """Warn of a topology or `nodeTaints` whose taints Kueue compares with templates: only pods get our tolerations."""
    version = cluster.api.served_version(GROUP, VERSIONS)
    given = [toleration for of_owner in tolerations_by_document(cluster).values() for toleration in of_owner]
    for flavor in cluster.items(f"/apis/{GROUP}/{version}/resourceflavors") if version else ():
        spec = msgspec.convert(flavor.get("spec") or {}, _Flavor)
        taints = list(spec.node_taints or ())
        if spec.topology_name:
            nodes = (each for each in cluster.gpu_nodes if spec.node_labels.items() <= each.labels.items())
            taints += [taint for node in nodes for taint in node.spec.taints if is_lasting(taint)]
        missing = {
            describe_toleration(taint): taint
            for taint in taints
            if not tolerated(taint, spec.tolerations) and tolerated(taint, given)
        }
        if missing:
            lacking = ", ".join(str(toleration_of(taint)) for taint in missing.values())
            message = f"must tolerate {', '.join(missing)}: Kueue compares templates with it, and only pods get the toleration"
            again = (
                ", in a new ResourceFlavor: one with topologyName is immutable" if spec.topology_name else ""
            )
            remedy = f"set spec.tolerations: [{lacking}]{again}"
            yield warning(
                "flavor-without-toleration", f"ResourceFlavor/{flavor['metadata']['name']}", message, remedy
            )


@doctor_check(
    "kueue-quotas",
    "No queue of Kueue grants more GPUs than the GPUQuota of a namespace that uses it",
    Permission("list", "localqueues", GROUP),
    Permission("list", "clusterqueues", GROUP),
    Permission("list", "gpuquotas", OURS),
)
def _quotas(cluster: InstalledCluster) -> Iterator[Observation]:
    """Warn where Kueue admits more than a GPUQuota grants: the pods of a workload that it shows as admitted are then denied."""
    version = cluster.api.served_version(GROUP, VERSIONS)
    if version is None:
        return
    listed, mapping = (
        cluster.items(f"/apis/{GROUP}/{version}/clusterqueues"),
        cluster.configuration.resource_mapping,
    )
    whole = {each["metadata"]["name"]: msgspec.convert(each, Queue) for each in listed}
    hard = {quota.namespace: quota.hard.get(GPUS) for quota in cluster.quotas if quota.spec is not None}
    for each in cluster.items(f"/apis/{GROUP}/{version}/localqueues"):
        namespace, name = each["metadata"]["namespace"], msgspec.convert(each, Queue).spec.cluster_queue
        granted = hard.get(namespace)
        nominal = nominal_gpus(whole[name], mapping) if name in whole else NOTHING
        if granted is not None and nominal > granted:
            amount, most = format_amount(nominal), format_amount(granted)
            message = (
                f"grants {amount} GPUs, and the GPUQuota of namespace {namespace} {most}: Kueue shows workloads as admitted "
                "whose pods are denied"
            )
            remedy = f"set hard.gpus of the GPUQuota to {amount} or more, or waitForPodsReady in Kueue's configuration"
            yield warning("queue-above-quota", f"ClusterQueue/{name}", message, remedy)


CHECKS = (_flavors, _quotas)
