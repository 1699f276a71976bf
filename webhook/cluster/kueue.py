"""Kueue's objects: Workloads, queues and flavors, with the fields that are read of v1beta2 and v1beta1."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from fractions import Fraction

import msgspec

from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Metadata, Toleration
from policies.pods.quantity import NANO, parse_quantity
from policies.quota.waiting import KUEUE
from webhook.cluster.objects import TRUE, Condition

GROUP = KUEUE.rstrip("/")
VERSIONS = ("v1beta2", "v1beta1")
_PODS_READY_TIMEOUT = "PodsReadyTimeout"
"""Reason of condition Evicted. Such a Workload has its place by the time of the eviction."""
MAX_COHORTS = 16
"""Cohorts above each other that are followed: Kueue refuses a cycle only later."""
NOT_STOPPED = "None"
"""spec.stopPolicy of a queue that admits."""


class _View(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the parts of Kueue's objects. Other fields are not read."""


class _AdmissionCheck(_View, frozen=True):
    name: str
    state: str
    message: str = ""


class _WorkloadSpec(_View, frozen=True):
    queue_name: str = ""
    priority: int | None = None
    active: bool = True


class PodSetAssignment(_View, frozen=True):
    """What Kueue admitted of the pods of one template: by name of a resource, the flavor and the amount of all of them."""

    name: str
    count: int = 0
    flavors: dict[str, str] = {}
    resource_usage: dict[str, str | int] = {}


class _Admission(_View, frozen=True):
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class _Reclaimable(_View, frozen=True):
    name: str
    count: int


class _WorkloadStatus(_View, frozen=True):
    """`cluster_name`: the other cluster that runs it (MultiKueue)."""

    admission: _Admission = _Admission()
    cluster_name: str = ""
    reclaimable_pods: tuple[_Reclaimable, ...] = ()
    conditions: tuple[Condition, ...] = ()
    admission_checks: tuple[_AdmissionCheck, ...] = ()


