"""What a ResourceClaim must be charged, by the specification: the devices that it has, or the most that it may get.

It is charged what it has only while nothing else can be allocated to it: it was generated for a pod, that pod is in
`reservedFor`, bound to a node, and has not ended. Every other claim is charged its bound. Once that pod has ended, the claim may
be charged either until it is deleted: no other pod gets it, but a controller that starts then does not know what it had.

The bound of a request is the largest device that was ever published and that class, selectors and capacity allow, times the
count; of alternatives the largest; of `All` what one node has, at most 32 devices. What no device fits is charged a card each.
Taints and constraints lower nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from tests.cluster.devices.facts import Device, quantity
from tests.cluster.devices.meanings import Selector

MOST = 32
"""Devices of one claim (`AllocationResultsMaxSize`)."""
NOTHING = Fraction(0)


class Charge(NamedTuple):
    """In cards. The two differ where a selector names one device: it may be counted as that one or as any of its kind."""

    least: Fraction
    most: Fraction

    def __add__(self, other: object) -> "Charge":
        assert isinstance(other, Charge)
        return Charge(self.least + other.least, self.most + other.most)

    def allows(self, amount: Fraction) -> bool:
        return self.least <= amount <= self.most


FREE = Charge(NOTHING, NOTHING)


class Devices:
    """All devices that were ever published, and by which DeviceClasses and selectors they are asked for."""

    def __init__(self, classes: Mapping[str, str], meanings: Mapping[str, Selector]) -> None:
        """classes: the selector of each DeviceClass. meanings: selectors by their text."""
        self._classes = classes
        self._meanings = meanings
        self._known: dict[tuple[str, str, str], Device] = {}
        self.version = 0
        """It grows when a charge may change."""

    def add(self, devices: Iterable[Device]) -> None:
        for each in devices:
            if self._known.get(each.key) != each:
                self._known[each.key] = each
                self.version += 1

    def exact(self, results: Iterable[Mapping[str, Any]]) -> Fraction:
        """Return what is allocated."""
        return sum((self._weight(each) for each in results if not each.get("adminAccess")), NOTHING)

    def _weight(self, result: Mapping[str, Any]) -> Fraction:
        device = self._known[result["driver"], result["pool"], result["device"]]
        if "consumedCapacity" not in result:
            return device.weight
        consumed = {
            name if "/" in name else f"{device.driver}/{name}": quantity(amount)
            for name, amount in result["consumedCapacity"].items()
        }
        return device.share(consumed)

    def bound(self, spec: Mapping[str, Any]) -> Charge:
        return sum((self._request(each) for each in spec["devices"].get("requests", ())), FREE)

    def _request(self, request: Mapping[str, Any]) -> Charge:
        if "exactly" in request:
            return self._alternative(request["exactly"])[1]
        tried = [self._alternative(each) for each in request["firstAvailable"]]
        fitting = [charge for fits, charge in tried if fits] or [charge for _, charge in tried]
        return Charge(max(each.least for each in fitting), max(each.most for each in fitting))

    def _alternative(self, wanted: Mapping[str, Any]) -> tuple[bool, Charge]:
        """Return whether any device may serve this, and what it is charged."""
        if wanted.get("adminAccess"):
            return True, FREE
        strict, loose = (self._fitting(wanted, ignore=ignore) for ignore in (False, True))
        if not loose:
            count = MOST if wanted.get("allocationMode") == "All" else wanted.get("count", 1)
            return False, Charge(Fraction(count), Fraction(count))
        least, most = (_amount(wanted, fitting) for fitting in (strict, loose))
        return True, Charge(least, most)

    def _fitting(self, wanted: Mapping[str, Any], *, ignore: bool) -> list[tuple[Device, Fraction]]:
        """Return the devices that may be allocated, and what they weigh. `ignore` selectors that name one device."""
        selectors = [self._classes[wanted["deviceClassName"]]]
        selectors += [each["cel"]["expression"] for each in wanted.get("selectors", ())]
        meant = [self._meanings[each] for each in selectors]
        requested = wanted.get("capacity", {}).get("requests", {})
        found = []
        for device in self._known.values():
            if all((ignore and each.names_one) or each.holds(device) for each in meant):
                weight = _weight_of(device, requested)
                if weight is not None:
                    found.append((device, weight))
        return found


def _weight_of(device: Device, requested: Mapping[str, str]) -> Fraction | None:
    """Return what a request weighs that gets this device; None if it is too small."""
    if device.is_shared:
        consumed = device.consumption(requested)
        return None if consumed is None else device.share(consumed)
    amounts = {name: quantity(amount) for name, amount in requested.items()}
    return device.weight if all(device.amount(name) >= each for name, each in amounts.items()) else None


def _amount(wanted: Mapping[str, Any], fitting: list[tuple[Device, Fraction]]) -> Fraction:
    if wanted.get("allocationMode") != "All":
        return int(wanted.get("count", 1)) * max((weight for _, weight in fitting), default=NOTHING)
    nodes = defaultdict[str, list[Fraction]](list)
    for device, weight in fitting:
        nodes[device.node].append(weight)
    return max((sum(sorted(each)[-MOST:], NOTHING) for each in nodes.values()), default=NOTHING)


def is_exact(claim: Mapping[str, Any], pods: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the claim is charged what it has. `pods`: by uid."""
    allocation, owner = claim.get("status", {}).get("allocation"), _owner(claim)
    if allocation is None or owner is None or owner not in pods:
        return False
    reserved = {each["uid"] for each in claim["status"].get("reservedFor", ())}
    return owner in reserved and "nodeName" in pods[owner]["spec"] and not has_ended(pods[owner])


def has_lost_its_pod(claim: Mapping[str, Any], pods: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the claim was generated for a pod that has ended or is gone: its controller deletes it, and allocates nothing."""
    owner = _owner(claim)
    return owner is not None and (owner not in pods or has_ended(pods[owner]))


def _owner(claim: Mapping[str, Any]) -> str | None:
    owners = claim["metadata"].get("ownerReferences", ())
    return next((each["uid"] for each in owners if each.get("controller")), None)


def has_ended(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
