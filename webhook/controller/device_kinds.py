"""Publishes the kinds of DRA devices (`webhook.configuration.published_devices`). The leader writes them."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from policies.gpus.device_kinds import NO_TAINTS, DeviceKind
from policies.gpus.device_pools import Inventory
from policies.gpus.device_slices import (
    MAX_BYTES,
    are_too_many,
    combinations,
    device_kinds,
    kind_key,
    without,
)
from webhook.cluster import errors
from webhook.cluster.api import MERGE_PATCH, ApiClient
from webhook.cluster.objects import decode_config_map
from webhook.configuration.published_devices import (
    KEY,
    PublishedDevices,
    PublishedKind,
    PublishedNodes,
    decode,
    devices_path,
)
from webhook.controller.device_slices import DeviceSlices

KEPT = timedelta(days=1)
"""A kind, and what a node has, stay published for this time after their last device: a pool may scale to zero."""
REFRESH = timedelta(seconds=60)
"""The ConfigMap is read again after this time, in case that somebody else has changed it, and written if only taints differ: each
process loads its configuration again for them, and devices may fail and recover every second."""
CALL_SECONDS = 10.0

log = logging.getLogger("gpu_admission.controller")


@dataclass(eq=False)
class DeviceKindsWriter:
    """Writes the ConfigMap in `namespace`, by swap."""

    api: ApiClient
    namespace: str
    slices: DeviceSlices
    PERIOD_SECONDS = 1.0

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget what was written: another process leads, and writes."""
        self._written: Inventory | None = None
        """Without taints."""
        self._due = datetime.min.replace(tzinfo=UTC)

    def sync(self) -> None:
        """Publish new kinds at once. Nothing is written before the slices were listed, or where they are not served."""
        inventory, now = self.slices.inventory, datetime.now(UTC)
        if inventory is None:
            return
        untainted = replace(inventory, taints=NO_TAINTS)
        if untainted == self._written and now < self._due:
            return
        try:
            self.write(inventory, now)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            log.warning("the kinds of devices cannot be published: %s", error)
            return
        self._written, self._due = untainted, now + REFRESH

    def write(self, inventory: Inventory, now: datetime) -> None:
        """Write what differs. Raises `errors.ApiError`, and msgspec.MsgspecError if the answer is not a ConfigMap."""
        path = devices_path(self.namespace)
        stored = self.api.get(path, timeout=CALL_SECONDS)
        before = decode(stored).published
        after = to_publish(before, inventory, now)
        if after != before:
            document = msgspec.json.encode(after).decode()
            version = decode_config_map(stored).metadata.resource_version
            body = {"metadata": {"resourceVersion": version}, "data": {KEY: document}}
            self.api.patch(path, msgspec.json.encode(body), content_type=MERGE_PATCH, timeout=CALL_SECONDS)


def to_publish(before: PublishedDevices, inventory: Inventory, now: datetime) -> PublishedDevices:
    """Return what is to be published after `before`: what exists, and what has existed within KEPT."""
    present = _by_key(inventory.published.values())
    kept = _kept_kinds(before, inventory, now)
    if are_too_many((*present.values(), *(kind for kind, _ in kept.values()))):
        kept = {}
    kinds = {key: kind for key, (kind, _) in kept.items()} | present
    gone: dict[frozenset[tuple[bytes, int]], datetime] = {}
    names = {kind_key(each.kind): kind_key(without(each.kind, inventory.left_out)) for each in before.kinds}
    for combination, nodes in zip(combinations(before.device_kinds), before.nodes, strict=True):
        since = nodes.gone_since or now
        renamed = frozenset((names[key], number) for key, number in combination.items())
        if (
            now - since < KEPT
            and len(renamed) == len(combination)
            and all(key in kinds for key, _ in renamed)
        ):
            gone[renamed] = since
    for combination in inventory.nodes:
        gone.pop(frozenset(combination.items()), None)
    catalogue = device_kinds(kinds.values(), (*inventory.nodes, *map(dict, gone)))
    taints = inventory.taints if len(msgspec.json.encode([*inventory.taints.values()])) <= MAX_BYTES else {}
    return PublishedDevices(
        kinds=tuple(
            PublishedKind(
                kind, None if (key := kind_key(kind)) in present else kept[key][1], taints.get(key, ())
            )
            for kind in catalogue.kinds
        ),
        nodes=tuple(
            PublishedNodes(dict(numbers), gone.get(frozenset(combination.items())))
            for numbers, combination in zip(catalogue.nodes, combinations(catalogue), strict=True)
        ),
        left_out=inventory.left_out,
    )


def _by_key(kinds: Iterable[DeviceKind]) -> dict[bytes, DeviceKind]:
    return {kind_key(kind): kind for kind in kinds}


def _kept_kinds(
    before: PublishedDevices, inventory: Inventory, now: datetime
) -> dict[bytes, tuple[DeviceKind, datetime]]:
    """Return the kinds without a device that stay, and since when they have none.

    A kind that only weighs otherwise than one that exists goes at once: then `weigh` was changed.
    """
    existing = {kind_key(replace(kind, parts=0)) for kind in inventory.published.values()}
    kept = {}
    for each in before.kinds:
        kind, since = without(each.kind, inventory.left_out), each.gone_since or now
        if now - since < KEPT and kind_key(replace(kind, parts=0)) not in existing:
            kept[kind_key(kind)] = kind, since
    return kept
