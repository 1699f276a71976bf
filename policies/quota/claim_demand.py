"""Demand of a ResourceClaim (DRA): its devices. The claim itself counts, so a claim that pods share counts once.

The API server's own quota counts the same way (`claimEvaluator` in `pkg/quota/v1/evaluator/core/resource_claims.go` of Kubernetes
1.37.2), under the resource names `deviceclass.resource.kubernetes.io/<DeviceClass>` by which pods may request the same devices.
Three differences are intended: a request of an unknown kind or mode is denied; administrative access is free, because it takes no
device away; and only devices count that are GPUs or may be GPUs.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from operator import itemgetter
from typing import NamedTuple

from msgspec.structs import replace

from policies.finding import Finding, Reason, truncate, warning
from policies.gpus.claimed_devices import ClaimSpec, DeviceRequest, Devices, ResourceClaim
from policies.gpus.mapping_spec import IMPLICIT_DEVICE_CLASS
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.quantity import QuantityText
from policies.quota import amounts as vector
from policies.quota.amounts import GPUS, Vector
from policies.quota.claimed_kinds import ClaimedKinds
from policies.quota.demand import (
    UNCOUNTABLE_DEVICES,
    Catalogue,
    Demand,
    UnclassifiedPods,
    is_countable,
    unknown_device_class,
)

SELECTOR_IGNORED = Reason("SelectorIgnored", "the quota does not evaluate a CEL selector of a claim")

MAX_REQUESTS, MAX_ALTERNATIVES = 32, 8
"""Limits of the API server (`DeviceRequestsMaxSize`, `FirstAvailableDeviceRequestMaxSize`); they bound the work of one claim."""


def claim_demand(
    claim: ResourceClaim, catalogue: Catalogue, unclassified_pods: UnclassifiedPods, path: str = "spec"
) -> Demand:
    """Return the demand of the claim: the sum of its requests. Of alternatives (`firstAvailable`), each key gets the maximum.

    path: the path of the spec in the object.
    """
    devices = claim.spec and claim.spec.devices
    requests, path = (devices and devices.requests) or (), f"{path}.devices.requests"
    if len(requests) > MAX_REQUESTS:
        return _denied(path, f"must have at most {MAX_REQUESTS} items", remedy="split the claim")
    counted = ClaimedKinds(requests, catalogue, unclassified_pods)
    demands = [
        _request_demand(request, f"{path}[{index}]", counted) for index, request in enumerate(requests)
    ]
    return _joined(demands, vector.total)


def ignored_selectors(claim: ResourceClaim, catalogue: Catalogue, path: str) -> Iterator[Finding]:
    """Warn of selectors that are not evaluated: the claim may count more than it gets. path: of the spec in the object."""
    devices = claim.spec and claim.spec.devices
    counted = ClaimedKinds((devices and devices.requests) or (), catalogue, UnclassifiedPods.TOTAL_ONLY)
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
    kind: the index of its kind in the catalogue; None if it is not known. consumed: amounts of its capacity by name.
    """

    request: str
    kind: int | None
    consumed: tuple[tuple[str, QuantityText], ...] = ()


def allocated_demand(
    claim: ResourceClaim,
    devices: Collection[AllocatedDevice],
    catalogue: Catalogue,
    unclassified_pods: UnclassifiedPods,
) -> Vector | None:
    """Return the demand of the devices that the scheduler chose for the claim. None if one is missing, or of no known kind.

    devices: without those of administrative access. If a request asks for fewer (`beyond_pod`), the most expensive ones count.
    """
    requests = (claim.spec and claim.spec.devices and claim.spec.devices.requests) or ()
    counted = ClaimedKinds(requests, catalogue, unclassified_pods)
    of_request = defaultdict[str, list[AllocatedDevice]](list)
    for device in devices:
        of_request[device.request].append(device)
    demands: list[Vector] = []
    for request in requests:
        named = [(f"{request.name}/{each.name}", each) for each in request.first_available or ()]
        named = [each for each in named if each[0] in of_request] or [
            (request.name, request.exactly or request)
        ]
        for name, each in named:
            if not each.admin_access and counted.mapping.device_class(each.device_class_name) is not None:
                vectors = [
                    counted.allocated(each, device.kind, device.consumed) for device in of_request[name]
                ]
                count = len(vectors) if each.allocation_mode == "All" else each.count or 1
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
        for name in (IMPLICIT_DEVICE_CLASS + device_class, mapping.extended_names.get(device_class) or ""):
            part = min(count - taken, int(left.get(name, 0)))
            left[name] = left.get(name, Fraction(0)) - part
            taken += part
        return taken

    return _without(claim, counted)


