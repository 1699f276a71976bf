"""What the controller publishes of nodes and free GPUs, for those who may not read nodes: no names of nodes or of tenants.

A ConfigMap has it by class; by family where labels of nodes name only that, and under "" for nodes of no known class. It is one
object, because most classes are built in, and no GPUClass of theirs has a status.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Annotated

import msgspec
from msgspec.structs import replace

from policies.gpus.classes import GPUClasses, HostShare
from policies.placement.nodes import Labels, NodeFacts, NodeGroup, NodeState, node_facts
from policies.placement.pinning import classes_of_label
from policies.pods.pod import Toleration
from policies.quota.amounts import ZERO, parse_amount
from policies.quota.demand import Catalogue
from webhook.cluster.capacity import (
    NO_CAPACITY,
    ClassCapacity,
    ClassTotals,
    GPUNode,
    capacity_by_class,
    published_keys,
    share_by_class,
)
from webhook.cluster.nodes import is_permanent_taint
from webhook.cluster.objects import decode_config_map

REFRESH_SECONDS = 60.0
"""What does not change is published again after this time, so that `observed` says whether a controller still counts."""
OLD_AFTER = timedelta(seconds=3 * REFRESH_SECONDS)
KEY = "capacity"
"""Of the ConfigMap's data."""

MAX_ALIKE = 16
"""Groups of alike nodes that are published of a class. The ConfigMap has 1 MiB, and a group some 500 bytes."""


class ResourceCapacity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource of some nodes, in its own units."""

    allocatable: Fraction
    free: Fraction


class AlikeNodes(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Nodes of a class with the same labels and taints. most: what the node with the most of each resource has, and has free."""

    nodes: int
    labels: Labels = ()
    taints: tuple[Toleration, ...] = ()
    is_ready: bool = True
    is_schedulable: bool = True
    mounts_images: bool = False
    """Whether all of them are known to mount images as volumes."""
    most: dict[str, ResourceCapacity] = {}

    @property
    def state(self) -> NodeState:
        has = {name: int(amount.allocatable) for name, amount in self.most.items() if amount.allocatable}
        lasting = tuple(filter(is_permanent_taint, self.taints))
        is_usable = self.is_ready and len(lasting) == len(self.taints)
        return NodeState(
            self.is_schedulable,
            lasting,
            frozenset(has),
            tuple(has.items()),
            is_usable=is_usable,
            mounts_images=self.mounts_images,
        )


