"""Pods that the exported policies and our engine are compared over: generated, and written by others."""

import random
from collections.abc import Iterator

from tests.builders import JSON, container, gpu_container, pod
from tests.corpus import CORPUS, objects
from tests.gpu_stacks import AGENTS, VALIDATORS
from webhook.configuration.decoding import Problem
from webhook.configuration.loader import load_directory
from webhook.workloads.places import pod_places

SEED = 20261121
RESOURCES = """
nvidia.com/gpu nvidia.com/gpu nvidia.com/gpu nvidia.com/gpu nvidia.com/mig-1g.10gb nvidia.com/gpucores amd.com/gpu
aws.amazon.com/neuroncore deviceclass.resource.kubernetes.io/big gpu.intel.com/i915_monitoring gpu.intel.com/i915 rdma/hca
squat.ai/gpu acme.io/npu3-cores acme.io/output
""".split()  # noqa: SIM905
AMOUNTS = ["0", "1", "1", "1", "2", "3", "4", "5", "1k", "2000m", "150"]
VALUES = ["void", "none", "", "all", "0", None, "x" * 130]
PATHS = """
/dev /dev/ /dev/nvidia0 //dev/./nvidia-caps/c /dev/dri/card0 /dev/drive /dev/shm / /devices
/dev/kfd /dev/kfd2 /var/dev/nvidia0 /dev/accel/accel0 /./ /dev/nvme0n1
/dev/char/195:0 /var/run//nvidia/driver/ /run/nvidia /run/udev /var/run/docker.sock dev/nvidia0
/var/lib/kubelet/device-plugins /var/lib/./kubelet/pod-resources/x /var/lib/kubelet/pods /var
/etc/cdi /run/cdi/a /proc/1/root/dev /proc/sys/root/x /proc/self/task/1/cwd /data /data
/var/lib/kubelet/plugins/gpu.nvidia.com /var/lib/kubelet/plugins_registry/ /var/run/docker/containerd /dev/vfio/17
/proc /proc/1/ /proc/self/task/1 /proc/self/task/1/net
""".split()  # noqa: SIM905 - of the node, and only a text
MOUNT_PATHS = [*["/mnt"] * 6, "/var/run/nvidia-container-devices/all", "run/../nvidia-container-devices"]
VARIABLES = [*["NVIDIA_VISIBLE_DEVICES"] * 6, "HABANA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"]
VARIABLES += ["DOCKER_RESOURCE_GPU", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"]
PREFIXES = [None, "", "APP_", "NVIDIA_", "DOCKER_RESOURCE_G"]
NAMES_DEVICES = "cdi.k8s.io/gpus nvidia.cdi.k8s.io/container.c0 example.com/cdi.k8s.io devices.nri.io devices.gke.io/pod".split()  # noqa: SIM905
TOLERATIONS = [
    {"operator": "Exists"},
    {"key": "nvidia.com/gpu", "operator": "Exists"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
    {"key": "dedicated", "operator": "Equal", "value": "ml-workloads", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "others", "effect": "NoSchedule"},
    {"key": "reserved", "operator": "Exists", "effect": "NoExecute"},
    {"key": "reserved", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600},
    {"key": "accelerator", "operator": "Exists"},
    {"key": "zone", "value": "a"},
]
LABELS = ["accelerator", "accelerator", "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "disk"]
CLASSES = ["nvidia-t4", "nvidia-a100", "nvidia-a100-80gb", "nvidia-h100-80gb", "nvidia-l4"]
CLASSES += ["Tesla-T4", "nvidia-tesla-a100", "x"]


EXEMPT_OWNER = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "r", "uid": "1", "controller": True}
"""Its pods have no deadline where a controller made them; these here are made by a user."""


def some(choose: random.Random, chance: float, **fields: object) -> JSON:
    """Return each of the fields with that chance."""
    return {name: value for name, value in fields.items() if choose.random() < chance}


def container_of(choose: random.Random, name: str) -> JSON:
    made = container(name, **some(choose, 0.1, securityContext={"privileged": choose.random() < 0.7}))
    if choose.random() < 0.5:
        requested = {
            choose.choice(RESOURCES): choose.choice(AMOUNTS) for _ in range(choose.choice([1, 1, 2]))
        }
        made["resources"] = {"limits": {"cpu": "1", **requested}, **some(choose, 0.3, requests=requested)}
    if choose.random() < 0.3:
        value = choose.choice(VALUES)
        variable: JSON = {"name": choose.choice(VARIABLES), **({} if value is None else {"value": value})}
        if choose.random() < 0.2:
            variable = {"name": variable["name"], "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        made["env"] = [{"name": "HOME", "value": "/"}, variable]
    if choose.random() < 0.2:
        mount = {"name": choose.choice(["v0", "v1"]), "mountPath": choose.choice(MOUNT_PATHS)}
        made["volumeMounts"] = [mount]
    if choose.random() < 0.1:
        source: JSON = {"configMapRef": {"name": "settings"}}
        prefix = choose.choice(PREFIXES)
        made["envFrom"] = [{**source, **({} if prefix is None else {"prefix": prefix})}]
    if choose.random() < 0.1:
        made["ports"] = [{"containerPort": 8000}]
    if choose.random() < 0.1:
        made.setdefault("resources", {})["claims"] = [{"name": "claim"}]
    return made


def term_of(choose: random.Random) -> JSON:
    expressions = [
        {
            "key": choose.choice(LABELS),
            "operator": choose.choice(["In", "In", "In", "NotIn"]),
            "values": choose.sample(CLASSES, choose.choice([1, 1, 2])),
        }
        for _ in range(choose.choice([0, 1, 1, 2]))
    ]
    return {"matchExpressions": expressions} if expressions else {}


def pods(count: int) -> Iterator[JSON]:
    choose = random.Random(SEED)  # noqa: S311  the same pods in every run
    for number in range(count):
        spec: JSON = {
            "containers": [container_of(choose, f"c{i}") for i in range(choose.choice([1, 1, 2, 3]))],
            "volumes": [{"name": name, "hostPath": {"path": choose.choice(PATHS)}} for name in ("v0", "v1")],
            "resourceClaims": [{"name": "claim", "resourceClaimName": "mine"}],
            **some(choose, 0.15, schedulingGates=[{"name": "example.com/queue"}]),
            **some(choose, 0.6, restartPolicy=choose.choice(["Never", "OnFailure"])),
            **some(choose, 0.4, activeDeadlineSeconds=choose.choice([3600, 3601, 7200, 7201])),
            **some(choose, 0.3, schedulerName=choose.choice(["kai-scheduler", "kai-scheduler", "volcano"])),
            **some(choose, 0.5, tolerations=choose.sample(TOLERATIONS, choose.choice([1, 2, 3]))),
            **some(
                choose, 0.4, nodeSelector={choose.choice(LABELS): choose.choice(CLASSES) for _ in range(2)}
            ),
        }
        if not any("claims" in each.get("resources", {}) for each in spec["containers"]):
            del spec["resourceClaims"]
        if choose.random() < 0.4:
            steps = [container_of(choose, f"i{i}") for i in range(choose.choice([1, 2, 3]))]
            for step in steps:
                step.get("resources", {}).pop("claims", None)
            spec["initContainers"] = [{**step, **some(choose, 0.4, restartPolicy="Always")} for step in steps]
        if choose.random() < 0.2:
            terms = [term_of(choose) for _ in range(choose.choice([1, 2]))]
            required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            spec["affinity"] = {"nodeAffinity": required}
        annotations = some(choose, 0.3, **{"gpu-fraction": "0.5"})
        annotations |= some(choose, 0.1, **{"gpu-fraction-container-name": choose.choice(["c1", "i0"])})
        annotations |= some(choose, 0.1, **{choose.choice(NAMES_DEVICES): "nvidia.com/gpu=all"})
        annotations |= some(
            choose, 0.1, **{"gpu-admission.dev/gpu-class": choose.choice(["nvidia-h100", "gpu"])}
        )
        metadata = {
            "name": f"generated-{number}",
            "annotations": annotations,
            **some(choose, 0.1, ownerReferences=[EXEMPT_OWNER]),
        }
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


KAI: JSON = {"annotations": {"gpu-fraction": "0.01"}, "schedulerName": "kai-scheduler"}
FROM_KAI = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}
ASSIGNED = {
    "name": "ASCEND_VISIBLE_DEVICES",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['nvidia.com/gpu']"}},
}
OTHERS: JSON = {
    "annotations": {"tensor-fusion.ai/gpu-count": "1"},
    "schedulerName": "tensor-fusion-scheduler",
}
NEVER_GENERATED = [
    pod(container("c0"), **OTHERS),
    pod(container("c0"), **OTHERS, nodeName="node-1"),
    pod(container("c0"), nodeSelector={"type": "virtual-kubelet"}),
    *AGENTS.values(),
    *VALIDATORS.values(),
    pod(container("c0"), **KAI, nodeName="node-1"),
    pod(container("c0", env=[FROM_KAI]), **KAI),
    pod(gpu_container(env=[ASSIGNED])),
    pod(gpu_container(env=[ASSIGNED]), annotations={"nvidia.com/gpu": "0"}),
    pod(container("c0", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}])),
]
"""GPUs of other schedulers, GPU stacks, a fraction without its scheduler, the variable as KAI and Ascend write it, and `none`."""


def pods_of_others() -> Iterator[JSON]:
    """Yield the pods, and those of the workloads, that others wrote, without the objects of a cluster that they name."""
    for _source, data in objects(CORPUS):
        group = data["apiVersion"].rpartition("/")[0]
        for place in pod_places(load_directory(None).workload_kinds, group, data["kind"], data):
            assert not isinstance(place, Problem), place
            if place.is_partial:
                continue  # an operator writes the rest of it
            left_out = {"priorityClassName", "runtimeClassName", "serviceAccountName", "serviceAccount"}
            spec = {key: value for key, value in place.data["spec"].items() if key not in left_out}
            annotations = (place.data.get("metadata") or {}).get("annotations")
            metadata = {"name": "written-by-others", **({"annotations": annotations} if annotations else {})}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
