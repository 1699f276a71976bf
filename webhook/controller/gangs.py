"""Gangs: pods that must run together, by their PodGroup or by the object that makes them.

A pod says in its metadata where its gang is looked up (`webhook.workloads.gang_sources`). A gang by PodGroup needs the smallest
number of members of the PodGroup. Otherwise, the controllers above the pod are read, one after another. The first whose pods
run together by section `workloadKinds` of a GPUResourceMapping makes the gang, or one above it that starts all of its pods
together: a JobSet. Pods of kinds that start in stages form no gang.

Only pods that request GPUs count, since no other pod waits.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any

import msgspec

from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.limit_ranges import NO_LIMITS, as_admitted
from policies.pods.pod import Metadata, Pod, View
from policies.pods.workload import PodCount
from policies.quota.waiting import KUEUE
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, object_path
from webhook.cluster.events import Regarding
from webhook.cluster.namespaces import LIMIT_RANGES_SECONDS, read_limits
from webhook.cluster.objects import OwnedObject, decode_owned
from webhook.configuration.loader import Configuration
from webhook.configuration.workload_kinds import WorkloadKind, plural
from webhook.workloads.counts import stage_field
from webhook.workloads.gang_sources import SCHEDULING, GangSource, may_lead_to_gang, starts_together
from webhook.workloads.places import PodPlace, workload_pods

log = logging.getLogger("gpu_admission.controller")

REMEMBERED_SECONDS = 30.0
"""How long the size of a gang is remembered. If it has fewer pods than before, it is read again: its object may be smaller."""
REREAD_SECONDS = 2.0
"""Seconds until a failed read is repeated, and the read of an object that has no pods now: it is suspended, or scaled to zero. Of
the latter they double, up to REMEMBERED_SECONDS: a pod that names such an object as its owner may have been made by anybody."""
READING_SECONDS = 2.0
"""Seconds for the reads of the gangs of one namespace in one turn. The others are read AGAIN_SECONDS later."""
MISSING_SECONDS = 60.0
"""A PodGroup may be created after its pods. After this time each pod waits alone: nothing serves the API of their scheduler."""
FORBIDDEN_SECONDS = 5.0
"""An API server that just started knows no roles yet. After this time the controller may not read the object at all."""
MAX_OWNERS = 6
"""Maximum of controllers above a pod. A pod of a JobSet of a TrainJob has three."""
SCHEDULING_VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2")


class KnownGang(msgspec.Struct, frozen=True):
    """The key of a gang in its namespace, and how many pods it needs; 0 if that could not be read yet."""

    key: str
    size: int


class _GangPolicy(View, frozen=True):
    min_count: int = 0


class _Policy(View, frozen=True):
    gang: _GangPolicy | None = None


class _PodGroupSpec(View, frozen=True):
    """The spec of a PodGroup. `scheduling_policy` is that of Kubernetes, `min_member` that of other schedulers."""

    min_member: int | None = None
    scheduling_policy: _Policy | None = None

    @property
    def size(self) -> int:
        policy = self.scheduling_policy
        return self.min_member or (policy.gang.min_count if policy and policy.gang else 0)


class _PodGroup(OwnedObject, frozen=True):
    spec: _PodGroupSpec = _PodGroupSpec()


_POD_GROUP = msgspec.json.Decoder(_PodGroup)


class GangWorkload(msgspec.Struct, frozen=True):
    """An object that has pods. `pods` are those with GPUs, as they are admitted, with their counts."""

    workload_kind: WorkloadKind | None
    data: Any
    pods: list[tuple[PodCount, Pod]]
    metadata: Metadata

    @property
    def counts(self) -> list[PodCount]:
        return [count for count, _ in self.pods]

    @property
    def is_staged(self) -> bool:
        return self.workload_kind is not None and bool(stage_field(self.workload_kind, self.data))

    @property
    def has_no_pods(self) -> bool:
        """Whether its pods are about to be deleted. How many run together is known when it makes pods again."""
        return bool(self.counts) and all(count.running == 0 for count in self.counts)

    @property
    def size(self) -> int:
        """How many of its pods run together, 0 if each works by itself."""
        if self.workload_kind is not None and starts_together(self.workload_kind, self.data):
            return sum(count.running or 0 for count in self.counts)
        return sum(count.gang or 0 for count in self.counts)


class _RememberedGang(msgspec.Struct, frozen=True):
    """What was found, until when it counts, since when it was looked for (monotonic), and how many pods have the source.

    `seconds`: for how long it counted when it was read.
    """

    gang: KnownGang | None
    until: float
    since: float
    pods: int
    seconds: float


class Gangs:
    """The gangs of pods, read from the API server and remembered for REMEMBERED_SECONDS.

    Thread-safe, but only one thread at a time may call `find` for a namespace.
    """

    def __init__(
        self,
        api: ApiClient,
        configuration: Callable[[], Configuration],
        staged: Callable[[Regarding], object],
    ) -> None:
        """`staged` is called with each object whose pods, several, start in stages, whenever it is read."""
        self._api, self.configuration, self._staged = api, configuration, staged
        self._known: dict[str, dict[GangSource, _RememberedGang]] = {}

    def find(self, namespace: str, sources: Iterable[GangSource]) -> dict[GangSource, KnownGang]:
        """Return the gangs; none for pods that work each by itself. `sources` has one for each live pod of the namespace.

        What was found of others is forgotten.
        """
        before, kinds = self._known.pop(namespace, {}), self.configuration().workload_kinds
        remembered: dict[GangSource, _RememberedGang] = {}
        gangs: dict[GangSource, KnownGang] = {}
        deadline, pods = monotonic() + READING_SECONDS, Counter(sources)
        smaller = _shrunk_gangs(before, pods)
        for source in pods:
            if not source.is_pod_group and not may_lead_to_gang(source, kinds):
                continue
            known, now = before.get(source), monotonic()
            if known is None or known.until <= now or known.gang in smaller:
                gang, seconds = (
                    self._read_gang(namespace, source, known, now)
                    if now < deadline
                    else (_last_known(source, known), 0.0)
                )
                known = _RememberedGang(
                    gang, now + seconds, now if known is None else known.since, 0, seconds
                )
            remembered[source] = msgspec.structs.replace(known, pods=pods[source])
            if known.gang is not None:
                gangs[source] = known.gang
        if remembered:
            self._known[namespace] = remembered
        return gangs

    def seconds_to_read(self, namespace: str) -> float:
        """Return the seconds until the next gang of unknown size is read again, after `find` returned one."""
        known, now = self._known.get(namespace, {}).values(), monotonic()
        waits = [gang.until - now for gang in known if gang.gang is not None and not gang.gang.size]
        return min((wait if wait > 0 else REREAD_SECONDS for wait in waits), default=REREAD_SECONDS)

    def forget(self, namespace: str) -> None:
        self._known.pop(namespace, None)

    def _read_gang(
        self, namespace: str, source: GangSource, known: _RememberedGang | None, now: float
    ) -> tuple[KnownGang | None, float]:
        """Return the gang, and for how many seconds that counts."""
        try:
            read = self._gang_of_group if source.is_pod_group else self._gang_of_owner
            gang = read(namespace, source)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            log.warning("%s: the gang of %s %s: %s", namespace, source.kind, source.name, error)
            age = 0.0 if known is None else now - known.since
            match error:
                case errors.NotFound():
                    is_final = not source.is_pod_group or age >= MISSING_SECONDS
                case errors.Forbidden():
                    is_final = age >= FORBIDDEN_SECONDS
                case _:
                    is_final = isinstance(error, msgspec.MsgspecError)
            if is_final:
                return None, REMEMBERED_SECONDS
            return _last_known(source, known), REREAD_SECONDS
        if gang is None or gang.size:
            return gang, REMEMBERED_SECONDS
        before = known.seconds if known is not None and known.gang == gang else 0.0
        return gang, min(max(2 * before, REREAD_SECONDS), REMEMBERED_SECONDS)

    def _gang_of_group(self, namespace: str, source: GangSource) -> KnownGang | None:
        api_version = source.api_version
        if api_version == KUEUE and not source.uid:
            return KnownGang(_gang_key(source), int(source.part)) if int(source.part) > 1 else None
        if api_version == SCHEDULING:
            api_version = f"{SCHEDULING}/{self._api.served_version(SCHEDULING, SCHEDULING_VERSIONS)}"
        pod_group = _POD_GROUP.decode(self._read(namespace, api_version, source.kind, source.name))
        size = pod_group.spec.size
        waiting = self._waiting_members(namespace, pod_group.metadata)
        size = size if waiting is None else min(size, waiting)
        return KnownGang(_gang_key(source), size) if size > 1 else None

    def _waiting_members(self, namespace: str, metadata: Metadata) -> int | None:
        """Return how many pods with GPUs the owner of a PodGroup makes; None if it has no owner, or a number is unknown.

        The MPI operator counts its launcher as a member, Volcano the tasks without GPUs. Those do not wait.
        """
        owner = next(iter(metadata.owner_references or ()), None)
        if owner is None:
            return None
        source = GangSource(owner.api_version, owner.kind, owner.name)
        if not may_lead_to_gang(source, self.configuration().workload_kinds):
            return None
        running = [count.running for count in self.workload(namespace, source).counts]
        return None if None in running else sum(number or 0 for number in running)

    def _gang_of_owner(self, namespace: str, source: GangSource) -> KnownGang | None:
        """Follow the controllers up: to the first object that is a gang, and to those that start all of their pods together."""
        kinds = self.configuration().workload_kinds
        gang, current = None, source
        for _ in range(MAX_OWNERS):
            workload = self.workload(namespace, current)
            if workload.is_staged:
                if sum(count.running or 0 for count in workload.counts) > 1:
                    uid = workload.metadata.uid or ""
                    self._staged(Regarding(current.api_version, current.kind, current.name, uid, namespace))
                break
            if workload.has_no_pods:
                return KnownGang(_gang_key(msgspec.structs.replace(current, part=source.part)), 0)
            if workload.size > 1:
                gang = KnownGang(_gang_key(msgspec.structs.replace(current, part=source.part)), workload.size)
            if (controller := workload.metadata.controller) is None:
                break
            current = GangSource(controller.api_version, controller.kind, controller.name)
            above = kinds.get(current.type)
            may_be_larger = above is not None and above.starts_together
            if not (may_be_larger if gang else may_lead_to_gang(current, kinds)):
                break
        return gang

    def workload(self, namespace: str, source: GangSource) -> GangWorkload:
        """Return an object by its apiVersion, kind and name. Raises `errors.ApiError` and msgspec.MsgspecError."""
        configuration = self.configuration()
        kinds, mapping = configuration.workload_kinds, configuration.resource_mapping
        document = self._read(namespace, source.api_version, source.kind, source.name)
        data, places = workload_pods(kinds, source.group, source.kind, document)
        pods = _pods_with_gpus(self._api, mapping, namespace, places)
        return GangWorkload(kinds.get(source.type), data, pods, decode_owned(document).metadata)

    def _read(self, namespace: str, api_version: str, kind: str, name: str) -> bytes:
        known = self.configuration().workload_kinds.get((api_version.rpartition("/")[0], kind))
        path = object_path(api_version, namespace, known.plural if known else plural(kind), name)
        return self._api.get(path)


def _pods_with_gpus(
    api: ApiClient, mapping: ResourceMapping, namespace: str, places: Iterable[tuple[PodPlace, Pod]]
) -> list[tuple[PodCount, Pod]]:
    """Return the pods of an object that request GPUs, as they are admitted, and how many there are of each."""
    pods = [(place.count, pod) for place, pod in places]
    if not all(mapping.pod_requests_gpus(pod) for _, pod in pods):  # a LimitRange may give GPUs to the others
        limits = read_limits(api, namespace, LIMIT_RANGES_SECONDS) or NO_LIMITS
        pods = [(count, as_admitted(pod, limits)) for count, pod in pods]
    return [(count, pod) for count, pod in pods if mapping.pod_requests_gpus(pod)]


def _shrunk_gangs(
    before: Mapping[GangSource, _RememberedGang], pods: Mapping[GangSource, int]
) -> set[KnownGang]:
    fewer_pods = Counter[KnownGang]()
    for source, known in before.items():
        if known.gang is not None:
            fewer_pods[known.gang] += known.pods - pods.get(source, 0)
    return {gang for gang, number in fewer_pods.items() if number > 0}


def _last_known(source: GangSource, known: _RememberedGang | None) -> KnownGang | None:
    """Return what was found before; of what was never read, a gang of unknown size."""
    return KnownGang(_gang_key(source), 0) if known is None else known.gang


def _gang_key(source: GangSource) -> str:
    return f"{source.kind}/{source.name}/{source.part}".rstrip("/")