class KueueWorkload(_View, frozen=True):
    """A Workload of Kueue. It has an ownerReference to each object that it queues."""

    metadata: Metadata
    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()

    @property
    def owners(self) -> Iterator[str]:
        """Yield the uids of its owners."""
        for reference in self.metadata.owner_references or ():
            yield reference.uid

    def condition(self, kind: str) -> Condition | None:
        return next((condition for condition in self.status.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found.status == TRUE

    def since(self, kind: str) -> datetime | None:
        """Return since when the condition is True, None if it is not."""
        found = self.condition(kind)
        return datetime.fromisoformat(found.last_transition_time) if found and found.status == TRUE else None

    @property
    def is_pending(self) -> bool:
        return self.spec.active and not (self.is_true("QuotaReserved") or self.is_true("Finished"))

    @property
    def is_admitted(self) -> bool:
        return self.is_true("Admitted") and not self.is_true("Finished")

    @property
    def is_admitted_here(self) -> bool:
        """Whether this cluster runs it. Somebody's finalizer may keep one that is deleted."""
        is_gone = self.metadata.deletion_timestamp is not None or bool(self.status.cluster_name)
        return self.is_admitted and not is_gone

    @property
    def assignments(self) -> Iterator[tuple[PodSetAssignment, int]]:
        """Yield each assignment, with the number of its pods for which Kueue has not taken back the amount: they succeeded."""
        ended = {pod.name: pod.count for pod in self.status.reclaimable_pods}
        for assignment in self.status.admission.pod_set_assignments:
            if assignment.count > 0:
                yield assignment, max(assignment.count - ended.get(assignment.name, 0), 0)

    @property
    def order(self) -> tuple[int, str, str]:
        """The sort key in its LocalQueue."""
        evicted = self.condition("Evicted")
        is_late = self.is_true("Evicted") and evicted is not None and evicted.reason == _PODS_READY_TIMEOUT
        since = evicted.last_transition_time if evicted and is_late else self.metadata.creation_timestamp
        return -(self.spec.priority or 0), since or "", self.metadata.uid or ""


class FlavorSpec(_View, frozen=True):
    node_labels: dict[str, str] = {}
    node_taints: tuple[Toleration, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_name: str = ""


class Flavor(_View, frozen=True):
    """A ResourceFlavor."""

    metadata: Metadata
    spec: FlavorSpec = FlavorSpec()


class _Amount(_View, frozen=True):
    name: str
    total: str | int = 0
    nominal_quota: str | int = 0
    borrowing_limit: str | int | None = None
    lending_limit: str | int | None = None


class _FlavorAmounts(_View, frozen=True):
    name: str
    resources: tuple[_Amount, ...] = ()


class _ResourceGroup(_View, frozen=True):
    flavors: tuple[_FlavorAmounts, ...] = ()


class _QueueSpec(_View, frozen=True):
    """`cohort_name` and `parent_name` are `cohort` and `parent` in v1beta1."""

    cluster_queue: str = ""
    stop_policy: str = NOT_STOPPED
    resource_groups: tuple[_ResourceGroup, ...] = ()
    cohort_name: str = ""
    cohort: str = ""
    parent_name: str = ""
    parent: str = ""

    @property
    def parent_cohort(self) -> str:
        """The cohort of a ClusterQueue or Cohort, "" without one."""
        return self.cohort_name or self.cohort or self.parent_name or self.parent


class _QueueStatus(_View, frozen=True):
    flavors_reservation: tuple[_FlavorAmounts, ...] = ()


class Queue(_View, frozen=True):
    """A LocalQueue, a ClusterQueue or a Cohort."""

    metadata: Metadata
    spec: _QueueSpec = _QueueSpec()
    status: _QueueStatus = _QueueStatus()

    @property
    def amounts(self) -> Iterator[tuple[str, _Amount]]:
        """Yield each flavor of a ClusterQueue with its quota of each resource."""
        for group in self.spec.resource_groups:
            for flavor in group.flavors:
                for resource in flavor.resources:
                    yield flavor.name, resource

    def amount(self, flavor: str, resource: str) -> _Amount:
        found = (amount for name, amount in self.amounts if (name, amount.name) == (flavor, resource))
        return next(found, _Amount(resource))

    def nominal(self, flavor: str, resource: str) -> Fraction:
        return quantity_of(self.amount(flavor, resource).nominal_quota)

    def lendable(self, flavor: str, resource: str) -> Fraction:
        """Return how much of this its cohort may use."""
        nominal, limit = self.nominal(flavor, resource), self.amount(flavor, resource).lending_limit
        return nominal if limit is None else min(nominal, quantity_of(limit))


decode_workload = msgspec.json.Decoder(KueueWorkload).decode
decode_flavor = msgspec.json.Decoder(Flavor).decode
decode_queue = msgspec.json.Decoder(Queue).decode


def most_admitted(
    queue: Queue, queues: Iterable[Queue], cohorts: Collection[Queue], mapping: ResourceMapping
) -> dict[tuple[str, str], Fraction]:
    """Return the most GPUs that a ClusterQueue can admit, with what it borrows, by flavor and resource. Raises QuantityError.

    That is what `potentialAvailable` in `pkg/cache/scheduler/resource_node.go` of Kueue 0.17 computes, or more: limits of Cohorts
    that are below others are left out. A Cohort may have no object.
    """
    parent_cohort = {cohort.metadata.name or "": cohort.spec.parent_cohort for cohort in cohorts}

    def root(name: str) -> str:
        for _ in range(MAX_COHORTS):
            name = parent_cohort.get(name) or name
        return name

    own_root = root(queue.spec.parent_cohort)
    members = [(other.spec.parent_cohort, other) for other in queues if other != queue]
    members += [(cohort.metadata.name or "", cohort) for cohort in cohorts]
    others = [queue for name, queue in members if own_root and root(name) == own_root]
    most = {}
    for flavor, own in queue.amounts:
        if mapping.resource(own.name) is not None:
            borrowed = sum((queue.lendable(flavor, own.name) for queue in others), Fraction(0))
            if own.borrowing_limit is not None:
                borrowed = min(borrowed, quantity_of(own.borrowing_limit))
            most[flavor, own.name] = quantity_of(own.nominal_quota) + borrowed
    return most


def quantity_of(text: str | int) -> Fraction:
    """Return a quantity. Raises QuantityError."""
    return Fraction(parse_quantity(text).nano, NANO)
