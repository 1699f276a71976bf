"""Fixes of amounts of GPUs that all rules accept."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from policies.finding import Edit, Finding, Reason
from policies.gpus.amount import FRACTIONAL_GPU, Amount, amounts, is_extended, larger
from policies.gpus.resource_mapping import GPUResource, Measure
from policies.placement.availability import Bounds
from policies.pods.annotations import MODELS
from policies.pods.field_paths import path_parts
from policies.pods.pod import Pod
from policies.pods.quantity import readable

MAX_FIXES = 16
"""Fixes of one pod that are examined; each looks at all containers."""


class AcceptedFixes(msgspec.Struct, kw_only=True):
    """Keeps a choice only if the rules accept the pod with it: else the author would meet the next finding after applying it."""

    bounds: Bounds
    depends_on_gpu_count: Callable[[Pod], bool]
    """Whether the pod starts processes by the number of its GPUs."""
    examined: int = 0

    def checked(self, finding: Finding, amount: Amount) -> Finding:
        """Return the finding about the amount, with those of its choices that are accepted."""
        if not finding.choices:
            return finding
        self.examined += 1
        if self.examined > MAX_FIXES:
            return replace(finding, choices=(), remedy=finding.advice)
        accepted = tuple(
            edits for edits in finding.choices if self._accepts(finding.reason, edits[-1], amount)
        )
        if accepted == finding.choices:
            return finding
        if accepted or finding.reason is not FRACTIONAL_GPU:
            return replace(finding, choices=accepted, remedy="" if accepted else finding.advice)
        # The words begin with the amount of the choice; slices and shares may follow.
        alternatives = finding.remedy.partition(", or ")[2]
        rounded = "round it up or down" if amount.value > 1 else "round it up"
        return replace(finding, choices=(), remedy=f"set {alternatives}" if alternatives else rounded)

    def _accepts(self, reason: Reason, written: Edit, amount: Amount) -> bool:
        container, mapping = amount.place.container, self.bounds.resource_mapping
        name = str(path_parts(written.path)[-1])
        resource, quantity = mapping.resource(name), readable(written.value)
        if resource is None or quantity is None or not quantity.is_whole or quantity.nano <= 0:
            return False
        is_set = name != amount.resource.name and (name in container.limits or name in container.requests)
        is_limited = ".limits[" in written.path or amount.resource.name in container.limits
        if is_set or mapping.misspelt(name) or (is_extended(name) and not is_limited):
            return False
        if not self._is_seen(amount):
            return False
        if resource != amount.resource and not self._may_replace(amount):
            return False
        count = quantity.value
        is_same = all(each.value == count for each in amounts(amount.place, amount.resource) if each)
        is_same = is_same and reason is not FRACTIONAL_GPU
        return self._is_available(resource, count, amount) and self._matches(resource, count, amount, is_same)

    def _is_seen(self, amount: Amount) -> bool:
        """Whether the other rules already check this pod as one with GPUs, or the pod has nothing that they check."""
        availability, container = self.bounds.availability, amount.place.container
        if self.bounds.resource_mapping.container_requests_gpus(container):
            return True
        is_plain = not (container.env or container.env_from or availability.pod.annotations)
        return is_plain and not (availability.pod.constrains_nodes or availability.use.is_restricted)

    def _may_replace(self, amount: Amount) -> bool:
        """Whether another resource may replace it: it is the only one, and no constraint, model or default depends on it."""
        pod, default = self.bounds.availability.pod, self.bounds.availability.use.default
        resources = {each.resource for each in self.bounds.resource_mapping.requests(pod)}
        is_free = not pod.constrains_nodes and MODELS.isdisjoint(pod.annotations) and default is None
        return is_free and resources == {amount.resource}

    def _is_available(self, resource: GPUResource, count: int, amount: Amount) -> bool:
        """Whether the classes and the limits allow this count, together with the other containers."""
        if self.bounds.on_resource(resource) or self.bounds.availability.contradicts_annotation(resource):
            return False
        if not resource.measure.is_count:
            return True
        of_other_containers = sum(
            larger(*pair).value
            for place in self.bounds.availability.pod.places
            if place is not amount.place and any(pair := amounts(place, resource))
        )
        too_many = self.bounds.on_container(resource, count)
        return too_many is None and not any(self.bounds.on_pod(resource, count + of_other_containers))

    def _matches(self, resource: GPUResource, count: int, amount: Amount, is_same: bool) -> bool:
        """Whether the container can use this count: at most one slice or share, and as many GPUs as it starts processes."""
        container, mapping = amount.place.container, self.bounds.resource_mapping
        slices = {r.name for r in mapping.named_resources(container) if r.measure is Measure.SLICES}
        if resource.measure in {Measure.SLICES, Measure.SHARES} and (count > 1 or len(slices) > 1):
            return False
        return is_same or not self.depends_on_gpu_count(self.bounds.availability.pod)