def uncovered(claim: ResourceClaim, mapping: ResourceMapping) -> ResourceClaim:
    """Return the claim less the devices that count with its pod, for an unknown pod.

    Keep devices of an unknown DeviceClass, and of one whose extended name has no demand: they may not count with the pod.
    """

    def counted(device_class: str, count: int) -> int:
        extended = mapping.extended_names.get(device_class)
        is_covered = extended is not None and (not extended or mapping.resource(extended) is not None)
        return count if is_covered else 0

    return _without(claim, counted)


def _without(claim: ResourceClaim, counted: Callable[[str, int], int]) -> ResourceClaim:
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


def _request_demand(request: DeviceRequest, path: str, counted: ClaimedKinds) -> Demand:
    if request.first_available:
        path = f"{path}.firstAvailable"
        if len(request.first_available) > MAX_ALTERNATIVES:
            return _denied(path, f"must have at most {MAX_ALTERNATIVES} items", remedy="remove some")
        demands = [
            _device_demand(each, f"{path}[{index}]", counted)
            for index, each in enumerate(request.first_available)
        ]
        served = [counted.is_served(each) for each in request.first_available]
        # The scheduler takes an alternative that devices serve. If there is none, devices may come for each.
        if True in served:
            demands = [
                _invalid_only(each) if is_served is False else each
                for each, is_served in zip(demands, served, strict=True)
            ]
        return _joined(demands, vector.maximum)
    if request.exactly is not None:
        return _device_demand(request.exactly, f"{path}.exactly", counted)
    return _device_demand(request, path, counted)


def _device_demand(request: DeviceRequest, path: str, counted: ClaimedKinds) -> Demand:
    name, mapping = request.device_class_name, counted.mapping
    if not name:
        return _denied(path, "must be a kind of request that a quota can count")
    if request.admin_access or mapping.device_class(name) is None:
        return Demand({})
    count = 1 if request.count is None else request.count
    is_all = request.allocation_mode == "All"
    if request.allocation_mode not in {"", "ExactCount", "All"}:
        return _denied(f"{path}.allocationMode", "must be ExactCount or All", request.allocation_mode)
    if count < 1 and not is_all:
        return _denied(f"{path}.count", "must be at least 1", str(count))
    for capacity, raw in ((request.capacity and request.capacity.requests) or {}).items():
        if not is_countable(raw):  # the API server does not check it
            where = f"{path}.capacity.requests[{capacity}]"
            return _denied(where, "must not be negative", str(raw), remedy="set an amount such as 10Gi")
    demand = counted.demand(request, None if is_all else count)
    field = {"path": f"{path}.deviceClassName", "value": name}
    unknown = unknown_device_class(IMPLICIT_DEVICE_CLASS + name, mapping)
    return replace(demand, denials=tuple(replace(each, **field) for each in (*demand.denials, *unknown)))


def _invalid_only(demand: Demand) -> Demand:
    return Demand({}, denials=tuple(each for each in demand.denials if each.reason is UNCOUNTABLE_DEVICES))


def _joined(demands: list[Demand], combine: Callable[..., Vector]) -> Demand:
    return Demand(
        combine(demand.vector for demand in demands),
        classes=tuple(sorted({name for demand in demands for name in demand.classes})),
        because=" and ".join(dict.fromkeys(demand.because for demand in demands if demand.because)),
        denials=tuple(denial for demand in demands for denial in demand.denials),
    )


def _denied(
    path: str,
    message: str,
    value: str | None = None,
    *,
    remedy: str = "set allocationMode ExactCount with a count, or All",
) -> Demand:
    reason = UNCOUNTABLE_DEVICES
    denial = Finding(reason=reason, path=path, value=value, message=message, remedy=remedy)
    return Demand({}, denials=(denial,))
