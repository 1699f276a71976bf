"""The devices that a pod's ResourceClaims (DRA) request, and the pod without claims for other devices than accelerators.

A pod only names its claims or their templates. The caller looks up their DeviceClasses. Rules must not see a claim whose
DeviceClasses are all known to have no accelerators (NICs, CPUs), so `without_other_claims` removes it.

The module reads resource.k8s.io v1, v1beta2 (request below `exactly`) and v1beta1 (fields in the request itself).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from policies.gpus.device_classes import DeviceSelector
from policies.gpus.device_selectors import MAX_SELECTOR_TEXT
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Container, Metadata, OwnerReference, Pod, StoredObject, Toleration, View
from policies.pods.quantity import QuantityText


class CapacityRequirements(View, frozen=True):
    requests: dict[str, QuantityText] | None = None


class DeviceRequest(View, frozen=True):
    """A request, its `exactly`, or one of its `firstAvailable`."""

    name: str = ""
    device_class_name: str = ""
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool | None = None
    selectors: tuple[DeviceSelector, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    capacity: CapacityRequirements | None = None
    exactly: "DeviceRequest | None" = None
    first_available: "tuple[DeviceRequest, ...] | None" = None

    @property
    def alternatives(self) -> "tuple[DeviceRequest, ...]":
        """The alternatives: one of them is allocated."""
        return self.first_available or (self.exactly or self,)

    @property
    def expressions(self) -> Iterator[str]:
        """Its CEL selectors, without those of its DeviceClass."""
        return (selector.cel.expression for selector in self.selectors or () if selector.cel is not None)

    @property
    def query(self) -> "DeviceQuery":
        count = None if self.allocation_mode == "All" else self.count or 1
        return DeviceQuery(self.device_class_name, tuple(self.expressions), self.tolerations or (), count)


class Devices(View, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None


class ClaimSpec(View, frozen=True):
    devices: Devices | None = None


class Consumer(View, frozen=True):
    """A user of a claim: a pod (`pods` of the API group ""), or a PodGroup."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceResult(View, frozen=True):
    """A device, or a share of one, that the scheduler chose for a request (`gpus`) or an alternative of it (`gpus/small`)."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    consumed_capacity: dict[str, QuantityText] | None = None


class DeviceAllocation(View, frozen=True):
    results: tuple[DeviceResult, ...] | None = None


class Allocation(View, frozen=True):
    devices: DeviceAllocation | None = None


class ClaimStatus(View, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] | None = None


class ResourceClaim(StoredObject, frozen=True):
    spec: ClaimSpec | None = None
    status: ClaimStatus | None = None


class ResourceClaimTemplate(StoredObject, frozen=True):
    # Its spec has metadata and spec, as a claim has.
    spec: ResourceClaim | None = None


# Return the view of an object in JSON. Its `msgspec.ValidationError` names the path of a field of the wrong type.
decode_claim = msgspec.json.Decoder(ResourceClaim).decode
decode_claim_template = msgspec.json.Decoder(ResourceClaimTemplate).decode

CLAIM, TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"

_CLAIM_OWNERS = frozenset({("Pod", ""), ("PodGroup", "scheduling.k8s.io")})
"""Kind and group of the owners that are believed. Of an owner of another group, which may not exist, the garbage collector keeps
the claim."""

MAX_QUERIES = 8
"""Distinct queries of one claim that are read. Real claims have one or two; the API server accepts 256."""
MAX_TOLERATION_TEXT = 2048
"""Characters of the tolerations of one claim that are kept, in JSON: some 15 tolerations. The API server accepts 4,096
tolerations of 500 characters."""
_TOLERATES_ALL = (Toleration(operator="Exists"),)


class DeviceQuery(NamedTuple):
    """A request for devices of one DeviceClass that all `expressions` (CEL) select.

    device_count: None for all of a node, or if several requests of the claim are equal.
    """

    device_class: str
    expressions: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    device_count: int | None = 1


class GPUCount(NamedTuple):
    """How many cards a pod gets, or MIG slices of a profile."""

    number: int
    profile: str | None = None


RequestedDevices = frozenset[DeviceQuery]
"""The devices that one claim requests, with alternatives."""


class ClaimName(NamedTuple):
    kind: str
    namespace: str
    name: str


class ClaimRequest(msgspec.Struct, frozen=True):
    """A cached claim or template. `owner_kind`: the kind of the object that controls it, or "".

    `devices` is None if the claim may be for any device: it has an unknown kind of request, or too many queries.
    """

    uid: str
    key: ClaimName
    devices: RequestedDevices | None
    owner_kind: str = ""

    @property
    def namespace(self) -> str:
        return self.key.namespace


def claim_request(kind: str, document: bytes | msgspec.Raw) -> ClaimRequest:
    """Return the record of a claim or template in JSON. Raises msgspec.ValidationError."""
    stored = decode_claim(document) if kind == CLAIM else decode_claim_template(document)
    claim = stored.spec if isinstance(stored, ResourceClaimTemplate) else stored
    owner = controller_of_claim(stored.metadata or Metadata())
    return ClaimRequest(
        stored.uid,
        ClaimName(kind, stored.namespace, stored.name),
        requested_devices(claim.spec if claim else None),
        owner.kind if owner else "",
    )


def controller_of_claim(metadata: Metadata) -> OwnerReference | None:
    """Return the pod or PodGroup that is the controller of the claim; anyone who may create claims can write this."""
    owners = (reference for reference in metadata.owner_references or () if reference.controller)
    return next(
        (each for each in owners if (each.kind, each.api_version.rpartition("/")[0]) in _CLAIM_OWNERS), None
    )


def owner_pod_uid(metadata: Metadata) -> str:
    """Return the uid of the pod that is the controller of the claim, or ""."""
    owner = controller_of_claim(metadata)
    return owner.uid if owner and owner.kind == "Pod" else ""


def requested_devices(spec: ClaimSpec | None) -> RequestedDevices | None:
    """Return the devices that a claim requests, with alternatives. None if it may be for any device.

    Selectors that are too long are left out: more devices are possible then. Tolerations that are too long tolerate all taints.
    """
    requests = (spec and spec.devices and spec.devices.requests) or ()
    every = [alternative for request in requests for alternative in request.alternatives]
    texts = {text for request in every for text in request.expressions}
    are_short_enough = sum(map(len, texts)) <= MAX_SELECTOR_TEXT
    requested = [each.query if are_short_enough else each.query._replace(expressions=()) for each in every]
    uncounted = [query._replace(device_count=None) for query in requested]
    times = Counter(uncounted)
    queries = frozenset(
        query if times[kept] == 1 else kept for query, kept in zip(requested, uncounted, strict=True)
    )
    if len(msgspec.json.encode([query.tolerations for query in queries])) > MAX_TOLERATION_TEXT:
        queries = frozenset(query._replace(tolerations=_TOLERATES_ALL) for query in queries)
    is_unknown = any(not query.device_class for query in queries)
    return None if is_unknown or len(queries) > MAX_QUERIES else _first_equal(queries)


@lru_cache(maxsize=1024)
def _first_equal(devices: RequestedDevices) -> RequestedDevices:
    """Return the first equal set: thousands of claims request the same devices."""
    return devices


def devices_by_claim(
    pod: Pod, namespace: str, devices_of: Callable[[ClaimName], RequestedDevices | None]
) -> dict[str, RequestedDevices]:
    """Return what the pod's claims that `devices_of` knows request, by the claim's name in the pod."""
    requested: dict[str, RequestedDevices] = {}
    for claim in pod.spec.resource_claims or ():
        kind = TEMPLATE if claim.resource_claim_template_name else CLAIM
        name = claim.resource_claim_template_name or claim.resource_claim_name
        devices = devices_of(ClaimName(kind, namespace, name)) if name else None
        if devices is not None:
            requested[claim.name] = devices
    return requested


def without_other_claims(
    pod: Pod, known: Mapping[str, RequestedDevices], resource_mapping: ResourceMapping
) -> Pod:
    """Return the pod without claims for other devices than accelerators.

    known: what the pod's claims request, by the claim's name in the pod. A claim that is not known may be for an accelerator,
      so it remains.
    """
    requested = {claim.name: known.get(claim.name) for claim in pod.spec.resource_claims or ()}
    removed = frozenset(
        name
        for name, devices in requested.items()
        if devices is not None
        and not any(resource_mapping.device_class_pattern(device.device_class) for device in devices)
    )
    return _without(pod, removed) if removed else pod


def accelerator_classes(
    pod: Pod, known: Mapping[str, RequestedDevices], resource_mapping: ResourceMapping
) -> tuple[str, ...]:
    """Return the DeviceClasses of the pod's claims that are known to have accelerators, sorted by name."""
    requested = (known.get(claim.name) for claim in pod.spec.resource_claims or ())
    names = {device.device_class for devices in requested for device in devices or ()}
    # An unknown DeviceClass counts as accelerators, but is not returned as one.
    accelerators = (
        name
        for name in names
        if resource_mapping.device_class_pattern(name) and not resource_mapping.is_unknown(name)
    )
    return tuple(sorted(accelerators))


def _without(pod: Pod, removed: frozenset[str]) -> Pod:
    def remaining(containers: tuple[Container, ...] | None) -> tuple[Container, ...] | None:
        # A missing list stays missing, because a rule that adds to it must create it.
        return containers and tuple(_container_without(container, removed) for container in containers)

    spec = pod.spec
    spec = replace(
        spec,
        resource_claims=tuple(claim for claim in spec.resource_claims or () if claim.name not in removed),
        containers=remaining(spec.containers),
        init_containers=remaining(spec.init_containers),
    )
    return replace(pod, given_spec=spec)


def _container_without(container: Container, removed: frozenset[str]) -> Container:
    resources = container.resources
    if resources is None or not resources.claims:
        return container
    claims = tuple(claim for claim in resources.claims if claim.name not in removed)
    return replace(container, resources=replace(resources, claims=claims))
