"""What the ResourceClaims (DRA) of a pod ask for, and the pod without those that ask for no accelerator.

A pod only names its claims, or templates of them; whoever judges the pod looks up the DeviceClasses for which they ask. A claim
whose DeviceClasses are all known to have no accelerators (NICs, CPUs) is nothing to any rule: it is taken out of the view.

Reads resource.k8s.io v1 and v1beta2 (what is wanted stands under `exactly`) and v1beta1 (it stands in the request itself).
"""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Container, Metadata, Pod, View


class DeviceRequest(View, frozen=True):
    """So many devices of a class: `exactly` of a request, one of `firstAvailable`, or a whole request of v1beta1."""

    name: str = ""
    device_class_name: str = ""
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool | None = None
    exactly: "DeviceRequest | None" = None
    first_available: "tuple[DeviceRequest, ...] | None" = None


class Devices(View, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None


class ClaimSpec(View, frozen=True):
    devices: Devices | None = None


class ResourceClaim(View, frozen=True):
    metadata: Metadata | None = None
    spec: ClaimSpec | None = None


class ClaimTemplateSpec(View, frozen=True):
    spec: ClaimSpec | None = None


class ResourceClaimTemplate(View, frozen=True):
    metadata: Metadata | None = None
    spec: ClaimTemplateSpec | None = None


# Return the view of an object in JSON; `msgspec.ValidationError` names the path of a field of the wrong type.
decode_claim = msgspec.json.Decoder(ResourceClaim).decode
decode_claim_template = msgspec.json.Decoder(ResourceClaimTemplate).decode

DeviceClassNames = frozenset[str]
"""The DeviceClasses for which one claim asks."""


def device_class_names(spec: ClaimSpec | None) -> DeviceClassNames | None:
    """Return the DeviceClasses for which a claim asks, all alternatives included; None where a request names none.

    Such a request is of a kind that this version does not know, and may be for anything.
    """
    requests = (spec and spec.devices and spec.devices.requests) or ()
    names = frozenset(each.device_class_name for request in requests for each in _alternatives(request))
    return None if "" in names else names


def _alternatives(request: DeviceRequest) -> tuple[DeviceRequest, ...]:
    return request.first_available or (request.exactly or request,)


class ClaimedDevices(msgspec.Struct, frozen=True):
    """What the claims of a pod ask for, without those that ask for no accelerator.

    device_classes: DeviceClasses that are known to have accelerators, sorted by name; `ResourceMapping.device_class` has their
      `resource`, by which the same cards are asked for without DRA.
    may_be_more: whether another claim, or DeviceClass, is not known: perhaps it is for accelerators, perhaps not.
    """

    device_classes: tuple[str, ...] = ()
    may_be_more: bool = False


NO_DEVICES = ClaimedDevices()


def as_rules_see_it(
    pod: Pod, known: Mapping[str, DeviceClassNames], resource_mapping: ResourceMapping
) -> tuple[Pod, ClaimedDevices]:
    """Return the pod without the claims that ask for no accelerator, and what the others ask for.

    known: the DeviceClasses for which the pod's claims ask, by the claim's name in the pod; a claim that is not in it may be for
      an accelerator, and stays.
    """
    claims = pod.body.resource_claims
    if not claims:
        return pod, NO_DEVICES
    asked: dict[str, DeviceClassNames | None] = {each.name: known.get(each.name) for each in claims}
    unseen = frozenset(
        name
        for name, classes in asked.items()
        if classes is not None and not any(resource_mapping.device_class(each) for each in classes)
    )
    left = [classes for name, classes in asked.items() if name not in unseen]
    wanted = frozenset[str]().union(*(each for each in left if each is not None))
    accelerators = frozenset(each for each in wanted if resource_mapping.device_class(each) is not None)
    doubtful = frozenset(filter(resource_mapping.is_unknown, accelerators))
    devices = ClaimedDevices(tuple(sorted(accelerators - doubtful)), bool(doubtful) or None in left)
    return _without(pod, unseen) if unseen else pod, devices


def _without(pod: Pod, unseen: frozenset[str]) -> Pod:
    body = pod.body
    spec = replace(
        body,
        resource_claims=tuple(each for each in body.resource_claims or () if each.name not in unseen),
        containers=tuple(_containers_without(body.containers, unseen)),
        init_containers=tuple(_containers_without(body.init_containers, unseen)),
    )
    return replace(pod, spec=spec)


def _containers_without(
    containers: tuple[Container, ...] | None, unseen: frozenset[str]
) -> Iterator[Container]:
    for container in containers or ():
        resources = container.resources
        if resources is None or not resources.claims:
            yield container
        else:
            claims = tuple(each for each in resources.claims if each.name not in unseen)
            yield replace(container, resources=replace(resources, claims=claims))
