"""Spec of a GPUResourceMapping document: which resources, annotations and devices are GPUs, and the meaning of their amounts."""

from collections.abc import Iterator
from enum import Enum
from functools import cached_property

import msgspec

from policies.gpus.device_types import NO_DEVICE_TYPES, DeviceTypes
from policies.pods.names import is_dns_subdomain, is_resource_name
from policies.pods.pod import StrictView

DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Prefix of the names for which the scheduler makes DRA claims (KEP-5004). The API server does not check their amounts."""

NVIDIA_GPU = "nvidia.com/gpu"
"""The default resource of whole cards."""

DEFAULT_SCHEDULER = "default-scheduler"
"""The default of schedulerName in the API server."""


class Measure(Enum):
    """The unit of a resource."""

    DEVICES = "devices"
    """Whole accelerators."""
    CORES = "cores"
    """Whole cores of an accelerator that has several (NeuronCores)."""
    SHARES = "shares"
    """Time-sliced replicas of a device: places in a queue, not parts of a card."""
    SLICES = "slices"
    """Hardware partitions (MIG). The `*` of the pattern is the profile."""
    MEMORY_GIB = "memoryGiB"
    MEMORY_MIB = "memoryMiB"
    MEMORY_BYTES = "memoryBytes"
    MEMORY_PERCENT = "memoryPercent"
    CORE_PERCENT = "corePercent"
    CORE_MILLIS = "coreMillis"
    FRACTION = "fraction"
    """A part of one device, 0 < x ≤ 1 (annotations only)."""
    NOTHING = "nothing"
    """Not a GPU, although a wider pattern matches: for example a resource for monitoring."""

    __hash__ = object.__hash__  # the members are single, and an Enum's own hash takes ten times as long

    @cached_property
    def is_count(self) -> bool:
        """Whether it is a number of devices, cores, shares or slices. Other measures are memory, percentages and fractions."""
        return self in _COUNTS


_COUNTS = frozenset({Measure.DEVICES, Measure.CORES, Measure.SHARES, Measure.SLICES})

_RESOURCE_NAME = "must be a resource name such as example.com/gpu"


class ResourcePattern(StrictView, frozen=True):
    """The meaning of one unit of the resources that match the pattern."""

    pattern: str
    measure: Measure
    resource: str | None = None
    """The extended resource of whole cards, which is also the taint key of their nodes. None if the pattern matches whole cards
    itself, or if that resource is not known."""


class AnnotationKey(StrictView, frozen=True):
    """An annotation that requests a part of a card. `resource` is the extended resource of such cards."""

    key: str
    measure: Measure
    resource: str = NVIDIA_GPU


class UnknownDeviceClasses(Enum):
    """How DeviceClasses are treated if nothing says whether they have GPUs. The strictest value is the first."""

    DENY = "deny"
    """Requests are denied. Stored requests are counted."""
    COUNT = "count"
    """Each device counts as a GPU."""
    IGNORE = "ignore"
    """The devices do not count."""


class DeviceClassPattern(StrictView, frozen=True):
    """Whether the devices of DeviceClasses (DRA) are GPUs.

    The pattern also matches names of DRA drivers: a DeviceClass whose selectors name a GPU driver has GPUs.
    """

    pattern: str
    measure: Measure | None = Measure.DEVICES
    """`devices` or `nothing`. None if the selectors of the DeviceClass do not say which."""
    resource: str | None = None
    """The resource name of the same cards without DRA; it also names the vendor. None: any class may have the cards."""
    extended_resource_name: str | None = None
    """`spec.extendedResourceName` of the DeviceClass, "" if it has none, None if it is not known."""
    weigh: tuple[str, ...] = ()
    """By which counters of a card the driver's partitions weigh. A pattern with a `*` is the sum of the counters that match."""

    def problems(self) -> Iterator[tuple[str, str]]:
        # A * matches one or more characters, so the name must be valid with a letter instead.
        if self.pattern.count("*") > 1 or not is_dns_subdomain(self.pattern.replace("*", "x")):
            yield "pattern", "must be the name of a DeviceClass such as gpu.example.com, with at most one *"
        if self.measure not in {Measure.DEVICES, Measure.NOTHING}:
            yield "measure", "must be devices or nothing"
        for field, name in (
            ("resource", self.resource),
            ("extendedResourceName", self.extended_resource_name),
        ):
            if name is not None and not all(name.partition("/")):
                yield field, _RESOURCE_NAME
        for index, counter in enumerate(self.weigh):
            if counter.count("*") > 1 or not is_dns_subdomain(counter.replace("*", "x")):
                yield f"weigh[{index}]", "must be the name of a counter such as memory, with at most one *"


