"""What the API server's plugin LimitRanger does to a new pod: the amounts that it gives, and why it refuses the pod.

After k8s.io/kubernetes v1.37.2, plugin/pkg/admission/limitranger/admission.go; tests compare it with the plugin itself.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import islice

import msgspec

from policies.pods.injected import injected_changes
from policies.pods.limit_ranges import (
    CONTAINER,
    DEFAULTS_ANNOTATION,
    PREFIX,
    RATIO,
    LimitRangeItem,
    NamespaceLimits,
    default_of,
    first_of,
    stated_defaults,
)
from policies.pods.limits import MAX_AMOUNTS
from policies.pods.patch import PodPatch, ResourceMap
from policies.pods.pod import Container, ContainerPlace, Pod, ResourceList
from policies.pods.quantity import NANO, Quantity, QuantityText, parse_quantity, readable
from policies.pods.requests import at_one_time

POD = "Pod"
POD_LEVEL = ("cpu", "memory")
"""The resources whose amounts in `spec.resources` replace the sum of the containers."""
KINDS: tuple[ResourceMap, ResourceMap] = ("requests", "limits")


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
    def stated(self) -> str:
        """How the annotation lists it."""
        return default_of(self.place, self.kind.removesuffix("s"), self.resource)


class Refusal(msgspec.Struct, frozen=True):
    """Why a LimitRange refuses a pod, in the words of the API server.

    place: the container; None for the pod as a whole. item, bound: the index in `spec.limits`, and its field. allowed: the amount
    there. seen: the amount of the pod, None where it has none.
    """

    message: str
    limit_range: str
    item: int
    bound: str
    resource: str
    allowed: QuantityText
    place: ContainerPlace | None
    seen: Quantity | None

    @property
    def path(self) -> str:
        return self.place.path if self.place else "spec"


def as_admitted(pod: Pod, limits: NamespaceLimits) -> Pod:
    """Return a new pod, as its author wrote it, as webhooks see it: with defaults and the annotation that lists them."""
    patch, added = PodPatch(pod), list(islice(_missing(pod, limits), MAX_AMOUNTS))
    for each in added:
        patch.set_resource(each.place, each.kind, each.resource, each.amount)
    if added:
        last, listed = max(each.limit_range for each in added), dict[str, list[str]]()
        for each in added:
            if each.limit_range == last:  # it overwrites what those before it have listed
                listed.setdefault(each.stated.removeprefix(each.resource), []).append(each.resource)
        parts = (", ".join(sorted(names)) + what for what, names in listed.items())
        patch.set_annotation(DEFAULTS_ANNOTATION, PREFIX + "; ".join(parts))
    return patch.pod


def _missing(pod: Pod, limits: NamespaceLimits) -> Iterator[Default]:
    """Yield what the containers get. The API server has copied what their author wrote from limits to requests before."""
    for place in pod.places if limits.requests or limits.limits else ():
        for kind in KINDS:
            written = effective(place.container, kind)
            for resource, default in limits.given(kind).items():
                if resource not in written:
                    yield Default(place, kind, resource, *default)


def given_amounts(pod: Pod, limits: NamespaceLimits) -> list[Default]:
    """Return the amounts that the plugin gave a stored pod: they equal defaults of LimitRanges, and the annotation lists them.

    Each LimitRange that gives something overwrites the annotation, also where the plugin runs again for an injected container. So
    of a LimitRange of which it lists nothing else, an amount that equals a default counts as one. An author who wrote the request
    has chosen the limit, too.
    """
    listed = stated_defaults(pod)
    if not listed:
        return []
    equal, injected = list(_equal(pod, limits)), injected_changes(pod)
    complete = {
        each.limit_range
        for each in equal
        if each.stated in listed and f"initContainer {each.place.container.name}" not in injected
    }
    chosen = {
        (each.place.path, each.resource)
        for each in equal
        if each.stated not in listed and each.limit_range in complete
    }
    return [each for each in equal if (each.place.path, each.resource) not in chosen]


def _equal(pod: Pod, limits: NamespaceLimits) -> Iterator[Default]:
    """Yield amounts that equal defaults, request and limit of a resource alike: an author who writes one has chosen both."""
    names = limits.requests.keys() | limits.limits.keys()
    for place in pod.places:
        has = {kind: effective(place.container, kind) for kind in KINDS}
        for name in names & has["requests"].keys():
            kinds = [kind for kind in KINDS if name in has[kind]]
            known = [(kind, limits.given(kind)[name]) for kind in kinds if name in limits.given(kind)]
            defaults = [Default(place, kind, name, *default) for kind, default in known]
            if len(defaults) == len(kinds) and all(
                readable(each.amount) == readable(has[each.kind][name]) for each in defaults
            ):
                yield from defaults


def effective(container: Container, kind: ResourceMap) -> ResourceList:
    """Return limits, or requests as the API server completes them."""
    return container.limits if kind == "limits" else {**container.limits, **container.requests}


def requested_amounts(pod: Pod, resource: str) -> list[tuple[ContainerPlace, int]]:
    """Return the containers that request the resource, and how much, rounded up."""
    written = (
        (place, readable(effective(place.container, "requests").get(resource))) for place in pod.places
    )
    return [(place, quantity.value) for place, quantity in written if quantity and quantity.nano]


# ---- what it refuses


def refusals(pod: Pod, limits: NamespaceLimits) -> list[Refusal]:
    """Return what each LimitRange says: the API server stops at the first. Raises QuantityError if an amount cannot be read."""
    of_pod, refused = [amounts_of_pod(pod, kind) for kind in KINDS], list[Refusal]()
    for limit_range in limits.limit_ranges:
        for at, item in enumerate(limit_range.items):
            compared = partial(_compared, limit_range.name, at, item)
            if item.type == CONTAINER:
                for place in pod.places:
                    refused += compared(place, *(_read(effective(place.container, kind)) for kind in KINDS))
            elif item.type == POD:
                refused += compared(None, *of_pod)
    return refused


Amounts = Mapping[str, Quantity]
Problem = tuple[str, Quantity | None] | None
"""Why an amount is refused, and that amount, None if there is none. None: it is not refused."""


def _compared(
    name: str, at: int, item: LimitRangeItem, place: ContainerPlace | None, requests: Amounts, limits: Amounts
) -> Iterator[Refusal]:
    bounds = (("min", item.min), ("max", item.max), (RATIO, item.max_limit_request_ratio))
    for bound, amounts in bounds:
        for resource, allowed in first_of(amounts).items():
            amount, request, limit = parse_quantity(allowed), requests.get(resource), limits.get(resource)
            problem = (
                _ratio(amount, request, limit) if bound == RATIO else _bounded(bound, amount, request, limit)
            )
            if problem is not None:
                why, seen = problem
                shown = "" if seen is None else text(resource, seen)
                message = why.format(resource=resource, type=item.type, allowed=allowed, seen=shown)
                yield Refusal(message, name, at, bound, resource, allowed, place, seen)


def _bounded(bound: str, allowed: Quantity, request: Quantity | None, limit: Quantity | None) -> Problem:
    is_min, start = bound == "min", bound + "imum {resource} usage per {type} is {allowed}"
    amounts = (("request", request), ("limit", limit))
    for number, (kind, amount) in enumerate(amounts if is_min else reversed(amounts)):
        if amount is None and number == 0:
            return f"{start}.  No {kind} is specified", None
        if amount is not None and (amount < allowed if is_min else amount > allowed):
            return f"{start}, but {kind} is {{seen}}", amount
    return None


def _ratio(allowed: Quantity, request: Quantity | None, limit: Quantity | None) -> Problem:
    start = "{resource} max limit to request ratio per {type} is {allowed}, but"
    if request is None or not request.nano:
        return f"{start} no request is specified or request is 0", None
    if limit is None or not limit.nano:
        return f"{start} no limit is specified or limit is 0", None
    ratio = limit.milli_value / request.milli_value  # a floating point number, as in the plugin
    return (f"{start} provided ratio is {ratio:f}", limit) if ratio * 1000 > allowed.milli_value else None


def _read(amounts: ResourceList) -> dict[str, Quantity]:
    """Return the amounts, rounded up to thousandths as the API server does (`SetDefaults_ResourceList`)."""
    return {name: Quantity(parse_quantity(raw).milli_value * 10**6) for name, raw in amounts.items()}


def _at_one_time(pod: Pod, kind: ResourceMap) -> dict[str, Quantity]:
    def needs(container: Container) -> dict[str, Fraction]:
        return {name: Fraction(each.nano) for name, each in _read(effective(container, kind)).items()}

    return {name: Quantity(int(nano)) for name, nano in at_one_time(pod, needs, {}).items()}


def amounts_of_pod(pod: Pod, kind: ResourceMap) -> Amounts:
    """Return what the pod has at one time, without overhead (`podRequests` and `podLimits` of the plugin).

    Before, the API server completes what `spec.resources` has (`DefaultPodLevelResources` in pkg/api/pod): a request by those of
    the containers, else by its limit; a limit, where each container has one, by the request if that is larger.
    """
    own = Container(resources=pod.spec.resources)
    of_containers = _at_one_time(pod, kind)
    if kind == "requests":
        return _of_whole(own.limits) | of_containers | _of_whole(own.requests)
    if own.requests or own.limits:
        for name, request in amounts_of_pod(pod, "requests").items():
            if name in POD_LEVEL and all(name in place.container.limits for place in pod.places):
                of_containers[name] = max(of_containers[name], request)
    return of_containers | _of_whole(own.limits)


def _of_whole(amounts: ResourceList) -> dict[str, Quantity]:
    return _read({name: amounts[name] for name in POD_LEVEL if name in amounts})


def text(resource: str, quantity: Quantity) -> str:
    """Return an amount as one writes it: bytes in binary units."""
    is_bytes = "/" not in resource and resource != "cpu" and quantity.nano % NANO == 0
    size, units = quantity.value, iter(("", "Ki", "Mi", "Gi", "Ti"))
    unit = next(units)
    while is_bytes and size and size % 1024 == 0 and unit != "Ti":
        size, unit = size // 1024, next(units)
    return f"{size}{unit}" if is_bytes else str(quantity)
