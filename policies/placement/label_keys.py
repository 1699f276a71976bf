"""Keys of node labels by name and by glob: which of them choose hardware, and which are known of every node."""

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import cached_property

import msgspec

EXCEPT = "!"
"""Before a glob: the keys that it fits are left out."""


class LabelKeys(msgspec.Struct, frozen=True, dict=True):
    """Label keys: `names`, and besides them those for which the first glob that fits is not one of EXCEPT."""

    names: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()

    def __contains__(self, key: object) -> bool:
        if key in self.names:
            return True
        fitting = (is_in for is_in, pattern in self._patterns if pattern.match(str(key)))
        return next(fitting, False)

    @cached_property
    def _patterns(self) -> tuple[tuple[bool, re.Pattern[str]], ...]:
        """The globs, those that follow each other with the same meaning as one pattern."""
        groups: list[tuple[bool, list[str]]] = []
        for glob in self.globs:
            is_in = not glob.startswith(EXCEPT)
            if not groups or groups[-1][0] is not is_in:
                groups.append((is_in, []))
            groups[-1][1].append(translate(glob.removeprefix(EXCEPT)))
        return tuple((is_in, re.compile("|".join(patterns))) for is_in, patterns in groups)


HARDWARE = (
    f"{EXCEPT}nvidia.com/gpu.present",
    f"{EXCEPT}nvidia.com/gpu.deploy.*",
    "nvidia.com/gpu.*",
    "nvidia.com/mig.*",
    "nvidia.com/mig-*",
    "nvidia.com/vgpu.*",
    "gpu.nvidia.com/*",
    "amd.com/gpu.*",
    "beta.amd.com/gpu.*",
    "gpu.intel.com/*",
    "feature.node.kubernetes.io/pci-*",
    "cloud.google.com/gke-accelerator*",
    "cloud.google.com/gke-tpu-*",
    "cloud.google.com/gke-nodepool",
    "cloud.google.com/compute-class",
    "cloud.google.com/machine-family",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "karpenter.sh/nodepool",
    "karpenter.k8s.aws/instance-*",
    "karpenter.azure.com/sku-*",
    "eks.amazonaws.com/instance-*",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "agentpool",
    "kubernetes.azure.com/agentpool",
    "skypilot.co/accelerator",
    "kubernetes.io/hostname",
)
"""Globs over the keys of labels that choose hardware."""

KNOWN = (
    # GPU Feature Discovery: the versions of driver and CUDA, and the MIG slices of a node
    "nvidia.com/cuda.driver.*",
    "nvidia.com/cuda.driver-version.*",
    "nvidia.com/cuda.runtime.*",
    "nvidia.com/cuda.runtime-version.*",
    "nvidia.com/mig-*.count",
    # Of well-known labels (k8s.io/api core/v1 well_known_labels.go) those by which pods choose among nodes of one class
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/os",
)
"""Globs over the keys that are known of every node besides those that choose hardware."""


def known_keys(class_keys: frozenset[str], hardware: Iterable[str]) -> LabelKeys:
    """Return the keys that are kept of every node: those of classes, of globs that choose hardware, and KNOWN.

    Names of nodes are left out: nearly every node would have labels of its own.
    """
    chosen = (glob for glob in dict.fromkeys((*hardware, *HARDWARE)) if not glob.startswith(EXCEPT))
    return LabelKeys(class_keys, (f"{EXCEPT}kubernetes.io/hostname", *chosen, *KNOWN))
