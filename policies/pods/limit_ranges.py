"""LimitRanges of a namespace: what they say, what the API server's plugin LimitRanger gives a new pod, and why it refuses it.

The plugin (k8s.io/kubernetes v1.37.2, plugin/pkg/admission/limitranger/admission.go) sets defaults before it calls webhooks,
lists them in an annotation, and checks the final pod. Anyone can write that annotation. Tests compare the plugin itself.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import islice
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from policies.pods.defaults_annotation import DEFAULTS_ANNOTATION, PREFIX, annotated_defaults, default_text
from policies.pods.injected import injected_changes
from policies.pods.limits import MAX_AMOUNTS
from policies.pods.patch import PodPatch, ResourceMap
from policies.pods.pod import Container, ContainerPlace, Pod, ResourceList, StoredObject, View
from policies.pods.quantity import NANO, Quantity, QuantityText, parse_or_none, parse_quantity
from policies.pods.requests import at_one_time

CONTAINER_TYPE = "Container"
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
        if self.type != CONTAINER_TYPE:
            return self
        default = {**(self.max or {}), **(self.default or {})}
        request = {**(self.min or {}), **default, **(self.default_request or {})}
        return replace(self, default=first_amounts(default), default_request=first_amounts(request))

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


def first_amounts(amounts: ResourceList | None) -> ResourceList:
    """Return the first MAX_RESOURCES amounts, which bounds the work on a pod."""
    return dict(islice((amounts or {}).items(), MAX_RESOURCES))


Defaults = Mapping[str, tuple[QuantityText, str]]
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

    def capped(self, nano: int, beside: int) -> int:
        """Return the amount of a container, or the most that is allowed beside the limits of the pod's other containers."""
        ceilings = [nano]
        if self.container_max is not None:
            ceilings.append(self.container_max.nano)
        if self.pod_max is not None:
            ceilings.append(self.pod_max.nano - beside)
        return min(ceilings)

    def meets_minimum(self, nano: int, beside: int) -> bool:
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
    limits: Defaults = MappingProxyType({})
    requests: Defaults = MappingProxyType({})

    def defaults_for(self, kind: str) -> Defaults:
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
    ordered = sorted(limit_ranges, key=lambda limit_range: limit_range.name)
    limits, requests = dict[str, tuple[QuantityText, str]](), dict[str, tuple[QuantityText, str]]()
    named = [(limit_range.name, item) for limit_range in ordered for item in limit_range.items]
    for name, item in named:
        for defaults, amounts in ((limits, item.default), (requests, item.default_request)):
            for resource, amount in (amounts or {}).items() if item.type == CONTAINER_TYPE else ():
                defaults.setdefault(resource, (amount, name))
    cpu, memory = (_bounds(resource, [item for _, item in named]) for resource in ("cpu", "memory"))
    return NamespaceLimits(cpu, memory, tuple(ordered), limits, requests)


def limits_by_namespace(limit_ranges: Iterable[LimitRange]) -> dict[str, NamespaceLimits]:
    ranges: dict[str, list[LimitRange]] = {}
    for limit_range in limit_ranges:
        ranges.setdefault(limit_range.namespace, []).append(limit_range)
    return {namespace: namespace_limits(members) for namespace, members in ranges.items()}


def _bounds(resource: str, items: Sequence[LimitRangeItem]) -> ResourceBounds | None:
    bounds: dict[tuple[str, str], set[Quantity]] = {}
    for item in items:
        written = (("min", item.min), ("max", item.max), ("default", item.default))
        for kind, amounts in (*written, ("default", item.default_request)):
            if resource not in (amounts or {}):
                continue
            quantity = parse_or_none((amounts or {})[resource])
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
            item.type == "Pod" and resource in (item.max_limit_request_ratio or {}) for item in items
        ),
    )


NO_LIMITS = namespace_limits(())


POD_TYPE = "Pod"
POD_LEVEL = ("cpu", "memory")
"""The resources whose amounts in `spec.resources` replace the sum of the containers."""
REQUESTS_AND_LIMITS: tuple[ResourceMap, ResourceMap] = ("requests", "limits")


class Default(msgspec.Struct, frozen=True):
    """An amount that a LimitRange gives to a container."""

    place: ContainerPlace
    kind: ResourceMap
    resource: str
    amount: QuantityText
    limit_range: str

    @property
    def path(self) -> str:
        return f"{self.place.path}.resources.{self.kind}[{self.resource}]"

    @property
    def annotation_text(self) -> str:
        """How the annotation lists it."""
        return default_text(self.place, self.kind.removesuffix("s"), self.resource)


