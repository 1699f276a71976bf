"""Complaints about amounts of GPU resources: too many for a container, a pod or a node, or on no node at all."""

from collections.abc import Iterator

import msgspec

from policies.finding import Reason
from policies.gpus.amount import NAME
from policies.gpus.resource_limits import ResourceLimits, limit_of
from policies.gpus.resource_mapping import GPUResource, Measure, ResourceMapping
from policies.placement.availability import Availability, Complaint


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the policy, and what the nodes of the pod's classes have."""

    availability: Availability
    resource_mapping: ResourceMapping
    max_per_container: ResourceLimits
    max_per_pod: ResourceLimits
    gpus_per_node: int
    known_profiles_only: bool

    def on_resource(self, resource: GPUResource) -> Complaint | None:
        """Complain about a resource that the classes of the pod, or all nodes, lack."""
        found = self.availability.other_vendor(resource)
        found = found or self.availability.unknown_slice(resource, is_closed=self.known_profiles_only)
        return found or self.availability.without_node(resource, self.resource_mapping)

    def on_container(self, resource: GPUResource, count: int) -> Complaint | None:
        """Complain about too many for one container."""
        most = limit_of(self.max_per_container, resource, self.availability.pinned)
        if not resource.measure.is_count or most is None or count <= most:
            return None
        message = f"must be at most {most} per container by policy"
        return Complaint(
            Reason.EXCEEDS_MAX_PER_CONTAINER, message, f"set {NAME}: {most} or less", amount=most
        )

    def on_pod(self, resource: GPUResource, total: int, *, is_reported: bool = False) -> Iterator[Complaint]:
        """Complain about too many for one pod or one node. `is_reported`: `on_container` has complained about as many."""
        availability, most = self.availability, self._max_per_pod(resource)
        found = [
            availability.too_many_slices(resource, total, self.gpus_per_node),
            availability.too_many_cards(resource, total),
        ]
        if most is not None and total > most and not is_reported:
            message, remedy = f"must be at most {most} per pod by policy", f"request {NAME}: {most} or less"
            found.insert(0, Complaint(Reason.EXCEEDS_MAX_PER_POD, message, remedy, amount=most))
        if not is_reported and not any(found):
            found.append(availability.more_than_any_machine(resource, total, self.gpus_per_node))
        return filter(None, found)

    def may_exceed(self, resource: GPUResource, total: int) -> bool:
        """Whether `on_pod` may complain: cheap, and true of all slices."""
        bounds = (self._max_per_pod(resource), self.gpus_per_node, self.availability.cards_per_node(resource))
        is_above = any(bound is not None and total > bound for bound in bounds)
        return is_above or resource.measure is Measure.SLICES

    def _max_per_pod(self, resource: GPUResource) -> int | None:
        return limit_of(self.max_per_pod, resource, self.availability.pinned)
