"""The labels of namespaces, by which policies select them.

They come from a watch. A pod may come right after its namespace (`kubectl apply` of both), so absence from the watch proves
nothing: the namespace is read.
"""

from functools import partial
from time import monotonic

import msgspec

from policies.policy import Labels
from webhook.cluster import errors
from webhook.cluster.api import METADATA, REVIEW_READ_SECONDS, ApiClient
from webhook.cluster.collection import CLUSTER, update_by_key
from webhook.cluster.informer import Informer, Resource
from webhook.cluster.objects import decode_metadata

NAMESPACES = Resource("/api/v1", "namespaces", metadata_only=True)


class NamespaceUnknown(Exception):  # noqa: N818 - no bug
    """The labels could not be read; the message says why."""


class NamespaceRecord(msgspec.Struct, frozen=True):
    uid: str
    key: str
    labels: Labels
    namespace: str = CLUSTER


def namespace_record(raw: bytes | msgspec.Raw) -> NamespaceRecord:
    metadata = decode_metadata(raw)
    return NamespaceRecord(metadata.uid, metadata.name, metadata.sorted_labels)


class Namespaces:
    """All namespaces, once `informer` is started. While the API server does not answer, the last labels hold."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._by_name: dict[str, NamespaceRecord] = {}
        self.informer = Informer(api, NAMESPACES, namespace_record, partial(update_by_key, self._by_name))

    def labels_of(self, name: str, deadline: float) -> Labels:
        """Return the labels; those of a namespace that the watch lacks are read by `deadline`. Raises NamespaceUnknown."""
        known = self._by_name.get(name)
        if known is not None:
            return known.labels
        seconds = min(deadline - monotonic(), REVIEW_READ_SECONDS)
        if seconds <= 0:
            raise NamespaceUnknown("no time was left to ask the API server")
        try:
            document = self._api.get(NAMESPACES.path(CLUSTER, name), timeout=seconds, accept=METADATA)
            return namespace_record(document).labels
        except (errors.ApiError, msgspec.MsgspecError) as error:
            raise NamespaceUnknown(str(error)) from None

    def watched_labels(self, name: str) -> Labels | None:
        """Return the labels in the watch. None if it shows no such namespace."""
        record = self._by_name.get(name)
        return record.labels if record else None

    def names(self) -> list[str]:
        """Return the namespaces in the watch. Takes no lock, unlike `all`."""
        return list(self._by_name)

    def all(self) -> dict[str, Labels] | None:
        """Return the labels of every namespace, None before they were listed."""
        if not self.informer.synced:
            return None
        return {record.key: record.labels for record in self.informer.all()}
