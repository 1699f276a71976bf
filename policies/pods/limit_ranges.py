"""LimitRanges of a namespace: what containers get by default, and bounds of the CPU and memory of containers and pods.

The API server's plugin LimitRanger (k8s.io/kubernetes v1.37.2, plugin/pkg/admission/limitranger) sets defaults before it calls
webhooks, lists them in an annotation, and checks the final pod. Anyone can write that annotation. What the plugin does to a pod
is in `policies.pods.limit_ranger`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from policies.pods.pod import ContainerPlace, Pod, ResourceList, StoredObject, View
from policies.pods.quantity import Quantity, QuantityText, readable

DEFAULTS_ANNOTATION = "kubernetes.io/limit-ranger"
LONGEST_DEFAULTS = 16 * 1024
"""Characters of the annotation that is read: 200 containers with CPU and memory."""
PREFIX = "LimitRanger plugin set: "
CONTAINER = "Container"
RATIO = "maxLimitRequestRatio"
MAX_RESOURCES = 128
"""Resources of one map of a LimitRange that are read: twice what one map of a container may have."""


class LimitRangeItem(View, frozen=True):
    type: str = ""
    min: ResourceList | None = None
    max: ResourceList | None = None
    default: ResourceList | None = None
    default_request: ResourceList | None = None
    max_limit_request_ratio: ResourceList | None = None

    def defaulted(self) -> "LimitRangeItem":
        """Return it as the API server stores it (`SetDefaults_LimitRangeItem`): `max` is the default that nobody wrote."""
        if self.type != CONTAINER:
            return self
        default = {**(self.max or {}), **(self.default or {})}
        request = {**(self.min or {}), **default, **(self.default_request or {})}
        return replace(self, default=first_of(default), default_request=first_of(request))

    @property
    def fields(self) -> dict[str, ResourceList]:
        """The amounts that it states, by field as in JSON."""
        names = zip(self.__struct_fields__[1:], self.__struct_encode_fields__[1:], strict=True)
        return {field: getattr(self, name) or {} for name, field in names}

    def without(self, resources: Collection[str]) -> "LimitRangeItem":
        kept = ({name: each[name] for name in each if name not in resources} for each in self.fields.values())
        return LimitRangeItem(self.type, *kept)


class LimitRangeSpec(View, frozen=True):
    limits: tuple[LimitRangeItem, ...] | None = None


class LimitRange(StoredObject, frozen=True):
    spec: LimitRangeSpec | None = None

    @property
    def items(self) -> tuple[LimitRangeItem, ...]:
        """The items as the API server stores them."""
        return tuple(item.defaulted() for item in (self.spec and self.spec.limits) or ())


def first_of(amounts: ResourceList | None) -> ResourceList:
    """Return the first MAX_RESOURCES amounts, which bounds the work on a pod."""
    return dict(islice((amounts or {}).items(), MAX_RESOURCES))


Given = Mapping[str, tuple[QuantityText, str]]
"""By resource, the amount that a container gets, and the name of the LimitRange that gives it."""


class ResourceBounds(msgspec.Struct, frozen=True):
    """What the LimitRanges of a namespace say about one resource. None: no bound."""

    defaults: frozenset[Quantity] = frozenset()
    """The amounts that containers get by default, limits and requests."""
    container_min: Quantity | None = None
    container_max: Quantity | None = None
    pod_min: Quantity | None = None
    pod_max: Quantity | None = None
    has_ratio: bool = False
    """Whether requests and limits of the pod bound each other."""

    def at_most(self, nano: int, beside: int) -> int:
        """Return the amount of a container, or the most that is allowed beside the limits of the pod's other containers."""
        ceilings = [nano]
        if self.container_max is not None:
            ceilings.append(self.container_max.nano)
        if self.pod_max is not None:
            ceilings.append(self.pod_max.nano - beside)
        return min(ceilings)

    def allows_least(self, nano: int, beside: int) -> bool:
        """Whether the amount of a container is enough, beside the requests of the pod's other containers."""
        return nano >= (self.container_min.nano if self.container_min else 0) and nano + beside >= (
            self.pod_min.nano if self.pod_min else 0
        )


