"""Taints of nodes that come and go by themselves: a pod waits for their end, and needs no toleration.

A node that starts, is repaired, drained or deleted has them. A startup taint of a node pool is one, too, whatever its key.
"""

from collections.abc import Collection, Iterable

from policies.pods.pod import Toleration
from policies.pods.tolerations import describe_toleration

_HARD = frozenset({"NoSchedule", "NoExecute"})
OF_CONDITIONS = "node.kubernetes.io/"
"""How the keys of taints begin that repeat a node's conditions and its cordon (k8s.io/api core/v1 well_known_taints.go)."""
_GOING = (
    # cluster-autoscaler (utils/taints) and Karpenter (karpenter.sh/disruption before v1)
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupt",
    # Interruptions by clouds: AWS Node Termination Handler, GKE
    "aws-node-termination-handler/",
    "cloud.google.com/impending-node-termination",
)
"""How the keys of taints begin that nodes have which will be removed."""
_PREFIXES = (
    *_GOING,
    OF_CONDITIONS,
    "node.cloudprovider.kubernetes.io/",
    # Conditions that must hold before pods run (kubernetes-sigs/node-readiness-controller)
    "readiness.k8s.io/",
    # cluster-autoscaler: nodes that are starting, or suspended (utils/taints)
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "karpenter.sh/",
    # Cluster API: uninitialized, outdated-revision (api/core common_types.go)
    "node.cluster.x-k8s.io/",
    # Repairs by AKS (node auto-repair and auto-drain)
    "remediator.kubernetes.azure.com/",
    # AMD GPU operator: an upgrade of the driver, a partitioning, a GPU that is out of order (internal/controllers)
    "amd-gpu-driver-upgrade",
    "amd-dcm",
    "amd-gpu-unhealthy",
)
_SUFFIXES = (
    # Agents of networks and storage: node.cilium.io, ebs.csi.aws.com and efs.csi.aws.com write agent-not-ready, Istio
    # cni.istio.io/not-ready, Gardener node.gardener.cloud/critical-components-not-ready
    "not-ready",
    "uninitialized",
    "driver-upgrade",
)


def is_hard(taint: Toleration) -> bool:
    """Whether a taint keeps pods away that do not tolerate it."""
    return taint.effect in _HARD


def is_going(taint: Toleration) -> bool:
    """Whether a taint says that the node will be removed."""
    return (taint.key or "").startswith(_GOING)


def is_lasting(taint: Toleration, startup_taints: Collection[Toleration] = ()) -> bool:
    """Whether a taint keeps pods away for as long as the node exists.

    startup_taints: of all node pools. As Karpenter does, they are compared by key and effect.
    """
    key = taint.key or ""
    is_of_pool = any((each.key, each.effect) == (taint.key, taint.effect) for each in startup_taints)
    return is_hard(taint) and not (is_of_pool or key.startswith(_PREFIXES) or key.endswith(_SUFFIXES))


def hard_taints(taints: Iterable[Toleration]) -> tuple[Toleration, ...]:
    """Return the taints that keep pods away, without the time at which they came."""
    hard = (
        Toleration(key=each.key, value=each.value, effect=each.effect) for each in taints if is_hard(each)
    )
    return tuple(sorted(hard, key=describe_toleration))
