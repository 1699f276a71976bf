"""Labels and annotations by which a pod chooses its hardware itself, and the labels of nodes that the webhook keeps for that.

The webhook must not choose a class for a pod that chooses its hardware, because it could contradict the pod's own choice.
"""

import re
from collections.abc import Iterable, Iterator
from fnmatch import translate
from functools import cached_property, lru_cache

import msgspec

from policies.gpus.vendors import from_all_vendors
from policies.placement.nodes import NODE_NAME_FIELD
from policies.pods.limits import LONGEST_NAME
from policies.pods.pod import NodeSelectorTerm, Pod

EXCEPT = "!"
"""Prefix of a glob that excludes its keys."""


class LabelKeys(msgspec.Struct, frozen=True, dict=True):
    """A set of label keys: `names`, and each key whose first matching glob does not begin with EXCEPT."""

    names: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()

    def __contains__(self, key: object) -> bool:
        if key in self.names:
            return True
        if not isinstance(key, str) or len(key) > LONGEST_NAME:
            return False
        match = self._pattern.match(key)
        return match is not None and not self.globs[(match.lastindex or 0) - 1].startswith(EXCEPT)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """One group for each glob: the number of the matching group is the number of the glob."""
        groups = (f"({translate(glob.removeprefix(EXCEPT))})" for glob in self.globs)
        return re.compile("|".join(groups) or "(?!)")


HARDWARE_LABELS = (
    # These labels only say that a node has a device, or one of a vendor: Node Feature Discovery's pci-<vendor> and
    # pci-<class>_<vendor> (its documentation, deviceLabelFields), AKS's and DOKS's, gpu-manufacturer of Karpenter's providers.
    "!feature.node.kubernetes.io/pci-????.present",
    "!feature.node.kubernetes.io/pci-????_????.present",
    "!kubernetes.azure.com/accelerator",
    "!doks.digitalocean.com/gpu-brand",
    "!*gpu-manufacturer",
    *from_all_vendors(lambda vendor: vendor.hardware_labels),
    "feature.node.kubernetes.io/pci-*",
    # GKE: gke-accelerator and its count, gke-gpu-partition-size, gke-tpu-topology, …
    "!cloud.google.com/gke-gpu-driver-version",
    "cloud.google.com/gke-accelerator*",
    "cloud.google.com/gke-gpu-*",
    "cloud.google.com/gke-tpu-*",
    "cloud.google.com/compute-class",
    "cloud.google.com/machine-family",
    "cloud.google.com/reservation-*",
    # Karpenter's providers (AWS, Azure, Google Cloud) and EKS Auto Mode, by kind of machine
    "karpenter.*/instance-*",
    "karpenter.*/sku-*",
    "eks.amazonaws.com/instance-*",
    # Alibaba Cloud (nvidia_name, nvidia_mem) and Volcengine (gpu-name)
    "aliyun.accelerator/*",
    "machine.cluster.vke.volcengine.com/gpu-*",
    # Machine types: node.kubernetes.io/instance-type and its beta name, ibm-cloud.kubernetes.io/machine-type
    "*instance-type",
    "*instanceType",
    "*machine-type",
    # Node pools, each of one machine type: karpenter.sh/nodepool and provisioner-name, cloud.google.com/gke-nodepool,
    # agentpool and kubernetes.azure.com/agentpool, eks.amazonaws.com/nodegroup, alpha.eksctl.io/nodegroup-name,
    # kops.k8s.io/instancegroup, doks.digitalocean.com/node-pool, lke.linode.com/pool-id, k8s.scaleway.com/pool-name,
    # alibabacloud.com/nodepool-id; NodeGroupType and NodePool (awslabs' Data on EKS and AI on EKS)
    "*agentpool",
    "*node[-_]pool",
    "*nodepool",
    "*nodePool",
    "*NodePool",
    "*node[-_]group",
    "*nodegroup",
    "*nodeGroup",
    "*NodeGroup",
    "*NodeGroupType",
    "*nodegroup-name",
    "*instancegroup",
    "*pool-id",
    "*pool-name",
    "karpenter.sh/provisioner-name",
    # Names of cards: skypilot.co/accelerator, k8s.amazonaws.com/accelerator (cluster-autoscaler),
    # doks.digitalocean.com/gpu-model, and common names of labels that platforms define themselves
    "*accelerator",
    "*accelerator[-_]type",
    "*acceleratorType",
    "*gpu[-_]card[-_]model",
    "*gpu[-_]model",
    "*gpuModel",
    "*gpu[-_]name",
    "*gpu[-_]product",
    "*gpu[-_]type",
    "*gpuType",
    # What the cards of a node are together, by labels that platforms define themselves
    "*accelerator[-_]count",
    "*gpu[-_]count",
    "*gpuCount",
    "*gpu[-_]family",
    "*gpu[-_]mem",
    "*gpu[-_]memory*",
    "*gpuMemory",
    # One node
    "kubernetes.io/hostname",
)
"""Globs over node label keys; see `LabelKeys`."""