class NamespaceLimits(msgspec.Struct, frozen=True):
    """The bounds of each resource. None: not known, because amounts cannot be read.

    limit_ranges: by name. The API server applies them in an order of its own: with different defaults, it gives any of them.
    limits, requests: what a container gets that has no amount of the resource.
    """

    cpu: ResourceBounds | None = ResourceBounds()
    memory: ResourceBounds | None = ResourceBounds()
    limit_ranges: tuple[LimitRange, ...] = ()
    limits: Given = MappingProxyType({})
    requests: Given = MappingProxyType({})

    def given(self, kind: str) -> Given:
        return self.limits if kind == "limits" else self.requests

    def __hash__(self) -> int:
        # One object is made for each version of the LimitRanges, and decisions are cached by it.
        return id(self)

    def without(self, resources: Collection[str]) -> "NamespaceLimits":
        """Return what they say once the resources are taken out of them."""
        items = (tuple(item.without(resources) for item in each.items) for each in self.limit_ranges)
        ranges = zip(self.limit_ranges, items, strict=True)
        return namespace_limits(replace(each, spec=LimitRangeSpec(left)) for each, left in ranges)

    def of(self, resource: str) -> ResourceBounds | None:
        return self.cpu if resource == "cpu" else self.memory


decode_limit_range = msgspec.json.Decoder(LimitRange).decode


def namespace_limits(limit_ranges: Iterable[LimitRange]) -> NamespaceLimits:
    """Return what all LimitRanges of one namespace say together; the API server checks each of them."""
    ordered = sorted(limit_ranges, key=lambda each: each.name)
    limits, requests = dict[str, tuple[QuantityText, str]](), dict[str, tuple[QuantityText, str]]()
    named = [(each.name, item) for each in ordered for item in each.items]
    for name, item in named:
        for defaults, amounts in ((limits, item.default), (requests, item.default_request)):
            for resource, amount in (amounts or {}).items() if item.type == CONTAINER else ():
                defaults.setdefault(resource, (amount, name))
    cpu, memory = (_bounds(resource, [item for _, item in named]) for resource in ("cpu", "memory"))
    return NamespaceLimits(cpu, memory, tuple(ordered), limits, requests)


def by_namespace(limit_ranges: Iterable[LimitRange]) -> dict[str, NamespaceLimits]:
    ranges: dict[str, list[LimitRange]] = {}
    for each in limit_ranges:
        ranges.setdefault(each.namespace, []).append(each)
    return {namespace: namespace_limits(of_it) for namespace, of_it in ranges.items()}


def _bounds(resource: str, items: Sequence[LimitRangeItem]) -> ResourceBounds | None:
    bounds: dict[tuple[str, str], set[Quantity]] = {}
    for item in items:
        written = (("min", item.min), ("max", item.max), ("default", item.default))
        for kind, amounts in (*written, ("default", item.default_request)):
            if resource not in (amounts or {}):
                continue
            quantity = readable((amounts or {})[resource])
            if quantity is None:
                return None
            bounds.setdefault((item.type, kind), set()).add(quantity)
    return ResourceBounds(
        defaults=frozenset(bounds.get(("Container", "default"), ())),
        container_min=max(bounds.get(("Container", "min"), ()), default=None),
        container_max=min(bounds.get(("Container", "max"), ()), default=None),
        pod_min=max(bounds.get(("Pod", "min"), ()), default=None),
        pod_max=min(bounds.get(("Pod", "max"), ()), default=None),
        has_ratio=any(
            each.type == "Pod" and resource in (each.max_limit_request_ratio or {}) for each in items
        ),
    )


NO_LIMITS = namespace_limits(())


def stated_defaults(pod: Pod) -> frozenset[str]:
    """Return what the annotation lists, one by one: `cpu request for container main`. Empty if it is too long."""
    text = pod.annotations.get(DEFAULTS_ANNOTATION, "")
    if not text.startswith(PREFIX) or len(text) > LONGEST_DEFAULTS:
        return frozenset()
    return frozenset(_each_default(text.removeprefix(PREFIX)))


def _each_default(text: str) -> Iterator[str]:
    for part in text.split("; "):
        listed, _, container = part.partition(" for ")
        resources, _, kind = listed.rpartition(" ")
        yield from (f"{resource} {kind} for {container}" for resource in resources.split(", "))


def default_of(place: ContainerPlace, kind: str, resource: str) -> str:
    """Return how the annotation lists a default; `kind` is `request` or `limit`."""
    prefix = "init container" if place.list_name == "initContainers" else "container"
    return f"{resource} {kind} for {prefix} {place.container.name}"
