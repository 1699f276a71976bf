"""Objects whose lists are as long as a review reads them, and those that are far longer."""

from collections.abc import Callable, Iterator
from typing import Any

from policies.pods import annotations, limits
from policies.quota.claims import MOST_ALTERNATIVES, MOST_REQUESTS
from tests.builders import JSON, container, gpu_container, pod
from tests.webhook.serving.hostile_bodies import review, workload

PROBE = {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 10}
CLASSES = ("nvidia-a100-80gb", "nvidia-a100-40gb", "nvidia-t4", "nvidia-h100-80gb")


def requirement(*values: str, key: str = "accelerator", operator: str = "In") -> JSON:
    return {"key": key, "operator": operator, "values": values}


def affinity(*terms: JSON) -> JSON:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def term(*requirements: JSON) -> JSON:
    return {"matchExpressions": requirements}


def named(count: int, **fields: Any) -> list[JSON]:
    return [{"name": f"n{number}", **fields} for number in range(count)]


def values(count: int, operator: str) -> JSON:
    known = [CLASSES[number % len(CLASSES)] for number in range(count)]
    return pod(gpu_container(), affinity=affinity(term(requirement(*known, operator=operator))))


def terms(count: int, each: JSON, **metadata: str) -> JSON:
    return pod(gpu_container(), annotations=metadata, affinity=affinity(*[each] * count))


def requirements(count: int) -> JSON:
    return pod(gpu_container(), affinity=affinity(term(*[requirement("nvidia-t4")] * count)))


def preferences(count: int) -> JSON:
    preferred = {"weight": 1, "preference": term(*[requirement("x", key="zone")] * count)}
    return pod(
        gpu_container(),
        affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}},
    )


def tolerations(count: int, *containers: JSON) -> JSON:
    return pod(
        *containers, tolerations=[{"key": f"k{number}", "operator": "Exists"} for number in range(count)]
    )


def node_selector(count: int) -> JSON:
    return pod(gpu_container(), nodeSelector={f"k{number}": "v" for number in range(count)})


def containers(count: int, **fields: Any) -> JSON:
    return pod(*[gpu_container("1", f"c{number}", **fields) for number in range(count)])


def servers(count: int) -> JSON:
    """Return a pod whose containers all get probes, a model and variables."""
    apps = [
        gpu_container("1", f"c{number}", readinessProbe=PROBE, livenessProbe=PROBE) for number in range(count)
    ]
    sidecars = [
        gpu_container("1", f"i{number}", restartPolicy="Always", readinessProbe=PROBE)
        for number in range(count)
    ]
    return pod(*apps, initContainers=sidecars, annotations={annotations.MODEL_URI: "hf://org/model"})


def cpu_containers(count: int) -> JSON:
    return pod(*[container(f"c{number}") for number in range(count)], initContainers=named(count))


def amounts(count: int, *, own: bool) -> JSON:
    """Return a pod of that many amounts of MIG slices; `own` gives each container names of its own."""
    each = 16

    def listed(number: int) -> JSON:
        names = (f"nvidia.com/mig-{slot}g.{number if own else 1}0gb" for slot in range(each))
        return {"limits": dict.fromkeys(names, "1")}

    return pod(*[container(f"c{number}", resources=listed(number)) for number in range(count // each)])


def names(count: int) -> JSON:
    return pod(
        container(resources={"limits": {f"nvidia.com/mig-{number}g.5gb": "1" for number in range(count)}})
    )


def volumes(count: int) -> JSON:
    mounts = [{"name": f"n{number}", "mountPath": f"/m{number}"} for number in range(count)]
    return pod(
        gpu_container("2", volumeMounts=mounts),
        annotations={annotations.MODEL_URI: "hf://org/model"},
        volumes=named(count, hostPath={"path": "/dev/nvidia0"}),
    )


def variables(count: int) -> JSON:
    return pod(container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}] * count))


def env_from(count: int) -> JSON:
    sources = [{"secretRef": {"name": f"s{number}"}} for number in range(count)]
    return pod(gpu_container(envFrom=sources), annotations={annotations.MODEL_URI: "s3://b/model"})


def resource_claims(count: int) -> JSON:
    resources = {"limits": {"nvidia.com/gpu": "1"}, "claims": named(count)}
    return pod(container(resources=resources), resourceClaims=named(count, resourceClaimName="x"))


def gates(count: int) -> JSON:
    return pod(gpu_container(), schedulingGates=named(count))


