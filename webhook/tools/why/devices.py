"""Why a pod does not get the devices (DRA) of its ResourceClaims: what the scheduler finds, and what drivers say of a device."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, partial

import msgspec

from policies.gpus.claimed_devices import DeviceRequest, ResourceClaim, decode_claim
from policies.gpus.device_classes import DeviceClass
from policies.gpus.device_slices import DeviceTaint
from policies.gpus.stored_devices import DeviceCounts, StoredDevices
from policies.pods.tolerations import toleration_text, toleration_yaml
from policies.quota.demand import Catalogue
from policies.times import utc
from webhook.configuration.dynamic_resources import DRA_GROUP, read_device_classes, served_resource
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.explanation import Awaited, Cause, Remedy, Source


def device_causes(
    reader: TolerantReader, catalogue: Catalogue, pod: StoredPod, now: datetime
) -> Iterator[Cause]:
    """Yield why the claims of a stored pod, which does not run, have no device, or not a working one."""
    devices = cache(partial(reader.devices, catalogue))
    classes = cache(lambda: {each.name: each for each in read_device_classes(reader.api)})
    for name in pod.claims:
        document = _read_claim(reader, pod.metadata.namespace, name)
        if document is None:
            continue
        claim = decode_claim(document)
        if claim.status is not None and claim.status.allocation is not None:
            yield from _reported(name, document, now)
        elif pod.unscheduled:
            yield from _without_device(name, claim, devices, classes, now)


def _read_claim(reader: TolerantReader, namespace: str, name: str) -> bytes | None:
    resource = served_resource(reader.api, "resourceclaims")
    right = f"get resourceclaims.{DRA_GROUP} -n {namespace}"
    return reader.get(right, resource.path(namespace, name)) if resource else None


def _without_device(
    name: str,
    claim: ResourceClaim,
    devices: Callable[[], StoredDevices | None],
    classes: Callable[[], Mapping[str, DeviceClass]],
    now: datetime,
) -> Iterator[Cause]:
    for request in (claim.spec and claim.spec.devices and claim.spec.devices.requests) or ():
        for alternative in request.alternatives:
            path = f"{request.name}/{alternative.name}" if request.first_available else request.name
            subject = f"ResourceClaim {name} ({path})"
            device_class = classes().get(alternative.device_class_name)
            if device_class is None:
                message = f"{subject}: DeviceClass {alternative.device_class_name} does not exist"
                yield Cause(source=Source.DEVICES, message=message, remedy="see kubectl get deviceclasses")
            elif (stored := devices()) is not None:
                counts = stored.counts_for(alternative, device_class.expressions)
                if counts.free < (alternative.count or 1):
                    yield _no_device_cause(subject, alternative, counts, now)


def _no_device_cause(subject: str, request: DeviceRequest, counts: DeviceCounts, now: datetime) -> Cause:
    """Return why there are not enough free devices for a request."""
    of_class = f"{counts.of_class} devices of DeviceClass {request.device_class_name}"
    parts, remedies, ways = [], [], tuple[Remedy, ...]()
    if not counts.of_class:
        message = f"the cluster has no device of DeviceClass {request.device_class_name}"
        remedies, ways = ["wait until a node with such devices is added"], (Remedy(awaits=(Awaited.NODE,)),)
    elif not counts.selected:
        message = f"its selectors match none of {of_class}"
        remedies = ["correct the selectors of the claim or its template"]
    else:
        if counts.unavailable:
            is_all = counts.unavailable == counts.selected
            parts.append("all allocated" if is_all else f"{counts.unavailable} of them allocated")
            remedies.append("wait until another claim is deleted")
            ways = (Remedy(awaits=(Awaited.ROOM,)),)
        if counts.tainted:
            parts.append(_tainted(counts.tainted, counts.taints, now))
            remedies.append(
                f"tolerate the taint in the claim: {toleration_yaml(counts.taints[0].without_time)}"
            )
        if counts.free:
            parts.append(f"{counts.free} free, but {request.count} are needed")
            remedies.append("use fewer devices")
        message = f"the scheduler found no device: {counts.selected} of {of_class} match, {', '.join(parts)}"
    return Cause(
        source=Source.DEVICES, message=f"{subject}: {message}", remedy=", or ".join(remedies), ways=ways
    )


def _tainted(number: int, taints: Sequence[DeviceTaint], now: datetime) -> str:
    """Return how many are tainted, and since when: `2 with taint example.com/sick:NoExecute since 2026-11-29 08:00 UTC`."""
    words = (
        f"{toleration_text(taint)}{f' since {utc(taint.time_added, now)}' if taint.time_added else ''}"
        for taint in taints
    )
    return f"{number} with taint {', '.join(words)}"


def _reported(name: str, claim: bytes, now: datetime) -> Iterator[Cause]:
    """Yield what the driver of an allocated device says against it."""
    for device in msgspec.json.decode(claim)["status"].get("devices") or ():
        for condition in device.get("conditions") or ():
            if condition.get("status") == "False":
                since = condition.get("lastTransitionTime")
                why = condition.get("message") or condition.get("reason")
                message = f"ResourceClaim {name}: condition {condition['type']} of device {device['device']} is False"
                message += f" since {utc(datetime.fromisoformat(since), now)}" if since else ""
                message += f": {why}" if why else ""
                remedy = f"see the log of driver {device['driver']} on its node"
                yield Cause(source=Source.DEVICES, message=message, remedy=remedy)
