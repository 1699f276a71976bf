"""Gangs: pods that must run together, by their PodGroup or by the object that makes them.

A pod says in its metadata where its gang is looked up. Of a PodGroup, the smallest number of members counts. Otherwise the last
object in the chain of controllers counts, if section `workloadKinds` of a GPUResourceMapping says that its pods run together.
Only pods that request GPUs count, since no other pod waits. Pods of kinds that start in stages form no gang.
"""

import logging
from collections.abc import Callable
from time import monotonic

import msgspec

from policies.pods.pod import Metadata, View
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.configuration.loader import Configuration
from webhook.configuration.workload_kinds import plural
from webhook.workloads.counts import is_staged
from webhook.workloads.gangs import SCHEDULING, SOURCES, GangSource, controller_of, starts_together
from webhook.workloads.places import workload_pods

log = logging.getLogger("gpu_admission.controller")

REMEMBERED_SECONDS = 30.0
"""For so long the size of a gang is not read again."""
MAX_OWNERS = 6
"""Controllers above a pod at most: a pod of a JobSet of a TrainJob has three."""
SCHEDULING_VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2", "v1alpha1")


class KnownGang(msgspec.Struct, frozen=True):
    """The key of a gang in its namespace, and how many pods it needs."""

    key: str
    size: int


class _Object(View, frozen=True):
    metadata: Metadata = Metadata()


_OBJECT = msgspec.json.Decoder(_Object)


class Gangs:
    """The gangs of pods, read from the API server and remembered for REMEMBERED_SECONDS. For any number of threads."""

    def __init__(self, api: ApiClient, configuration: Callable[[], Configuration]) -> None:
        self._api, self._configuration = api, configuration
        self._known: dict[tuple[str, GangSource], tuple[KnownGang | None, float]] = {}

    def find(self, namespace: str, source: GangSource) -> KnownGang | None:
        """Return the gang; None for pods that work each by itself, and where it cannot be read."""
        found, until = self._known.get((namespace, source), (None, 0.0))
        if monotonic() < until:
            return found
        try:
            read = self._of_group if source.is_group else self._of_owner
            found = read(namespace, source)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            log.info("%s: the gang of %s %s: %s", namespace, source.kind, source.name, error)
            found = None
        if len(self._known) >= SOURCES:
            self._known.clear()
        self._known[namespace, source] = found, monotonic() + REMEMBERED_SECONDS
        return found

    def _of_group(self, namespace: str, source: GangSource) -> KnownGang | None:
        api_version = source.api_version
        if api_version == SCHEDULING:
            api_version = f"{SCHEDULING}/{self._api.served_version(SCHEDULING, SCHEDULING_VERSIONS)}"
        data = msgspec.json.decode(self._read(namespace, api_version, source.kind, source.name))
        spec = data.get("spec", {})
        if source.kind == "Workload":
            groups = {each.get("name"): each for each in spec.get("podGroups", [])}
            spec = groups.get(source.part.partition("/")[0], {})
        policy = spec.get("policy") or spec.get("schedulingPolicy") or {}
        size = spec.get("minMember") or policy.get("gang", {}).get("minCount")
        key = f"{source.kind}/{source.name}/{source.part}".rstrip("/")
        return KnownGang(key, int(size)) if size else None

    def _of_owner(self, namespace: str, source: GangSource) -> KnownGang | None:
        """Follow the controllers up, as far as their kinds are known, and take the gang of the last one."""
        kinds = self._configuration().workload_kinds
        root, document = source, b""
        for _ in range(MAX_OWNERS):
            document = self._read(namespace, root.api_version, root.kind, root.name)
            owner = controller_of(_OBJECT.decode(document).metadata)
            if owner is None or (_group(owner.api_version), owner.kind) not in kinds:
                break
            root = GangSource(owner.api_version, owner.kind, owner.name, source.part)
        size = self._size(root.group, root.kind, document)
        key = f"{root.kind}/{root.name}/{source.part}".rstrip("/")
        return KnownGang(key, size) if size > 1 else None

    def _size(self, group: str, kind: str, document: bytes) -> int:
        """Return how many pods with GPUs of the object run together; 0 if each works by itself."""
        configuration = self._configuration()
        workload_kind = configuration.workload_kinds.get((group, kind))
        if workload_kind is None:
            return 0
        data, found = workload_pods(configuration.workload_kinds, group, kind, document)
        counts = [
            place.count for place, pod in found if configuration.resource_mapping.pod_requests_gpus(pod)
        ]
        if starts_together(workload_kind, data):
            return sum(count.running or 0 for count in counts)
        return 0 if is_staged(workload_kind, data) else sum(count.gang or 0 for count in counts)

    def _read(self, namespace: str, api_version: str, kind: str, name: str) -> bytes:
        row = self._configuration().workload_kinds.get((_group(api_version), kind))
        prefix = "/api/v1" if api_version == "v1" else f"/apis/{api_version}"
        return self._api.get(
            api_path(prefix, "namespaces", namespace, row.plural if row else plural(kind), name)
        )


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]