def model_uri(count: int) -> JSON:
    text = "https://h/" + "a/" * count
    return pod(gpu_container(), annotations={annotations.MODEL_URI: text[:count]})


def arguments(count: int) -> JSON:
    return pod(gpu_container(args=["x"] * count))


def labels(count: int) -> JSON:
    document = pod(gpu_container())
    document["metadata"] |= {"labels": {f"k{number}": "v" for number in range(count)}}
    return document


AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
PREFERRED = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
FAMILY = {annotations.GPU_CLASS: "nvidia-a100"}

Long = tuple[str, Callable[[int], JSON], int, str]
"""Name, pod of so many, limit, and the field that has it."""

LISTS: tuple[Long, ...] = (
    ("affinity-values", lambda n: values(n, "In"), limits.MOST_AFFINITY_VALUES, AFFINITY),
    ("excluded-affinity-values", lambda n: values(n, "NotIn"), limits.MOST_AFFINITY_VALUES, AFFINITY),
    ("terms", lambda n: terms(n, term(requirement("nvidia-t4"))), limits.MOST_COMPARED, AFFINITY),
    ("terms-and-a-family", lambda n: terms(n, term(requirement("x", key="zone")), **FAMILY), limits.MOST_COMPARED, AFFINITY),
    ("requirements", requirements, limits.MOST_REQUIREMENTS, AFFINITY),
    ("preferences", preferences, limits.MOST_REQUIREMENTS, PREFERRED),
    ("tolerations", lambda n: tolerations(n, gpu_container()), limits.MOST_COMPARED, "spec.tolerations"),
    ("tolerations-of-a-pod-without-gpus", lambda n: tolerations(n, container()), limits.MOST_COMPARED, "spec.tolerations"),
    ("node-labels", node_selector, limits.MOST_COMPARED, "spec.nodeSelector"),
    ("containers", containers, limits.MOST_CONTAINERS, "spec.containers"),
    ("containers-without-gpus", cpu_containers, limits.MOST_CONTAINERS, "spec.containers"),
    ("model-servers-and-sidecars", servers, limits.MOST_CONTAINERS, "spec.containers"),
    ("amounts-of-the-same-slices", lambda n: amounts(n, own=False), limits.MOST_AMOUNTS, "spec"),
    ("amounts-of-slices-of-each-container", lambda n: amounts(n, own=True), limits.MOST_AMOUNTS, "spec"),
    ("resources-of-one-container", names, limits.MOST_RESOURCES, "spec.containers[0].resources.limits"),
    ("volumes-of-devices", volumes, limits.MOST_IN_POD, "spec.volumes"),
    ("variables", variables, limits.MOST_IN_CONTAINER, "spec.containers[0].env"),
    ("env-sources", env_from, limits.MOST_IN_CONTAINER, "spec.containers[0].envFrom"),
    ("claims", resource_claims, limits.MOST_IN_POD, "spec.resourceClaims"),
    ("gates", gates, limits.MOST_IN_POD, "spec.schedulingGates"),
    ("a-model-uri", model_uri, limits.LONGEST_ANNOTATION, "metadata.annotations[gpu-admission.dev/model-uri]"),
)  # fmt: skip

PLAIN: tuple[tuple[str, Callable[[int], JSON]], ...] = (("arguments", arguments), ("labels", labels))
"""What no rule reads, up to `limits.MOST_VALUES` in all."""


def long_pods() -> Iterator[tuple[str, JSON]]:
    """Yield pods, each with one list as long as it may be."""
    yield from ((name, make(limit)) for name, make, limit, _ in LISTS)
    yield from ((name, make(limits.MOST_VALUES - 100)) for name, make in PLAIN)


def longer_pods() -> Iterator[tuple[str, JSON]]:
    """Yield pods, each with a list as long as the API server takes it, or nearly."""
    yield from ((f"longer-{name}", make(20_000)) for name, make, _, _ in LISTS)
    yield "longer-values", pod(gpu_container(), affinity=affinity(term(requirement(*CLASSES * 30_000))))
    yield "a-million-tolerations", pod(gpu_container(), tolerations=[{}] * 1_000_000)
    yield "a-name-of-megabytes", {"metadata": {"name": "x" * 2_500_000}, "spec": {}}
    yield "scripts-of-flags", scripts("--tp 1 ")
    yield "scripts-of-other-flags", scripts("--nproc-per-node=8 torchrun ")
    yield "an-image-of-megabytes", pod(gpu_container(image="x" * 2_500_000))


