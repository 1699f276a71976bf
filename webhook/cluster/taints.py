"""Taints of nodes that come and go by themselves: a pod waits for their end, and needs no toleration.

A node that starts, is repaired, drained or deleted has them. A startup taint of a node pool is one, too, whatever its key.
"""

from collections.abc import Collection

from policies.pods.pod import Toleration

_HARD = frozenset({"NoSchedule", "NoExecute"})
_PREFIXES = (
    # Conditions of a node, its cordon (spec.unschedulable says it, too), and its start (k8s.io/api core/v1 well_known_taints.go)
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    # Conditions that must hold before pods run (kubernetes-sigs/node-readiness-controller)
    "readiness.k8s.io/",
    # cluster-autoscaler: nodes that go, or are starting (utils/taints)
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    # Karpenter: karpenter.sh/unregistered, karpenter.sh/disrupted
    "karpenter.sh/",
    # Cluster API: uninitialized, outdated-revision (api/core common_types.go)
    "node.cluster.x-k8s.io/",
    # Interruptions and repairs by clouds: AWS Node Termination Handler, GKE, AKS (node auto-repair and auto-drain)
    "aws-node-termination-handler/",
    "cloud.google.com/impending-node-termination",
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


def is_lasting(taint: Toleration, startup_taints: Collection[Toleration] = ()) -> bool:
    """Whether a taint keeps pods away for as long as the node exists.

    startup_taints: of all node pools. As Karpenter does, they are compared by key and effect.
    """
    key = taint.key or ""
    is_of_pool = any((each.key, each.effect) == (taint.key, taint.effect) for each in startup_taints)
    return taint.effect in _HARD and not (is_of_pool or key.startswith(_PREFIXES) or key.endswith(_SUFFIXES))
