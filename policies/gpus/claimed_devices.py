"""The devices that a pod's ResourceClaims (DRA) request, and the pod without claims for other devices than accelerators.

A pod only names its claims or their templates. The caller looks up their DeviceClasses. Rules must not see a claim whose
DeviceClasses are all known to have no accelerators (NICs, CPUs), so `with_accelerator_claims_only` removes it.

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
        return (each.cel.expression for each in self.selectors or () if each.cel is not None)

    @property
    def choice(self) -> "DeviceChoice":
        number = 0 if self.allocation_mode == "All" else self.count or 1
        return DeviceChoice(self.device_class_name, tuple(self.expressions), self.tolerations or (), number)


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

_OWNERS = frozenset({("Pod", ""), ("PodGroup", "scheduling.k8s.io")})
"""Kind and group of what claims are made for. The garbage collector keeps claims of owners of unknown groups."""

MAX_CHOICES = 8
"""Different choices of one claim that are read. Real claims have one or two; the API server accepts 256."""
MAX_TOLERATION_TEXT = 2048
"""Characters of the JSON of the tolerations that are kept of one claim: some 15. The API server accepts 4,096, of 500 each."""
_TOLERATES_ALL = (Toleration(operator="Exists"),)


class DeviceChoice(NamedTuple):
    """Devices of one DeviceClass that all `expressions` (CEL) select. number: 0 for all of a node, or for several requests."""

    device_class: str
    expressions: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    number: int = 1


class GPUNumber(NamedTuple):
    """How many cards or MIG slices a pod gets. profile: of the slices, if they are."""

    number: int
    profile: str | None = None


RequestedDevices = frozenset[DeviceChoice]
"""The devices that one claim requests, with alternatives."""


class ClaimName(NamedTuple):
    kind: str
    namespace: str
    name: str


class ClaimRecord(msgspec.Struct, frozen=True):
    """A cached claim or template. `made_for`: the kind of the object that a controller made it for, or "".

    `devices` is None if the claim may be for any device: it has an unknown kind of request, or too many choices.
    """

    uid: str
    key: ClaimName
    devices: RequestedDevices | None
    made_for: str = ""

    @property
    def namespace(self) -> str:
        return self.key.namespace


def claim_record(kind: str, document: bytes | msgspec.Raw) -> ClaimRecord:
    """Return the record of a claim or template in JSON. Raises msgspec.ValidationError."""
    stored = decode_claim(document) if kind == CLAIM else decode_claim_template(document)
    claim = stored.spec if isinstance(stored, ResourceClaimTemplate) else stored
    owner = made_for(stored.metadata or Metadata())
    return ClaimRecord(
        stored.uid,
        ClaimName(kind, stored.namespace, stored.name),
        requested_devices(claim.spec if claim else None),
        owner.kind if owner else "",
    )


def made_for(metadata: Metadata) -> OwnerReference | None:
    """Return the pod or PodGroup for which a controller made the claim, if its metadata can be believed."""
    owners = (each for each in metadata.owner_references or () if each.controller)
    return next(
        (each for each in owners if (each.kind, each.api_version.rpartition("/")[0]) in _OWNERS), None
    )


def owner_pod(metadata: Metadata) -> str:
    """Return the uid of the pod that is the controller of the claim, or ""."""
    owner = made_for(metadata)
    return owner.uid if owner and owner.kind == "Pod" else ""


def requested_devices(spec: ClaimSpec | None) -> RequestedDevices | None:
    """Return the devices that a claim requests, with alternatives. None if it may be for any device.

    Selectors that are too long are left out: more devices are possible then. Tolerations that are too long tolerate all taints.
    """
    requests = (spec and spec.devices and spec.devices.requests) or ()
    every = [each for request in requests for each in request.alternatives]
    texts = {text for each in every for text in each.expressions}
    are_short = sum(map(len, texts)) <= MAX_SELECTOR_TEXT
    written = [each.choice if are_short else each.choice._replace(expressions=()) for each in every]
    requests_of = Counter(each._replace(number=0) for each in written)
    choices = frozenset(
        each if requests_of[each._replace(number=0)] == 1 else each._replace(number=0) for each in written
    )
    if len(msgspec.json.encode([each.tolerations for each in choices])) > MAX_TOLERATION_TEXT:
        choices = frozenset(each._replace(tolerations=_TOLERATES_ALL) for each in choices)
    is_unknown = any(not each.device_class for each in choices)
    return None if is_unknown or len(choices) > MAX_CHOICES else _interned(choices)


@lru_cache(maxsize=1024)
def _interned(devices: RequestedDevices) -> RequestedDevices:
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


def with_accelerator_claims_only(
    pod: Pod, known: Mapping[str, RequestedDevices], resource_mapping: ResourceMapping
) -> tuple[Pod, tuple[str, ...]]:
    """Return the pod without claims for other devices than accelerators.

    Also return the DeviceClasses of the remaining claims that are known to have accelerators, sorted by name.

    known: what the pod's claims request, by the claim's name in the pod. A claim that is not known may be for an accelerator,
      so it remains.
    """
    claims = pod.spec.resource_claims
    if not claims:
        return pod, ()
    requested = {claim.name: known.get(claim.name) for claim in claims}
    removed = frozenset(
        name
        for name, devices in requested.items()
        if devices is not None
        and not any(resource_mapping.device_class(each.device_class) for each in devices)
    )
    names = {each.device_class for devices in requested.values() for each in devices or ()}
    # An unknown DeviceClass counts as accelerators, but is not returned as one.
    accelerators = (
        name
        for name in names
        if resource_mapping.device_class(name) and not resource_mapping.is_unknown(name)
    )
    return _without(pod, removed) if removed else pod, tuple(sorted(accelerators))


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
