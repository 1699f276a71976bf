"""Pods as people, controllers and other webhooks write them: well-formed, often odd, sometimes plain wrong.

Everything the API server's decoder takes may come; what its validation refuses may come as well, because templates of other
kinds reach the rules unvalidated.
"""

from typing import Any

from hypothesis import strategies as st

from tests.builders import JSON

MISSING = object()
LEFT_OUT = st.just(MISSING)
COMMON = st.sampled_from(["1", "2", "4", "8", 1, "1000m"])
ODD = st.sampled_from(["0", "16", "500m", "0.5", "1.5", "-1", "1k", "many", "", "1e30", 0.5, None])
NAMES = """
nvidia.com/gpu nvidia.com/gpu.shared nvidia.com/mig-1g.10gb nvidia.com/mig-1g.5gb.me nvidia.com/mig-9g.99gb
nvidia.com/gpumem nvidia.com/gpucores amd.com/gpu aws.amazon.com/neuroncore volcano.sh/vgpu-number
deviceclass.resource.kubernetes.io/big example.com/dongle~1 nvidia.com/gpus NVIDIA.com/gpu gpu
"""
RESOURCES = st.sampled_from(NAMES.split())


def often(usual: st.SearchStrategy[Any], *seldom: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return mostly the first: rules have something to do only if several things come together."""
    return st.one_of(usual, usual, usual, usual, *seldom)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[JSON]:
    """Return objects in which each field is there, null, or left out."""
    filled = st.fixed_dictionaries(
        {name: often(values, LEFT_OUT, st.none()) for name, values in fields.items()}
    )
    return filled.map(lambda item: {name: value for name, value in item.items() if value is not MISSING})


def at_most(most: int, items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=most)


RESOURCE_LISTS = st.builds(
    lambda native, named: {**native, **named},
    st.sampled_from([{}, {"cpu": "4"}, {"cpu": "500m", "memory": "64Gi"}]),
    st.dictionaries(often(st.just("nvidia.com/gpu"), RESOURCES), often(COMMON, ODD), max_size=2),
)
CONTAINER_RESOURCES = optional(
    limits=RESOURCE_LISTS,
    requests=RESOURCE_LISTS,
    claims=at_most(1, st.just({"name": "gpu", "request": "card"})),
)
VARIABLES = st.fixed_dictionaries(
    {
        "name": st.sampled_from(
            ["NVIDIA_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HOME"]
        )
    },
    optional={"value": st.sampled_from(["void", "all", "0", ""])},
) | st.just({"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
MOUNTS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["data", "dshm", "model-cache", "devices"]),
        "mountPath": st.sampled_from(
            ["/data", "/dev/shm", "/model-cache", "/models", "/var/run/nvidia-container-devices/all"]  # noqa: S108  mounts
        ),
    },
    optional={"readOnly": st.booleans()},
)
HANDLERS = st.sampled_from(
    [
        {"httpGet": {"path": "/ready", "port": 8080}},
        {"tcpSocket": {"port": 80}},
        {"exec": {"command": ["true"]}},
    ]
)
TIMINGS = optional(
    initialDelaySeconds=st.sampled_from([0, 5, 60, 3600]),
    periodSeconds=st.sampled_from([1, 10]),
    failureThreshold=st.sampled_from([1, 3, 100]),
)
PROBES = st.builds(lambda handler, timings: {**handler, **timings}, HANDLERS, TIMINGS)


def containers(prefix: str, least: int, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[list[JSON]]:
    """Return `least` to three containers with names of their own."""
    fields = optional(
        image=st.just("registry.example/image:1"),
        resources=CONTAINER_RESOURCES,
        env=at_most(2, VARIABLES),
        envFrom=at_most(1, optional(prefix=st.sampled_from(["", "APP_"]))),
        volumeMounts=at_most(2, MOUNTS),
        securityContext=optional(privileged=st.booleans(), runAsUser=st.sampled_from([0, 1000])),
        **more,
    )
    return st.lists(fields, min_size=least, max_size=3).map(
        lambda items: [{"name": f"{prefix}-{index}", **item} for index, item in enumerate(items)]
    )


def unique_by_name(items: list[JSON]) -> list[JSON]:
    return list({item["name"]: item for item in items}.values())


VOLUMES = at_most(
    3,
    st.sampled_from(
        [
            {"name": "data", "emptyDir": {}},
            {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "model-cache", "persistentVolumeClaim": {"claimName": "models"}},
            {"name": "devices", "hostPath": {"path": "/dev/nvidia0"}},
            {"name": "devices", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}},
        ]
    ),
).map(unique_by_name)
TOLERATIONS = at_most(
    3,
    optional(
        key=st.sampled_from(["nvidia.com/gpu", "dedicated", "accelerator"]),
        operator=st.sampled_from(["Exists", "Equal", ""]),
        value=st.sampled_from(["present", "t4", ""]),
        effect=st.sampled_from(["NoSchedule", "NoExecute", ""]),
        tolerationSeconds=st.sampled_from([0, 300]),
    ),
)
CLASS_NAMES = st.sampled_from(["nvidia-t4", "nvidia-a100-80gb", "nvidia-a100", "amd-mi300x", "elsewhere"])
LABELS = st.sampled_from(["accelerator", "zone", "karpenter.sh/nodepool", "nvidia.com/gpu.present"])
REQUIREMENTS = st.fixed_dictionaries(
    {"key": LABELS, "operator": st.sampled_from(["In", "NotIn", "Exists"])},
    optional={"values": st.lists(CLASS_NAMES, min_size=1, max_size=2)},
)
AFFINITIES = optional(
    nodeAffinity=optional(
        requiredDuringSchedulingIgnoredDuringExecution=optional(
            nodeSelectorTerms=at_most(2, optional(matchExpressions=at_most(2, REQUIREMENTS)))
        ),
        preferredDuringSchedulingIgnoredDuringExecution=at_most(
            1,
            st.fixed_dictionaries(
                {"preference": optional(matchExpressions=at_most(2, REQUIREMENTS))},
                optional={"weight": st.just(1)},
            ),
        ),
    ),
    podAntiAffinity=st.just({}),
)
URIS = "s3://bucket/model gs://bucket/model hf://org/model https://models.example/m.bin ftp://x"
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "gpu-fraction": st.sampled_from(["0.5", "1.5", "half"]),
        "gpu-fraction-container-name": st.sampled_from(["app-1", "init-0"]),
        "gpu-memory": st.sampled_from(["2000", "2Gi"]),
        "cdi.k8s.io/gpus": st.just("nvidia.com/gpu=all"),
        "gpu-admission.dev/gpu-class": CLASS_NAMES,
        "gpu-admission.dev/cuda": st.sampled_from(["12.4", "12", "13.1", "new"]),
        "gpu-admission.dev/spot": st.sampled_from(["true", "false", "maybe"]),
        "gpu-admission.dev/model-family": st.sampled_from(["llama-3.1-8b", "unheard-of"]),
        "gpu-admission.dev/model-layers": st.just("32"),
        "gpu-admission.dev/model-params": st.sampled_from(["7B", "70e9", "huge"]),
        "gpu-admission.dev/model-precision": st.sampled_from(["bf16", "int4", "exact"]),
        "gpu-admission.dev/model-phase": st.sampled_from(["training", "serving", "dreaming"]),
        "gpu-admission.dev/model-uri": st.sampled_from(URIS.split()),
        "gpu-admission.dev/model-path": st.sampled_from(["/models", "relative"]),
        "gpu-admission.dev/model-cache-claim": st.just("models"),
        "gpu-admission.dev/model-load-seconds": st.sampled_from(["90", "soon"]),
        "gpu-admission.dev/max-runtime": st.sampled_from(["4h", "100h", "long"]),
        "gpu-admission.dev/gpuclass": CLASS_NAMES,
        "gpu-admission/cuda": st.just("12.4"),
        "nvidia.com/use-gputype": st.just("A100"),
        "karpenter.sh/do-not-disrupt": st.sampled_from(["true", "false"]),
        "cluster-autoscaler.kubernetes.io/safe-to-evict": st.just("true"),
        "team": st.just("ml"),
        "batch.kubernetes.io/job-completion-index": st.sampled_from(["0", "1"]),
    },
)
OWN_LABELS = st.dictionaries(
    st.sampled_from(["app", "pod-template-hash", "gpu-admission.dev/gpu-class", "nvidia.com/use-gputype"]),
    CLASS_NAMES,
    max_size=3,
)
SPECS = st.builds(
    lambda required, more: {**required, **more},
    st.fixed_dictionaries(
        {
            "containers": containers(
                "app",
                1,
                readinessProbe=PROBES,
                livenessProbe=PROBES,
                startupProbe=st.none() | PROBES,
                ports=st.just([{"containerPort": 80}]) | st.none(),
                command=st.just(["serve"]),
                args=st.sampled_from([["-tp", "2"], ["torchrun --nproc_per_node=8 train.py"]]),
            )
        }
    ),
    optional(
        initContainers=containers("init", 0, restartPolicy=st.just("Always")),
        volumes=VOLUMES,
        tolerations=TOLERATIONS,
        nodeSelector=st.dictionaries(LABELS, CLASS_NAMES, max_size=2),
        affinity=AFFINITIES,
        nodeName=st.just("node-1"),
        schedulerName=st.sampled_from(["kai-scheduler", "default-scheduler"]),
        schedulingGates=at_most(1, st.just({"name": "kueue.x-k8s.io/admission"})),
        resourceClaims=at_most(1, st.just({"name": "gpu", "resourceClaimName": "shared"})),
        overhead=RESOURCE_LISTS,
        restartPolicy=st.sampled_from(["Always", "Never"]),
        hostIPC=st.booleans(),
        os=st.sampled_from([{"name": "linux"}, {"name": "windows"}]),
        terminationGracePeriodSeconds=st.sampled_from([0, 30, 600]),
        activeDeadlineSeconds=st.sampled_from([600, 360_000, "{{limit}}"]),
        securityContext=optional(runAsNonRoot=st.booleans(), fsGroup=st.just(1000)),
    ),
)
PODS: st.SearchStrategy[JSON] = st.fixed_dictionaries(
    {"apiVersion": st.just("v1"), "kind": st.just("Pod"), "spec": SPECS},
    optional={"metadata": optional(name=st.just("trainer"), annotations=ANNOTATIONS, labels=OWN_LABELS)},
)
