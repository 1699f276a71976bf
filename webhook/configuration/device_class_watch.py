"""The DeviceClasses (DRA) of a cluster, followed or read once: they say by which names pods ask for GPUs."""

import logging
import threading
from collections.abc import Callable
from time import monotonic

import msgspec

from policies.gpus.device_classes import DeviceClass, decode_device_class
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import CLUSTER, Informer, Resource, WatchTimings
from webhook.cluster.objects import decode_metadata

DRA_GROUP = "resource.k8s.io"
DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Those that `policies.quota.claims` and `policies.gpus.device_classes` read, the best first."""
START_SECONDS = 8.0
"""After this time without a first list it is better to go on without. Sources give up on documents later, at 10 s: who may not
read DeviceClasses still begins with the documents, and not with the built-in ones."""
RETRY_SECONDS = 1.0

log = logging.getLogger("gpu_admission.configuration")


class DeviceClassRecord(msgspec.Struct, frozen=True):
    uid: str
    device_class: DeviceClass
    namespace: str = CLUSTER


def served_resource(api: ApiClient, plural: str) -> Resource | None:
    """Return where a kind of DRA is served, None if this API server has none. Raises `errors.ApiError`."""
    version = api.served_version(DRA_GROUP, DRA_VERSIONS)
    return Resource(f"/apis/{DRA_GROUP}/{version}", plural) if version else None


def read_device_classes(api: ApiClient) -> tuple[DeviceClass, ...]:
    """List the DeviceClasses once; none where they are not served, or the caller may not read them. Raises `errors.ApiError`."""
    try:
        resource = served_resource(api, "deviceclasses")
        return tuple(api.list(resource.path(), decode_device_class).items) if resource else ()
    except (errors.NotFound, errors.Forbidden):
        return ()


class DeviceClassWatch:
    """Follows the DeviceClasses once started; where they are not served there are none.

    `changed` is called with every change, in a thread of its own.
    """

    def __init__(
        self, api: ApiClient, changed: Callable[[], object], *, pace: WatchTimings | None = None
    ) -> None:
        self._api = api
        self._changed = changed
        self._pace = pace
        self._informer: Informer[DeviceClassRecord] | None = None
        self._is_served = True
        self._made = monotonic()

    def start(self, stopping: threading.Event) -> None:
        threading.Thread(target=self._run, args=(stopping,), name="watch deviceclasses", daemon=True).start()

    @property
    def is_read(self) -> bool:
        """Whether all that there are are known."""
        return not self._is_served or (self._informer is not None and self._informer.synced)

    @property
    def in_time(self) -> bool:
        """Whether it is too early to go on without them."""
        return monotonic() - self._made < START_SECONDS

    def all(self) -> tuple[DeviceClass, ...]:
        """Return the DeviceClasses in the order of their names, as of the last watch event."""
        records = self._informer.all() if self._informer else []
        return tuple(sorted((each.device_class for each in records), key=lambda each: each.name))

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                resource = served_resource(self._api, "deviceclasses")
            except errors.ApiError as error:
                log.warning("DeviceClasses: %s", error)
                stopping.wait(RETRY_SECONDS)
                continue
            if resource is None:
                self._is_served = False
            else:
                self._informer = Informer(
                    self._api, resource, _record, lambda _before, _after: self._changed(), timings=self._pace
                )
                self._informer.run(stopping)
            return


def _record(raw: msgspec.Raw) -> DeviceClassRecord:
    return DeviceClassRecord(decode_metadata(raw).uid, decode_device_class(raw))
