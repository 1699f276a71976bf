"""Charge of a ResourceClaim (DRA), its devices, charged to the claim itself, so that one shared by several pods counts once.

Counted as the API server's own quota does (`claimEvaluator` in `pkg/quota/v1/evaluator/core/resource_claims.go` of Kubernetes
1.36.3), under the resource names `deviceclass.resource.kubernetes.io/<DeviceClass>` by which pods may ask for the same
devices. What differs, on purpose: a request of a kind or mode that is not known is a denial, never nothing, and
administrative access, which takes no device away, is free, and only devices that are GPUs, or of which nothing says
that they are not, are charged.
"""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.gpus.cards import cards
from policies.gpus.claims import ClaimSpec, DeviceRequest, Devices, ResourceClaim, ResourceClaimTemplate
from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import IMPLICIT_DEVICE_CLASS, GPUResource, Measure, ResourceMapping
from policies.placement.candidates import all_classes
from policies.pods.pod import Metadata
from policies.quota import amounts as vector
from policies.quota.amounts import RESOURCES, Vector
from policies.quota.charge import (
    RULE_ID,
    Catalogues,
    Charge,
    DemandCatalogue,
    UnclassifiedPods,
    unknown_device_class,
    weighed,
)

MOST_DEVICES = 32
"""What `allocationMode: All` is charged: the most devices that a claim can be given (`AllocationResultsMaxSize`)."""

MOST_REQUESTS, MOST_ALTERNATIVES = 32, 8
"""What the API server accepts (`DeviceRequestsMaxSize`, `FirstAvailableDeviceRequestMaxSize`): each is weighed on every class."""

