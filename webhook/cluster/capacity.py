"""The nodes, GPUs and free GPUs of a cluster by class.

Free is what the scheduler finds free: allocatable less the requests of bound pods, and of cards in ResourceSlices (DRA) what
allocated claims leave. Fraction annotations (KAI, Run:ai) are not counted here.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from policies.gpus.cards import ONE_CARD, is_limit, positive_amounts, vendor_domain, weight
from policies.gpus.classes import GPUClass, GPUClasses, HostShare
from policies.gpus.resource_mapping import GPUResource
from policies.gpus.stored_devices import CardUse
from policies.placement.hardware import HARDWARE_LABELS, LabelKeys, kept_label_keys
from policies.placement.nodes import HOSTNAME, NamedNode
from policies.placement.pinning import CandidateClasses, candidates_for_resource, classes_of_node
from policies.pods.pod import Toleration
from policies.pods.quantity import NANO, parse_or_none
from policies.quota.amounts import CLASSES, GPUS, ZERO, Amounts
from policies.quota.demand import Catalogue
from webhook.cluster.nodes import StoredNode, decode_node, hard_taints, node_reader

log = logging.getLogger("gpu_admission.cluster")

HOST_RESOURCES = ("cpu", "memory")
"""What a class has a share of for each card."""


class ClassCapacity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The nodes of one class, and their GPUs in whole cards. Only nodes that take pods have free GPUs.

    resources: (allocatable, free) by resource name, in its own units, and by DRA driver in cards. `free` is None where the pods
      cannot be read. blocked: cards without a device that is free, fits beside the allocated ones, and has no taint.
    """

    nodes: int = 0
    nodes_taking_pods: int = 0
    gpus: Fraction = ZERO
    free: Fraction | None = ZERO
    blocked: Fraction = ZERO
    resources: dict[str, tuple[Fraction, Fraction | None]] = {}

    @property
    def nodes_away(self) -> int:
        return self.nodes - self.nodes_taking_pods


NO_CAPACITY = ClassCapacity()


class ClassTotals(msgspec.Struct, frozen=True):
    """Of all nodes of a class: their capacity, and what the node with the least has for each of its cards."""

    capacity: ClassCapacity
    share: HostShare | None


class GPUNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A node with GPUs, or with the labels of a GPU class. Amounts are by resource name, in its own units.

    classes: the possible classes by its labels: several where they name only the family, empty where they name no class.
    used: by pods, also of `room`; None where the pods of the cluster cannot be read.
    """

    name: str
    classes: tuple[str, ...]
    family: str = ""
    labels: dict[str, str]
    taints: tuple[Toleration, ...]
    is_ready: bool
    is_schedulable: bool
    allocatable: dict[str, Fraction]
    used: dict[str, Fraction] | None
    weights: dict[str, Fraction]
    """Whole cards that one unit of a resource is worth on this node."""
    room: dict[str, Fraction] | None = None
    """What it has besides GPUs, by resource name: cpu in cores, memory in bytes, and so on. None if it is not known."""
    blocked: Fraction = ZERO
    """Cards in ResourceSlices (DRA) that are used only in that nothing can be allocated of them."""
    mounts_images: bool = False
    stands_for: ClassTotals | None = None
    """Not None: it has no name, and stands for `number` nodes with its labels and taints; only labels of `known` are known."""
    number: int = 1
    known: Container[str] | None = None

    @property
    def kind(self) -> str:
        """The class, or else the family, that its labels name; "" if they name neither."""
        return self.classes[0] if len(self.classes) == 1 else self.family

    @property
    def takes_pods(self) -> bool:
        return self.is_ready and self.is_schedulable

    @property
    def has_gpus(self) -> bool:
        """Whether it has GPUs, or the labels of a class."""
        return bool(self.allocatable or self.classes or self.stands_for)

    @property
    def free(self) -> dict[str, Fraction] | None:
        """What pods may still request, even if the node takes no pods now."""
        used = self.used
        if used is None:
            return None
        return {name: max(has - used.get(name, ZERO), ZERO) for name, has in self.allocatable.items()}

    def cards(self, amounts: Mapping[str, Fraction]) -> Fraction:
        """Convert amounts of its resources to whole cards."""
        return sum((amount * self.weights.get(name, ZERO) for name, amount in amounts.items()), ZERO)


def capacity_by_class(nodes: Iterable[GPUNode]) -> dict[str, ClassCapacity]:
    """Return the capacity by class; by family where labels name only that, and under "" for nodes of no known class."""
    groups: dict[str, list[GPUNode]] = defaultdict(list)
    for node in nodes:
        groups[node.kind].append(node)
    return {kind: _capacity(members) for kind, members in sorted(groups.items())}


def _capacity(nodes: list[GPUNode]) -> ClassCapacity:
    if (totals := nodes[0].stands_for) is not None:
        return totals.capacity
    resources: dict[str, tuple[Fraction, Fraction | None]] = {}
    free: Fraction | None = ZERO
    for node in nodes:
        free_here = node.free
        if free_here is None:
            free = None
        elif free is not None and node.takes_pods:
            free += node.cards(free_here)
        for name, amount in node.allocatable.items():
            allocatable, free_of_name = resources.get(name, (ZERO, ZERO))
            more = free_here[name] if free_here is not None and node.takes_pods else ZERO
            resources[name] = (
                allocatable + amount,
                None if free_here is None or free_of_name is None else free_of_name + more,
            )
    return ClassCapacity(
        nodes=len(nodes),
        nodes_taking_pods=sum(node.takes_pods for node in nodes),
        gpus=sum((node.cards(node.allocatable) for node in nodes), ZERO),
        free=free,
        blocked=sum((node.blocked for node in nodes if node.takes_pods), ZERO),
        resources=dict(sorted(resources.items())),
    )


def gpus_by_dimension(nodes: Iterable[GPUNode]) -> Amounts:
    """Return the whole cards of all nodes, by class, and by family."""
    cards_by_key: dict[str, Fraction] = defaultdict(Fraction)
    for node in nodes:
        cards = node.cards(node.allocatable)
        for key in {GPUS, *(f"{CLASSES}{name}" for name in (node.kind, node.family) if name)}:
            cards_by_key[key] += cards
    return dict(cards_by_key)


def share_by_class(nodes: Iterable[GPUNode]) -> dict[str, HostShare]:
    """Return by class the whole cores and GiB that the node with the least has for each of its cards."""
    least: dict[str, tuple[Fraction, ...]] = {}
    stated: dict[str, HostShare] = {}
    for node in nodes:
        if node.stands_for is not None and node.stands_for.share is not None:
            stated[node.kind] = node.stands_for.share
        if node.room is not None and (gpus := node.cards(node.allocatable)):
            share = tuple(node.room.get(name, ZERO) / gpus for name in HOST_RESOURCES)
            least[node.kind] = tuple(map(min, share, least.get(node.kind, share)))
    return stated | {
        kind: HostShare(cpu=int(cpu), memory=f"{int(memory / 2**30)}Gi")
        for kind, (cpu, memory) in least.items()
    }


def with_cards(node: GPUNode, cards: Iterable[CardUse], catalogue: Catalogue) -> GPUNode:
    """Return the node with its cards in ResourceSlices, and with their class where its labels name none.

    Cards that a device plugin offers, too, are left out: they are the same cards.
    """
    mapping, gpu_classes = catalogue.resource_mapping, catalogue.classes
    offered = {vendor_domain(name) for name in node.allocatable}
    by_driver: dict[str, list[CardUse]] = defaultdict(list)
    for card in cards:
        pattern = mapping.device_class_pattern(card.device_type.driver)
        if vendor_domain((pattern and pattern.resource) or card.device_type.driver) not in offered:
            by_driver[card.device_type.driver].append(card)
    if not by_driver:
        return node
    kinds = {id(card.device_type): card.device_type for of_driver in by_driver.values() for card in of_driver}
    classes_by_kind = [gpu_classes.of_device(kind) for kind in kinds.values()]
    class_names = (
        sorted({each.name for of_kind in classes_by_kind for each in of_kind}) if all(classes_by_kind) else ()
    )
    families = {gpu_class.family for gpu_class in gpu_classes.named(class_names)}
    used = {driver: sum((ONE_CARD - use.free for use in of), ZERO) for driver, of in by_driver.items()}
    return replace(
        node,
        classes=node.classes or tuple(class_names),
        family=node.family if node.classes else families.pop() if len(families) == 1 else "",
        allocatable=node.allocatable | {driver: Fraction(len(of)) for driver, of in by_driver.items()},
        used=None if node.used is None else node.used | used,
        weights=node.weights | dict.fromkeys(by_driver, ONE_CARD),
        blocked=sum((card_use.blocked for of_driver in by_driver.values() for card_use in of_driver), ZERO),
    )


def gpu_node(document: bytes | msgspec.Raw, catalogue: Catalogue) -> GPUNode | None:
    """Decode a node from JSON, with `used` unknown; None if it has neither GPUs nor the labels of a class."""
    node = any_node(document, catalogue)
    return node if node.has_gpus else None


def any_node(document: bytes | msgspec.Raw, catalogue: Catalogue) -> GPUNode:
    """Decode a node likewise. It may have GPUs only in ResourceSlices (`with_cards`)."""
    return _gpu_node(decode_node(document), catalogue)


def _gpu_node(node: StoredNode, catalogue: Catalogue) -> GPUNode:
    classes, mapping = catalogue.classes, catalogue.resource_mapping
    allocatable = {
        resource: amount
        for resource, amount in positive_amounts(node.status.allocatable, mapping).items()
        if not is_limit(resource)  # a limit of a card's memory is a part of a card that counts already
    }
    possible = classes.named(classes_of_node(node.labels, classes))
    families = {gpu_class.family for gpu_class in possible}
    gpus = {resource.name: amount for resource, amount in allocatable.items()}
    others = {name: parse_or_none(raw) for name, raw in node.status.allocatable.items() if name not in gpus}
    return GPUNode(
        name=node.name,
        classes=tuple(gpu_class.name for gpu_class in possible),
        family=families.pop() if len(families) == 1 else "",
        labels=node.labels,
        taints=hard_taints(node.spec.taints),
        is_ready=node.is_ready,
        is_schedulable=not node.spec.unschedulable,
        allocatable=gpus,
        used=None,
        weights={each.name: _weight(each, possible or tuple(classes), catalogue) for each in allocatable},
        room={name: Fraction(amount.nano, NANO) for name, amount in others.items() if amount is not None},
        mounts_images=node.mounts_images,
    )


def _weight(resource: GPUResource, possible: tuple[GPUClass, ...], catalogue: Catalogue) -> Fraction:
    """Return the cards that one unit is worth on a node of one of these classes, as a quota counts it."""
    candidates = CandidateClasses(possible, is_narrowed=True, because="")
    having = candidates_for_resource(
        resource, candidates, catalogue.classes, catalogue.resource_mapping
    ).classes
    return max((weight(resource, gpu_class, catalogue.classes) for gpu_class in having), default=Fraction(1))


class CountedNode(NamedNode, frozen=True):
    """A node of the controller's informer.

    gpus: with the labels of `published_keys` and the taints that keep pods away alone, without what is used; None without GPUs,
      in a cluster without ResourceSlices of GPUs.
    resources: the names of the extended resources that it has.
    """

    gpus: GPUNode | None = None
    resources: frozenset[str] = frozenset()


def published_keys(classes: GPUClasses) -> LabelKeys:
    """Return the keys of the labels that tenants may see: those of classes, and of hardware, zone and architecture."""
    return kept_label_keys(classes.label_keys - {HOSTNAME}, HARDWARE_LABELS)


def counted_node_reader(catalogue: Catalogue) -> Callable[[msgspec.Raw], CountedNode]:
    """Return a function that reads a node in JSON. Nodes with equal labels, taints or names of resources share them."""
    may_have_cards = bool(catalogue.resource_mapping.device_types.types)
    is_published = lru_cache(4096)(published_keys(catalogue.classes).__contains__)
    read_identity = node_reader(catalogue.classes.label_keys)
    interned: dict[frozenset[str], frozenset[str]] = {}
    shared_looks: dict[object, tuple[dict[str, str], tuple[Toleration, ...]]] = {}

    def read(raw: msgspec.Raw) -> CountedNode:
        identity, names = read_identity(raw), frozenset[str]()
        gpus: GPUNode | None = None
        try:
            node = decode_node(raw)
            found = _gpu_node(node, catalogue)
            gpus = found if found.has_gpus or may_have_cards else None
            names = frozenset(name for name, amount in node.resources.items() if amount != "0")
        except Exception:  # the quota counts by this informer, and a node's amounts must not end that
            log.exception("node %s: its resources cannot be read", identity.name)
        if gpus is not None:
            labels = {key: value for key, value in gpus.labels.items() if is_published(key)}
            look = frozenset(labels.items()), gpus.taints
            labels, taints = shared_looks.setdefault(look, (labels, gpus.taints))
            host = {name: amount for name, amount in (gpus.room or {}).items() if name in HOST_RESOURCES}
            gpus = replace(gpus, labels=labels, taints=taints, room=host)
        resources = interned.setdefault(names, names)
        return CountedNode(
            identity.uid, identity.name, identity.hostname, identity.labels, gpus=gpus, resources=resources
        )

    return read
