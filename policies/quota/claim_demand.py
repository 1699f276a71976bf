"""Demand of a ResourceClaim (DRA): its devices. The claim itself counts, so a claim that pods share counts once.

The API server's own quota counts the same way (`claimEvaluator` in `pkg/quota/v1/evaluator/core/resource_claims.go` of Kubernetes
1.37.2), under the resource names `deviceclass.resource.kubernetes.io/<DeviceClass>` by which pods may request the same devices.
Three differences are intended: a request of an unknown type or mode is denied; administrative access is free, because it takes no
device away; and only devices count that are GPUs or may be GPUs.

A request counts as the largest type of device that its DeviceClass, its own selectors and its amounts of capacity allow. Neither
taints nor present allocations reduce it, because they go. If no present type matches, devices may come later (an autoscaler has
the pool at zero), so each counts as a card of any class that the DeviceClass may have.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from math import lcm
from operator import itemgetter
from typing import NamedTuple

from msgspec.structs import replace

from policies.finding import Finding, Reason, truncate, warning
from policies.gpus.cards import NO_AMOUNTS, amounts_in_cards, device_weight, satisfies, weights_and_classes
from policies.gpus.claimed_devices import (
    CapacityRequirements,
    ClaimSpec,
    DeviceRequest,
    Devices,
    ResourceClaim,
)
from policies.gpus.classes import GPUClass
from policies.gpus.device_selectors import SelectorBounds, possible_types, unevaluated
from policies.gpus.mapping_spec import DEVICE_CLASS_PREFIX, Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.placement.pinning import CandidateClasses, all_classes, candidates_for_resource
from policies.pods.quantity import QuantityText
from policies.quota import amounts as vector
from policies.quota.amounts import GPUS, RESOURCES, Amounts, total
from policies.quota.demand import (
    UNCOUNTABLE_DEVICES,
    Catalogue,
    Demand,
    UnclassifiedPods,
    classified_demand,
    counted_classes,
    is_countable,
    resources_demand,
    unknown_device_class,
)

SELECTOR_IGNORED = Reason("SelectorIgnored", "the quota does not evaluate a CEL selector of a claim")

MAX_REQUESTS, MAX_ALTERNATIVES = 32, 8
"""Limits of the API server (`DeviceRequestsMaxSize`, `FirstAvailableDeviceRequestMaxSize`); they bound the work of one claim."""
MAX_RESULTS = 32
"""Devices that one claim can get (`AllocationResultsMaxSize` of the API server), also by `allocationMode: All`."""


class ClaimedDeviceTypes:
    """Counts the requests of one claim, which the catalogue's types of devices may serve."""

    def __init__(
        self, requests: Collection[DeviceRequest], catalogue: Catalogue, unclassified_pods: UnclassifiedPods
    ) -> None:
        self.mapping, self._classes = catalogue.resource_mapping, catalogue.classes
        self._catalogue, self._unclassified_pods = catalogue, unclassified_pods
        self._requests, self._types = requests, self.mapping.device_types
        self._cards: dict[str, Demand] = {}
        self._possible: dict[int, tuple[DeviceRequest, frozenset[int]]] = {}
        self._alternatives = [alternative for request in requests for alternative in request.alternatives]
        expressions = (text for alternative in self._alternatives for text in alternative.expressions)
        self._reads_selectors = SelectorBounds(self._types).add_selectors(expressions)

    def possible(self, request: DeviceRequest) -> frozenset[int]:
        """Return the indexes of the present types whose devices may serve the request."""
        if id(request) in self._possible:
            return self._possible[id(request)][1]
        possible = frozenset(self.mapping.types_by_class.get(request.device_class_name, ()))
        if possible and self._reads_selectors:
            possible &= possible_types(request.expressions, self._types)
        if amounts := _amounts(request):
            possible = frozenset(each for each in possible if satisfies(self._types.types[each], amounts))
        self._possible[id(request)] = request, possible  # an object that is kept keeps its id
        return possible

    def ignored_selectors(self) -> Iterator[tuple[str, str]]:
        """Yield (DeviceClass, selector) for each selector that is not evaluated, and so allows every type of its DeviceClass."""
        for alternative in self._alternatives:
            if self.mapping.types_by_class.get(alternative.device_class_name):
                texts = (
                    unevaluated(alternative.expressions) if self._reads_selectors else alternative.expressions
                )
                yield from ((alternative.device_class_name, text) for text in texts)

    def has_devices(self, request: DeviceRequest) -> bool | None:
        """Whether present devices may serve the request. None if types of devices cannot tell, or it takes no GPU."""
        name = request.device_class_name
        is_known = name in self.mapping.types_by_class and self.mapping.device_class_pattern(name) is not None
        return bool(self.possible(request)) if is_known and not request.admin_access else None

    def demand(self, request: DeviceRequest, count: int | None) -> Demand:
        """Return the demand of `count` devices; None: of all devices of a node."""
        resource = RESOURCES + DEVICE_CLASS_PREFIX + request.device_class_name
        if possible := self.possible(request):
            return self._demand_of_types(request, possible, count, resource)
        number = Fraction(MAX_RESULTS if count is None else count)
        card = self._card(request.device_class_name)
        amounts = {key: amount * number for key, amount in card.vector.items()}
        return replace(card, vector=total((amounts, {resource: number})))

    def allocated(
        self, request: DeviceRequest, kind: int | None, consumed: Iterable[tuple[str, QuantityText]]
    ) -> Amounts:
        """Return the demand of one device of the type, or of a share with these amounts of its capacity. Empty if it is None."""
        if kind is None:
            return {}
        resource = RESOURCES + DEVICE_CLASS_PREFIX + request.device_class_name
        share = replace(request, capacity=CapacityRequirements(requests=dict(consumed)))
        return self._demand_of_types(share, frozenset({kind}), 1, resource).vector

    def _demand_of_types(
        self, request: DeviceRequest, possible: frozenset[int], count: int | None, resource: str
    ) -> Demand:
        stated = self._classes.of_device_class(request.device_class_name)
        known, amounts = weights_and_classes(self._types, self._classes), _amounts(request)
        weights: dict[int, Fraction] = {}
        classes: list[tuple[GPUClass, ...]] = []
        by_class: dict[str, set[int]] = defaultdict(set)
        of_any_class: set[int] = set()
        for index in possible:
            device_type, (weight, of_type) = self._types.types[index], known[index]
            weights[index] = (
                device_weight(device_type, self._classes, amounts) if device_type.is_shared else weight
            )
            classes.append(tuple(each for each in of_type if each in stated) or stated or of_type)
            for gpu_class in classes[-1]:
                by_class[gpu_class.name].add(index)
            if not classes[-1]:
                of_any_class.add(index)
        nodes = [
            node for node in self._types.per_node_counts if count is None and not possible.isdisjoint(node)
        ]

        # Whole numbers add up ten times as fast as fractions.
        scale = lcm(*(weight.denominator for weight in weights.values()))
        scaled = {index: int(weight * scale) for index, weight in weights.items()}

        def largest_sum(amounts: Mapping[int, int]) -> int:
            """Return the largest sum for the devices that the request may get, each of a type with an amount."""
            if nodes:
                return max(_sum_of_largest(amounts, node) for node in nodes)
            return max(amounts.values(), default=0) * (MAX_RESULTS if count is None else count)

        @cache  # most keys are of the same types
        def largest_weight(types: frozenset[int]) -> Fraction:
            return Fraction(largest_sum({index: scaled[index] for index in types}), scale)

        candidates = self._candidates(request.device_class_name, classes)
        vector = {GPUS: largest_weight(possible), resource: Fraction(largest_sum(dict.fromkeys(possible, 1)))}
        for key, members in counted_classes(candidates, self._unclassified_pods).items():
            of_members = (by_class[member.name] for member in members if member.name in by_class)
            vector[key] = largest_weight(frozenset(of_any_class.union(*of_members)))
        return classified_demand(total((vector,)), [candidates], self._unclassified_pods)

    def _candidates(self, device_class: str, classes: Collection[tuple[GPUClass, ...]]) -> CandidateClasses:
        """Return the classes of the devices: any of the vendor's if a device may be of no known class."""
        if all(classes):
            names = {gpu_class.name for of_type in classes for gpu_class in of_type}
            return CandidateClasses(self._classes.named(names), True, f"device class {device_class}")
        because = f"no GPU class lists the attributes of a device that device class {device_class} may give"
        resource = GPUResource(DEVICE_CLASS_PREFIX + device_class, Measure.DEVICES)
        return candidates_for_resource(
            resource, all_classes(self._classes, because), self._classes, self.mapping
        )

    def _card(self, device_class: str) -> Demand:
        """Return the demand of one card, without the plain count. DeviceClasses that no GPUClass mentions share results."""
        because = f"device class {device_class} is of no GPU class in particular"
        resource = GPUResource(DEVICE_CLASS_PREFIX + device_class, Measure.DEVICES)
        # A denial names the DeviceClass, so it cannot share a result. It has no demand by class and takes little time.
        is_mentioned = resource.name in self._classes.equivalents or self._classes.of_device_class(
            device_class
        )
        is_own = bool(is_mentioned) or self._unclassified_pods is UnclassifiedPods.DENY
        pattern = self.mapping.device_class_pattern(device_class)
        key = resource.name if is_own else (pattern and pattern.resource) or ""
        if key not in self._cards:
            one = {resource: Fraction(1)}
            candidates = all_classes(self._classes, because)
            self._cards[key] = resources_demand(
                one,
                lambda card: amounts_in_cards(one, card),
                candidates,
                self._catalogue,
                self._unclassified_pods,
            )
        demand = self._cards[key]
        return replace(demand, because=demand.because if is_own else because)


