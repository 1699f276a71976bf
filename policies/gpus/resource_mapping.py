"""Mapping of resource names, annotations and device classes to GPUs, and the meaning of their amounts.

Its sources are `GPUResourceMapping` documents, the DeviceClasses of the cluster (`device_classes`), and a built-in document.
A pattern is a name with at most one `*`, which stands for one or more characters: `x*` does not match `x`. The first matching
pattern decides.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from policies.gpus import near_names
from policies.gpus.mapping_spec import (
    DEVICE_CLASS_PREFIX,
    AnnotationKey,
    DerivedMappingSpec,
    DeviceClassPattern,
    Measure,
    ResourceMappingSpec,
    ResourcePattern,
    UnknownDeviceClasses,
)
from policies.gpus.vendors import from_all_vendors
from policies.pods.pod import Container, ContainerPlace, Pod
from policies.pods.quantity import Quantity, parse_or_none

Pattern = TypeVar("Pattern", ResourcePattern, DeviceClassPattern)
_VENDOR_PATTERNS = frozenset(
    from_all_vendors(lambda vendor: tuple(resource.pattern for resource in vendor.resources))
)


class _Patterns(Generic[Pattern]):
    """Patterns. The first that matches a name decides."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns: Sequence[Pattern] = patterns

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        """One for all: group n is what the name has for the `*` of the n-th pattern, empty without a `*`."""
        parts = (pattern.pattern.partition("*") for pattern in self._patterns)
        return re.compile(
            "|".join(f"{re.escape(a)}({'.+' if star else ''}){re.escape(b)}" for a, star, b in parts),
            re.DOTALL,
        )

    def first_match(self, name: str) -> tuple[Pattern, str | None] | tuple[None, None]:
        """Return the first pattern that matches, and what the name has for its `*`."""
        match = self._expression.fullmatch(name)
        if match is None or match.lastindex is None:
            return None, None
        return self._patterns[match.lastindex - 1], match[match.lastindex] or None


class GPUResource(msgspec.Struct, frozen=True, cache_hash=True):
    """A resource name that requests a GPU. `profile` is the MIG profile of a slice, e.g. `1g.10gb`."""

    name: str
    measure: Measure
    profile: str | None = None


class GPURequest(msgspec.Struct, frozen=True):
    """A container's limit of one GPU resource, or its request if it has no limit, as in the kubelet."""

    place: ContainerPlace
    resource: GPUResource
    quantity: Quantity


