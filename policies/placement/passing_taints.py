"""Taints that go by themselves: those of nodes that start, that are ill, or that are removed.

A pod must not tolerate them, but wait: it would start where something that it needs is missing.
"""

from collections.abc import Collection

from policies.pods.pod import Toleration

_HARD = frozenset({"NoSchedule", "NoExecute"})

OF_CONDITIONS = "node.kubernetes.io/"
"""How keys of taints begin that say what a node's conditions and its cordon say (k8s.io/api core/v1 well_known_taints.go)."""

_REMOVED_BY = {
    OF_CONDITIONS: "Kubernetes",
    # `TaintExternalCloudProvider`, `TaintNodeShutdown` (k8s.io/cloud-provider api/well_known_taints.go)
    "node.cloudprovider.kubernetes.io/": "the cloud provider",
    # `NodeUninitializedTaint` (cluster-api api/core/v1beta1/common_types.go)
    "node.cluster.x-k8s.io/": "Cluster API",
    # `StartupTaintPrefix`, `IgnoreTaintPrefix`, `StatusTaintPrefix` (cluster-autoscaler utils/taints)
    "startup-taint.cluster-autoscaler.kubernetes.io/": "what starts the node",
    "ignore-taint.cluster-autoscaler.kubernetes.io/": "what starts the node",
    "status-taint.cluster-autoscaler.kubernetes.io/": "what set it",
    # `UnregisteredTaintKey` (karpenter pkg/apis/v1/taints.go)
    "karpenter.sh/unregistered": "Karpenter",
    # Network: `AgentNotReadyNodeTaint` (cilium pkg/option), ovn-kubernetes, the node untainter of Istio
    "node.cilium.io/": "Cilium",
    "k8s.ovn.org/": "OVN-Kubernetes",
    "cni.istio.io/": "Istio",
    # Rules of sigs.k8s.io/node-readiness-controller
    "readiness.k8s.io/": "the node readiness controller",
    # The GPU operator of AMD, while it upgrades the driver (internal/controllers/upgrademgr.go)
    "amd-gpu-driver-upgrade": "AMD's GPU operator",
}
"""What removes the taints whose keys begin so."""
_GOING = (
    # `ToBeDeletedTaint`, `DeletionCandidateTaintKey` (cluster-autoscaler utils/taints)
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    # `DisruptedTaintKey`, before v1 karpenter.sh/disruption; other keys of Karpenter
    "karpenter.sh/",
    # Interruptions and maintenance: AWS's node termination handler, GKE's
    "aws-node-termination-handler/",
    "cloud.google.com/impending-node-termination",
)
"""How keys of taints of nodes begin that will be removed."""
_STARTING = ("not-ready", "uninitialized")
"""How keys end of taints that agents of storage, networks and clusters remove: ebs.csi.aws.com/agent-not-ready,
disk.csi.azure.com/agent-not-ready, node.gardener.cloud/critical-components-not-ready."""


def is_hard(taint: Toleration) -> bool:
    """Whether it keeps pods away that do not tolerate it."""
    return taint.effect in _HARD


def is_lasting(taint: Toleration, startup: Collection[Toleration] = ()) -> bool:
    """Whether a taint keeps pods away for as long as the node exists. startup: the `startupTaints` of the node's pool."""
    return is_hard(taint) and not awaited(taint, startup)


def awaited(taint: Toleration, startup: Collection[Toleration] = ()) -> str:
    """Return what a pod waits for that the taint keeps away, after "wait until"; "" if the taint stays."""
    key = taint.key or ""
    for prefix, remover in _REMOVED_BY.items():
        if key.startswith(prefix):
            return f"{remover} removes it"
    if key.startswith(_GOING):
        return "there is another node: this one will be removed"
    is_startup = any((each.key, each.effect) == (taint.key, taint.effect) for each in startup)
    return "the node has started" if is_startup or key.endswith(_STARTING) else ""
