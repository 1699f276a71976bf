"""Availability of what a pod requests on the GPU classes on which it can run, and what they have instead.

Only what the class catalogue knows is judged: slices of a vendor none of whose classes lists any are left alone.
"""

import difflib
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

from policies.gpus.cards import vendor
from policies.gpus.classes import ClassCatalogue, GPUClass
from policies.gpus.resource_mapping import GPUResource, Measure, ResourceMapping
from policies.placement.pinning import Pinning, pinning
from policies.pods.pod import Pod

_LONGEST_PROFILE = 63
"""Of a resource's name; more of it is not compared with anything."""
_MOST_COMPARED = 8
"""Names of slices in one pod for which the nearest are looked up: that takes 1 ms each."""


class Complaint(NamedTuple):
    """Why the pod would never run, and what its author can do."""

    message: str
    remedy: str


class Availability:
    """Answers for one pod; `classes` are those it is pinned to, or else all there are."""

    def __init__(self, pod: Pod, catalogue: ClassCatalogue) -> None:
        self._catalogue = catalogue
        self._pinned = pinning(pod, catalogue)
        self._compared = 0
        # gpu-class reports constraints that contradict each other: here they pin nothing.
        self.classes = catalogue.named(self._pinned.classes if self._pinned else ()) or tuple(catalogue)

    def other_vendor(self, resource: GPUResource) -> Complaint | None:
        """Complain if the resource is one vendor's and the pod is pinned to the classes of another."""
        asked = vendor(resource.name)
        if self._pinned is None or any(vendor(c.resource) == asked for c in self.classes):
            return None
        having = [gpu_class for gpu_class in self._catalogue if vendor(gpu_class.resource) == asked]
        if not having:
            return None
        offered = " or ".join(sorted({gpu_class.resource for gpu_class in self.classes}))
        return Complaint(
            f"must be {offered}: the pod is pinned to {_describe(self._pinned)}",
            f"request {offered}, or pin the pod to a class that has {resource.name}, such as {having[0].name}",
        )

    def unknown_slice(self, resource: GPUResource) -> Complaint | None:
        """Complain if no class that the pod can land on can be cut into such slices."""
        if resource.profile is None or self.other_vendor(resource):
            return None
        having = [c for c in self._catalogue if self._catalogue.mig_profile(c, resource.profile)]
        listing = [
            c for c in self._catalogue if c.mig_profiles and vendor(c.resource) == vendor(resource.name)
        ]
        if not listing or any(gpu_class in self.classes for gpu_class in having):
            return None
        nearest = self._nearest_slices(resource, [c for c in listing if c in self.classes])
        is_pinned = self._pinned is not None and bool(self._pinned.classes)
        whole = self.classes[0] if is_pinned else listing[0]
        remedy = f"request {nearest or f'whole GPUs ({whole.resource})'}"
        if self._pinned is None or not is_pinned:
            return Complaint(f"must be a slice that some GPU class has: none has {resource.profile}", remedy)
        if having:
            remedy += f", or pin the pod to a class that has them, such as {having[0].name}"
        return Complaint(
            f"must be a slice of {_describe(self._pinned)}, to which the pod is pinned: it has no {resource.profile}",
            remedy,
        )

    def too_many_slices(self, resource: GPUResource, count: int, gpus_per_node: int) -> Complaint | None:
        """Complain if so many slices are more than one node could have: what fits on a card times its cards."""
        per_gpu = [
            (profile.per_gpu, gpu_class.name)
            for gpu_class in self.classes
            if resource.profile and (profile := self._catalogue.mig_profile(gpu_class, resource.profile))
        ]
        if not per_gpu:
            return None
        each, name = max(per_gpu)
        most = each * gpus_per_node
        if count <= most:
            return None
        return Complaint(
            f"must be at most {most}, for a pod runs on one node: {each} on each {name}, {gpus_per_node} GPUs in a node",
            f"request {most} or fewer, and spread the work over several pods",
        )

    def smaller_than(
        self, resource: GPUResource, part: Fraction, resource_mapping: ResourceMapping
    ) -> list[str]:
        """Return the resources by which a part (< 1) of such a GPU can be had: a slice and a share, if there are any."""
        found = []
        having = [gpu_class for gpu_class in self.classes if gpu_class.resource == resource.name]
        best = Counter(name for gpu_class in having for name in self._smallest_slice(gpu_class, part))
        if best:
            profile = min(best, key=lambda name: (-best[name], name))
            name = f"{vendor(resource.name)}/mig-{profile}"
            known = resource_mapping.resource(name)
            if known is not None and known.measure is Measure.SLICES:
                found.append(f"a slice of a GPU such as {name}")
        shared = resource_mapping.resource(f"{resource.name}.shared")
        if shared is not None and shared.measure is Measure.SHARES:
            found.append(f"a time-sliced share ({shared.name})")
        return found

    def _smallest_slice(self, gpu_class: GPUClass, part: Fraction) -> list[str]:
        """Return the lightest profile that is at least this part of the card, as a list of none or one."""
        # Variants such as 1g.10gb+me exist once on a card: nothing to recommend.
        profiles = [profile for profile in gpu_class.mig_profiles if "+" not in profile]
        weighed = [(self._catalogue.mig_weight(gpu_class, profile), profile) for profile in profiles]
        return [profile for _, profile in sorted(each for each in weighed if each[0] >= part)[:1]]

    def _nearest_slices(self, resource: GPUResource, classes: list[GPUClass]) -> str:
        if self._compared >= _MOST_COMPARED:
            return ""
        self._compared += 1
        asked = resource.profile or ""
        profiles = sorted({profile.replace("+", ".") for c in classes for profile in c.mig_profiles})
        close = difflib.get_close_matches(asked[:_LONGEST_PROFILE], profiles, n=2, cutoff=0.0)
        return " or ".join(resource.name.removesuffix(asked) + profile for profile in close)


def _describe(pinned: Pinning) -> str:
    return f"{' or '.join(pinned.classes)} ({' and '.join(pinned.because)})"
