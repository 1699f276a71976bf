"""Objects whose lists are as long as a review reads them, and those that are far longer."""

from collections.abc import Callable, Iterator
from typing import Any

from policies.gpus.cards import MAX_RESOURCES
from policies.pods import annotations, limits
from policies.quota.claim_demand import MAX_ALTERNATIVES, MAX_REQUESTS
from tests.builders import JSON, container, gpu_container, pod
from tests.policies.gpus.slices import slices
from tests.webhook.serving.hostile_bodies import review, workload

PROBE = {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 10}
MODEL = {annotations.MODEL_URI: "hf://org/model"}
CLASSES = ("nvidia-a100-80gb", "nvidia-a100-40gb", "nvidia-t4", "nvidia-h100-80gb")


def requirement(*values: str, key: str = "accelerator", operator: str = "In") -> JSON:
    return {"key": key, "operator": operator, "values": values}


def affinity(*terms: JSON) -> JSON:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def term(*requirements: JSON) -> JSON:
    return {"matchExpressions": requirements}


def named(count: int, **fields: Any) -> list[JSON]:
    return [{"name": f"n{number}", **fields} for number in range(count)]


def known(count: int, operator: str) -> JSON:
    return affinity(
        term(requirement(*[CLASSES[number % len(CLASSES)] for number in range(count)], operator=operator))
    )


def preferred(*requirements: JSON) -> JSON:
    preference = {"weight": 1, "preference": term(*requirements)}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}


def containers(count: int, *, prefix: str = "c", **fields: Any) -> list[JSON]:
    return [gpu_container("1", f"{prefix}{number}", **fields) for number in range(count)]


