"""Reads and watches DeviceClasses, ResourceClaims and ResourceClaimTemplates (DRA)."""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Generic, TypeVar

import msgspec

from policies.gpus.claimed_devices import CLAIM, TEMPLATE, ClaimName, RequestedDevices, claim_record
from policies.gpus.device_classes import DeviceClass, decode_device_class
from policies.gpus.resource_mapping import ResourceMapping
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.collection import CLUSTER, CachedObject
from webhook.cluster.informer import Informer, Resource
from webhook.threads import thread

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

log = logging.getLogger("gpu_admission.configuration")

CLAIM_PLURALS = {CLAIM: "resourceclaims", TEMPLATE: "resourceclaimtemplates"}


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
            read = partial(claim_record, kind)
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


class DeviceClassWatch(DynamicResourceWatch[DeviceClass]):
    """Watches the DeviceClasses, if they are served. Its thread calls `changed` after every change."""

    def __init__(self, api: ApiClient, changed: Callable[[], object]) -> None:
        super().__init__(api, "deviceclasses", decode_device_class, lambda _before, _after: changed())
        self._created = monotonic()

    @property
    def is_read(self) -> bool:
        return not self.is_served or (self.informer is not None and self.informer.synced)

    @property
    def is_starting(self) -> bool:
        """Whether a start must still wait for DeviceClasses."""
        return monotonic() - self._created < START_SECONDS

    def all(self) -> tuple[DeviceClass, ...]:
        """Return the DeviceClasses in the order of their names, as of the last watch event."""
        classes = self.informer.all() if self.informer else []
        return tuple(sorted(classes, key=lambda each: each.name))


def unmapped_resources(names: Iterable[str], resource_mapping: ResourceMapping) -> frozenset[str]:
    """Return the extended resources of a node that match no pattern."""
    return frozenset(
        name for name in names if "kubernetes.io/" not in name and not resource_mapping.knows(name)
    )
