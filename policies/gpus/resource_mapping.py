"""Mapping of resource names, annotations and device classes to GPUs, and the meaning of their amounts.

A `GPUResourceMapping` document configures it; the built-in one ships with the webhook. A pattern is a resource name with at most
one `*`; the first pattern that fits a name decides.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cached_property, lru_cache
from hashlib import sha256

import msgspec

from policies.pods.names import is_dns_subdomain
from policies.pods.pod import Container, ContainerPlace, Pod
from policies.pods.quantity import Quantity, readable
from policies.pods.requests import NOTHING, pod_requests

IMPLICIT_DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"
"""Prefix of the resource names that the API server turns into DRA claims; native to it, so it checks nothing about them."""


DEFAULT_SCHEDULER = "default-scheduler"
"""What the API server writes into a pod without a schedulerName."""


class Measure(Enum):
    """What one unit of a resource is."""

    DEVICES = "devices"
    """Whole accelerators."""
    CORES = "cores"
    """Whole cores of an accelerator that has several (NeuronCores)."""
    SHARES = "shares"
    """Time-sliced replicas of a device: places in a queue, not parts of a card."""
    SLICES = "slices"
    """Hardware partitions (MIG); what the `*` of the pattern stands for is the profile."""
    MEMORY_MIB = "memoryMiB"
    MEMORY_BYTES = "memoryBytes"
    MEMORY_PERCENT = "memoryPercent"
    CORE_PERCENT = "corePercent"
    CORE_MILLIS = "coreMillis"
    FRACTION = "fraction"
    """A part of one device, 0 < x ≤ 1 (annotations only)."""
    NOTHING = "nothing"
    """Not a GPU although a wider pattern would fit, e.g. a monitoring handle."""

    @property
    def is_count(self) -> bool:
        """Whether the number counts things, as against an amount of memory or a percentage of one."""
        return self in _COUNTS


_COUNTS = frozenset({Measure.DEVICES, Measure.CORES, Measure.SHARES, Measure.SLICES})


class ResourcePattern(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: str
    measure: Measure


class AnnotationKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: str
    measure: Measure


class DeviceClassPattern(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """DeviceClasses (DRA) whose devices are GPUs, and the extended resource by which the same cards are asked for without DRA.

    That resource names the vendor; without it any class may have the cards.
    """

    pattern: str
    resource: str | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        # A * stands for one or more characters, so a name must still be one with a letter in its place.
        if self.pattern.count("*") > 1 or not is_dns_subdomain(self.pattern.replace("*", "x")):
            yield "pattern", "must be the name of a DeviceClass such as gpu.example.com, with at most one *"
        if self.resource is not None and not all(self.resource.partition("/")):
            yield "resource", "must be a resource name such as example.com/gpu"


class ResourceMappingSpec(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Spec of a GPUResourceMapping document; what it names comes before the built-in patterns."""

    resources: tuple[ResourcePattern, ...] = ()
    fraction_annotations: tuple[AnnotationKey, ...] = ()
    fraction_schedulers: tuple[str, ...] = ()
    """The schedulers that read these annotations, by `schedulerName`; all others ignore them."""
    device_classes: tuple[DeviceClassPattern, ...] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the spec, sentence) for every invalid value."""
        for index, resource in enumerate(self.resources):
            path = f"resources[{index}]"
            domain, _, name = resource.pattern.partition("/")
            if not domain or not name:
                yield f"{path}.pattern", "must be a resource name such as example.com/gpu or example.com/*"
            if resource.pattern.count("*") > 1 or "*" in domain:
                yield f"{path}.pattern", "must have at most one *, after the /"
            if resource.measure is Measure.FRACTION:
                yield f"{path}.measure", "must not be fraction: amounts of resources are whole numbers"
        yield from self._fraction_problems()
        for index, device_class in enumerate(self.device_classes):
            for field, text in device_class.problems():
                yield f"deviceClasses[{index}].{field}", text

    def _fraction_problems(self) -> Iterator[tuple[str, str]]:
        for index, annotation in enumerate(self.fraction_annotations):
            if annotation.measure not in {Measure.FRACTION, Measure.MEMORY_MIB, Measure.DEVICES}:
                yield f"fractionAnnotations[{index}].measure", "must be fraction, memoryMiB or devices"
        for index, scheduler in enumerate(self.fraction_schedulers):
            if scheduler in {"", DEFAULT_SCHEDULER}:
                yield (
                    f"fractionSchedulers[{index}]",
                    "must be the schedulerName of a scheduler that shares GPUs",
                )


class GPUResource(msgspec.Struct, frozen=True):
    """A resource name that asks for a GPU. `profile` is the MIG profile of a slice, e.g. `1g.10gb`."""

    name: str
    measure: Measure
    profile: str | None = None


class GPURequest(msgspec.Struct, frozen=True):
    """What one container asks of one GPU resource; the limit where there is one, as the kubelet does."""

    place: ContainerPlace
    resource: GPUResource
    quantity: Quantity


class ResourceMapping:
    """Answers, for the patterns it was made from, what asks for a GPU."""

    def __init__(self, specs: Iterable[ResourceMappingSpec]) -> None:
        specs = tuple(specs)
        self.patterns = tuple(pattern for spec in specs for pattern in spec.resources)
        self.fraction_annotations = tuple(key for spec in specs for key in spec.fraction_annotations)
        self.fraction_schedulers = tuple(
            dict.fromkeys(each for spec in specs for each in spec.fraction_schedulers)
        )
        self._device_classes = tuple(pattern for spec in specs for pattern in spec.device_classes)
        # Tenants choose the names, so what is remembered is bounded.
        self.resource = lru_cache(maxsize=1024)(self._resource)

    def _resource(self, name: str) -> GPUResource | None:
        """Return what `name` asks for, None where it asks for no GPU; called through the cache `resource`."""
        if name.startswith(IMPLICIT_DEVICE_CLASS):
            return GPUResource(name, Measure.DEVICES)
        for candidate in self.patterns:
            filling, measure = _filling(candidate.pattern, name), candidate.measure
            if filling is not None:
                profile = filling or None if measure is Measure.SLICES else None
                return None if measure is Measure.NOTHING else GPUResource(name, measure, profile)
        return None

    def device_class(self, name: str) -> DeviceClassPattern | None:
        """Return the pattern that says that devices of this DeviceClass are GPUs; None where they are none."""
        return next((each for each in self._device_classes if _filling(each.pattern, name) is not None), None)

    @cached_property
    def digest(self) -> str:
        """Hex digest of the content, which is in an order: the first pattern that fits decides."""
        content = (self.patterns, self.fraction_annotations, self._device_classes)
        return sha256(msgspec.json.encode(content)).hexdigest()

    def named_resources(self, container: Container) -> Iterator[GPUResource]:
        """Yield every GPU resource that the container names in limits or requests, also with a zero, once each."""
        for name in {**container.limits, **container.requests}:
            resource = self.resource(name)
            if resource is not None:
                yield resource

    def requests(self, pod: Pod) -> Iterator[GPURequest]:
        """Yield what each container asks for: positive amounts only; gpu-requests reports invalid quantities."""
        for place in pod.places:
            for resource, quantity in self._asked(place.container):
                yield GPURequest(place, resource, quantity)

    def container_asks(self, container: Container) -> bool:
        """Whether the container asks for a GPU: a positive amount of a GPU resource, or a DRA claim."""
        return container.resources is not None and bool(container.resources.claims or self._asked(container))

    def _asked(self, container: Container) -> tuple[tuple[GPUResource, Quantity], ...]:
        # Every rule wants to know, of a view that never changes: remembered with it, and with who gave the answer.
        if container.resources is None:
            return ()
        memory = container.resources.__dict__
        if memory.get("resource_mapping") is not self:
            effective = {**container.requests, **container.limits}
            memory["asked"] = tuple(
                (resource, quantity)
                for resource in self.named_resources(container)
                if (quantity := readable(effective[resource.name])) and quantity.nano > 0
            )
            memory["resource_mapping"] = self
        asked: tuple[tuple[GPUResource, Quantity], ...] = memory["asked"]
        return asked

    def pod_fraction(self, pod: Pod) -> tuple[AnnotationKey, str] | None:
        """Return the annotation by which a fraction scheduler (KAI, Run:ai) is asked for a part of a GPU, and its value."""
        present = ((key, pod.annotations[key.key]) for key in self.fractions_of(pod))
        # A number of devices says only of how many the part is.
        return next((each for each in present if not each[0].measure.is_count), None)

    def fractions_of(self, pod: Pod) -> list[AnnotationKey]:
        """Return the fraction annotations that the pod has."""
        annotations = pod.annotations
        return [key for key in self.fraction_annotations if key.key in annotations]

    def pod_asks(self, pod: Pod) -> bool:
        """Whether the pod asks for a GPU by any way there is: resources, DRA claims, fraction annotations."""
        return (
            any(self.container_asks(place.container) for place in pod.places)
            or bool(pod.body.resource_claims)
            or self.pod_fraction(pod) is not None
        )


def gpu_requests(pod: Pod, resource_mapping: ResourceMapping) -> dict[GPUResource, Quantity]:
    """Return how much of every GPU resource the pod needs, positive amounts only. Raises QuantityError."""
    found = ((resource_mapping.resource(name), quantity) for name, quantity in pod_requests(pod).items())
    return {resource: quantity for resource, quantity in found if resource is not None and quantity > NOTHING}


def whole_gpus(pod: Pod, resource_mapping: ResourceMapping) -> int:
    """Return how many whole accelerators the pod runs on; slices, shares and cores are none. Raises QuantityError."""
    requests = gpu_requests(pod, resource_mapping).items()
    return sum(quantity.value for resource, quantity in requests if resource.measure is Measure.DEVICES)


def _filling(pattern: str, name: str) -> str | None:
    """Return what the `*` of the pattern stands for in the name, "" where it has none; None if it does not fit."""
    prefix, star, suffix = pattern.partition("*")
    if not star:
        return "" if name == pattern else None
    if len(name) > len(prefix) + len(suffix) and name.startswith(prefix) and name.endswith(suffix):
        return name[len(prefix) : len(name) - len(suffix)]
    return None
