"""Labels of namespaces, by which policies select: from a watch, and by one read for a namespace that the watch lacks.

A namespace may be newer than the last event of the watch (`kubectl apply` of a namespace and its pods), so its absence there
proves nothing. Later its labels are as old as the watch; while the API server is unavailable, the last ones hold.
"""

from time import monotonic

import msgspec

from policies.policy import Labels
from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient
from webhook.cluster.collection import CLUSTER
from webhook.cluster.informer import Informer, Resource
from webhook.cluster.objects import decode_metadata

RESOURCE = Resource("/api/v1", "namespaces", metadata_only=True)
LONGEST_SECONDS = 2.0
"""At most for one read; the deadline of the request may be earlier."""


class NamespaceUnknown(Exception):  # noqa: N818 - no bug
    """The labels could not be read; the message says why."""


class NamespaceRecord(msgspec.Struct, frozen=True):
    uid: str
    name: str
    labels: Labels
    namespace: str = CLUSTER


def namespace_record(raw: bytes | msgspec.Raw) -> NamespaceRecord:
    metadata = decode_metadata(raw)
    return NamespaceRecord(metadata.uid, metadata.name, metadata.sorted_labels)


class Namespaces:
    """All namespaces, once `informer` is started."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._by_name: dict[str, NamespaceRecord] = {}
        self.informer = Informer(api, RESOURCE, namespace_record, self._changed)

    def labels_of(self, name: str, deadline: float) -> Labels:
        """Return the labels; those of a namespace that the watch lacks are read by `deadline`. Raises NamespaceUnknown."""
        known = self._by_name.get(name)
        if known is not None:
            return known.labels
        seconds = min(deadline - monotonic(), LONGEST_SECONDS)
        if seconds <= 0:
            raise NamespaceUnknown("no time was left to ask the API server")
        try:
            found = self._api.get(RESOURCE.path(CLUSTER, name), timeout=seconds, accept=METADATA)
            return namespace_record(found).labels
        except (errors.ApiError, msgspec.MsgspecError) as error:
            raise NamespaceUnknown(str(error)) from None

    def all(self) -> dict[str, Labels] | None:
        """Return the labels of every namespace, None before they were listed."""
        if not self.informer.synced:
            return None
        return {record.name: record.labels for record in self.informer.all()}

    def _changed(self, before: NamespaceRecord | None, after: NamespaceRecord | None) -> None:
        if after is not None:
            self._by_name[after.name] = after
        elif before is not None and self._by_name.get(before.name) == before:
            del self._by_name[before.name]