def servers(count: int) -> JSON:
    """Return a pod whose containers all get probes, a model and variables."""
    apps = containers(count, readinessProbe=PROBE, livenessProbe=PROBE)
    sidecars = containers(count // 2, prefix="i", restartPolicy="Always", readinessProbe=PROBE)
    return pod(*apps, initContainers=sidecars, annotations=MODEL)


def amounts(count: int, *, own: bool) -> JSON:
    """Return a pod of that many amounts of MIG slices, 16 a container; `own` gives each container names of its own."""

    def listed(number: int) -> JSON:
        names = (f"nvidia.com/mig-{slot}g.{number if own else 1}0gb" for slot in range(16))
        return {"limits": dict.fromkeys(names, "1")}

    return pod(*[container(f"c{number}", resources=listed(number)) for number in range(count // 16)])


def volumes(count: int, **source: Any) -> JSON:
    mounts = [{**each, "mountPath": f"/{each['name']}"} for each in named(count)]
    devices = named(count, **source)
    return pod(gpu_container("2", volumeMounts=mounts), annotations=MODEL, volumes=devices)


def variables(count: int) -> JSON:
    return pod(*[gpu_container("1", f"c{at}", env=named(count // 16, value="x")) for at in range(16)])


def names(count: int) -> JSON:
    """Return a pod whose containers name resources of so many characters in all, 256 in each name."""
    listed = (
        {f"example.com/r{at:02}".ljust(256 + (count % 32768) // 8 * (at < 8), "x"): "1"} for at in range(128)
    )
    return pod(*[container(f"c{at}", resources={"limits": each}) for at, each in enumerate(listed)])


def resource_claims(count: int) -> JSON:
    resources = {"limits": {"nvidia.com/gpu": "1"}, "claims": named(count)}
    return pod(container(resources=resources), resourceClaims=named(count, resourceClaimName="x"))


def gpu_pod(**spec: Any) -> JSON:
    return pod(gpu_container(), **spec)


def keyed(count: int) -> JSON:
    return {f"k{number}": "v" for number in range(count)}


def tolerations(count: int) -> list[JSON]:
    return [{"key": key, "operator": "Exists"} for key in keyed(count)]


T4, ZONE = requirement("nvidia-t4"), requirement("x", key="zone")
FAMILY = {"annotations": {annotations.GPU_CLASS: "nvidia-a100"}}
AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
PREFERRED = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"

Long = tuple[str, Callable[[int], JSON], int, str]
"""Name, pod of so many, limit, and the field that has it."""

LISTS: tuple[Long, ...] = (
    ("affinity-values", lambda n: gpu_pod(affinity=known(n, "In")), 2000, AFFINITY),
    ("excluded-affinity-values", lambda n: gpu_pod(affinity=known(n, "NotIn")), 2000, AFFINITY),
    ("terms", lambda n: gpu_pod(affinity=affinity(*[term(T4)] * n)), 256, AFFINITY),
    ("terms-and-a-family", lambda n: gpu_pod(**FAMILY, affinity=affinity(*[term(ZONE)] * n)), 256, AFFINITY),
    ("requirements", lambda n: gpu_pod(affinity=affinity(term(*[T4] * n))), 512, AFFINITY),
    ("preferences", lambda n: gpu_pod(affinity=preferred(*[ZONE] * n)), 512, PREFERRED),
    ("tolerations", lambda n: gpu_pod(tolerations=tolerations(n)), 256, "spec.tolerations"),
    ("tolerations-of-a-pod-without-gpus", lambda n: pod(tolerations=tolerations(n)), 256, "spec.tolerations"),
    ("node-labels", lambda n: gpu_pod(nodeSelector=keyed(n)), 256, "spec.nodeSelector"),
    ("containers", lambda n: pod(*containers(n)), 128, "spec.containers"),
    ("containers-without-gpus", lambda n: pod(*map(container, keyed(n)), initContainers=named(n // 2)), 128,
        "spec.containers"),
    ("init-containers", lambda n: gpu_pod(initContainers=named(n)), 64, "spec.initContainers"),
    ("model-servers-and-sidecars", servers, 128, "spec.containers"),
    ("amounts-of-the-same-slices", lambda n: amounts(n, own=False), 1024, "spec"),
    ("amounts-of-slices-of-each-container", lambda n: amounts(n, own=True), 1024, "spec"),
    ("resources-of-one-container",
        lambda n: pod(container(resources={"limits": {f"nvidia.com/mig-{each}g.5gb": "1" for each in range(n)}})),
        64, "spec.containers[0].resources.limits"),
    ("volumes", lambda n: volumes(n, emptyDir={}), 500, "spec.volumes"),
    ("volumes-of-devices", lambda n: volumes(n, hostPath={"path": "/dev/nvidia0"}), 64, "spec.volumes"),
    ("long-paths", lambda n: volumes(8, hostPath={"path": "/" * (n // 8)}), 32_768, "spec.volumes"),
    ("variables-of-all-containers", variables, 4000, "spec"),
    ("names-of-resources", names, 32_768, "spec"),
    ("variables", lambda n: pod(container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}] * n)),
        1000, "spec.containers[0].env"),
    ("env-sources",
        lambda n: pod(gpu_container(envFrom=[{"secretRef": each} for each in named(n)]), annotations=MODEL),
        1000, "spec.containers[0].envFrom"),
    ("claims", resource_claims, 500, "spec.resourceClaims"),
    ("gates", lambda n: gpu_pod(schedulingGates=named(n)), 500, "spec.schedulingGates"),
    ("a-model-uri", lambda n: gpu_pod(annotations={annotations.MODEL_URI: ("https://h/" + "a/" * n)[:n]}),
        4096, "metadata.annotations[gpu-admission.dev/model-uri]"),
)  # fmt: skip


def long_pods() -> Iterator[tuple[str, JSON]]:
    """Yield pods, each with one list as long as it may be, or with what no rule reads, up to `limits.MAX_VALUES` in all."""
    yield from ((name, make(limit)) for name, make, limit, _ in LISTS)
    plain, labelled = limits.MAX_VALUES - 100, gpu_pod()
    labelled["metadata"] |= {"labels": keyed(plain)}
    unlisted = {"limits": slices(MAX_RESOURCES)}
    yield from (("arguments", pod(gpu_container(args=["x"] * plain))), ("labels", labelled))
    yield "slices-of-no-class", pod(container(resources=unlisted))


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


def jobs(prefix: str) -> JSON:
    """Return a set of 100 jobs with 30 resources each. The names begin with the prefix, in which {job} is the job's number."""

    def template(job: int) -> JSON:
        names = (f"nvidia.com/x{prefix.format(job=job)}{number}" for number in range(30))
        return pod(container(resources={"limits": dict.fromkeys(names, "1")}))

    replicated = [
        {"name": f"j{job}", "template": {"spec": {"template": template(job)}}} for job in range(100)
    ]
    return {"metadata": {"name": "s"}, "spec": {"replicatedJobs": replicated}}


def other_reviews(namespace: str) -> Iterator[tuple[str, bytes]]:
    group = "resource.k8s.io"
    for name, made in (
        ("a-claim", claim(MAX_REQUESTS, MAX_ALTERNATIVES)),
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
    for name, of_job in (("many-resources", ""), ("many-resources-of-each-job", "{job}-")):
        jobs_review = review("jobset.x-k8s.io", "JobSet", jobs(of_job), namespace=namespace)
        yield f"a-set-of-jobs-with-{name}", jobs_review
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
