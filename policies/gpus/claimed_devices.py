"""The devices that a pod's ResourceClaims (DRA) request, and the pod without claims for other devices than accelerators.

A pod only names its claims or their templates. The caller looks up their DeviceClasses. Rules must not see a claim whose
DeviceClasses are all known to have no accelerators (NICs, CPUs), so `with_accelerator_claims_only` removes it.

The module reads resource.k8s.io v1, v1beta2 (request below `exactly`) and v1beta1 (fields in the request itself).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from policies.gpus.device_classes import DeviceSelector
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Container, Metadata, Pod, View
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
    capacity: CapacityRequirements | None = None
    exactly: "DeviceRequest | None" = None
    first_available: "tuple[DeviceRequest, ...] | None" = None

    @property
    def expressions(self) -> Iterator[str]:
        """Its CEL selectors, without those of its DeviceClass."""
        return (each.cel.expression for each in self.selectors or () if each.cel is not None)


class Devices(View, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None


class ClaimSpec(View, frozen=True):
    devices: Devices | None = None


class Consumer(View, frozen=True):
    """A user of a claim: a pod (`pods` of the API group ""), or a PodGroup."""

    api_group: str = ""
    resource: str = ""
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


class ResourceClaim(View, frozen=True):
    metadata: Metadata | None = None
    spec: ClaimSpec | None = None
    status: ClaimStatus | None = None


class ResourceClaimTemplate(View, frozen=True):
    metadata: Metadata | None = None
    # Its spec has metadata and spec, as a claim has.
    spec: ResourceClaim | None = None


# Return the view of an object in JSON. Its `msgspec.ValidationError` names the path of a field of the wrong type.
decode_claim = msgspec.json.Decoder(ResourceClaim).decode
decode_claim_template = msgspec.json.Decoder(ResourceClaimTemplate).decode

CLAIM, TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"

DeviceClassNames = frozenset[str]
"""The DeviceClasses that one claim requests."""

MAX_DEVICE_CLASSES = 8
"""DeviceClasses of one claim that are read. Real claims name one or two; the API server accepts 256."""


class ClaimName(NamedTuple):
    """The name of a ResourceClaim or a ResourceClaimTemplate."""

    kind: str
    namespace: str
    name: str


class ClaimRecord(msgspec.Struct, frozen=True):
    """A cached claim or template. `made_for_pod`: a controller made it for one pod from a template.

    `device_classes` is None if the claim may be for any device: it has an unknown kind of request, or too many DeviceClasses.
    """

    uid: str
    key: ClaimName
    device_classes: DeviceClassNames | None
    made_for_pod: bool = False

    @property
    def namespace(self) -> str:
        return self.key.namespace


def claim_record(kind: str, document: bytes | msgspec.Raw) -> ClaimRecord:
    """Return the record of a claim or template in JSON. Raises msgspec.ValidationError."""
    stored = decode_claim(document) if kind == CLAIM else decode_claim_template(document)
    claim = stored.spec if isinstance(stored, ResourceClaimTemplate) else stored
    metadata = stored.metadata or Metadata()
    return ClaimRecord(
        metadata.uid or "",
        ClaimName(kind, metadata.namespace or "", metadata.name or ""),
        device_class_names(claim.spec if claim else None),
        any(each.controller and each.kind == "Pod" for each in metadata.owner_references or ()),
    )


def device_class_names(spec: ClaimSpec | None) -> DeviceClassNames | None:
    """Return the DeviceClasses that a claim requests, with alternatives. None if it may be for any device."""
    requests = (spec and spec.devices and spec.devices.requests) or ()
    names = frozenset(
        alternative.device_class_name
        for request in requests
        for alternative in request.first_available or (request.exactly or request,)
    )
    return None if "" in names or len(names) > MAX_DEVICE_CLASSES else _interned(names)


@lru_cache(maxsize=1024)
def _interned(names: DeviceClassNames) -> DeviceClassNames:
    """Return the first equal set: thousands of claims request the same classes."""
    return names


def device_classes_by_claim(
    pod: Pod, namespace: str, classes_of: Callable[[ClaimName], DeviceClassNames | None]
) -> dict[str, DeviceClassNames]:
    """Return the DeviceClasses of the pod's claims that `classes_of` knows, by the claim's name in the pod."""
    requested: dict[str, DeviceClassNames] = {}
    for claim in pod.spec.resource_claims or ():
        kind = TEMPLATE if claim.resource_claim_template_name else CLAIM
        name = claim.resource_claim_template_name or claim.resource_claim_name
        names = classes_of(ClaimName(kind, namespace, name)) if name else None
        if names is not None:
            requested[claim.name] = names
    return requested


def with_accelerator_claims_only(
    pod: Pod, known: Mapping[str, DeviceClassNames], resource_mapping: ResourceMapping
) -> tuple[Pod, tuple[str, ...]]:
    """Return the pod without claims for other devices than accelerators.

    Also return the DeviceClasses of the remaining claims that are known to have accelerators, sorted by name.

    known: the DeviceClasses of the pod's claims, by the claim's name in the pod. A claim that is not known may be for an
      accelerator, so it remains.
    """
    claims = pod.spec.resource_claims
    if not claims:
        return pod, ()
    requested: dict[str, DeviceClassNames | None] = {claim.name: known.get(claim.name) for claim in claims}
    removed = frozenset(
        name
        for name, classes in requested.items()
        if classes is not None and not any(map(resource_mapping.device_class, classes))
    )
    every = frozenset[str]().union(*filter(None, requested.values()))
    # A DeviceClass of which nothing is known counts as accelerators, but is not returned as one.
    accelerators = (
        name
        for name in every
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
