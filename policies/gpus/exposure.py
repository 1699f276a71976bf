"""Ways to reach GPUs without a request: variables of container runtimes, files of the node, and annotations.

Variables and devices come from `vendors`. CUDA_, HIP_, ROCR_ and ASCEND_RT_VISIBLE_DEVICES are not included: with them, a
process only chooses among the devices of its container.
"""

import re
from fnmatch import translate

import msgspec

from policies.gpus.vendor import HIDING
from policies.gpus.vendors import VENDORS, from_all_vendors
from policies.pods.names import cleaned_path
from policies.pods.pod import EnvVar, View

VISIBLE_DEVICES = from_all_vendors(lambda vendor: vendor.visible_devices)
_HIDING_VALUES = {variable: vendor.hiding_values for vendor in VENDORS for variable in vendor.visible_devices}
DOCKER_RESOURCE = "DOCKER_RESOURCE_"
"""Prefix of variables (swarm's generic resources) that AMD's runtime reads as AMD_VISIBLE_DEVICES."""

GPU_STACK_PATHS = ("/var/lib/kubelet/device-plugins/", "/var/lib/kubelet/pod-resources/")
"""Device plugins register in the first; exporters read the second. The variable in their images shows them all GPUs."""

MONITOR_RESOURCES = (
    *from_all_vendors(lambda vendor: vendor.monitor_resources),
    # GPUStack's, for its own sidecars (its documentation, Accelerator Requests)
    "device.gpustack.ai/*",
)
"""Globs of resources whose unit shows all cards of a node, and reserves none."""

_VENDOR_PATHS = from_all_vendors(lambda vendor: vendor.node_paths)
NODE_PATHS = (
    *_VENDOR_PATHS,
    # Every device by its number
    "/dev/char/",
    # Cards that are passed through to virtual machines.
    "/dev/vfio/",
    *GPU_STACK_PATHS,
    # Device plugins and DRA drivers also register here (`pluginwatcher` of the kubelet). Sockets of DRA drivers.
    "/var/lib/kubelet/plugins_registry/",
    "/var/lib/kubelet/plugins/",
    # Specifications of CDI devices (`spec-dirs.go` of container-device-interface).
    "/etc/cdi/",
    "/run/cdi/",
    # Container runtimes start containers with any device. NRI plugins add devices to other containers.
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
"""Beginnings of paths of a node. A directory ends with a slash. A parent directory leads to GPUs, too."""
PROC_LINKS = r"^/proc/($|(self|thread-self|[0-9]+)/($|task/([0-9]+/)?$|(.+/)?(root|cwd|fd)/))"
"""Links in /proc to any directory of the node, and their parent directories. The kubelet and the runtime follow them."""

DEVICE_LIST = "nvidia-container-devices"
"""NVIDIA's runtime reads a mount below /var/run/nvidia-container-devices, however it is spelt, as a list of GPUs
(`visibleDevicesFromMounts`)."""

CDI = "cdi.k8s.io"
DEVICE_ANNOTATIONS = (
    CDI,
    "cdi-devices.nri.io",
    "devices.nri.io",
    "cdi-devices.noderesource.dev",
    "devices.noderesource.dev",
    "devices.crio.io",
    "devices.gke.io",
    "io.kubernetes.cri-o.Devices",
)
"""How annotations begin, up to a slash, by which a pod requests devices of its node: CDI (below any domain, such as
nvidia.cdi.k8s.io), the device injectors of containerd/nri (both names) and GKE (container-engine-accelerators), CRI-O.
"""

DEVICE_KEYS = (f"*{CDI}*", *(f"{annotation}*" for annotation in DEVICE_ANNOTATIONS))
"""Globs over keys that match all of these annotations, and some others."""

_PROC_LINK = re.compile(PROC_LINKS)
_MONITOR_RESOURCE = re.compile("|".join(map(translate, MONITOR_RESOURCES)))


def shows_devices(variable: str) -> bool:
    """Whether a container runtime reads devices from this environment variable."""
    return variable in VISIBLE_DEVICES or variable.startswith(DOCKER_RESOURCE)


def hiding_values(variable: str) -> tuple[str, ...]:
    """Return the values of that variable that show no device, the best one last."""
    return _HIDING_VALUES.get(variable, HIDING)


def may_set_devices(prefix: str) -> bool:
    """Whether a variable with this prefix (of envFrom) may show devices."""
    names = (*VISIBLE_DEVICES, DOCKER_RESOURCE)
    return prefix.startswith(DOCKER_RESOURCE) or any(name.startswith(prefix) for name in names)


def shows_all_cards(resource: str) -> bool:
    """Whether a unit of the resource shows all cards of a node, for monitoring."""
    return _MONITOR_RESOURCE.fullmatch(resource) is not None


def leads_to_gpus(path: str) -> bool:
    """Whether a path of the node leads to its GPUs, or is a parent directory of such a path (/dev, /run, /)."""
    cleaned = canonical(path)
    is_near = any(cleaned.startswith(node_path) or node_path.startswith(cleaned) for node_path in NODE_PATHS)
    return bool(path) and (is_near or _PROC_LINK.search(cleaned) is not None)


def is_device(path: str) -> bool:
    """Whether a path of the node is a device of a vendor: a container that requests a GPU gets it without a mount."""
    return canonical(path).startswith(tuple(path for path in _VENDOR_PATHS if path.startswith("/dev/")))


def is_of_the_gpu_stack(path: str) -> bool:
    """Whether device plugins or exporters mount this path of the node."""
    return canonical(path).startswith(GPU_STACK_PATHS)


def canonical(path: str) -> str:
    """Return the path without `.`, `..` and double slashes, with /run for /var/run, and with a slash at its end."""
    cleaned = cleaned_path(path).rstrip("/") + "/"
    return cleaned.removeprefix("/var") if cleaned.startswith("/var/run/") else cleaned


def names_devices(annotation: str) -> bool:
    """Whether a pod requests devices of its node by this annotation."""
    prefix = annotation.partition("/")[0]
    return prefix in DEVICE_ANNOTATIONS or prefix.endswith(f".{CDI}")


class _Key(View, frozen=True):
    name: str = ""
    key: str = ""


class _Field(View, frozen=True):
    field_path: str = ""


class Source(View, frozen=True):
    """A key of a ConfigMap, a field of the pod, or another source, which is not read."""

    config_map_key_ref: _Key | None = None
    field_ref: _Field | None = None

    def is_annotation(self, key: str) -> bool:
        return self.field_ref is not None and self.field_ref.field_path == f"metadata.annotations['{key}']"


_decode = msgspec.json.Decoder(Source).decode


def source_of(variable: EnvVar) -> Source | None:
    """Return the source of the value; None if the pod has the value."""
    if not isinstance(variable.value_from, msgspec.Raw) or bytes(variable.value_from) == b"null":
        return None
    try:
        return _decode(variable.value_from)
    except msgspec.ValidationError:  # the API server rejects it
        return Source()
