"""The limits of the policy on the amounts of a pod, and what the nodes of its classes have."""

from collections.abc import Iterator

import msgspec

from policies.finding import Reason
from policies.gpus.amount import SLOT
from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_limits import ResourceLimits, limit_of
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.placement.availability import Availability, Complaint

EXCEEDS_MAX_PER_CONTAINER = Reason(
    "ExceedsMaxPerContainer", "a container requests more than maxPerContainer of the policy"
)
EXCEEDS_MAX_PER_POD = Reason("ExceedsMaxPerPod", "a pod requests more than maxPerPod of the policy")


class AmountLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the policy, and what the nodes of the pod's classes have."""

    availability: Availability
    resource_mapping: ResourceMapping
    max_per_container: ResourceLimits
    max_per_pod: ResourceLimits
    gpus_per_node: int
    known_profiles_only: bool
    may_replace: bool = True
    """Whether another resource is offered for one that no node has. Not to a pod or DaemonSet that chose its nodes."""

    def check_resource(self, resource: GPUResource, count: int) -> Complaint | None:
        """Complain about a resource that the classes of the pod, or all nodes, lack."""
        if self.resource_mapping.misspelt(resource.name):  # rule ineffective-fields says which name is meant
            return None
        complaint = self.availability.other_vendor(resource)
        complaint = complaint or self.availability.unknown_slice(
            resource, known_profiles_only=self.known_profiles_only
        )
        count = count if self.may_replace else 0
        return complaint or self.availability.without_node(resource, self.resource_mapping, count)

    def check_container(self, resource: GPUResource, count: int) -> Complaint | None:
        """Complain if a container requests too many."""
        limit = limit_of(self.max_per_container, resource, self.availability.pinned)
        if not resource.measure.is_count or limit is None or count <= limit:
            return None
        message = f"must be at most {limit} per container by policy"
        return Complaint(EXCEEDS_MAX_PER_CONTAINER, message, f"set {SLOT}: {limit} or less", amount=limit)

    def check_pod(
        self, resource: GPUResource, total: int, *, is_reported: bool = False
    ) -> Iterator[Complaint]:
        """Complain if the pod requests too many for a pod or a node. `is_reported`: `check_container` complained already."""
        availability, limit = self.availability, self._max_per_pod(resource)
        complaints = [
            availability.too_many_slices(resource, total, self.gpus_per_node),
            availability.too_many_cards(resource, total),
        ]
        if limit is not None and total > limit and not is_reported:
            message, remedy = f"must be at most {limit} per pod by policy", f"request {SLOT}: {limit} or less"
            complaints.insert(0, Complaint(EXCEEDS_MAX_PER_POD, message, remedy, amount=limit))
        if not is_reported and not any(complaints):
            complaints.append(availability.more_than_any_machine(resource, total, self.gpus_per_node))
        return filter(None, complaints)

    def may_exceed(self, resource: GPUResource, total: int) -> bool:
        """Whether `check_pod` may complain: cheap, and true of all slices."""
        limits = (self._max_per_pod(resource), self.gpus_per_node, self.availability.cards_per_node(resource))
        is_above = any(limit is not None and total > limit for limit in limits)
        return is_above or resource.measure is Measure.SLICES

    def _max_per_pod(self, resource: GPUResource) -> int | None:
        return limit_of(self.max_per_pod, resource, self.availability.pinned)
