"""Nodes as the controller keeps them: a name, and the labels that tell which class of GPU it has."""

from collections.abc import Callable

import msgspec

from webhook.cluster.informer import CLUSTER, Resource
from webhook.controller.pods import Labels, labels_of

NODES = Resource("/api/v1", "nodes")


class NodeRecord(msgspec.Struct, frozen=True):
    uid: str
    name: str
    labels: Labels
    namespace: str = CLUSTER


class _Metadata(msgspec.Struct):
    uid: str
    name: str
    labels: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata


_NODE = msgspec.json.Decoder(_Node)


def node_reader(label_keys: frozenset[str]) -> Callable[[msgspec.Raw], NodeRecord]:
    """Return what makes a record of a node in JSON, keeping the labels under these keys."""

    def record(raw: msgspec.Raw) -> NodeRecord:
        metadata = _NODE.decode(raw).metadata
        return NodeRecord(metadata.uid, metadata.name, labels_of(metadata.labels or {}, label_keys))

    return record