def _amounts(request: DeviceRequest) -> Mapping[str, QuantityText]:
    return (request.capacity and request.capacity.requests) or NO_AMOUNTS


def _sum_of_largest(amounts: Mapping[int, int], devices: Mapping[int, int]) -> int:
    """Return the sum of the MAX_RESULTS largest amounts of a node's devices, which are numbers by type."""
    left, result = MAX_RESULTS, 0
    of_node = [(amounts[index], number) for index, number in devices.items() if index in amounts]
    for amount, number in sorted(of_node, reverse=True):
        taken = min(left, number)
        left, result = left - taken, result + amount * taken
    return result


def claim_demand(
    claim: ResourceClaim, catalogue: Catalogue, unclassified_pods: UnclassifiedPods, path: str = "spec"
) -> Demand:
    """Return the demand of the claim: the sum of its requests. Of alternatives (`firstAvailable`), each key gets the maximum.

    path: the path of the spec in the object.
    """
    devices = claim.spec and claim.spec.devices
    requests, path = (devices and devices.requests) or (), f"{path}.devices.requests"
    if len(requests) > MAX_REQUESTS:
        return _denied_demand(path, f"must have at most {MAX_REQUESTS} items", remedy="split the claim")
    counted = ClaimedDeviceTypes(requests, catalogue, unclassified_pods)
    demands = [
        _request_demand(request, f"{path}[{index}]", counted) for index, request in enumerate(requests)
    ]
    return _combined_demand(demands, vector.total)


