"""The objects that GPU workloads refer to by name: RuntimeClasses, claims with models, Secrets with credentials."""

from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec

from policies.pods.annotations import MODEL_CACHE_CLAIM, MODEL_URI
from policies.pods.pod import Pod
from policies.rules import model_warming
from webhook.cluster import errors
from webhook.cluster.api import METADATA
from webhook.cluster.objects import PartialObject
from webhook.tools.doctor.check import DoctorCheck, DoctorFinding, Observation, failure
from webhook.tools.doctor.cluster import InstalledCluster, Right
from webhook.workloads.places import workload_pods

KINDS = {
    "Deployment": ("apps", "deployments"),
    "StatefulSet": ("apps", "statefulsets"),
    "DaemonSet": ("apps", "daemonsets"),
    "Job": ("batch", "jobs"),
    "CronJob": ("batch", "cronjobs"),
}
READS = tuple(Right("list", plural, group) for group, plural in KINDS.values())


class Workload(msgspec.Struct, frozen=True):
    """A workload with GPU pods."""

    kind: str
    namespace: str
    name: str
    pod: Pod

    @property
    def object(self) -> str:
        return f"{self.kind}/{self.name} in {self.namespace}"


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Stored(PartialObject, frozen=True):
    status: _Status = msgspec.field(default_factory=_Status)


_STORED = msgspec.json.Decoder(_Stored)


def _workloads(cluster: InstalledCluster) -> Iterator[Workload]:
    for kind, (group, plural) in KINDS.items():
        yield from cluster.listed(f"/apis/{group}/v1/{plural}", _reader(cluster, group, kind))


def _reader(cluster: InstalledCluster, group: str, kind: str) -> Callable[[msgspec.Raw], Workload | None]:
    resource_mapping = cluster.resource_mapping

    def read(raw: msgspec.Raw) -> Workload | None:
        stored = _STORED.decode(raw)
        if any(
            each.type in {"Complete", "Failed"} and each.status == "True"
            for each in stored.status.conditions or ()
        ):
            return None
        for _place, pod in workload_pods(group, kind, raw):
            if resource_mapping.pod_asks(pod):
                return Workload(kind, stored.metadata.namespace, stored.metadata.name, pod)
        return None

    return read


def _references(cluster: InstalledCluster) -> Iterator[Observation]:
    found = list(_workloads(cluster))
    yield from _runtime_classes(cluster, found)
    yield from _claims(cluster, found)
    yield from _credentials(cluster, found)


def _runtime_classes(cluster: InstalledCluster, found: list[Workload]) -> Iterator[DoctorFinding]:
    named: dict[str, list[Workload]] = defaultdict(list)
    for workload in found:
        if workload.pod.body.runtime_class_name:
            named[workload.pod.body.runtime_class_name].append(workload)
    for name, users in sorted(named.items()):
        if cluster.get(f"/apis/node.k8s.io/v1/runtimeclasses/{name}") is None:
            yield failure(
                "runtime-class-missing",
                users[0].object + (f" and {len(users) - 1} more" if len(users) > 1 else ""),
                f"names RuntimeClass {name}, which does not exist: the API server rejects its pods",
                f"create RuntimeClass {name} (the GPU operator brings nvidia), or remove runtimeClassName",
            )


def _claims(cluster: InstalledCluster, found: list[Workload]) -> Iterator[DoctorFinding]:
    for workload in found:
        claim = workload.pod.annotations.get(MODEL_CACHE_CLAIM)
        if claim is None or MODEL_URI not in workload.pod.annotations:
            continue
        if not _exists(cluster, f"/api/v1/namespaces/{workload.namespace}/persistentvolumeclaims/{claim}"):
            yield failure(
                "cache-claim-missing",
                workload.object,
                f"keeps its model in claim {claim}, which does not exist: its pods cannot start",
                f"create PersistentVolumeClaim {claim} in {workload.namespace}, or remove {MODEL_CACHE_CLAIM}",
            )


def _credentials(cluster: InstalledCluster, found: list[Workload]) -> Iterator[DoctorFinding]:
    missing: dict[tuple[str, str], list[Workload]] = defaultdict(list)
    for workload in found:
        secret = _secret(cluster, workload)
        if secret and not _exists(cluster, f"/api/v1/namespaces/{workload.namespace}/secrets/{secret}"):
            missing[workload.namespace, secret].append(workload)
    for (namespace, secret), users in sorted(missing.items()):
        yield failure(
            "credentials-missing",
            users[0].object,
            f"fetches its model with Secret {secret}, which does not exist in {namespace}: its pods cannot start",
            f"kubectl -n {namespace} create secret generic {secret} --from-literal=…, see docs/model-warming.md",
        )


def _secret(cluster: InstalledCluster, workload: Workload) -> str | None:
    """Return the Secret that the policy of the workload's namespace has for the source of its model."""
    if MODEL_URI not in workload.pod.annotations:
        return None
    options = cluster.policy_of(workload.namespace).options_of(model_warming.ID)
    if not isinstance(options, model_warming.ModelWarmingOptions):
        return None
    request = model_warming.read_request(workload.pod, options)
    if isinstance(request, list):
        return None
    uri, *_ = request
    return options.sources.of(uri.scheme).secret_for(uri)


def _exists(cluster: InstalledCluster, path: str) -> bool:
    """Whether the object exists; only metadata is read, also of a Secret."""
    try:
        cluster.api.get(path, accept=METADATA)
    except errors.NotFound:
        return False
    return True


CHECKS = (
    DoctorCheck(
        "references",
        "RuntimeClasses, claims and Secrets that GPU workloads refer to exist",
        _references,
        READS,
    ),
)
