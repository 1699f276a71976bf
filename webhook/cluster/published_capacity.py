"""What the controller publishes of nodes and free GPUs, for those who may not read nodes: no names of nodes or of tenants.

A ConfigMap has it by class; by family where labels of nodes name only that, and under "" for nodes of no known class. It is one
object, because most classes are built in, and no GPUClass of theirs has a status.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Annotated

import msgspec

from policies.gpus.classes import ClassCatalogue, HostShare
from policies.placement.named_nodes import HOSTNAME, Labels, NodeState
from policies.placement.nodes import NodeFacts, NodeOffer, node_facts
from policies.placement.pinning import classes_of_label
from policies.quota.amounts import NOTHING, parse_amount
from policies.quota.demand import Catalogues
from webhook.cluster.capacity import (
    NO_CAPACITY,
    ClassCapacity,
    ClassTotals,
    GPUNode,
    capacity_by_class,
    share_by_class,
)
from webhook.cluster.objects import decode_config_map

REFRESH_SECONDS = 60.0
"""What does not change is published again after this time, so that `observed` says whether a controller still counts."""
OLD = timedelta(seconds=3 * REFRESH_SECONDS)
KEY = "capacity"
"""Of the ConfigMap's data."""


class ResourceCapacity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource of the nodes of a class, in its own units. `most`: what the node with the most of it has, and has free."""

    allocatable: Fraction
    free: Fraction
    most: Fraction
    most_free: Fraction


class PublishedClass(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The nodes of a class, and their GPUs in whole cards; only nodes that take pods have free ones.

    pending: GPUs of pods without a node that only this class can take. labels: the distinct labels of its nodes, those alone by
    which classes select nodes.
    """

    nodes: int = 0
    nodes_taking_pods: int = 0
    gpus: Fraction = NOTHING
    free: Fraction = NOTHING
    pending: Fraction = NOTHING
    resources: dict[str, ResourceCapacity] = {}
    labels: tuple[Labels, ...] = ()
    share: HostShare | None = None

    @property
    def capacity(self) -> ClassCapacity:
        return ClassCapacity(
            nodes=self.nodes,
            nodes_taking_pods=self.nodes_taking_pods,
            gpus=self.gpus,
            free=self.free,
            resources={name: (each.allocatable, each.free) for name, each in self.resources.items()},
        )


class PublishedCapacity(msgspec.Struct, frozen=True):
    """What was counted at one moment."""

    observed: Annotated[datetime, msgspec.Meta(tz=True)]
    classes: dict[str, PublishedClass]

    def is_old(self, now: datetime) -> bool:
        """Whether no controller has counted for so long that the figures may be wrong."""
        return now - self.observed > OLD

    def nodes(self, catalogues: Catalogues) -> tuple[GPUNode, ...]:
        """Return a node without a name for each class, which has as much as the node with the most."""
        return tuple(
            _stand_in(kind, published, catalogues)
            for kind, published in self.classes.items()
            if published.nodes
        )

    def facts(self, pools: tuple[NodeOffer, ...], classes: ClassCatalogue) -> NodeFacts:
        """Return the facts about the nodes by the labels of classes; other labels and taints are not known."""
        labelled: list[tuple[Labels, NodeState]] = []
        for each in self.classes.values():
            most = {name: int(amount.most) for name, amount in each.resources.items() if amount.allocatable}
            state = NodeState(resources=frozenset(most), amounts=tuple(most.items()))
            labelled += [(labels, state) for labels in each.labels]
        return node_facts(classes.label_keys - {HOSTNAME}, labelled, pools)


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
    nodes: Iterable[tuple[GPUNode, Labels]], pending: Mapping[str, Fraction], classes: ClassCatalogue
) -> dict[str, PublishedClass]:
    """Return what to publish of nodes with these labels. `pending`: GPUs of pods without a node by the class that they pin."""
    members, labels = defaultdict[str, list[GPUNode]](list), defaultdict[str, set[Labels]](set)
    for node, of_node in nodes:
        members[node.kind].append(node)
        # Without the labels that name no class: they may name nodes, or tenants.
        named = (each for each in of_node if each[0] != HOSTNAME and classes_of_label(*each, classes))
        labels[node.kind].add(tuple(named))
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
            free=capacity.free or NOTHING,
            pending=waited_for.get(kind, NOTHING),
            resources={
                name: _resource(name, has, free or NOTHING, members[kind])
                for name, (has, free) in capacity.resources.items()
            },
            labels=tuple(sorted(labels[kind])),
            share=shares.get(kind),
        )
    return published


def _resource(name: str, has: Fraction, free: Fraction, nodes: Iterable[GPUNode]) -> ResourceCapacity:
    most, most_free = NOTHING, NOTHING
    for node in nodes:
        most = max(most, node.allocatable.get(name, NOTHING))
        if node.takes_pods:
            most_free = max(most_free, (node.free or {}).get(name, NOTHING))
    return ResourceCapacity(allocatable=has, free=free, most=most, most_free=most_free)


def _stand_in(kind: str, published: PublishedClass, catalogues: Catalogues) -> GPUNode:
    named = catalogues.classes.resolve(kind) if kind else ()
    return GPUNode(
        name="",
        classes=tuple(each.name for each in named),
        family=named[0].family if named else "",
        labels={},
        taints=(),
        is_ready=published.nodes_taking_pods > 0,
        is_schedulable=True,
        allocatable={name: each.most for name, each in published.resources.items()},
        used={name: each.most - each.most_free for name, each in published.resources.items()},
        weights={},
        stands_for=ClassTotals(published.capacity, published.share),
    )