def scripts(text: str) -> JSON:
    return pod(
        *[gpu_container("1", f"c{number}", args=[text * (20_000 // len(text))]) for number in range(128)]
    )


BOMB = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]" for n in range(6))
PATCHES = (
    ("long-patches", "a: b\n" * 3000, 180),
    ("many-patches", "{}", 9000),
    ("patches-of-many-documents", "---\na\n" * 2500, 180),
    ("patches-of-aliases", f"{BOMB}\ncontainers: []\n", 20),
)
"""Name of a workflow, and so many times a text that is laid over a pod."""


def claim(requests: int, alternatives: int) -> JSON:
    device = {"deviceClassName": "gpu.nvidia.com", "count": 1}
    listed = named(requests, firstAvailable=[device] * alternatives)
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": listed}}}


def other_reviews(namespace: str) -> Iterator[tuple[str, bytes]]:
    """Yield long objects of the other kinds."""
    group = "resource.k8s.io"
    for name, made in (
        ("a-claim", claim(MOST_REQUESTS, MOST_ALTERNATIVES)),
        ("a-longer-claim", claim(1000, 5)),
    ):
        template = {"metadata": {"name": "t"}, "spec": made}
        yield name, review(group, "ResourceClaim", made, namespace=namespace)
        yield f"{name}, in a template", review(group, "ResourceClaimTemplate", template, namespace=namespace)
    keys = {f"limits.nvidia.com/x{number}": "1" for number in range(19_000)}
    quota = {"metadata": {"name": "q"}, "spec": {"hard": keys}}
    yield "a-resource-quota", review("", "ResourceQuota", quota, namespace=namespace)
    groups = [{"groupName": f"g{number}", "template": pod(gpu_container())} for number in range(1000)]
    cluster = {"metadata": {"name": "r"}, "spec": {"workerGroupSpecs": groups}}
    yield "a-cluster-of-many-groups", review("ray.io", "RayCluster", cluster, namespace=namespace)
    names = {f"nvidia.com/x{number}": "1" for number in range(30)}
    template = pod(container(resources={"limits": names}))
    jobs = [{"name": f"j{number}", "template": {"spec": {"template": template}}} for number in range(100)]
    job_set = {"metadata": {"name": "s"}, "spec": {"replicatedJobs": jobs}}
    yield (
        "a-set-of-jobs-with-many-resources",
        review("jobset.x-k8s.io", "JobSet", job_set, namespace=namespace),
    )
    shared = {
        "metadata": {"name": "w"},
        "spec": {"templates": [{"name": "n", "container": gpu_container()}] * 200, "volumes": named(1000)},
    }
    yield "a-workflow-with-many-volumes", review("argoproj.io", "Workflow", shared, namespace=namespace)
    for name, text, count in PATCHES:
        patched = {"metadata": {"name": "w"}, "spec": {"templates": [{"podSpecPatch": text}] * count}}
        yield name, review("argoproj.io", "Workflow", patched, namespace=namespace)
    workers = {
        f"{n}.Worker.x": {"template": pod(gpu_container(args=["mpirun x " * 1500]))} for n in range(100)
    }
    mpi = {"metadata": {"name": "m"}, "spec": {"slotsPerWorker": 1, "mpiReplicaSpecs": workers}}
    yield "a-job-of-a-hundred-scripts", review("kubeflow.org", "MPIJob", mpi, namespace=namespace)
    unread = {"metadata": {"name": "t"}, "spec": [f"nvidia.com/x{number}" for number in range(19_000)]}
    yield "an-unread-kind-with-many-names", review("example.com", "Thing", unread, namespace=namespace)


def long_reviews(namespace: str) -> Iterator[tuple[str, bytes]]:
    """Yield the review of each of these pods: its creation, a change of it, and its template; and of other kinds."""
    yield from other_reviews(namespace)
    for name, document in (*long_pods(), *longer_pods()):
        yield name, review("", "Pod", document, namespace=namespace)
        changed = {**document, "metadata": {**document["metadata"], "labels": {"changed": "yes"}}}
        update = {"operation": "UPDATE", "oldObject": document, "namespace": namespace}
        yield f"{name}, changed", review("", "Pod", changed, **update)
        template = workload("Deployment", document)
        yield f"{name}, in a template", review("apps", "Deployment", template, namespace=namespace)