class Refusal(msgspec.Struct, frozen=True):
    """Why a LimitRange refuses a pod, in the words of the API server.

    place: the container; None for the pod as a whole. item, bound: the index in `spec.limits`, and its field. allowed: the amount
    there. actual: the amount of the pod, None where it has none.
    """

    message: str
    limit_range: str
    item: int
    bound: str
    resource: str
    allowed: QuantityText
    place: ContainerPlace | None
    actual: Quantity | None

    @property
    def path(self) -> str:
        return self.place.path if self.place else "spec"


def as_admitted(pod: Pod, limits: NamespaceLimits) -> Pod:
    """Return a new pod, as its author wrote it, as webhooks see it: with defaults and the annotation that lists them."""
    patch, added = PodPatch(pod), list(islice(_missing_defaults(pod, limits), MAX_AMOUNTS))
    for default in added:
        patch.set_resource(default.place, default.kind, default.resource, default.amount)
    if added:
        last, listed = max(default.limit_range for default in added), dict[str, list[str]]()
        for each in added:
            if each.limit_range == last:  # it overwrites what those before it have listed
                listed.setdefault(each.annotation_text.removeprefix(each.resource), []).append(each.resource)
        parts = (", ".join(sorted(names)) + what for what, names in listed.items())
        patch.set_annotation(DEFAULTS_ANNOTATION, PREFIX + "; ".join(parts))
    return patch.pod


def _missing_defaults(pod: Pod, limits: NamespaceLimits) -> Iterator[Default]:
    """Yield what the containers get. The API server has copied what their author wrote from limits to requests before."""
    for place in pod.places if limits.requests or limits.limits else ():
        for kind in REQUESTS_AND_LIMITS:
            written = effective_amounts(place.container, kind)
            for resource, default in limits.defaults_for(kind).items():
                if resource not in written:
                    yield Default(place, kind, resource, *default)


def given_amounts(pod: Pod, limits: NamespaceLimits) -> list[Default]:
    """Return the amounts that the plugin gave a stored pod: they equal defaults of LimitRanges, and the annotation lists them.

    Each LimitRange that gives something overwrites the annotation, also where the plugin runs again for an injected container. So
    of a LimitRange of which it lists nothing else, an amount that equals a default counts as one. An author who wrote the request
    has chosen the limit, too.
    """
    listed = annotated_defaults(pod)
    if not listed:
        return []
    equal, injected = list(_equal_to_defaults(pod, limits)), injected_changes(pod)
    complete = {
        each.limit_range
        for each in equal
        if each.annotation_text in listed and f"initContainer {each.place.container.name}" not in injected
    }
    chosen = {
        (default.place.path, default.resource)
        for default in equal
        if default.annotation_text not in listed and default.limit_range in complete
    }
    return [default for default in equal if (default.place.path, default.resource) not in chosen]


def _equal_to_defaults(pod: Pod, limits: NamespaceLimits) -> Iterator[Default]:
    """Yield amounts that equal defaults, request and limit of a resource alike: an author who writes one has chosen both."""
    names = limits.requests.keys() | limits.limits.keys()
    for place in pod.places:
        amounts = {kind: effective_amounts(place.container, kind) for kind in REQUESTS_AND_LIMITS}
        for name in names & amounts["requests"].keys():
            kinds = [kind for kind in REQUESTS_AND_LIMITS if name in amounts[kind]]
            defaults_of = [
                (kind, limits.defaults_for(kind)[name]) for kind in kinds if name in limits.defaults_for(kind)
            ]
            defaults = [Default(place, kind, name, *default) for kind, default in defaults_of]
            if len(defaults) == len(kinds) and all(
                parse_or_none(each.amount) == parse_or_none(amounts[each.kind][name]) for each in defaults
            ):
                yield from defaults


def effective_amounts(container: Container, kind: ResourceMap) -> ResourceList:
    """Return limits, or requests as the API server completes them."""
    return container.limits if kind == "limits" else {**container.limits, **container.requests}


def requested_amounts(pod: Pod, resource: str) -> list[tuple[ContainerPlace, int]]:
    """Return the containers that request the resource, and how much, rounded up."""
    written = (
        (place, parse_or_none(effective_amounts(place.container, "requests").get(resource)))
        for place in pod.places
    )
    return [(place, quantity.value) for place, quantity in written if quantity and quantity.nano]


# ---- what it refuses


def refusals(pod: Pod, limits: NamespaceLimits) -> list[Refusal]:
    """Return what each LimitRange says: the API server stops at the first. Raises QuantityError if an amount cannot be read."""
    of_pod, refused = [amounts_of_pod(pod, kind) for kind in REQUESTS_AND_LIMITS], list[Refusal]()
    for limit_range in limits.limit_ranges:
        for at, item in enumerate(limit_range.items):
            compared = partial(_refusals_of_item, limit_range.name, at, item)
            if item.type == CONTAINER_TYPE:
                for place in pod.places:
                    refused += compared(
                        place,
                        *(
                            _parsed_amounts(effective_amounts(place.container, kind))
                            for kind in REQUESTS_AND_LIMITS
                        ),
                    )
            elif item.type == POD_TYPE:
                refused += compared(None, *of_pod)
    return refused