EXTENDED_RESOURCE_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of the claims that the scheduler makes for pods that ask for DRA devices by a resource name."""

SCHEDULER = "system:kube-scheduler"

FINALIZER = "resource.kubernetes.io/delete-protection"
"""The scheduler adds it before it allocates, and the resource-claim controller removes it after it has cleared the allocation."""


Weigh = Callable[[str, int], Charge]
"""Returns what so many devices of a DeviceClass cost, but for their plain count."""


def charge_claim(
    claim: ResourceClaim,
    *,
    classes: ClassCatalogue,
    resource_mapping: ResourceMapping,
    unclassified_pods: UnclassifiedPods,
) -> Charge:
    """Return what the claim costs. Requests add up; of alternatives (`firstAvailable`) each key gets the most."""
    demand_catalogue = DemandCatalogue(
        classes=classes, resource_mapping=resource_mapping, unclassified_pods=unclassified_pods
    )
    return _charge(claim.spec, "spec", demand_catalogue)


def template_findings(
    template: ResourceClaimTemplate,
    hard: Mapping[str, Fraction],
    catalogues: Catalogues,
    unclassified_pods: UnclassifiedPods,
) -> Iterator[Finding]:
    """Warn of a template whose claims could never be made in a namespace that has `hard`, and nothing else in it."""
    classes, mapping = catalogues.classes, catalogues.resource_mapping
    demand_catalogue = DemandCatalogue(
        classes=classes, resource_mapping=mapping, unclassified_pods=unclassified_pods
    )
    charge = _charge(template.spec.spec if template.spec else None, "spec.spec", demand_catalogue)
    for denial in charge.denials:
        yield replace(denial, severity=Severity.WARNING)
    if excesses := vector.exceeds(charge.vector, hard):
        # In the words of ResourceQuota.
        requested = ", ".join(f"{each.key}={vector.format_amount(each.amount)}" for each in excesses)
        limited = ", ".join(f"{each.key}={vector.format_amount(each.hard)}" for each in excesses)
        yield Finding(
            rule=RULE_ID,
            severity=Severity.WARNING,
            path="spec.spec.devices.requests",
            message=f"no claim of this template can ever fit the quota, requested: {requested}, limited: {limited}",
            remedy="request fewer devices",
        )


def forged_mark(before: Metadata | None, after: Metadata | None, username: str) -> Finding | None:
    """Return the denial of a claim that somebody else than the scheduler marks as one of its own; None if it is not.

    The mark says that the devices are charged to a pod, so whoever could write it could take devices that nothing charges.
    `before` is None at a creation.
    """
    was, mark = (((each and each.annotations) or {}).get(EXTENDED_RESOURCE_CLAIM) for each in (before, after))
    if mark is None or mark == was or username == SCHEDULER:
        return None
    return Finding(
        rule=RULE_ID,
        path=f"metadata.annotations[{EXTENDED_RESOURCE_CLAIM}]",
        value=mark,
        message=f"must be omitted: only {SCHEDULER} marks the claims that it makes for pods",
        remedy="remove the annotation",
    )


def lost_protection(before: ResourceClaim, after: ResourceClaim) -> Finding | None:
    """Return the denial of a change by which an allocated claim loses the finalizer that keeps it; None if it does not.

    Without it a claim can be deleted while its pods run on: its devices would be charged to nobody, and given to the next pod.
    """
    was, now = (((each.metadata and each.metadata.finalizers) or ()) for each in (before, after))
    is_allocated = before.status is not None and before.status.allocation is not None
    if not is_allocated or FINALIZER not in was or FINALIZER in now:
        return None
    return Finding(
        rule=RULE_ID,
        path="metadata.finalizers",
        message=f"must keep {FINALIZER} while the claim is allocated: pods may be using its devices",
        remedy="delete the pods that use the claim; its controller then removes the finalizer",
    )


def marked_for(metadata: Metadata) -> str:
    """Return the uid of the pod for which the scheduler made the claim; "" where the claim is not marked as made by it."""
    if (metadata.annotations or {}).get(EXTENDED_RESOURCE_CLAIM) != "true":
        return ""
    owners = (owner for owner in metadata.owner_references or () if owner.controller)
    return next((each.uid for each in owners if (each.kind, each.api_version) == ("Pod", "v1")), "")


def beyond_pod(claim: ResourceClaim, own: Mapping[str, Fraction], mapping: ResourceMapping) -> ResourceClaim:
    """Return the claim that the scheduler made for a pod, without the devices for which the pod is charged itself.

    own: what the pod is charged by resource name. It asked for a class by the implicit name or by the extended one; each unit is
      taken off once. As ResourceQuota does since kubernetes#135434.
    """
    left = dict(own)

    def charged(device_class: str, count: int) -> int:
        taken = 0
        for name in (IMPLICIT_DEVICE_CLASS + device_class, mapping.extended_names.get(device_class) or ""):
            part = min(count - taken, int(left.get(name, 0)))
            left[name] = left.get(name, Fraction(0)) - part
            taken += part
        return taken

    return _without(claim, charged)


def uncovered(claim: ResourceClaim, mapping: ResourceMapping) -> ResourceClaim:
    """Return the claim without the devices that its pod was charged for, whichever name it used; the pod is not at hand.

    Of a DeviceClass that was not seen yet, or whose extended name is not charged, that is not certain.
    """

    def charged(device_class: str, count: int) -> int:
        extended = mapping.extended_names.get(device_class)
        is_covered = extended is not None and (not extended or mapping.resource(extended) is not None)
        return count if is_covered else 0

    return _without(claim, charged)


def _without(claim: ResourceClaim, charged: Callable[[str, int], int]) -> ResourceClaim:
    """Return the claim with less of each request: `charged(device class, count)`. The scheduler asks for exact counts only."""
    left: list[DeviceRequest] = []
    for each in (claim.spec and claim.spec.devices and claim.spec.devices.requests) or ():
        devices = each.exactly or each
        count = 1 if devices.count is None else devices.count
        if each.first_available or devices.allocation_mode not in {"", "ExactCount"} or count < 1:
            left.append(each)
        elif rest := count - charged(devices.device_class_name, count):
            reduced = replace(devices, count=rest)
            left.append(replace(each, exactly=reduced) if each.exactly else reduced)
    return ResourceClaim(spec=ClaimSpec(devices=Devices(requests=tuple(left))))


def _charge(spec: ClaimSpec | None, path: str, demand_catalogue: DemandCatalogue) -> Charge:
    requests, path = (
        (spec.devices.requests if spec and spec.devices else None) or (),
        f"{path}.devices.requests",
    )
    if len(requests) > MOST_REQUESTS:
        return _denied(path, f"must have at most {MOST_REQUESTS} items", remedy="split the claim")
    weigh = _weighing(demand_catalogue)
    charges = [
        _charge_request(request, f"{path}[{index}]", demand_catalogue, weigh)
        for index, request in enumerate(requests)
    ]
    return _joined(charges, vector.add)


def _charge_request(
    request: DeviceRequest, path: str, demand_catalogue: DemandCatalogue, weigh: Weigh
) -> Charge:
    if request.first_available:
        path = f"{path}.firstAvailable"
        if len(request.first_available) > MOST_ALTERNATIVES:
            return _denied(path, f"must have at most {MOST_ALTERNATIVES} items", remedy="remove some")
        charges = [
            _charge_devices(each, f"{path}[{index}]", demand_catalogue, weigh)
            for index, each in enumerate(request.first_available)
        ]
        return _joined(charges, vector.maximum)
    if request.exactly is not None:
        return _charge_devices(request.exactly, f"{path}.exactly", demand_catalogue, weigh)
    return _charge_devices(request, path, demand_catalogue, weigh)


def _charge_devices(
    request: DeviceRequest, path: str, demand_catalogue: DemandCatalogue, weigh: Weigh
) -> Charge:
    name = request.device_class_name
    if not name:
        return _denied(path, "must be a kind of request that a quota can count")
    if request.admin_access or demand_catalogue.resource_mapping.device_class(name) is None:
        return Charge({})
    count = 1 if request.count is None else request.count
    if request.allocation_mode == "All":
        count = MOST_DEVICES
    elif request.allocation_mode not in {"", "ExactCount"}:
        return _denied(f"{path}.allocationMode", "must be ExactCount or All", request.allocation_mode)
    elif count < 1:
        return _denied(f"{path}.count", "must be at least 1", str(count))
    resource = GPUResource(IMPLICIT_DEVICE_CLASS + name, Measure.DEVICES)
    charge = weigh(name, count)
    place = {"path": f"{path}.deviceClassName", "value": name}
    unknown = unknown_device_class(resource.name, demand_catalogue.resource_mapping)
    denials = tuple(replace(denial, **place) for denial in (*charge.denials, *unknown))
    counted = vector.add(charge.vector, {RESOURCES + resource.name: Fraction(count)})
    return replace(charge, vector=counted, denials=denials)


def _weighing(demand_catalogue: DemandCatalogue) -> Weigh:
    """Return a function that weighs devices; DeviceClasses that no GPUClass mentions are weighed once for each kind of card."""
    known: dict[str, Charge] = {}
    equivalents = {name for gpu_class in demand_catalogue.classes for name in gpu_class.equivalents}

    def weigh(device_class: str, count: int) -> Charge:
        because = f"device class {device_class} is of no GPU class in particular"
        resource = GPUResource(IMPLICIT_DEVICE_CLASS + device_class, Measure.DEVICES)
        # Where a denial names the DeviceClass, nothing is charged by class, which takes little.
        is_mentioned = resource.name in equivalents or bool(
            demand_catalogue.classes.of_device_class(device_class)
        )
        is_own = is_mentioned or demand_catalogue.unclassified_pods is UnclassifiedPods.DENY
        pattern = demand_catalogue.resource_mapping.device_class(device_class)
        kind = resource.name if is_own else (pattern and pattern.resource) or ""
        if kind not in known:
            one = {resource: Fraction(1)}
            candidates = all_classes(demand_catalogue.classes, because)
            known[kind] = weighed(one, lambda card: cards(one, card), candidates, demand_catalogue)
        charge = known[kind]
        amounts = {key: amount * count for key, amount in charge.vector.items()}
        return replace(charge, vector=amounts, because=charge.because if is_own else because)

    return weigh


def _joined(charges: list[Charge], combine: Callable[..., Vector]) -> Charge:
    return Charge(
        combine(*(charge.vector for charge in charges)),
        classes=tuple(sorted({name for charge in charges for name in charge.classes})),
        because=" and ".join(dict.fromkeys(charge.because for charge in charges if charge.because)),
        denials=tuple(denial for charge in charges for denial in charge.denials),
    )


def _denied(
    path: str,
    message: str,
    value: str | None = None,
    *,
    remedy: str = "set allocationMode ExactCount with a count, or All",
) -> Charge:
    denial = Finding(rule=RULE_ID, path=path, value=value, message=message, remedy=remedy)
    return Charge({}, denials=(denial,))
