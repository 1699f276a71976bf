"""The node pools of Karpenter: which nodes it can make."""

from collections.abc import Iterator

import msgspec

from policies.placement.nodes import NodeOffer
from policies.pods.pod import Toleration
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Resource
from webhook.cluster.objects import decode_metadata, fields_of

KARPENTER = "karpenter.sh"
VERSIONS = ("v1", "v1beta1")

OPEN = (
    "karpenter.",
    "eks.amazonaws.com/",
    "kubernetes.azure.com/",
    "topology.kubernetes.io/",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/",
)
"""Prefixes of the labels that Karpenter and its providers set by the kind of machine: they may have any value in a pool that does
not mention them. Any other label is only on nodes of a pool that names it (Karpenter, concepts/scheduling: well-known and
user-defined labels; `WellKnownLabels` of its providers).
"""
POOL_LABEL = "karpenter.sh/nodepool"
"""The name of its pool, on every node that Karpenter makes."""


class _Requirement(msgspec.Struct, frozen=True):
    key: str
    operator: str = "In"
    values: tuple[str, ...] | None = None


_REQUIREMENTS = msgspec.json.Decoder(tuple[_Requirement, ...] | None)
_LABELS = msgspec.json.Decoder(dict[str, str] | None)
_TAINTS = msgspec.json.Decoder(tuple[Toleration, ...] | None)


def node_pools(api: ApiClient) -> Iterator[NodeOffer]:
    """Yield Karpenter's pools; none where it is not installed. Raises `errors.ApiError`."""
    version = api.served_version(KARPENTER, VERSIONS)
    if version is not None:
        resource = Resource(f"/apis/{KARPENTER}/{version}", "nodepools")
        yield from api.list(resource.path(), _node_pool).items


def _node_pool(document: msgspec.Raw) -> NodeOffer:
    name = decode_metadata(document).name
    metadata, spec = (fields_of(document, "spec", "template", part) for part in ("metadata", "spec"))
    labels: dict[str, frozenset[str] | None] = {POOL_LABEL: frozenset((name,))}
    for requirement in _REQUIREMENTS.decode(spec.get("requirements", b"null")) or ():
        # The other operators leave the values open: the pool makes nodes for the value that a pod selects.
        values = requirement.values if requirement.operator == "In" else None
        labels[requirement.key] = None if values is None else frozenset(values)
    template_labels = _LABELS.decode(metadata.get("labels", b"null")) or {}
    labels.update({key: frozenset((value,)) for key, value in template_labels.items()})
    taints, startup = (
        _TAINTS.decode(spec.get(field, b"null")) or () for field in ("taints", "startupTaints")
    )
    return NodeOffer(labels, OPEN, name, startup, taints=taints)