def ignored_selectors(claim: ResourceClaim, catalogue: Catalogue, path: str) -> Iterator[Finding]:
    """Warn of selectors that are not evaluated: the claim may count more than it gets. path: of the spec in the object."""
    devices = claim.spec and claim.spec.devices
    counted = ClaimedDeviceTypes((devices and devices.requests) or (), catalogue, UnclassifiedPods.TOTAL_ONLY)
    for device_class, text in dict.fromkeys(counted.ignored_selectors()):
        yield warning(
            reason=SELECTOR_IGNORED,
            path=f"{path}.devices.requests",
            value=truncate(text),
            message="must be a selector that a quota evaluates: else devices count as the largest of "
            f"DeviceClass {device_class}",
            remedy="write it shorter, or with fewer functions",
        )


class AllocatedDevice(NamedTuple):
    """A device, or a share of one, that a claim has.

    request: the name of the request, or of the request and its alternative (`gpus/small`).
    type: the index of its type in the catalogue; None if it is not known. consumed: amounts of its capacity by name.
    """

    request: str
    kind: int | None
    consumed: tuple[tuple[str, QuantityText], ...] = ()


def allocated_demand(
    claim: ResourceClaim,
    devices: Collection[AllocatedDevice],
    catalogue: Catalogue,
    unclassified_pods: UnclassifiedPods,
) -> Amounts | None:
    """Return the demand of the devices that the scheduler chose for the claim. None if one is missing, or of no known type.

    devices: without those of administrative access. If a request asks for fewer (`beyond_pod`), the most expensive ones count.
    """
    requests = (claim.spec and claim.spec.devices and claim.spec.devices.requests) or ()
    counted = ClaimedDeviceTypes(requests, catalogue, unclassified_pods)
    of_request = defaultdict[str, list[AllocatedDevice]](list)
    for device in devices:
        of_request[device.request].append(device)
    demands: list[Amounts] = []
    for request in requests:
        named = [(f"{request.name}/{each.name}", each) for each in request.first_available or ()]
        named = [name for name in named if name[0] in of_request] or [
            (request.name, request.exactly or request)
        ]
        for name, device_request in named:
            if (
                not device_request.admin_access
                and counted.mapping.device_class_pattern(device_request.device_class_name) is not None
            ):
                vectors = [
                    counted.allocated(device_request, device.kind, device.consumed)
                    for device in of_request[name]
                ]
                count = len(vectors) if device_request.allocation_mode == "All" else device_request.count or 1
                if len(vectors) < count or not vectors or {} in vectors:
                    return None
                demands += sorted(vectors, key=itemgetter(GPUS), reverse=True)[:count]
    return vector.total(demands)


