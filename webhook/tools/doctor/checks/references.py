"""What GPU workloads need to be there by name: RuntimeClasses, claims that keep models, Secrets with credentials."""

from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec

from policies.pods.annotations import MODEL_CACHE_CLAIM, MODEL_URI
from policies.pods.pod import Pod
from policies.rules import model_warming
from webhook.cluster import errors
from webhook.cluster.api import METADATA
from webhook.tools.doctor.check import Check, Finding, Told
from webhook.tools.doctor.cluster import Cluster
from webhook.tools.doctor.rights import Right
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


class _Metadata(msgspec.Struct):
    name: str
    namespace: str


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


_OBJECT = msgspec.json.Decoder(_Object)


def _workloads(cluster: Cluster) -> Iterator[Workload]:
    for kind, (group, plural) in KINDS.items():
        yield from cluster.listed(f"/apis/{group}/v1/{plural}", _reader(cluster, group, kind))


def _reader(cluster: Cluster, group: str, kind: str) -> Callable[[msgspec.Raw], Workload | None]:
    resource_mapping = cluster.resource_mapping

    def read(raw: msgspec.Raw) -> Workload | None:
        stored = _OBJECT.decode(raw)
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


def _references(cluster: Cluster) -> Iterator[Told]:
    found = list(_workloads(cluster))
    yield from _runtime_classes(cluster, found)
    yield from _claims(cluster, found)
    yield from _credentials(cluster, found)


def _runtime_classes(cluster: Cluster, found: list[Workload]) -> Iterator[Finding]:
    named: dict[str, list[Workload]] = defaultdict(list)
    for workload in found:
        if workload.pod.body.runtime_class_name:
            named[workload.pod.body.runtime_class_name].append(workload)
    for name, users in sorted(named.items()):
        if cluster.get(f"/apis/node.k8s.io/v1/runtimeclasses/{name}") is None:
            yield Finding(
                id="runtime-class-missing",
                object=users[0].object + (f" and {len(users) - 1} more" if len(users) > 1 else ""),
                message=f"names RuntimeClass {name}, which is not there: the API server refuses its pods",
                remedy=f"install what brings RuntimeClass {name} (the GPU operator brings nvidia), or take runtimeClassName out",
            )


def _claims(cluster: Cluster, found: list[Workload]) -> Iterator[Finding]:
    for workload in found:
        claim = workload.pod.annotations.get(MODEL_CACHE_CLAIM)
        if claim is None or MODEL_URI not in workload.pod.annotations:
            continue
        if not _exists(cluster, f"/api/v1/namespaces/{workload.namespace}/persistentvolumeclaims/{claim}"):
            yield Finding(
                id="cache-claim-missing",
                object=workload.object,
                message=f"wants its model in claim {claim}, which is not there: its pods would wait",
                remedy=f"create PersistentVolumeClaim {claim} in {workload.namespace}, or take {MODEL_CACHE_CLAIM} out",
            )


def _credentials(cluster: Cluster, found: list[Workload]) -> Iterator[Finding]:
    missing: dict[tuple[str, str], list[Workload]] = defaultdict(list)
    for workload in found:
        secret = _secret(cluster, workload)
        if secret and not _exists(cluster, f"/api/v1/namespaces/{workload.namespace}/secrets/{secret}"):
            missing[workload.namespace, secret].append(workload)
    for (namespace, secret), users in sorted(missing.items()):
        yield Finding(
            id="credentials-missing",
            object=users[0].object,
            message=f"fetches its model with the credentials in Secret {secret}, which is not in {namespace}: its pods "
            "would not start",
            remedy=f"kubectl -n {namespace} create secret generic {secret} --from-literal=…, as docs/model-warming.md says",
        )


def _secret(cluster: Cluster, workload: Workload) -> str | None:
    """Return the Secret that the policy of the workload's namespace has for the source of its model."""
    if MODEL_URI not in workload.pod.annotations:
        return None
    options = cluster.policy_of(workload.namespace).options_of(model_warming.ID)
    if not isinstance(options, model_warming.ModelWarmingOptions):
        return None
    request = model_warming.read_request(workload.pod, options)
    if isinstance(request, tuple):
        return None
    return options.sources.of(request.uri.scheme).secret_for(request.uri)


def _exists(cluster: Cluster, path: str) -> bool:
    """Whether the object is there; of a Secret no more than its metadata is read."""
    try:
        cluster.api.get(path, accept=METADATA)
    except errors.NotFound:
        return False
    return True


CHECKS = (
    Check(
        id="references",
        title="RuntimeClasses, claims and Secrets that GPU workloads need are there",
        reads=READS,
        run=_references,
    ),
)
