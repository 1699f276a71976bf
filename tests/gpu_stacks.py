"""Pods of GPU stacks, as operators and device plugins of vendors make them: what of them leads to GPUs. None requests one."""

from collections.abc import Mapping

from tests.builders import JSON, container, pod

PLUGINS, POD_RESOURCES = "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources"
DRIVER_SOCKETS = ("/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins")


def mounting(*paths: str, privileged: bool = True, **more: object) -> JSON:
    mounts = [{"name": f"v{at}", "mountPath": f"/host/{at}"} for at, _ in enumerate(paths)]
    volumes = [{"name": f"v{at}", "hostPath": {"path": path}} for at, path in enumerate(paths)]
    security = {"securityContext": {"privileged": True}} if privileged else {}
    return pod(container("agent", volumeMounts=mounts, **security, **more), volumes=volumes)


AGENTS: Mapping[str, JSON] = {
    # NVIDIA/gpu-operator, assets/state-*
    "nvidia-device-plugin-daemonset": mounting("/run/nvidia", PLUGINS, "/", "/var/run/cdi"),
    "nvidia-driver-daemonset": mounting(
        "/run/nvidia", "/var/log", "/dev/log", "/sys/module", "/run/nvidia/driver"
    ),
    "nvidia-container-toolkit-daemonset": mounting(
        "/run/nvidia/toolkit", "/var/run/cdi", "/", "/run/containerd"
    ),
    "gpu-feature-discovery": mounting(
        "/run/nvidia", "/sys", "/etc/kubernetes/node-feature-discovery/features.d"
    ),
    "nvidia-dcgm": mounting("/run/nvidia"),
    "nvidia-dcgm-exporter": mounting(POD_RESOURCES, "/run/nvidia"),
    "nvidia-mig-manager": mounting("/sys", "/run/nvidia/driver", "/", "/var/run/cdi"),
    "nvidia-dra-driver-gpu-kubelet-plugin": mounting(*DRIVER_SOCKETS, "/var/run/cdi", "/"),
    # dcgm-exporter's own chart
    "dcgm-exporter": mounting(POD_RESOURCES, privileged=False),
    # ROCm/gpu-operator, its device plugin, node labeller and metrics exporter
    "amd-gpu-device-plugin": mounting(PLUGINS, "/sys", "/var/lib/amd-metrics-exporter"),
    "amd-gpu-metrics-exporter": mounting("/dev", "/sys", POD_RESOURCES),
    # intel-device-plugins-for-kubernetes, deployments/gpu_plugin; Intel XPU Manager
    "intel-gpu-plugin": mounting("/dev/dri", "/sys/class/drm", PLUGINS, "/var/run/cdi", privileged=False),
    "intel-xpumanager": mounting("/dev/dri", POD_RESOURCES, privileged=False),
    # Device plugins of Habana, Neuron, TPU, Ascend, Cambricon, Hygon, MetaX, Mthreads and Tenstorrent
    "habanalabs-device-plugin": mounting(PLUGINS),
    "neuron-device-plugin": mounting(PLUGINS, "/run"),
    "tpu-device-plugin": mounting(PLUGINS, "/dev", "/etc/tpu"),
    "ascend-device-plugin": mounting(PLUGINS, "/usr/local/Ascend/driver", "/var/log/mindx-dl/devicePlugin"),
    "cambricon-device-plugin": mounting(PLUGINS, "/usr/bin/cnmon", "/dev", "/sys"),
    "dcu-device-plugin": mounting(PLUGINS, "/sys", "/dev/kfd"),
    "metax-gpu-device": mounting(PLUGINS, "/dev", "/sys"),
    "mthreads-gpu-device-plugin": mounting(PLUGINS),
    "tenstorrent-device-plugin": mounting(PLUGINS, "/dev/tenstorrent"),
}
"""Pods of DaemonSets."""

VISIBLE: JSON = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
GPU_TOLERATION: JSON = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
CDI: JSON = {"nvidia.cdi.k8s.io/container.cuda-validation": "management.nvidia.com/gpu=all"}
PRIVILEGED: JSON = {"securityContext": {"privileged": True}}

VALIDATORS: Mapping[str, JSON] = {
    # validator/manifests/cuda-workload-validation.yaml of NVIDIA/gpu-operator: now, and before it named its devices
    "cuda-validator": pod(
        container("nvidia-cuda-validator", **PRIVILEGED),
        annotations=CDI,
        initContainers=[container("cuda-validation", **PRIVILEGED, **VISIBLE)],
        tolerations=[GPU_TOLERATION],
    ),
    "cuda-validator-by-its-image": pod(
        container("nvidia-cuda-validator", **PRIVILEGED),
        initContainers=[container("cuda-validation", **PRIVILEGED)],
        tolerations=[GPU_TOLERATION],
    ),
}
"""Pods that an agent makes, to see whether a container can use the GPUs of its node."""
