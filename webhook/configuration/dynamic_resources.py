"""Reads and watches DeviceClasses, ResourceClaims and ResourceClaimTemplates (DRA), and the kinds of devices that are published.

The controller publishes them in one ConfigMap, which all processes and tools read. So demand is the same in every process, and
only controllers read ResourceSlices: of 5,000 nodes, those have 1 GB of JSON.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Annotated, Generic, TypeVar

import msgspec

from policies.gpus.claimed_devices import CLAIM, TEMPLATE, ClaimName, RequestedDevices, claim_request
from policies.gpus.device_classes import ClusterDevices, DeviceClass, decode_device_class
from policies.gpus.device_slices import type_key
from policies.gpus.device_types import DeviceType, DeviceTypes
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Toleration
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.collection import CLUSTER, CachedObject
from webhook.cluster.informer import Informer, Resource
from webhook.cluster.objects import DEVICES, decode_config_map
from webhook.threads import thread

log = logging.getLogger("gpu_admission.configuration")

DRA_GROUP = "resource.k8s.io"
DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""The versions that `policies.quota.claim_demand` and `policies.gpus.device_classes` read, newest first."""
SLICE_VERSIONS = DRA_VERSIONS[:2]
"""The versions of ResourceSlices that `policies.gpus.device_slices` reads. In v1beta1 the fields of devices are elsewhere."""
START_SECONDS = 8.0
"""How long a start waits for the first list of DeviceClasses. It is less than the 10 s for documents: a process that may not read
DeviceClasses still starts with the stored documents, and not with the built-in ones."""
RETRY_SECONDS = 1.0

K = TypeVar("K", bound=CachedObject)


CLAIM_PLURALS = {CLAIM: "resourceclaims", TEMPLATE: "resourceclaimtemplates"}

DEVICES_KEY = "devices"
"""Of the ConfigMap's data."""

Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def served_resource(api: ApiClient, plural: str, versions: tuple[str, ...] = DRA_VERSIONS) -> Resource | None:
    """Return this resource in the newest served version of DRA. None if it is not served. Raises `errors.ApiError`."""
    version = api.served_version(DRA_GROUP, versions)
    return Resource(f"/apis/{DRA_GROUP}/{version}", plural) if version else None


def read_device_classes(api: ApiClient) -> tuple[DeviceClass, ...]:
    """List the DeviceClasses once. Empty if they are not served, or may not be read. Raises `errors.ApiError`."""
    try:
        resource = served_resource(api, "deviceclasses")
        return tuple(api.list(resource.path(), decode_device_class).items) if resource else ()
    except (errors.NotFound, errors.Forbidden):
        return ()


def read_claims(
    api: ApiClient, namespace: str = CLUSTER, omitted: list[str] | None = None
) -> dict[ClaimName, RequestedDevices | None]:
    """Return the devices that the claims and templates of a namespace, or of all, request. Raises `errors.ApiError`.

    Kinds that are not served, or may not be read, are left out. The missing permissions are added to `omitted`.
    """
    claims: dict[ClaimName, RequestedDevices | None] = {}
    for kind, plural in CLAIM_PLURALS.items():
        try:
            resource = served_resource(api, plural)
            read = partial(claim_request, kind)
            records = api.list(resource.path(namespace), read).items if resource else []
            claims |= {record.key: record.devices for record in records}
        except errors.Forbidden:
            if omitted is not None:
                omitted.append(f"list {plural}.{DRA_GROUP} -n {namespace}")
        except errors.NotFound:
            pass
    return claims