def beyond_pod(claim: ResourceClaim, own: Mapping[str, Fraction], mapping: ResourceMapping) -> ResourceClaim:
    """Return the claim that the scheduler made for a pod, less the devices that count with the pod.

    own: the pod's demand by resource name. The pod names a class by its implicit or its extended name; each unit is subtracted
      once. ResourceQuota does the same since kubernetes#135434.
    """
    left = dict(own)

    def counted(device_class: str, count: int) -> int:
        taken = 0
        for name in (DEVICE_CLASS_PREFIX + device_class, mapping.extended_names.get(device_class) or ""):
            part = min(count - taken, int(left.get(name, 0)))
            left[name] = left.get(name, Fraction(0)) - part
            taken += part
        return taken

    return _reduced_claim(claim, counted)


def beyond_unknown_pod(claim: ResourceClaim, mapping: ResourceMapping) -> ResourceClaim:
    """Return the claim less the devices that count with its pod, for an unknown pod.

    Keep devices of an unknown DeviceClass, and of one whose extended name has no demand: they may not count with the pod.
    """

    def counted(device_class: str, count: int) -> int:
        extended = mapping.extended_names.get(device_class)
        is_covered = extended is not None and (not extended or mapping.resource(extended) is not None)
        return count if is_covered else 0

    return _reduced_claim(claim, counted)