_HAMI_ANNOTATIONS = {
    "nvidia.com": ("gputype", "gpuuuid"),
    "amd.com": ("gputype", "gpu-uuid"),
    "aws.amazon.com": ("neuron-uuid",),
    "baidu.com": ("gpuuuid",),
    "cambricon.com": ("mlutype",),
    "hygon.com": ("dcutype",),
}
"""A pod chooses its card by `<domain>/use-gputype`, `nouse-gputype`, … under HAMi's scheduler (its documentation, userguide)."""

HARDWARE_ANNOTATIONS = (
    *(
        f"{of}/{way}-{what}"
        for of, names in _HAMI_ANNOTATIONS.items()
        for what in names
        for way in ("use", "nouse")
    ),
    # Virtual kubelets, of Azure, Alibaba Cloud (ECI), Tencent Cloud and Salad: the kind of card or machine
    "virtual-kubelet.io/gpu-type",
    "k8s.aliyun.com/eci-gpu-type",
    "k8s.aliyun.com/eci-use-specs",
    "eks.tke.cloud.tencent.com/gpu-type",
    "salad.com/gpu-classes",
)
"""Annotations by which a pod chooses its card."""


@lru_cache(maxsize=64)
def hardware_keys(globs: tuple[str, ...], class_keys: frozenset[str]) -> LabelKeys:
    """Return the keys that choose hardware: keys of classes, then the policy's `globs`, then the built-in globs."""
    return LabelKeys(class_keys, (*globs, *HARDWARE_LABELS))


def chosen_hardware(pod: Pod, keys: LabelKeys, label_key: str) -> str | None:
    """Return the pod's own choice of hardware, in words, or None.

    label_key: the label that pins pods to classes. If a pod only excludes values of it, this is not a choice.
    """
    if not (pod.constrains_nodes or pod.annotations):
        return None
    return next(_choices(pod, keys, label_key), None)


def _choices(pod: Pod, keys: LabelKeys, label_key: str) -> Iterator[str]:
    for key, value in pod.node_selector.items():
        if key in keys:
            yield f"nodeSelector {key}={value}"
    for term in pod.required_terms:
        for key, operator in _requirements(term, keys):
            if key != label_key or operator == "In":
                yield f"node affinity on {key}"
    for preferred in pod.node_affinity.preferred or ():
        for key, _ in _requirements(preferred.preference, keys) if preferred.preference else ():
            yield f"preferred node affinity on {key}"
    for key in HARDWARE_ANNOTATIONS:
        if key in pod.annotations:
            yield f"annotation {key}"


def _requirements(term: NodeSelectorTerm, keys: LabelKeys) -> Iterator[tuple[str, str]]:
    """Yield key and operator of the requirements that choose hardware. `matchFields` choose nodes, and so hardware."""
    for expression in term.match_expressions or ():
        # `Exists` on a label of classes says only that the node has a GPU.
        if expression.key in keys and not (expression.operator == "Exists" and expression.key in keys.names):
            yield expression.key, expression.operator
    if term.match_fields:
        yield NODE_NAME_FIELD, "In"


ALWAYS_KEPT = (
    *from_all_vendors(lambda vendor: vendor.other_labels),
    # Well-known labels (k8s.io/api core/v1 well_known_labels.go) by which pods choose among nodes of one class
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/os",
)
"""Globs of further keys that are kept: labels of the vendors, and labels by which pods choose a zone or an architecture."""


def kept_label_keys(class_keys: frozenset[str], hardware_globs: Iterable[str]) -> LabelKeys:
    """Return the keys of the labels that the webhook keeps of each node. Nodes with equal kept labels share one label set.

    They are the label keys of GPUClasses, keys that describe hardware, and ALWAYS_KEPT. The hostname is excluded, because with
    it every node would have its own label set.
    """
    # Exclusions say what chooses no hardware. A pod may require such a label all the same.
    included = (glob for glob in dict.fromkeys(hardware_globs) if not glob.startswith(EXCEPT))
    return LabelKeys(class_keys, (f"{EXCEPT}kubernetes.io/hostname", *included, *ALWAYS_KEPT))