class DynamicResourceWatch(Generic[K]):
    """Finds the served version of a DRA resource and watches it, in a thread that calls `changed(before, after)`."""

    def __init__(
        self,
        api: ApiClient,
        plural: str,
        decode: Callable[[msgspec.Raw], K | None],
        changed: Callable[[K | None, K | None], object],
        versions: tuple[str, ...] = DRA_VERSIONS,
    ) -> None:
        self._api, self._plural, self._versions = api, plural, versions
        self._decode, self._changed = decode, changed
        self.informer: Informer[K] | None = None
        """None until the served version is known."""
        self.is_served = True
        """False once the API server has said that it does not serve the resource."""

    def start(self, stopping: threading.Event) -> None:
        thread(f"watch {self._plural}", self._run, stopping).start()

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                resource = served_resource(self._api, self._plural, self._versions)
            except errors.ApiError as error:
                log.warning("%s: %s", self._plural, error)
                stopping.wait(RETRY_SECONDS)
                continue
            if resource is None:
                self.is_served = False
            else:
                self.informer = Informer(self._api, resource, self._decode, self._changed)
                self.informer.run(stopping)
            return


def unmapped_resources(names: Iterable[str], resource_mapping: ResourceMapping) -> frozenset[str]:
    """Return the extended resources of a node that match no pattern."""
    return frozenset(
        name for name in names if "kubernetes.io/" not in name and not resource_mapping.knows(name)
    )


class PublishedKind(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    kind: DeviceType
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
    def device_types(self) -> DeviceTypes:
        return DeviceTypes(
            tuple(kind.kind for kind in self.kinds), tuple(node.devices for node in self.nodes)
        )

    def with_classes(self, classes: tuple[DeviceClass, ...]) -> ClusterDevices:
        taints = {type_key(kind.kind): kind.taints for kind in self.kinds if kind.taints}
        return ClusterDevices(classes, self.device_types, taints)


NOTHING_PUBLISHED = PublishedDevices()
_PUBLISHED = msgspec.json.Decoder(PublishedDevices)


class PublishedRecord(msgspec.Struct, frozen=True):
    uid: str
    published: PublishedDevices
    namespace: str = CLUSTER


def devices_path(namespace: str) -> str:
    return api_path("/api/v1", "namespaces", namespace, "configmaps", DEVICES)


def decode_devices(config_map: bytes | msgspec.Raw) -> PublishedRecord:
    """Return what the ConfigMap has: nothing before a controller wrote it, or if this release cannot read it."""
    stored = decode_config_map(config_map)
    text = (stored.data or {}).get(DEVICES_KEY, "{}")
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
        published = decode_devices(api.get(devices_path(namespace))).published
    except (errors.NotFound, errors.Forbidden):
        published = NOTHING_PUBLISHED
    return published.with_classes(classes)


class ClusterDevicesWatch:
    """Watches the DeviceClasses, if they are served, and the published kinds. Its threads call `changed` after every change."""

    def __init__(self, api: ApiClient, namespace: str, changed: Callable[[], object]) -> None:
        def differs(_before: object, _after: object) -> None:
            changed()

        self._created = monotonic()
        self._classes = DynamicResourceWatch(api, "deviceclasses", decode_device_class, differs)
        # It may read this one ConfigMap of the namespace, and no other.
        resource = Resource(
            api_path("/api/v1", "namespaces", namespace),
            "configmaps",
            field_selector=f"metadata.name={DEVICES}",
        )
        self._published = Informer(api, resource, decode_devices, differs)

    def start(self, stopping: threading.Event) -> None:
        self._classes.start(stopping)
        self._published.start(stopping)

    @property
    def is_read(self) -> bool:
        classes = self._classes
        has_classes = not classes.is_served or (classes.informer is not None and classes.informer.synced)
        return has_classes and self._published.synced

    @property
    def awaits_first_list(self) -> bool:
        """Whether a start must still wait for both."""
        return monotonic() - self._created < START_SECONDS

    def all(self) -> ClusterDevices:
        """Return what is known as of the last watch event, the DeviceClasses in the order of their names."""
        published, informer = self._published.first(CLUSTER), self._classes.informer
        classes = sorted(informer.all() if informer else (), key=lambda device_class: device_class.name)
        return (published.published if published else NOTHING_PUBLISHED).with_classes(tuple(classes))
