"""Which nodes can mount an image as a volume (`volumes[].image`), by the versions in their status.

Kubelet, runtime and API server must all support it. Else the container does not start, or the volume is empty (KEP-4639,
Version Skew Strategy). A kubelet is never newer than its API server.
"""

import re
from functools import lru_cache

from policies.placement.nodes import NodeFacts
from policies.pods.pod import Pod

_KUBELET = (1, 36)
"""Since then the feature gate ImageVolume cannot be switched off (pkg/features/kube_features.go, v1.36.3)."""
_RUNTIMES = {"containerd": (2, 1), "cri-o": (1, 31)}
"""The first versions (test/e2e_node/image_volume.go of Kubernetes 1.36; release notes of CRI-O 1.31). cri-dockerd has none of it
(k3s-io/k3s, issue 14452)."""
_WITHOUT_VM = frozenset({None, "nvidia", "nvidia-cdi", "nvidia-legacy"})
"""RuntimeClasses known to run no virtual machine (Kata mounts no images in one: kata-containers, issue 13749): none, and the
three of NVIDIA's GPU operator."""
_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")


@lru_cache(maxsize=64)
def mounts_images(kubelet: str, runtime: str, operating_system: str) -> bool:
    """Return whether such a node can mount images, e.g. (`v1.36.3`, `containerd://2.1.4`, `linux`)."""
    name, _, version = runtime.partition("://")
    if operating_system != "linux" or name not in _RUNTIMES:
        return False
    return _numbers(kubelet) >= _KUBELET and _numbers(version) >= _RUNTIMES[name]


def _numbers(version: str) -> tuple[int, ...]:
    match = _VERSION.match(version)
    return tuple(map(int, match.groups())) if match else ()


def all_mount_images(pod: Pod, requested: dict[str, int], nodes: NodeFacts | None) -> bool:
    """Return whether each node that can take the pod is known to mount images; False without such a node.

    requested: amounts of extended resources. The nodes that an autoscaler can create have no known version.
    """
    if nodes is None or pod.spec.runtime_class_name not in _WITHOUT_VM:
        return False
    states = nodes.states_for(pod, requested) or ()  # None: unknown, or a pool makes the node
    fitting = [state for state in states if state.has_amounts(requested) and not state.untolerated_by(pod)]
    return bool(fitting) and all(node_state.mounts_images for node_state in fitting)
