"""Demand of the devices that one request of a ResourceClaim (DRA) may get: the least upper bound that its selectors leave.

A request counts as the largest kind of device that its DeviceClass, its own selectors and its amounts of capacity allow. Neither
taints nor present allocations reduce it, because they go. If no present kind matches, devices may come later (an autoscaler has
the pool at zero), so each counts as a card of any class that the DeviceClass may have.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from math import lcm

from msgspec.structs import replace

from policies.gpus.cards import NO_AMOUNTS, can_serve, cards, classified_weights, device_weight
from policies.gpus.claimed_devices import CapacityRequirements, DeviceRequest
from policies.gpus.classes import GPUClass
from policies.gpus.device_selectors import SelectorBounds, not_evaluated, possible_kinds
from policies.gpus.mapping_spec import IMPLICIT_DEVICE_CLASS, Measure
from policies.gpus.resource_mapping import GPUResource
from policies.placement.pinning import CandidateClasses, all_classes, candidates_for_resource
from policies.pods.quantity import QuantityText
from policies.quota.amounts import GPUS, RESOURCES, Vector, total
from policies.quota.demand import (
    Catalogue,
    Demand,
    UnclassifiedPods,
    classified_demand,
    counted_classes,
    resources_demand,
)

MAX_RESULTS = 32
"""Devices that one claim can get (`AllocationResultsMaxSize` of the API server), also by `allocationMode: All`."""


class ClaimedKinds:
    """Counts the requests of one claim, which the catalogue's kinds of devices may serve."""

    def __init__(
        self, requests: Collection[DeviceRequest], catalogue: Catalogue, unclassified_pods: UnclassifiedPods
    ) -> None:
        self.mapping, self._classes = catalogue.resource_mapping, catalogue.classes
        self._catalogue, self._unclassified_pods = catalogue, unclassified_pods
        self._requests, self._kinds = requests, self.mapping.device_kinds
        self._cards: dict[str, Demand] = {}
        self._possible: dict[int, tuple[DeviceRequest, frozenset[int]]] = {}
        expressions = (text for each in _alternatives(requests) for text in each.expressions)
        self._reads_selectors = SelectorBounds(self._kinds).include(expressions)

    def possible(self, request: DeviceRequest) -> frozenset[int]:
        """Return the indexes of the present kinds whose devices may serve the request."""
        if id(request) in self._possible:
            return self._possible[id(request)][1]
        possible = frozenset(self.mapping.kinds_by_class.get(request.device_class_name, ()))
        if possible and self._reads_selectors:
            possible &= possible_kinds(request.expressions, self._kinds)
        if amounts := _amounts(request):
            possible = frozenset(each for each in possible if can_serve(self._kinds.kinds[each], amounts))
        self._possible[id(request)] = request, possible  # an object that is kept keeps its id
        return possible

    def ignored_selectors(self) -> Iterator[tuple[str, str]]:
        """Yield (DeviceClass, selector) for each selector that is not evaluated, and so allows every kind of its DeviceClass."""
        for each in _alternatives(self._requests):
            if self.mapping.kinds_by_class.get(each.device_class_name):
                texts = not_evaluated(each.expressions) if self._reads_selectors else each.expressions
                yield from ((each.device_class_name, text) for text in texts)

    def is_served(self, request: DeviceRequest) -> bool | None:
        """Whether present devices may serve the request. None if kinds of devices cannot tell, or it takes no GPU."""
        name = request.device_class_name
        is_known = name in self.mapping.kinds_by_class and self.mapping.device_class(name) is not None
        return bool(self.possible(request)) if is_known and not request.admin_access else None

    def demand(self, request: DeviceRequest, count: int | None) -> Demand:
        """Return the demand of `count` devices; None: of all devices of a node."""
        resource = RESOURCES + IMPLICIT_DEVICE_CLASS + request.device_class_name
        if possible := self.possible(request):
            return self._of_kinds(request, possible, count, resource)
        number = Fraction(MAX_RESULTS if count is None else count)
        card = self._card(request.device_class_name)
        amounts = {key: amount * number for key, amount in card.vector.items()}
        return replace(card, vector=total((amounts, {resource: number})))

    def allocated(
        self, request: DeviceRequest, kind: int | None, consumed: Iterable[tuple[str, QuantityText]]
    ) -> Vector:
        """Return the demand of one device of the kind, or of a share with these amounts of its capacity. Empty if it is None."""
        if kind is None:
            return {}
        resource = RESOURCES + IMPLICIT_DEVICE_CLASS + request.device_class_name
        share = replace(request, capacity=CapacityRequirements(requests=dict(consumed)))
        return self._of_kinds(share, frozenset({kind}), 1, resource).vector

    def _of_kinds(
        self, request: DeviceRequest, possible: frozenset[int], count: int | None, resource: str
    ) -> Demand:
        stated = self._classes.of_device_class(request.device_class_name)
        known, amounts = classified_weights(self._kinds, self._classes), _amounts(request)
        weights: dict[int, Fraction] = {}
        classes: list[tuple[GPUClass, ...]] = []
        by_class: dict[str, set[int]] = defaultdict(set)
        of_any_class: set[int] = set()
        for index in possible:
            kind, (weight, of_kind) = self._kinds.kinds[index], known[index]
            weights[index] = device_weight(kind, self._classes, amounts) if kind.is_shared else weight
            classes.append(tuple(each for each in of_kind if each in stated) or stated or of_kind)
            for gpu_class in classes[-1]:
                by_class[gpu_class.name].add(index)
            if not classes[-1]:
                of_any_class.add(index)
        nodes = [node for node in self._kinds.nodes if count is None and not possible.isdisjoint(node)]

        # Whole numbers add up ten times as fast as fractions.
        scale = lcm(*(each.denominator for each in weights.values()))
        scaled = {index: int(weight * scale) for index, weight in weights.items()}

        def largest_sum(amounts: Mapping[int, int]) -> int:
            """Return the largest sum for the devices that the request may get, each of a kind with an amount."""
            if nodes:
                return max(_sum_of_largest(amounts, node) for node in nodes)
            return max(amounts.values(), default=0) * (MAX_RESULTS if count is None else count)

        @cache  # most keys are of the same kinds
        def largest_weight(kinds: frozenset[int]) -> Fraction:
            return Fraction(largest_sum({index: scaled[index] for index in kinds}), scale)

        candidates = self._candidates(request.device_class_name, classes)
        vector = {GPUS: largest_weight(possible), resource: Fraction(largest_sum(dict.fromkeys(possible, 1)))}
        for key, members in counted_classes(candidates, self._unclassified_pods).items():
            of_members = (by_class[each.name] for each in members if each.name in by_class)
            vector[key] = largest_weight(frozenset(of_any_class.union(*of_members)))
        return classified_demand(total((vector,)), [candidates], self._unclassified_pods)

    def _candidates(self, device_class: str, classes: Collection[tuple[GPUClass, ...]]) -> CandidateClasses:
        """Return the classes of the devices: any of the vendor's if a device may be of no known class."""
        if all(classes):
            names = {each.name for of_kind in classes for each in of_kind}
            return CandidateClasses(self._classes.named(names), True, f"device class {device_class}")
        because = f"no GPU class lists the attributes of a device that device class {device_class} may give"
        resource = GPUResource(IMPLICIT_DEVICE_CLASS + device_class, Measure.DEVICES)
        return candidates_for_resource(
            resource, all_classes(self._classes, because), self._classes, self.mapping
        )

    def _card(self, device_class: str) -> Demand:
        """Return the demand of one card, without the plain count. DeviceClasses that no GPUClass mentions share results."""
        because = f"device class {device_class} is of no GPU class in particular"
        resource = GPUResource(IMPLICIT_DEVICE_CLASS + device_class, Measure.DEVICES)
        # A denial names the DeviceClass, so it cannot share a result. It has no demand by class and takes little time.
        is_mentioned = resource.name in self._classes.equivalents or self._classes.of_device_class(
            device_class
        )
        is_own = bool(is_mentioned) or self._unclassified_pods is UnclassifiedPods.DENY
        pattern = self.mapping.device_class(device_class)
        key = resource.name if is_own else (pattern and pattern.resource) or ""
        if key not in self._cards:
            one = {resource: Fraction(1)}
            candidates = all_classes(self._classes, because)
            self._cards[key] = resources_demand(
                one, lambda card: cards(one, card), candidates, self._catalogue, self._unclassified_pods
            )
        demand = self._cards[key]
        return replace(demand, because=demand.because if is_own else because)


def _alternatives(requests: Iterable[DeviceRequest]) -> Iterator[DeviceRequest]:
    for request in requests:
        yield from request.first_available or (request.exactly or request,)


def _amounts(request: DeviceRequest) -> Mapping[str, QuantityText]:
    return (request.capacity and request.capacity.requests) or NO_AMOUNTS


def _sum_of_largest(amounts: Mapping[int, int], devices: Mapping[int, int]) -> int:
    """Return the sum of the MAX_RESULTS largest amounts of a node's devices, which are numbers by kind."""
    left, result = MAX_RESULTS, 0
    of_node = [(amounts[index], number) for index, number in devices.items() if index in amounts]
    for amount, number in sorted(of_node, reverse=True):
        taken = min(left, number)
        left, result = left - taken, result + amount * taken
    return result
