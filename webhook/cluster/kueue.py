"""Kueue's objects: Workloads, LocalQueues and ClusterQueues, with the fields that are read of v1beta2 and v1beta1."""

from collections.abc import Iterator
from datetime import datetime
from fractions import Fraction

import msgspec

from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Metadata
from policies.pods.quantity import NANO, parse_quantity
from policies.quota.waiting import KUEUE
from webhook.cluster.objects import TRUE, Condition

GROUP = KUEUE.rstrip("/")
VERSIONS = ("v1beta2", "v1beta1")
QUEUE_NAME = f"{KUEUE}queue-name"
_TIMED_OUT = "PodsReadyTimeout"
"""Reason of condition Evicted. Such a Workload has its place by the time of the eviction."""
RUNS = "None"
"""spec.stopPolicy of a queue that admits."""


class _View(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the parts of Kueue's objects. Other fields are not read."""


class _Check(_View, frozen=True):
    name: str
    state: str
    message: str = ""


class _WorkloadSpec(_View, frozen=True):
    queue_name: str = ""
    priority: int | None = None
    active: bool = True


class _WorkloadStatus(_View, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission_checks: tuple[_Check, ...] = ()


class Workload(_View, frozen=True):
    """A Workload of Kueue. It has an ownerReference to each object that it queues."""

    metadata: Metadata
    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()

    @property
    def owners(self) -> Iterator[str]:
        """Yield the uids of its owners."""
        for each in self.metadata.owner_references or ():
            yield each.uid

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.status.conditions if each.type == kind), None)

    def since(self, kind: str) -> datetime | None:
        """Return since when the condition is True, None if it is not."""
        found = self.condition(kind)
        return datetime.fromisoformat(found.last_transition_time) if found and found.status == TRUE else None

    @property
    def is_pending(self) -> bool:
        return self.spec.active and not (self.since("QuotaReserved") or self.since("Finished"))

    @property
    def is_admitted(self) -> bool:
        return bool(self.since("Admitted")) and not self.since("Finished")

    @property
    def order(self) -> tuple[int, str, str]:
        """The sort key in its LocalQueue."""
        evicted = self.condition("Evicted")
        is_late = evicted is not None and evicted.status == TRUE and evicted.reason == _TIMED_OUT
        since = evicted.last_transition_time if evicted and is_late else self.metadata.creation_timestamp
        return -(self.spec.priority or 0), since or "", self.metadata.uid or ""


class _Amount(_View, frozen=True):
    name: str
    total: str | int = 0
    nominal_quota: str | int = 0


class _Flavor(_View, frozen=True):
    name: str
    resources: tuple[_Amount, ...] = ()


class _ResourceGroup(_View, frozen=True):
    flavors: tuple[_Flavor, ...] = ()


class _QueueSpec(_View, frozen=True):
    cluster_queue: str = ""
    stop_policy: str = RUNS
    resource_groups: tuple[_ResourceGroup, ...] = ()


class _QueueStatus(_View, frozen=True):
    flavors_reservation: tuple[_Flavor, ...] = ()


class Queue(_View, frozen=True):
    metadata: Metadata
    spec: _QueueSpec = _QueueSpec()
    status: _QueueStatus = _QueueStatus()

    @property
    def amounts(self) -> Iterator[tuple[str, _Amount]]:
        """Yield each flavor of a ClusterQueue with its quota of each resource."""
        for group in self.spec.resource_groups:
            for flavor in group.flavors:
                for each in flavor.resources:
                    yield flavor.name, each


decode_workload = msgspec.json.Decoder(Workload).decode
decode_queue = msgspec.json.Decoder(Queue).decode


def nominal_gpus(queue: Queue, mapping: ResourceMapping) -> Fraction:
    """Return the whole cards of all flavors of a ClusterQueue, without what it may borrow. Raises QuantityError."""
    resources = ((each, mapping.resource(each.name)) for _, each in queue.amounts)
    cards = (each for each, of in resources if of is not None and of.measure is Measure.DEVICES)
    return sum((Fraction(parse_quantity(each.nominal_quota).nano, NANO) for each in cards), Fraction(0))
