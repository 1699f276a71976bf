"""Labels of namespaces, by which policies choose: the watch has them, and what it has not seen yet is read once.

A namespace may be younger than what the watch showed last (`kubectl apply` of a namespace and its pods), so its absence
there proves nothing. Once it was seen, labels are as old as the watch; while the API server is away the last ones hold.
"""

import threading
from collections.abc import Callable
from time import monotonic

import msgspec

from policies.policy import Labels
from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient
from webhook.cluster.informer import CLUSTER, Informer, Resource, WatchTimings

RESOURCE = Resource("/api/v1", "namespaces", metadata_only=True)
LONGEST_SECONDS = 2.0
"""Of one read; the request may have to be answered sooner."""

LabelsOf = Callable[[str, float], Labels]
"""Returns the labels of a namespace by a deadline (`monotonic`). Raises NamespaceUnknown."""


class NamespaceUnknown(Exception):  # noqa: N818 - not an error of ours
    """The labels could not be read; the message says why."""


class NamespaceRecord(msgspec.Struct, frozen=True):
    uid: str
    name: str
    labels: Labels
    namespace: str = CLUSTER


class _Metadata(msgspec.Struct):
    name: str
    uid: str = ""
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


_OBJECT = msgspec.json.Decoder(_Object)


def namespace_record(raw: bytes | msgspec.Raw) -> NamespaceRecord:
    metadata = _OBJECT.decode(raw).metadata
    return NamespaceRecord(metadata.uid, metadata.name, tuple(sorted((metadata.labels or {}).items())))


class Namespaces:
    """Watches them once started."""

    def __init__(self, api: ApiClient, *, pace: WatchTimings | None = None) -> None:
        self._api = api
        self._by_name: dict[str, NamespaceRecord] = {}
        self._stopping = threading.Event()
        self.mirror = Informer(api, RESOURCE, namespace_record, self._changed, pace=pace)

    def start(self) -> None:
        threading.Thread(
            target=self.mirror.run, args=(self._stopping,), name="watch namespaces", daemon=True
        ).start()

    def stop(self) -> None:
        self._stopping.set()

    def labels_of(self, name: str, deadline: float) -> Labels:
        """Return the labels; one that was not seen yet is read by `deadline`. Raises NamespaceUnknown."""
        known = self._by_name.get(name)
        if known is not None:
            return known.labels
        seconds = min(deadline - monotonic(), LONGEST_SECONDS)
        if seconds <= 0:
            raise NamespaceUnknown("there was no time left to ask the API server")
        try:
            return namespace_record(
                self._api.get(f"{RESOURCE.path()}/{name}", timeout=seconds, accept=METADATA)
            ).labels
        except (errors.ApiError, msgspec.MsgspecError) as error:
            raise NamespaceUnknown(str(error)) from None

    def all(self) -> dict[str, Labels] | None:
        """Return the labels of every namespace, None before they were listed."""
        if not self.mirror.synced:
            return None
        return {record.name: record.labels for record in self.mirror.all()}

    def _changed(self, before: NamespaceRecord | None, after: NamespaceRecord | None) -> None:
        if after is not None:
            self._by_name[after.name] = after
        elif before is not None and self._by_name.get(before.name) == before:
            del self._by_name[before.name]