class ResourceMapping:
    """Decides by its patterns which resources, annotations and devices are GPUs."""

    def __init__(self, specs: Iterable[ResourceMappingSpec]) -> None:
        self.specs = specs = tuple(specs)
        stated = {spec.unknown_device_classes for spec in specs}
        self.unknown_device_classes = next(
            (value for value in UnknownDeviceClasses if value in stated), UnknownDeviceClasses.COUNT
        )
        self.fraction_annotations = tuple(key for spec in specs for key in spec.fraction_annotations)
        self.fraction_schedulers = tuple(
            dict.fromkeys(scheduler for spec in specs for scheduler in spec.fraction_schedulers)
        )
        self.other_schedulers = {
            each.scheduler_name: each.annotation_prefixes for spec in specs for each in spec.other_schedulers
        }
        """By name of a scheduler, the beginnings of annotations by which it gives GPUs."""
        # A catalogue that was read has all its specs in this type.
        derived = next(
            (spec for spec in specs if isinstance(spec, DerivedMappingSpec) and spec.device_types.types),
            DerivedMappingSpec(),
        )
        self.device_types, self.types_by_class = derived.device_types, derived.types_by_class
        self._device_classes = tuple(pattern for spec in specs for pattern in spec.device_classes)
        self._stated_device_classes = _Patterns(self._device_classes)
        self._weighing = _Patterns(tuple(pattern for pattern in self._device_classes if pattern.weigh))
        resources = tuple(pattern for spec in specs for pattern in spec.resources)
        self._stated_resources = _Patterns(resources)
        self.patterns = (*resources, *self._derived_patterns())
        by_domain: dict[str, list[ResourcePattern]] = defaultdict(list)
        for known in self.patterns:
            by_domain[known.pattern.partition("/")[0]].append(known)
        self._by_domain = {domain: _Patterns(patterns) for domain, patterns in by_domain.items()}
        self.extended_names = {
            device_class.pattern: device_class.extended_resource_name
            for device_class in reversed(self._device_classes)
            if device_class.extended_resource_name is not None
        }
        """By DeviceClass: its extended resource name, "" if it has none. DeviceClasses are left out if that is not known."""
        # Tenants choose the names, so the caches are bounded.
        self.first_pattern = lru_cache(maxsize=1024)(self._first_pattern)
        self.resource = lru_cache(maxsize=1024)(self._resource)
        self.stated_class_pattern = lru_cache(maxsize=1024)(self._stated_class_pattern)
        self.suggested_name = lru_cache(maxsize=1024)(self._correct_name)
        self.whole_card_resource = lru_cache(maxsize=1024)(self._whole_card_resource)
        gpus = [known for known in self.patterns if known.measure is not Measure.NOTHING]
        cards = (
            pattern.resource or self._whole_card_resource(pattern.pattern)
            for pattern in gpus
            if "*" not in pattern.pattern
        )
        self.whole_card_resources = frozenset(filter(None, (*cards, *(pattern.resource for pattern in gpus))))
        """Known resources of whole cards. They are also the taint keys of nodes."""

    def _derived_patterns(self) -> Iterator[ResourcePattern]:
        """Yield patterns of the resource names of DeviceClasses."""
        for device_class in self._device_classes:
            name = DEVICE_CLASS_PREFIX + device_class.pattern
            yield ResourcePattern(
                pattern=name, measure=self._measure(device_class), resource=device_class.resource
            )
        yield ResourcePattern(pattern=f"{DEVICE_CLASS_PREFIX}*", measure=self._measure(None))
        # If several DeviceClasses share an extended name, one with GPUs is enough.
        for pattern in self._device_classes:
            if pattern.extended_resource_name and self._measure(pattern) is not Measure.NOTHING:
                name = pattern.extended_resource_name
                yield ResourcePattern(pattern=name, measure=Measure.DEVICES, resource=pattern.resource)

    def _measure(self, device_class: DeviceClassPattern | None) -> Measure:
        if device_class is not None and device_class.measure is not None:
            return device_class.measure
        is_ignored = self.unknown_device_classes is UnknownDeviceClasses.IGNORE
        return Measure.NOTHING if is_ignored else Measure.DEVICES

    def _resource(self, name: str) -> GPUResource | None:
        pattern, star_text = self.first_pattern(name)
        if pattern is None or pattern.measure is Measure.NOTHING:
            return None
        return GPUResource(name, pattern.measure, star_text if pattern.measure is Measure.SLICES else None)

    def _whole_card_resource(self, name: str) -> str | None:
        """Return the resource of whole cards for a name that requests cards or parts of them. None if it is not known."""
        pattern, _ = self.first_pattern(name)
        if pattern is None or pattern.resource is not None:
            return pattern.resource if pattern else None
        # A limit of memory or compute is not a card. A DeviceClass may have cards of any vendor.
        is_card = pattern.measure.is_count and not name.startswith(DEVICE_CLASS_PREFIX)
        return name if is_card else None

    def knows(self, name: str) -> bool:
        """Whether a pattern matches the resource name, even if it is not a GPU."""
        return self.first_pattern(name)[0] is not None

    def _correct_name(self, name: str) -> str | None:
        """Return the GPU resource that `name` seems to mean. None if it has another meaning."""
        pattern, _ = self.first_pattern(name)
        is_other = pattern is not None and pattern.measure is Measure.NOTHING
        is_in_document = self._pattern_counts[name] > (name in _VENDOR_PATTERNS)
        if is_other or is_in_document or name.startswith(DEVICE_CLASS_PREFIX):
            return None
        return near_names.intended_name(
            name, self._exact_names, lambda plain: self.resource(plain) is not None
        )

    @cached_property
    def _pattern_counts(self) -> Counter[str]:
        return Counter(known.pattern for known in self.patterns)

    @cached_property
    def _exact_names(self) -> near_names.ExactNames:
        gpus = (known for known in self.patterns if known.measure is not Measure.NOTHING)
        exact = {pattern.pattern: pattern.measure for pattern in gpus if "*" not in pattern.pattern}
        whole = (name for name, measure in exact.items() if measure is Measure.DEVICES)
        return near_names.ExactNames(exact, whole)

    def _first_pattern(self, name: str) -> tuple[ResourcePattern | None, str | None]:
        patterns = self._by_domain.get(name.partition("/")[0])
        return (None, None) if patterns is None else patterns.first_match(name)

    def _stated_class_pattern(self, name: str) -> DeviceClassPattern | None:
        """Return the first pattern that matches the name of a DeviceClass or driver."""
        return self._stated_device_classes.first_match(name)[0]

    def device_class_pattern(self, name: str) -> DeviceClassPattern | None:
        """Return the pattern by which devices of this DeviceClass count as GPUs. None if they do not."""
        stated = self.stated_class_pattern(name)
        is_gpu = self._measure(stated) is not Measure.NOTHING
        return (stated or DeviceClassPattern(pattern=name)) if is_gpu else None

    def weighed_counters(self, driver: str) -> tuple[str, ...]:
        """Return `weigh` of the first pattern that matches the driver and has one; empty if none does."""
        pattern = self._weighing.first_match(driver)[0]
        return pattern.weigh if pattern else ()

    def denied_device_class(self, resource_name: str) -> str | None:
        """Return the DeviceClass of the resource name if `unknownDeviceClasses: deny` denies it."""
        if self.unknown_device_classes is not UnknownDeviceClasses.DENY:
            return None
        return next(filter(self.is_unknown, self.device_classes_of(resource_name)), None)

    def device_classes_of(self, resource_name: str) -> list[str]:
        """Return the DeviceClasses whose devices the resource name requests: none if it matches a pattern of `resources`."""
        if resource_name.startswith(DEVICE_CLASS_PREFIX):
            return [resource_name.removeprefix(DEVICE_CLASS_PREFIX)]
        if self._stated_resources.first_match(resource_name)[0] is not None:
            return []
        return [device_class for device_class, name in self.extended_names.items() if name == resource_name]

    def is_unknown(self, device_class: str) -> bool:
        """Whether nothing says if the devices of the DeviceClass are GPUs."""
        stated = self.stated_class_pattern(device_class)
        return stated is None or stated.measure is None

    @cached_property
    def document(self) -> bytes:
        """The specs as JSON, in their order.

        It omits the resources of whole cards, other schedulers, and what partitions weigh by (types of devices have the result).
        Demand does not depend on them, and so an older release can still read it.
        """
        return msgspec.json.encode([_read_by_quotas(spec) for spec in self.specs])

    @cached_property
    def digest(self) -> str:
        return sha256(self.document).hexdigest()

    def named_resources(self, container: Container) -> Iterator[GPUResource]:
        """Yield every GPU resource in the container's limits and requests once, also with zero."""
        for name in {**container.limits, **container.requests}:
            resource = self.resource(name)
            if resource is not None:
                yield resource

    def requests(self, pod: Pod) -> Iterator[GPURequest]:
        """Yield the positive GPU requests of each container. Rule gpu-requests reports invalid quantities."""
        for place in pod.places:
            for resource, quantity in self.container_requests(place.container):
                yield GPURequest(place, resource, quantity)

    def container_requests_gpus(self, container: Container) -> bool:
        """Whether the container requests a GPU: a positive amount of a GPU resource, or a DRA claim."""
        return container.resources is not None and bool(
            container.resources.claims or self.container_requests(container)
        )

    def places_with_gpus(self, pod: Pod) -> list[ContainerPlace]:
        """Return the containers that request a GPU."""
        return [place for place in pod.places if self.container_requests_gpus(place.container)]

    def container_requests(self, container: Container) -> tuple[tuple[GPUResource, Quantity], ...]:
        """Return the positive GPU requests of the container."""
        if container.resources is None:
            return ()
        # Every rule needs the result, and the container never changes: keep the result on it, with its mapping.
        cached = container.resources.__dict__
        if cached.get("resource_mapping") is not self:
            effective = {**container.requests, **container.limits}
            cached["requested"] = tuple(
                (resource, quantity)
                for resource in self.named_resources(container)
                if (quantity := parse_or_none(effective[resource.name])) and quantity.nano > 0
            )
            cached["resource_mapping"] = self
        requested: tuple[tuple[GPUResource, Quantity], ...] = cached["requested"]
        return requested

    def pod_fraction(self, pod: Pod) -> tuple[AnnotationKey, str] | None:
        """Return the annotation that requests a part of a GPU from a fraction scheduler (KAI, Run:ai), and its value."""
        # An annotation with a number of devices only multiplies the part.
        parts = (key for key in self.fraction_annotations_of(pod) if not key.measure.is_count)
        return next(((key, pod.annotations[key.key]) for key in parts), None)

    def fraction_annotations_of(self, pod: Pod) -> list[AnnotationKey]:
        annotations = pod.annotations
        return [key for key in self.fraction_annotations if key.key in annotations]

    def pod_requests_gpus(self, pod: Pod) -> bool:
        """Whether the pod requests a GPU by resources, DRA claims or fraction annotations."""
        requested = any(self.container_requests_gpus(place.container) for place in pod.places)
        return requested or bool(pod.spec.resource_claims) or self.pod_fraction(pod) is not None

    def requests_gpus_without_claims(self, pod: Pod) -> bool:
        """Whether the pod requests a GPU by resources or fraction annotations. DRA claims do not count here."""
        requested = any(self.container_requests(place.container) for place in pod.places)
        return requested or self.pod_fraction(pod) is not None


def _read_by_quotas(spec: ResourceMappingSpec) -> ResourceMappingSpec:
    patterns = (ResourcePattern(pattern=each.pattern, measure=each.measure) for each in spec.resources)
    keys = (AnnotationKey(key=key.key, measure=key.measure) for key in spec.fraction_annotations)
    device_classes = tuple(replace(device_class, weigh=()) for device_class in spec.device_classes)
    return replace(
        spec,
        resources=tuple(patterns),
        fraction_annotations=tuple(keys),
        other_schedulers=(),
        device_classes=device_classes,
    )
