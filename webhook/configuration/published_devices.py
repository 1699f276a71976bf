"""The kinds of DRA devices that the controller publishes: one ConfigMap, which all processes and tools read.

So demand is the same in every process, and only controllers read ResourceSlices: of 5,000 nodes, those have 1 GB of JSON.
"""

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Annotated

import msgspec

from policies.gpus.device_classes import ClusterDevices, DeviceClass
from policies.gpus.device_kinds import DeviceKind, DeviceKinds
from policies.gpus.device_slices import kind_key
from policies.pods.pod import Toleration
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.collection import CLUSTER
from webhook.cluster.informer import Informer, Resource
from webhook.cluster.objects import DEVICES, decode_config_map
from webhook.configuration.dynamic_resources import DeviceClassWatch, read_device_classes

KEY = "devices"
"""Of the ConfigMap's data."""

Moment = Annotated[datetime, msgspec.Meta(tz=True)]

log = logging.getLogger("gpu_admission.configuration")


class PublishedKind(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    kind: DeviceKind
    gone_since: Moment | None = None
    """Since when no device is of the kind."""
    taints: tuple[Toleration, ...] = ()
    """Those of all its devices."""


class PublishedNodes(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    devices: dict[int, int]
    gone_since: Moment | None = None
    """Since when no node has these numbers of devices."""


class PublishedDevices(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """left_out: qualified names of attributes and capacities without which the kinds are few enough to be published."""

    kinds: tuple[PublishedKind, ...] = ()
    nodes: tuple[PublishedNodes, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def device_kinds(self) -> DeviceKinds:
        return DeviceKinds(
            tuple(each.kind for each in self.kinds), tuple(each.devices for each in self.nodes)
        )

    def with_classes(self, classes: tuple[DeviceClass, ...]) -> ClusterDevices:
        taints = {kind_key(each.kind): each.taints for each in self.kinds if each.taints}
        return ClusterDevices(classes, self.device_kinds, taints)


NOTHING_PUBLISHED = PublishedDevices()
_PUBLISHED = msgspec.json.Decoder(PublishedDevices)


class PublishedRecord(msgspec.Struct, frozen=True):
    uid: str
    published: PublishedDevices
    namespace: str = CLUSTER


def devices_path(namespace: str) -> str:
    return api_path("/api/v1", "namespaces", namespace, "configmaps", DEVICES)


def decode(config_map: bytes | msgspec.Raw) -> PublishedRecord:
    """Return what the ConfigMap has: nothing before a controller wrote it, or if this release cannot read it."""
    stored = decode_config_map(config_map)
    text = (stored.data or {}).get(KEY, "{}")
    try:
        published = _PUBLISHED.decode(text)
    except msgspec.MsgspecError as error:
        log.warning("ConfigMap %s: the kinds of devices cannot be read: %s", DEVICES, error)
        published = NOTHING_PUBLISHED
    return PublishedRecord(stored.metadata.uid, published)


def read_cluster_devices(api: ApiClient, namespace: str) -> ClusterDevices:
    """Read the DeviceClasses, and the kinds that an installation in `namespace` publishes; only what exists and may be read.

    Raises `errors.ApiError`.
    """
    classes = read_device_classes(api)
    try:
        published = decode(api.get(devices_path(namespace))).published
    except (errors.NotFound, errors.Forbidden):
        published = NOTHING_PUBLISHED
    return published.with_classes(classes)


class ClusterDevicesWatch:
    """Watches the DeviceClasses and the published kinds. Its threads call `changed` after every change."""

    def __init__(self, api: ApiClient, namespace: str, changed: Callable[[], object]) -> None:
        self._classes = DeviceClassWatch(api, changed)
        # It may read this one ConfigMap of the namespace, and no other.
        resource = Resource(
            api_path("/api/v1", "namespaces", namespace),
            "configmaps",
            field_selector=f"metadata.name={DEVICES}",
        )
        self._published = Informer(api, resource, decode, lambda _before, _after: changed())

    def start(self, stopping: threading.Event) -> None:
        self._classes.start(stopping)
        self._published.start(stopping)

    @property
    def is_read(self) -> bool:
        return self._classes.is_read and self._published.synced

    @property
    def is_starting(self) -> bool:
        """Whether a start must still wait for both."""
        return self._classes.is_starting

    def all(self) -> ClusterDevices:
        """Return what is known as of the last watch event."""
        published = self._published.first(CLUSTER)
        return (published.published if published else NOTHING_PUBLISHED).with_classes(self._classes.all())
