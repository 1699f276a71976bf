"""Ways to reach GPUs without a request: variables of container runtimes, files of the node, and annotations.

Variables and devices come from `vendors`. CUDA_, HIP_, ROCR_ and ASCEND_RT_VISIBLE_DEVICES are not included: with them, a
process only chooses among the devices of its container.
"""

import re

from policies.gpus.vendors import HIDING, VENDORS, of_all
from policies.pods.names import cleaned_path

VISIBLE_DEVICES = of_all(lambda vendor: vendor.visible_devices)
_HIDING = {variable: vendor.hiding for vendor in VENDORS for variable in vendor.visible_devices}
DOCKER_RESOURCE = "DOCKER_RESOURCE_"
"""Prefix of variables (swarm's generic resources) that AMD's runtime reads as AMD_VISIBLE_DEVICES."""

NODE_PATHS = (
    *of_all(lambda vendor: vendor.node_paths),
    # Every device by its number
    "/dev/char/",
    # Cards that are passed through to virtual machines.
    "/dev/vfio/",
    # A device plugin is what registers in the one; what reads the other is taken for an exporter.
    "/var/lib/kubelet/device-plugins/",
    "/var/lib/kubelet/pod-resources/",
    # What registers in the one is a device plugin or DRA driver, too (`pluginwatcher` of the kubelet); sockets of DRA drivers.
    "/var/lib/kubelet/plugins_registry/",
    "/var/lib/kubelet/plugins/",
    # Specifications of CDI devices (`spec-dirs.go` of container-device-interface).
    "/etc/cdi/",
    "/run/cdi/",
    # Container runtimes start containers with any device; NRI plugins add devices to those of others.
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/crio/crio.sock",
    "/run/docker.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
    "/run/dockershim.sock",
    "/run/podman/podman.sock",
    "/run/nri/",
)
"""Beginnings of paths of a node, where a directory ends with a slash; a directory above one of them leads there, too."""
OTHER_ROOT = r"^/proc/($|(self|thread-self|[0-9]+)/($|task/([0-9]+/)?$|(.+/)?(root|cwd|fd)/))"
"""Links below a process to any directory of the node, which the kubelet and the runtime follow, and directories above them."""

GPU_STACK_PATHS = ("/var/lib/kubelet/device-plugins/", "/var/lib/kubelet/pod-resources/")
"""Mounted by device plugins and by exporters, which see all GPUs by the value in their images."""

DEVICE_LIST = "nvidia-container-devices"
"""NVIDIA's runtime reads mounts below /var/run/nvidia-container-devices as a list of GPUs (`visibleDevicesFromMounts`).

It cleans the path first, so this name is in every path that it reads, however that is written.
"""

DEVICE_ANNOTATIONS = (
    r"^(([^/]+\.)?cdi\.k8s\.io|(cdi-)?devices\.nri\.io|devices\.crio\.io|io\.kubernetes\.cri-o\.Devices)(/|$)"
)
"""Annotations by which a pod names devices of its node: CDI (with nvidia.cdi.k8s.io), plugins of NRI, CRI-O."""

_OTHER_ROOT, _DEVICE_ANNOTATIONS = re.compile(OTHER_ROOT), re.compile(DEVICE_ANNOTATIONS)


def shows_devices(variable: str) -> bool:
    """Whether a container runtime reads devices from this environment variable."""
    return variable in VISIBLE_DEVICES or variable.startswith(DOCKER_RESOURCE)


def hiding_values(variable: str) -> tuple[str, ...]:
    """Return the values of that variable by which no device is shown, the best one last."""
    return _HIDING.get(variable, HIDING)


def may_set_devices(prefix: str) -> bool:
    """Whether names with this prefix (of envFrom) can be those of such variables."""
    names = (*VISIBLE_DEVICES, DOCKER_RESOURCE)
    return prefix.startswith(DOCKER_RESOURCE) or any(name.startswith(prefix) for name in names)


def leads_to_gpus(path: str) -> bool:
    """Whether a path of the node is a way to its GPUs, or a directory with one in it (/dev, /run, /)."""
    shown = canonical(path)
    near = any(shown.startswith(each) or each.startswith(shown) for each in NODE_PATHS)
    return bool(path) and (near or _OTHER_ROOT.search(shown) is not None)


def is_of_the_gpu_stack(path: str) -> bool:
    """Whether device plugins or exporters mount this path of the node."""
    return canonical(path).startswith(GPU_STACK_PATHS)


def canonical(path: str) -> str:
    """Return the path without `.`, `..` and doubled slashes, below /run for /var/run, and with a slash at its end."""
    cleaned = cleaned_path(path).rstrip("/") + "/"
    return cleaned.removeprefix("/var") if cleaned.startswith("/var/run/") else cleaned


def is_device_list(mount_path: str) -> bool:
    """Whether NVIDIA's runtime reads what a container mounts there as a list of GPUs."""
    return DEVICE_LIST in mount_path


def names_devices(annotation: str) -> bool:
    """Whether the key is that of an annotation by which a pod names devices of its node."""
    return _DEVICE_ANNOTATIONS.search(annotation) is not None
