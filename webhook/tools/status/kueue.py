"""What Kueue says of objects: their LocalQueue, their place there, what the ClusterQueue has reserved, and what they wait for.

The place is by priority and age among the pending Workloads of the LocalQueue, as Kueue orders them (`pkg/cache/queue`, 0.17).
Workloads of other namespaces in the same ClusterQueue are not read. Tenants can seldom read a ClusterQueue.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, partial
from typing import TypeVar

import msgspec

from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Metadata
from policies.times import utc
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.kueue import (
    GROUP,
    NOT_STOPPED,
    VERSIONS,
    KueueWorkload,
    Queue,
    decode_queue,
    decode_workload,
)
from webhook.tools.json_struct import JsonStruct
from webhook.tools.status.tolerant_reader import TolerantReader

T = TypeVar("T")
MAX_OBJECTS = 10
"""Objects of one LocalQueue in a text. JSON has all."""


class Reserved(JsonStruct, frozen=True):
    """What a ClusterQueue has reserved of a resource of one flavor, and its nominal quota."""

    flavor: str
    resource: str
    reserved: str
    nominal: str


class KueueState(JsonStruct, frozen=True):
    """The Workload of an object. `place`: from 1 among `pending` Workloads of its LocalQueue, 0 if it is not pending.

    owner: the object, as `Job/train`; of a pod group, one of its pods. local_queue: its name, "" if the Workload names none.
    others: if that does not exist, those of the namespace; None otherwise.
    reserved: of GPUs; empty where the ClusterQueue cannot be read. message: Kueue's own words about why it waits.
    """

    workload: str
    local_queue: str
    owner: str = ""
    others: tuple[str, ...] | None = None
    cluster_queue: str = ""
    stopped: str = ""
    is_active: bool = True
    place: int = 0
    pending: int = 0
    reserved: tuple[Reserved, ...] = ()
    reserved_at: datetime | None = None
    admitted_at: datetime | None = None
    message: str = ""

    def in_words(self, now: datetime) -> str:
        """Return its state: `LocalQueue team-a, place 3 of 5`, or `LocalQueue team-a, admitted at 14:02 UTC`."""
        words = f"LocalQueue {self.local_queue}" if self.local_queue else f"Workload {self.workload}"
        return ", ".join(filter(None, (words, self.standing(now))))

    def standing(self, now: datetime) -> str:
        """Return how far it is: `place 3 of 5`, or `admitted at 14:02 UTC`."""
        if self.admitted_at:
            return f"admitted at {utc(self.admitted_at, now)}"
        if self.reserved_at:
            return f"quota reserved at {utc(self.reserved_at, now)}"
        return (
            f"place {self.place} of {self.pending}" if self.place else "" if self.is_active else "deactivated"
        )

    @property
    def waits_for(self) -> str:
        """Why Kueue does not start the object, as what follows its name; "" once it is admitted."""
        words = f": {self.message}" if self.message else ""
        queue = f"LocalQueue {self.local_queue}"
        if self.admitted_at is not None:
            return ""
        if not self.is_active:
            return f"is deactivated: spec.active of Workload {self.workload} is false{words}"
        if self.others is not None:
            return f"waits for {queue}, which does not exist" if self.local_queue else "names no LocalQueue"
        if self.stopped:
            return f"waits in {queue}: stopPolicy of {self.stopped} is set"
        if self.reserved_at is not None:
            return f"waits in {queue}: Kueue has reserved quota, and has not admitted it{words}"
        reserved = f"; {self.amounts}" if self.amounts else ""
        return f"waits in {queue} of Kueue, place {self.place} of {self.pending}{words}{reserved}"

    @property
    def amounts(self) -> str:
        """The reserved amounts of the ClusterQueue, in words; "" if they are unknown."""
        return _reserved_text(self.cluster_queue, self.reserved)


class QueueState(JsonStruct, frozen=True):
    """A LocalQueue, or one that Workloads name and that does not exist. Its objects are those that have not finished.

    reserved: by its ClusterQueue, of GPUs; empty where that cannot be read.
    """

    namespace: str
    name: str
    cluster_queue: str
    pending: int
    admitted: int
    is_stopped: bool
    exists: bool = True
    reserved: tuple[Reserved, ...] = ()
    objects: tuple[KueueState, ...] = ()

    @property
    def in_words(self) -> str:
        """Return `LocalQueue team-a: 1 admitted, 2 pending`, and what its ClusterQueue has reserved."""
        stopped = ", stopped" if self.is_stopped else "" if self.exists else ", does not exist"
        amounts = _reserved_text(self.cluster_queue, self.reserved)
        numbers = f"{self.admitted} admitted, {self.pending} pending{stopped}"
        return f"LocalQueue {self.name}: {numbers}{f'; {amounts}' if amounts else ''}"

    def lines(self, now: datetime) -> Iterator[str]:
        """Yield a line for each of the first objects, in their order: `Job/train: place 3 of 5: <Kueue's words>`."""
        for state in self.objects[:MAX_OBJECTS]:
            why = state.message if state.admitted_at is None else ""
            yield ": ".join(filter(None, (state.owner, state.standing(now), why)))
        if (omitted := len(self.objects) - MAX_OBJECTS) > 0:
            yield f"and {omitted} more"


def _reserved_text(cluster_queue: str, reserved: Iterable[Reserved]) -> str:
    found = ", ".join(f"{of.reserved} of {of.nominal} {of.resource} of flavor {of.flavor}" for of in reserved)
    return f"ClusterQueue {cluster_queue} has reserved {found}" if found else ""


def read_kueue(
    reader: TolerantReader, namespace: str, uids: Collection[str], mapping: ResourceMapping
) -> KueueState | None:
    """Return what Kueue says of the object with one of these uids. None if Kueue is not installed, or does not queue it.

    Missing rights are noted by the reader. Raises `errors.ApiError` for everything else.
    """
    version = reader.api.served_version(GROUP, VERSIONS)
    if version is None:
        return None
    queues = _Queues(reader, version, namespace, mapping)
    of_object = [workload for workload in queues.workloads if not frozenset(uids).isdisjoint(workload.owners)]
    if not of_object:
        return None
    return queues.state(
        max(of_object, key=lambda workload: (workload.is_pending, workload.metadata.creation_timestamp or ""))
    )


def read_queues(
    reader: TolerantReader, namespace: str, mapping: ResourceMapping
) -> tuple[QueueState, ...] | None:
    """Return the LocalQueues of the namespace, of all if it is "", by namespace and name. Missing rights are noted.

    None where Kueue is not installed.
    """
    version = reader.api.served_version(GROUP, VERSIONS)
    return None if version is None else tuple(_Queues(reader, version, namespace, mapping).states())


def read_kueue_objects(api: ApiClient, kind: str) -> Sequence[Queue]:
    """Return the ClusterQueues or Cohorts; none where Kueue is not installed, or the caller may not list them."""
    version = api.served_version(GROUP, VERSIONS)
    with suppress(errors.Forbidden, errors.NotFound):
        if version is not None:
            return api.list(api_path(f"/apis/{GROUP}/{version}", f"{kind.lower()}s"), decode_queue).items
    return ()


_QueueKey = tuple[str, str]
"""The namespace and the name of a LocalQueue."""


class _Queues:
    """Workloads and LocalQueues of one namespace, or of all. `local`: by name; None where the caller may not list them."""

    def __init__(
        self, reader: TolerantReader, version: str, namespace: str, mapping: ResourceMapping
    ) -> None:
        self._reader, self._mapping = reader, mapping
        self._path = partial(api_path, f"/apis/{GROUP}/{version}")
        self.workloads = self._listed("workloads", namespace, decode_workload) or ()
        local = self._listed("localqueues", namespace, decode_queue)
        self.local = None if local is None else {_queue_key(queue.metadata): queue for queue in local}
        self._by_queue: dict[_QueueKey, list[KueueWorkload]] = {}
        self._places: dict[str, int] = {}
        self._pending = Counter[_QueueKey]()
        for workload in sorted(self.workloads, key=lambda kueue_workload: kueue_workload.order):
            name = workload.metadata.namespace or "", workload.spec.queue_name
            self._by_queue.setdefault(name, []).append(workload)
            self._pending[name] += workload.is_pending
            self._places[workload.metadata.uid or ""] = self._pending[name] if workload.is_pending else 0
        self.cluster_queue = cache(self._cluster_queue)

    def _listed(self, plural: str, namespace: str, decode: Callable[[msgspec.Raw], T]) -> Sequence[T] | None:
        above = ("namespaces", namespace) if namespace else ()
        return self._reader.listed(f"{plural}.{GROUP}", namespace, self._path(*above, plural), decode)

    def _cluster_queue(self, name: str) -> Queue | None:
        """Return the ClusterQueue. None if there is none, or the caller may not read it: tenants seldom may."""
        try:
            return decode_queue(self._reader.api.get(self._path("clusterqueues", name)))
        except (errors.NotFound, errors.Forbidden):
            return None

    def states(self) -> Iterator[QueueState]:
        unfinished = {
            name: [workload for workload in of_queue if not workload.is_true("Finished")]
            for name, of_queue in self._by_queue.items()
        }
        known = self.local or {}
        for name in sorted({*known, *(name for name, of_queue in unfinished.items() if of_queue)}):
            local, of_queue = known.get(name), unfinished.get(name, [])
            cluster_queue = self.cluster_queue(local.spec.cluster_queue) if local else None
            yield QueueState(
                namespace=name[0],
                name=name[1],
                cluster_queue=local.spec.cluster_queue if local else "",
                pending=self._pending[name],
                admitted=sum(workload.is_admitted for workload in of_queue),
                is_stopped=any(
                    queue is not None and queue.spec.stop_policy != NOT_STOPPED
                    for queue in (local, cluster_queue)
                ),
                exists=local is not None or self.local is None,
                reserved=tuple(_reserved(cluster_queue, self._mapping)) if cluster_queue else (),
                objects=tuple(map(self.state, of_queue)),
            )

    def state(self, workload: KueueWorkload) -> KueueState:
        name = workload.metadata.namespace or "", workload.spec.queue_name
        owner = next(iter(workload.metadata.owner_references or ()), None)
        known = self.local or {}
        local, others = known.get(name), tuple(sorted(each for at, each in known if at == name[0]))
        above = local.spec.cluster_queue if local else ""
        cluster_queue = self.cluster_queue(above) if local else None
        queues = {f"LocalQueue {name[1]}": local, f"ClusterQueue {above}": cluster_queue}
        stopped = (
            title for title, queue in queues.items() if queue and queue.spec.stop_policy != NOT_STOPPED
        )
        return KueueState(
            workload=workload.metadata.name or "",
            local_queue=workload.spec.queue_name,
            owner=f"{owner.kind}/{owner.name}" if owner else f"Workload/{workload.metadata.name}",
            others=None if local or self.local is None else others,
            cluster_queue=above,
            stopped=" and ".join(stopped),
            is_active=workload.spec.active,
            place=self._places[workload.metadata.uid or ""],
            pending=self._pending[name],
            reserved=tuple(_reserved(cluster_queue, self._mapping)) if cluster_queue else (),
            reserved_at=workload.since("QuotaReserved"),
            admitted_at=workload.since("Admitted"),
            message=_waiting_reason(workload),
        )


def _queue_key(metadata: Metadata) -> _QueueKey:
    return metadata.namespace or "", metadata.name or ""


def _waiting_reason(workload: KueueWorkload) -> str:
    """Return why it waits, in Kueue's words; "" if it does not say."""
    checks = (check for check in workload.status.admission_checks if check.state != "Ready")
    if workload.since("QuotaReserved"):
        return "; ".join(f"AdmissionCheck {check.name} is {check.state}: {check.message}" for check in checks)
    conditions = map(workload.condition, ("QuotaReserved", "Evicted"))
    return next((condition.message for condition in conditions if condition and condition.message), "")


def _reserved(queue: Queue, mapping: ResourceMapping) -> Iterator[Reserved]:
    reserved = {
        (flavor.name, resource.name): resource.total
        for flavor in queue.status.flavors_reservation
        for resource in flavor.resources
    }
    for flavor, amount in queue.amounts:
        if mapping.resource(amount.name) is not None:
            total = reserved.get((flavor, amount.name), 0)
            yield Reserved(
                flavor=flavor, resource=amount.name, reserved=str(total), nominal=str(amount.nominal_quota)
            )