class OtherScheduler(StrictView, frozen=True):
    """A scheduler that gives GPUs by annotations, in units that no quota counts. It reads the annotations with these prefixes."""

    scheduler_name: str
    annotation_prefixes: tuple[str, ...]


class ResourceMappingSpec(StrictView, frozen=True):
    """Spec of a GPUResourceMapping document. Its patterns precede the built-in ones."""

    resources: tuple[ResourcePattern, ...] = ()
    fraction_annotations: tuple[AnnotationKey, ...] = ()
    fraction_schedulers: tuple[str, ...] = ()
    """The `schedulerName` of the schedulers that read these annotations. Other schedulers ignore them."""
    other_schedulers: tuple[OtherScheduler, ...] = ()
    """Neither demand nor the digest of the catalogue depends on them."""
    device_classes: tuple[DeviceClassPattern, ...] = ()
    unknown_device_classes: UnknownDeviceClasses | None = None
    """The strictest value of all documents applies. The default is `count`."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the spec, message) for every invalid value."""
        for index, resource in enumerate(self.resources):
            path = f"resources[{index}]"
            domain, _, name = resource.pattern.partition("/")
            if not domain or not name:
                yield f"{path}.pattern", "must be a resource name such as example.com/gpu or example.com/*"
            if resource.pattern.count("*") > 1 or "*" in domain:
                yield f"{path}.pattern", "must have at most one *, after the /"
            if resource.measure is Measure.FRACTION:
                yield f"{path}.measure", "must not be fraction: amounts of resources are whole numbers"
            if resource.resource is not None and not is_resource_name(resource.resource):
                yield f"{path}.resource", _RESOURCE_NAME
        yield from self._fraction_problems()
        for index, device_class in enumerate(self.device_classes):
            for field, text in device_class.problems():
                yield f"deviceClasses[{index}].{field}", text

    def _fraction_problems(self) -> Iterator[tuple[str, str]]:
        for index, annotation in enumerate(self.fraction_annotations):
            if annotation.measure not in {Measure.FRACTION, Measure.MEMORY_MIB, Measure.DEVICES}:
                yield f"fractionAnnotations[{index}].measure", "must be fraction, memoryMiB or devices"
            if not is_resource_name(annotation.resource):
                yield f"fractionAnnotations[{index}].resource", _RESOURCE_NAME
        message = "must be the schedulerName of a scheduler that shares GPUs"
        for index, scheduler in enumerate(self.fraction_schedulers):
            if scheduler in {"", DEFAULT_SCHEDULER}:
                yield f"fractionSchedulers[{index}]", message
        for index, other in enumerate(self.other_schedulers):
            if other.scheduler_name in {"", DEFAULT_SCHEDULER}:
                yield f"otherSchedulers[{index}].schedulerName", message
            if not other.annotation_prefixes or not all(other.annotation_prefixes):
                yield (
                    f"otherSchedulers[{index}].annotationPrefixes",
                    "must be beginnings such as example.com/gpu-",
                )


class DerivedMappingSpec(ResourceMappingSpec, frozen=True):
    """What the cluster's DeviceClasses and ResourceSlices say. It is part of a catalogue, and never a document.

    types_by_class: by DeviceClass, the indexes of the types of devices that its selectors may select.
    """

    device_types: DeviceTypes = msgspec.field(name="deviceKinds", default=NO_DEVICE_TYPES)
    types_by_class: dict[str, tuple[int, ...]] = msgspec.field(name="kindsByClass", default_factory=dict)