def _reduced_claim(claim: ResourceClaim, counted: Callable[[str, int], int]) -> ResourceClaim:
    """Return the claim with each request reduced by `counted(device class, count)`. The scheduler requests only exact counts."""
    left: list[DeviceRequest] = []
    for request in (claim.spec and claim.spec.devices and claim.spec.devices.requests) or ():
        devices = request.exactly or request
        count = 1 if devices.count is None else devices.count
        if request.first_available or devices.allocation_mode not in {"", "ExactCount"} or count < 1:
            left.append(request)
        elif rest := count - counted(devices.device_class_name, count):
            reduced = replace(devices, count=rest)
            left.append(replace(request, exactly=reduced) if request.exactly else reduced)
    return ResourceClaim(spec=ClaimSpec(devices=Devices(requests=tuple(left))))


def _request_demand(request: DeviceRequest, path: str, counted: ClaimedDeviceTypes) -> Demand:
    if request.first_available:
        path = f"{path}.firstAvailable"
        if len(request.first_available) > MAX_ALTERNATIVES:
            return _denied_demand(path, f"must have at most {MAX_ALTERNATIVES} items", remedy="remove some")
        demands = [
            _device_demand(device_request, f"{path}[{index}]", counted)
            for index, device_request in enumerate(request.first_available)
        ]
        have_devices = [counted.has_devices(device_request) for device_request in request.first_available]
        # The scheduler takes an alternative that devices serve. If there is none, devices may come for each.
        if True in have_devices:
            demands = [
                _only_invalid(demand) if has_devices is False else demand
                for demand, has_devices in zip(demands, have_devices, strict=True)
            ]
        return _combined_demand(demands, vector.maximum)
    if request.exactly is not None:
        return _device_demand(request.exactly, f"{path}.exactly", counted)
    return _device_demand(request, path, counted)


def _device_demand(request: DeviceRequest, path: str, counted: ClaimedDeviceTypes) -> Demand:
    name, mapping = request.device_class_name, counted.mapping
    if not name:
        return _denied_demand(path, "must be a kind of request that a quota can count")
    if request.admin_access or mapping.device_class_pattern(name) is None:
        return Demand({})
    count = 1 if request.count is None else request.count
    is_all = request.allocation_mode == "All"
    if request.allocation_mode not in {"", "ExactCount", "All"}:
        return _denied_demand(f"{path}.allocationMode", "must be ExactCount or All", request.allocation_mode)
    if count < 1 and not is_all:
        return _denied_demand(f"{path}.count", "must be at least 1", str(count))
    for capacity, raw in ((request.capacity and request.capacity.requests) or {}).items():
        if not is_countable(raw):  # the API server does not check it
            where = f"{path}.capacity.requests[{capacity}]"
            return _denied_demand(
                where, "must not be negative", str(raw), remedy="set an amount such as 10Gi"
            )
    demand = counted.demand(request, None if is_all else count)
    field = {"path": f"{path}.deviceClassName", "value": name}
    unknown = unknown_device_class(DEVICE_CLASS_PREFIX + name, mapping)
    return replace(demand, denials=tuple(replace(each, **field) for each in (*demand.denials, *unknown)))


def _only_invalid(demand: Demand) -> Demand:
    return Demand({}, denials=tuple(each for each in demand.denials if each.reason is UNCOUNTABLE_DEVICES))


def _combined_demand(demands: list[Demand], combine: Callable[..., Amounts]) -> Demand:
    return Demand(
        combine(demand.vector for demand in demands),
        classes=tuple(sorted({name for demand in demands for name in demand.classes})),
        because=" and ".join(dict.fromkeys(demand.because for demand in demands if demand.because)),
        denials=tuple(denial for demand in demands for denial in demand.denials),
    )


def _denied_demand(
    path: str,
    message: str,
    value: str | None = None,
    *,
    remedy: str = "set allocationMode ExactCount with a count, or All",
) -> Demand:
    reason = UNCOUNTABLE_DEVICES
    denial = Finding(reason=reason, path=path, value=value, message=message, remedy=remedy)
    return Demand({}, denials=(denial,))