class PublishedClass(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The nodes of a class, and their GPUs in whole cards; only nodes that take pods have free ones.

    pending: GPUs of pods without a node that only this class can take. alike: MAX_KINDS at most, those with the fewest taints
    first, of these those with the most free GPUs.
    """

    nodes: int = 0
    nodes_taking_pods: int = 0
    gpus: Fraction = ZERO
    free: Fraction = ZERO
    pending: Fraction = ZERO
    blocked: Fraction = ZERO
    resources: dict[str, ResourceCapacity] = {}
    alike: tuple[AlikeNodes, ...] = ()
    share: HostShare | None = None

    @property
    def has_all_nodes(self) -> bool:
        return sum(alike.nodes for alike in self.alike) == self.nodes

    @property
    def capacity(self) -> ClassCapacity:
        return ClassCapacity(
            nodes=self.nodes,
            nodes_taking_pods=self.nodes_taking_pods,
            gpus=self.gpus,
            free=self.free,
            blocked=self.blocked,
            resources={name: (each.allocatable, each.free) for name, each in self.resources.items()},
        )


class PublishedCapacity(msgspec.Struct, frozen=True):
    """What was counted at one moment."""

    observed: Annotated[datetime, msgspec.Meta(tz=True)]
    classes: dict[str, PublishedClass]

    def is_old(self, now: datetime) -> bool:
        """Whether no controller has counted for so long that the figures may be wrong."""
        return now - self.observed > OLD_AFTER

    def nodes(self, catalogue: Catalogue) -> tuple[GPUNode, ...]:
        """Return a node without a name for each kind of nodes, which has as much as the one with the most."""
        return tuple(
            _node_standing_for(kind, published, alike, catalogue)
            for kind, published in self.classes.items()
            for alike in published.alike
        )

    def facts(self, pools: tuple[NodeGroup, ...], classes: GPUClasses) -> NodeFacts:
        """Return the facts about the nodes by the labels that are published; other labels are not known.

        Of a class of which not all kinds are published, no node is known to mount images.
        """
        labelled = (
            (alike.labels, replace(alike.state, mounts_images=alike.mounts_images and each.has_all_nodes))
            for each in self.classes.values()
            for alike in each.alike
        )
        return node_facts(published_keys(classes), labelled, pools)


_PUBLISHED = msgspec.json.Decoder(PublishedCapacity, dec_hook=lambda _fraction, text: parse_amount(text))
_ENCODER = msgspec.json.Encoder(enc_hook=str, order="deterministic")


def encode(published: PublishedCapacity) -> bytes:
    """Return the merge patch of the ConfigMap."""
    return msgspec.json.encode({"data": {KEY: _ENCODER.encode(published).decode()}})


def decode(config_map: bytes) -> PublishedCapacity | None:
    """Return what the ConfigMap has; None where no controller has written it, or not what is read here."""
    text = (decode_config_map(config_map).data or {}).get(KEY, "")
    try:
        return _PUBLISHED.decode(text)
    except (msgspec.MsgspecError, ValueError):
        return None


def published_classes(
    nodes: Iterable[GPUNode], pending: Mapping[str, Fraction], classes: GPUClasses
) -> dict[str, PublishedClass]:
    """Return what to publish of these nodes. `pending`: GPUs of pods without a node by the class that they pin."""
    members = defaultdict[str, list[GPUNode]](list)
    for node in nodes:
        members[node.kind].append(node)
    everything = [node for of_kind in members.values() for node in of_kind]
    capacities, shares = capacity_by_class(everything), share_by_class(everything)
    waited_for = {name: amount for name, amount in pending.items() if classes.get(name) is not None}
    published = {}
    for kind in sorted(capacities.keys() | waited_for.keys()):
        capacity = capacities.get(kind, NO_CAPACITY)
        published[kind] = PublishedClass(
            nodes=capacity.nodes,
            nodes_taking_pods=capacity.nodes_taking_pods,
            gpus=capacity.gpus,
            free=capacity.free or ZERO,
            pending=waited_for.get(kind, ZERO),
            blocked=capacity.blocked,
            resources={
                name: ResourceCapacity(allocatable=has, free=free or ZERO)
                for name, (has, free) in capacity.resources.items()
            },
            alike=_alike_nodes(members[kind], classes),
            share=shares.get(kind),
        )
    return published


def _alike_nodes(nodes: Iterable[GPUNode], classes: GPUClasses) -> tuple[AlikeNodes, ...]:
    groups = defaultdict[tuple[Labels, tuple[Toleration, ...], bool, bool], list[GPUNode]](list)
    for node in nodes:
        # A value of a label of classes that names no class may name a node, or a tenant.
        labels = tuple(
            label
            for label in sorted(node.labels.items())
            if label[0] not in classes.label_keys or classes_of_label(*label, classes)
        )
        groups[labels, node.taints, node.is_ready, node.is_schedulable].append(node)
    kinds = (
        AlikeNodes(
            nodes=len(alike),
            labels=labels,
            taints=taints,
            is_ready=is_ready,
            is_schedulable=is_schedulable,
            mounts_images=all(node.mounts_images for node in alike),
            most=_most_of_each(alike),
        )
        for (labels, taints, is_ready, is_schedulable), alike in groups.items()
    )
    return tuple(sorted(kinds, key=_fewest_taints_first)[:MAX_ALIKE])


def _fewest_taints_first(alike: AlikeNodes) -> tuple[object, ...]:
    takes_none = not (alike.is_ready and alike.is_schedulable)
    free = sum((capacity.free for capacity in alike.most.values()), ZERO)
    return len(alike.taints), takes_none, -free, -alike.nodes, alike.labels, str(alike.taints)


def _most_of_each(alike: Sequence[GPUNode]) -> dict[str, ResourceCapacity]:
    return {
        name: ResourceCapacity(
            allocatable=max(node.allocatable.get(name, ZERO) for node in alike),
            free=max((node.free or {}).get(name, ZERO) for node in alike),
        )
        for name in sorted({name for node in alike for name in node.allocatable})
    }


def _node_standing_for(
    kind: str, published: PublishedClass, alike: AlikeNodes, catalogue: Catalogue
) -> GPUNode:
    classes = catalogue.classes.resolve(kind) if kind else ()
    return GPUNode(
        name="",
        classes=tuple(gpu_class.name for gpu_class in classes),
        family=classes[0].family if classes else "",
        labels=dict(alike.labels),
        taints=alike.taints,
        is_ready=alike.is_ready,
        is_schedulable=alike.is_schedulable,
        allocatable={name: capacity.allocatable for name, capacity in alike.most.items()},
        used={name: capacity.allocatable - capacity.free for name, capacity in alike.most.items()},
        weights={},
        stands_for=ClassTotals(published.capacity, published.share),
        number=alike.nodes,
        known=published_keys(catalogue.classes),
    )