Quantities = Mapping[str, Quantity]
Problem = tuple[str, Quantity | None] | None
"""Why an amount is refused, and that amount, None if there is none. None: it is not refused."""


def _refusals_of_item(
    name: str,
    at: int,
    item: LimitRangeItem,
    place: ContainerPlace | None,
    requests: Quantities,
    limits: Quantities,
) -> Iterator[Refusal]:
    bounds = (("min", item.min), ("max", item.max), (RATIO, item.max_limit_request_ratio))
    for bound, amounts in bounds:
        for resource, allowed in first_amounts(amounts).items():
            amount, request, limit = parse_quantity(allowed), requests.get(resource), limits.get(resource)
            problem = (
                _ratio_problem(amount, request, limit)
                if bound == RATIO
                else _bound_problem(bound, amount, request, limit)
            )
            if problem is not None:
                why, seen = problem
                shown = "" if seen is None else amount_text(resource, seen)
                message = why.format(resource=resource, type=item.type, allowed=allowed, actual=shown)
                yield Refusal(message, name, at, bound, resource, allowed, place, seen)


def _bound_problem(
    bound: str, allowed: Quantity, request: Quantity | None, limit: Quantity | None
) -> Problem:
    is_min, start = bound == "min", bound + "imum {resource} usage per {type} is {allowed}"
    amounts = (("request", request), ("limit", limit))
    for number, (kind, amount) in enumerate(amounts if is_min else reversed(amounts)):
        if amount is None and number == 0:
            return f"{start}.  No {kind} is specified", None
        if amount is not None and (amount < allowed if is_min else amount > allowed):
            return f"{start}, but {kind} is {{actual}}", amount
    return None


def _ratio_problem(allowed: Quantity, request: Quantity | None, limit: Quantity | None) -> Problem:
    start = "{resource} max limit to request ratio per {type} is {allowed}, but"
    if request is None or not request.nano:
        return f"{start} no request is specified or request is 0", None
    if limit is None or not limit.nano:
        return f"{start} no limit is specified or limit is 0", None
    ratio = limit.milli_value / request.milli_value  # a floating point number, as in the plugin
    return (f"{start} provided ratio is {ratio:f}", limit) if ratio * 1000 > allowed.milli_value else None


def _parsed_amounts(amounts: ResourceList) -> dict[str, Quantity]:
    """Return the amounts, rounded up to thousandths as the API server does (`SetDefaults_ResourceList`)."""
    return {name: Quantity(parse_quantity(raw).milli_value * 10**6) for name, raw in amounts.items()}


def _at_one_time(pod: Pod, kind: ResourceMap) -> dict[str, Quantity]:
    def needs(container: Container) -> dict[str, Fraction]:
        return {
            name: Fraction(amount.nano)
            for name, amount in _parsed_amounts(effective_amounts(container, kind)).items()
        }

    return {name: Quantity(int(nano)) for name, nano in at_one_time(pod, needs, {}).items()}


def amounts_of_pod(pod: Pod, kind: ResourceMap) -> Quantities:
    """Return what the pod has at one time, without overhead (`podRequests` and `podLimits` of the plugin).

    Before, the API server completes what `spec.resources` has (`DefaultPodLevelResources` in pkg/api/pod): a request by those of
    the containers, else by its limit; a limit, where each container has one, by the request if that is larger.
    """
    own = Container(resources=pod.spec.resources)
    of_containers = _at_one_time(pod, kind)
    if kind == "requests":
        return _pod_level_amounts(own.limits) | of_containers | _pod_level_amounts(own.requests)
    if own.requests or own.limits:
        for name, request in amounts_of_pod(pod, "requests").items():
            if name in POD_LEVEL and all(name in place.container.limits for place in pod.places):
                of_containers[name] = max(of_containers[name], request)
    return of_containers | _pod_level_amounts(own.limits)


def _pod_level_amounts(amounts: ResourceList) -> dict[str, Quantity]:
    return _parsed_amounts({name: amounts[name] for name in POD_LEVEL if name in amounts})


def amount_text(resource: str, quantity: Quantity) -> str:
    """Return an amount as one writes it: bytes in binary units."""
    is_bytes = "/" not in resource and resource != "cpu" and quantity.nano % NANO == 0
    size, units = quantity.value, iter(("", "Ki", "Mi", "Gi", "Ti"))
    unit = next(units)
    while is_bytes and size and size % 1024 == 0 and unit != "Ti":
        size, unit = size // 1024, next(units)
    return f"{size}{unit}" if is_bytes else str(quantity)
