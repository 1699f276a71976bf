"""The objects that GPU workloads refer to by name: RuntimeClasses, claims with models, Secrets with credentials."""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from policies.pods.annotations import MODEL_CACHE_CLAIM, MODEL_URI
from policies.pods.conditions import true_condition
from policies.pods.limit_ranges import NO_LIMITS, as_admitted
from policies.pods.pod import Pod
from policies.rules import model_warming
from webhook.cluster import errors
from webhook.cluster.api import METADATA, api_path
from webhook.cluster.objects import decode_metadata
from webhook.tools.doctor.check import DoctorFinding, Observation, doctor_check, failure
from webhook.tools.installed_cluster import InstalledCluster, Permission
from webhook.workloads.places import workload_pods

KINDS = {
    "Deployment": ("apps", "deployments"),
    "StatefulSet": ("apps", "statefulsets"),
    "DaemonSet": ("apps", "daemonsets"),
    "Job": ("batch", "jobs"),
    "CronJob": ("batch", "cronjobs"),
}
READ_WEBHOOKS = (
    *(Permission("list", plural, group) for group, plural in KINDS.values()),
    Permission("list", "limitranges"),
)


class GPUWorkload(msgspec.Struct, frozen=True):
    """A workload with GPU pods: its name for people, and its first pod that requests a GPU."""

    object: str
    namespace: str
    pod: Pod


class _Stored(msgspec.Struct):
    status: dict[str, Any] = {}


def has_ended(workload: msgspec.Raw) -> bool:
    """Whether the workload is a Job that is complete or has failed, or a run that has ended (Tekton, Argo)."""
    status = msgspec.json.decode(workload, type=_Stored).status
    is_finished = status.get("completionTime") or status.get("finishedAt")
    return bool(is_finished or true_condition(status, "Complete", "Failed"))


def _gpu_workload(raw: msgspec.Raw, cluster: InstalledCluster, group: str, kind: str) -> GPUWorkload | None:
    if has_ended(raw):
        return None
    metadata = decode_metadata(raw)
    where = f"{kind}/{metadata.name} in {metadata.namespace}"
    _, pods = workload_pods(cluster.usable_configuration.workload_kinds, group, kind, raw)
    limits = cluster.limits.get(metadata.namespace, NO_LIMITS)
    admitted = (as_admitted(pod, limits) for _, pod in pods)
    gpu_pods = (pod for pod in admitted if cluster.is_gpu_pod(pod, metadata.namespace))
    return next((GPUWorkload(where, metadata.namespace, pod) for pod in gpu_pods), None)


@doctor_check(
    "references", "RuntimeClasses, claims and Secrets that GPU workloads refer to exist", *READ_WEBHOOKS
)
def _check_references(cluster: InstalledCluster) -> Iterator[Observation]:
    workloads: list[GPUWorkload] = []
    for kind, (group, plural) in KINDS.items():
        read = partial(_gpu_workload, cluster=cluster, group=group, kind=kind)
        workloads += cluster.decoded(f"/apis/{group}/v1/{plural}", read)
    yield from _runtime_class_findings(cluster, workloads)
    yield from _claim_findings(cluster, workloads)
    yield from _secret_findings(cluster, workloads)


def _runtime_class_findings(
    cluster: InstalledCluster, workloads: list[GPUWorkload]
) -> Iterator[DoctorFinding]:
    by_name: dict[str, list[GPUWorkload]] = defaultdict(list)
    for workload in workloads:
        if workload.pod.spec.runtime_class_name:
            by_name[workload.pod.spec.runtime_class_name].append(workload)
    for name, users in sorted(by_name.items()):
        if cluster.get("/apis/node.k8s.io/v1", "runtimeclasses", name) is None:
            where = users[0].object + (f" and {len(users) - 1} more" if len(users) > 1 else "")
            message = f"names RuntimeClass {name}, which does not exist: the API server rejects its pods"
            remedy = (
                f"create RuntimeClass {name} (the GPU operator brings nvidia), or remove runtimeClassName"
            )
            yield failure("runtime-class-missing", where, message, remedy)


def _claim_findings(cluster: InstalledCluster, workloads: list[GPUWorkload]) -> Iterator[DoctorFinding]:
    for workload in workloads:
        claim, namespace = workload.pod.annotations.get(MODEL_CACHE_CLAIM), workload.namespace
        if claim is None or MODEL_URI not in workload.pod.annotations:
            continue
        if not _exists(cluster, namespace, "persistentvolumeclaims", claim):
            message = f"keeps its model in claim {claim}, which does not exist: its pods cannot start"
            remedy = f"create PersistentVolumeClaim {claim} in {namespace}, or remove {MODEL_CACHE_CLAIM}"
            yield failure("cache-claim-missing", workload.object, message, remedy)


def _secret_findings(cluster: InstalledCluster, workloads: list[GPUWorkload]) -> Iterator[DoctorFinding]:
    missing: dict[tuple[str, str], str] = {}
    for workload in workloads:
        secret = _secret(cluster, workload)
        if secret and not _exists(cluster, workload.namespace, "secrets", secret):
            missing.setdefault((workload.namespace, secret), workload.object)
    for (namespace, secret), where in sorted(missing.items()):
        message = f"fetches its model with Secret {secret}, which does not exist in {namespace}: its pods cannot start"
        create = f"kubectl -n {namespace} create secret generic {secret} --from-literal=KEY=VALUE"
        yield failure("credentials-missing", where, message, f"{create}, see docs/tenants/model-warming.md")


def _secret(cluster: InstalledCluster, workload: GPUWorkload) -> str | None:
    """Return the Secret that the policy of the namespace names for the source of the workload's model."""
    options = cluster.policy_of(workload.namespace).options_of(model_warming.ID)
    if not isinstance(options, model_warming.ModelWarmingOptions):
        return None
    servers = model_warming.serving_places(workload.pod, cluster.usable_configuration.resource_mapping)
    request = model_warming.read_request(workload.pod, options, servers)
    if not isinstance(request, model_warming.WarmingRequest):
        return None
    return options.sources.of(request.uri.scheme).secret_for(request.uri)


def _exists(cluster: InstalledCluster, namespace: str, plural: str, name: str) -> bool:
    """Whether the object exists. Only metadata is read, even of a Secret."""
    try:
        cluster.api.get(api_path("/api/v1", "namespaces", namespace, plural, name), accept=METADATA)
    except errors.NotFound:
        return False
    return True


CHECKS = (_check_references,)
