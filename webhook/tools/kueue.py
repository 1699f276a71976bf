"""What Kueue says of an object: its LocalQueue, its place there, what the ClusterQueue has reserved, and what it waits for.

The place is by priority and age among the pending Workloads of the LocalQueue, as Kueue orders them (`pkg/cache/queue`, 0.17).
Workloads of other namespaces in the same ClusterQueue are not read. Tenants can seldom read a ClusterQueue.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial

import msgspec

from policies.gpus.resource_mapping import ResourceMapping
from policies.times import utc
from webhook.cluster import errors
from webhook.cluster.api import api_path
from webhook.cluster.kueue import GROUP, RUNS, VERSIONS, Queue, Workload, decode_queue, decode_workload
from webhook.tools.json_struct import JsonStruct
from webhook.tools.status.permitted import Permitted


class Reserved(JsonStruct, frozen=True):
    """What a ClusterQueue has reserved of a resource of one flavor, and its nominal quota."""

    flavor: str
    resource: str
    reserved: str
    nominal: str


class KueueState(JsonStruct, frozen=True):
    """The Workload of an object. `place`: from 1 among `pending` Workloads of its LocalQueue, 0 if it is not pending.

    local_queue: its name, "" if the Workload names none. others: if that does not exist, those of the namespace; None otherwise.
    reserved: of GPUs; empty where the ClusterQueue cannot be read. message: Kueue's own words about why it waits.
    """

    workload: str
    local_queue: str
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
        if self.admitted_at:
            return f"{words}, admitted at {utc(self.admitted_at, now)}"
        if self.reserved_at:
            return f"{words}, quota reserved at {utc(self.reserved_at, now)}"
        return f"{words}, place {self.place} of {self.pending}" if self.place else words

    @property
    def amounts(self) -> str:
        """The reserved amounts of the ClusterQueue, in words; "" if they are unknown."""
        return _amounts(self.cluster_queue, self.reserved)


class QueueState(JsonStruct, frozen=True):
    """A LocalQueue. reserved: by its ClusterQueue, of GPUs; empty where that cannot be read."""

    name: str
    cluster_queue: str
    pending: int
    admitted: int
    is_stopped: bool
    reserved: tuple[Reserved, ...] = ()

    @property
    def in_words(self) -> str:
        """Return `LocalQueue team-a: 1 admitted, 2 pending`, and what its ClusterQueue has reserved."""
        stopped = ", stopped" if self.is_stopped else ""
        amounts = _amounts(self.cluster_queue, self.reserved)
        numbers = f"{self.admitted} admitted, {self.pending} pending{stopped}"
        return f"LocalQueue {self.name}: {numbers}{f'; {amounts}' if amounts else ''}"


def _amounts(cluster_queue: str, reserved: Iterable[Reserved]) -> str:
    found = ", ".join(f"{of.reserved} of {of.nominal} {of.resource} of flavor {of.flavor}" for of in reserved)
    return f"ClusterQueue {cluster_queue} has reserved {found}" if found else ""


def read_kueue(
    reader: Permitted, namespace: str, uids: Collection[str], mapping: ResourceMapping
) -> KueueState | None:
    """Return what Kueue says of the object with one of these uids. None if Kueue is not installed, or does not queue it.

    Missing rights are noted by the reader. Raises `errors.ApiError` for everything else.
    """
    version = reader.api.served_version(GROUP, VERSIONS)
    if version is None:
        return None
    path = partial(api_path, f"/apis/{GROUP}/{version}")
    listed = _workloads(reader, path, namespace)
    own = [each for each in listed if not frozenset(uids).isdisjoint(each.owners)]
    if not own:
        return None
    workload = max(own, key=lambda each: (each.is_pending, each.metadata.creation_timestamp or ""))
    state = _state(workload, listed)
    queues = reader.attempt_list(f"localqueues.{GROUP}", namespace, partial(_listed, reader, path, namespace))
    if queues is None:
        return state
    local = queues.get(state.local_queue)
    if local is None:
        return msgspec.structs.replace(state, others=tuple(sorted(queues)))
    whole = _cluster_queue(reader, path("clusterqueues", local.spec.cluster_queue))
    spaces = {f"LocalQueue {state.local_queue}": local, f"ClusterQueue {local.spec.cluster_queue}": whole}
    stopped = (name for name, queue in spaces.items() if queue and queue.spec.stop_policy != RUNS)
    return msgspec.structs.replace(
        state,
        cluster_queue=local.spec.cluster_queue,
        stopped=" and ".join(stopped),
        reserved=tuple(_reserved(whole, mapping)) if whole else (),
    )


def read_queues(reader: Permitted, namespace: str, mapping: ResourceMapping) -> tuple[QueueState, ...]:
    """Return the LocalQueues of the namespace by name, none where Kueue is not installed. Missing rights are noted."""
    version = reader.api.served_version(GROUP, VERSIONS)
    if version is None:
        return ()
    path = partial(api_path, f"/apis/{GROUP}/{version}")
    listed = reader.attempt_list(f"localqueues.{GROUP}", namespace, partial(_listed, reader, path, namespace))
    workloads = _workloads(reader, path, namespace) if listed else ()
    states = []
    for name, local in sorted((listed or {}).items()):
        of_queue = [each for each in workloads if each.spec.queue_name == name]
        whole = _cluster_queue(reader, path("clusterqueues", local.spec.cluster_queue))
        states.append(
            QueueState(
                name=name,
                cluster_queue=local.spec.cluster_queue,
                pending=sum(each.is_pending for each in of_queue),
                admitted=sum(each.is_admitted for each in of_queue),
                is_stopped=any(each is not None and each.spec.stop_policy != RUNS for each in (local, whole)),
                reserved=tuple(_reserved(whole, mapping)) if whole else (),
            )
        )
    return tuple(states)


def _workloads(reader: Permitted, path: Callable[..., str], namespace: str) -> Sequence[Workload]:
    read = partial(reader.api.list, path("namespaces", namespace, "workloads"), decode_workload)
    answer = reader.attempt_list(f"workloads.{GROUP}", namespace, read)
    return answer.items if answer else ()


def _listed(reader: Permitted, path: Callable[..., str], namespace: str) -> dict[str, Queue]:
    """Return the LocalQueues of the namespace by name."""
    items = reader.api.list(path("namespaces", namespace, "localqueues"), decode_queue).items
    return {each.metadata.name or "": each for each in items}


def _cluster_queue(reader: Permitted, path: str) -> Queue | None:
    """Return the ClusterQueue. None if there is none, or the caller may not read it: tenants seldom may, and need not know."""
    try:
        return decode_queue(reader.api.get(path))
    except (errors.NotFound, errors.Forbidden):
        return None


def _state(workload: Workload, listed: Sequence[Workload]) -> KueueState:
    pending = [
        each for each in listed if each.spec.queue_name == workload.spec.queue_name and each.is_pending
    ]
    before = sum(each.order < workload.order for each in pending)
    return KueueState(
        workload=workload.metadata.name or "",
        local_queue=workload.spec.queue_name,
        is_active=workload.spec.active,
        place=before + 1 if workload.is_pending else 0,
        pending=len(pending),
        reserved_at=workload.since("QuotaReserved"),
        admitted_at=workload.since("Admitted"),
        message=_message(workload),
    )


def _message(workload: Workload) -> str:
    """Return why it waits, in Kueue's words; "" if it does not say."""
    checks = (each for each in workload.status.admission_checks if each.state != "Ready")
    if workload.since("QuotaReserved"):
        return "; ".join(f"AdmissionCheck {each.name} is {each.state}: {each.message}" for each in checks)
    conditions = map(workload.condition, ("QuotaReserved", "Evicted"))
    return next((each.message for each in conditions if each and each.message), "")


def _reserved(queue: Queue, mapping: ResourceMapping) -> Iterator[Reserved]:
    reserved = {
        (flavor.name, each.name): each.total
        for flavor in queue.status.flavors_reservation
        for each in flavor.resources
    }
    for flavor, each in queue.amounts:
        if mapping.resource(each.name) is not None:
            total = reserved.get((flavor, each.name), 0)
            yield Reserved(
                flavor=flavor, resource=each.name, reserved=str(total), nominal=str(each.nominal_quota)
            )
