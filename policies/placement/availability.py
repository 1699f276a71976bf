"""Whether a pod's GPU classes, their nodes and the limits of the policy allow the requested amounts, and suggestions if not.

Slices are not checked if no class of their vendor lists MIG profiles. A profile that no class lists may belong to a newer card or
driver. So it is only a warning, unless the policy sets `knownProfilesOnly`, or the nodes show which profiles exist.
"""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fnmatch import translate
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import chain, starmap
from typing import NamedTuple

from policies.finding import Edit, Edits, Reason, Severity, one_choice
from policies.gpus.amount import NAME_SLOT
from policies.gpus.cards import vendor_domain
from policies.gpus.classes import GPUClass, GPUClasses, parse_share
from policies.gpus.mapping_spec import DEVICE_CLASS_PREFIX, NVIDIA_GPU, Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.gpus.vendors import MIG_SLICE, from_all_vendors
from policies.placement.class_advice import alternatives_in_words, first_few
from policies.placement.class_options import ClassOptions, has_resource
from policies.placement.class_selection import edits_to_unpin
from policies.placement.nodes import NodeFacts, NodeState, largest_amount
from policies.placement.pinning import classes_of_label, pinning
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path
from policies.pods.pod import Pod

EXCEEDS_NODE = Reason("ExceedsNode", "a pod requests more than any node has")
OTHER_VENDOR = Reason("OtherVendor", "a pod requests GPUs of another vendor than those of its class")
UNKNOWN_SLICE = Reason("UnknownSlice", "no class or node on which the pod can run has the MIG profile")
NO_NODE = Reason("NoNode", "no node can take the pod now, and no autoscaler adds one")

_LONGEST_PROFILE = 63
"""Characters of a profile that are compared with known profiles."""
_SHARED_SUFFIX = ".shared"
"""What NVIDIA's device plugin appends to a resource that it time-slices (`renameByDefault`)."""
_SHARING_LABEL = re.compile("|".join(map(translate, from_all_vendors(lambda vendor: vendor.sharing_labels))))
_MAX_COMPARED = 8
"""Slices of one pod for which the remedy names similar profiles. Each search takes 0.4 ms."""
_COUNT_SUFFIX = ".count"
"""GPU Feature Discovery (strategy mixed) counts the slices of a node: label `nvidia.com/mig-1g.10gb.count`."""


class Complaint(NamedTuple):
    """Why the pod cannot, or perhaps cannot, run, and a remedy: the arguments of `Amount.finding`.

    amount, names: the amount, or a name of a resource, to request instead. choices: other ways.
    """

    reason: Reason
    message: str
    remedy: str
    severity: Severity = Severity.DENIAL
    amount: int | None = None
    names: tuple[str, ...] = ()
    choices: tuple[Edits, ...] = ()


ANY_CLASS_OPTIONS = ClassOptions()


class Availability:
    """Checks one pod. `pinned`: the classes to which its constraints or annotation pin it, empty if nothing pins it.

    `classes`: `pinned`, or else all classes. `nodes`: None if the nodes are not known.
    """

    def __init__(
        self,
        pod: Pod,
        gpu_classes: GPUClasses,
        class_options: ClassOptions = ANY_CLASS_OPTIONS,
        nodes: NodeFacts | None = None,
    ) -> None:
        self.pod, self._gpu_classes, self.class_options, self._nodes = pod, gpu_classes, class_options, nodes
        pinned = pinning(pod, gpu_classes)
        self._is_by_annotation = (
            pinned is None and class_options.reads_annotation and GPU_CLASS in pod.annotations
        )
        """Whether the annotation alone names the class: rule gpu-class then reports what the class lacks."""
        if pinned is None:
            is_read = class_options.reads_annotation and not pod.spec.node_name
            self._pinned_by: tuple[str, ...] = (f"annotation {GPU_CLASS}",)
            self.pinned = gpu_classes.resolve(pod.annotations.get(GPU_CLASS, "")) if is_read else ()
        else:
            # Rule gpu-class reports contradicting constraints. Here, they do not pin.
            self._pinned_by, self.pinned = pinned.because, gpu_classes.named(pinned.classes)
        self.classes = self.pinned or tuple(gpu_classes)
        self._searches = 0
        # By resource name and `known_profiles_only`, because containers often request the same slices.
        self._unknown_slices: dict[tuple[str, bool], Complaint | None] = {}

    @property
    def knows_nodes(self) -> bool:
        return self._nodes is not None

    @cached_property
    def _recommended(self) -> Sequence[GPUClass]:
        """The allowed classes to recommend: of the pod, or else the default, or else all."""
        default = self._gpu_classes.resolve(self.class_options.default or "")
        return self._allowed(self.pinned or default or self.classes)

    def _allowed(self, classes: Sequence[GPUClass]) -> Sequence[GPUClass]:
        return [gpu_class for gpu_class in classes if self.class_options.allows(gpu_class)]

    def other_vendor(self, resource: GPUResource) -> Complaint | None:
        """Complain if the pod is pinned to classes of another vendor than the resource's."""
        if not self.pinned:
            return None
        requested = vendor_domain(resource.name)
        if any(vendor_domain(c.resource) == requested for c in self.classes):
            return None
        resources = sorted({gpu_class.resource for gpu_class in self.classes})
        offered, places = " or ".join(resources), self.pod.places
        message = f"must be {offered}: the pod is pinned to {self._description}"
        # The pod already requests GPUs of its class: this resource is too much.
        if any(place.amount_paths(name) for place in places for name in resources):
            edits = (Edit(path) for place in places for path in place.amount_paths(resource.name))
            return Complaint(OTHER_VENDOR, message, f"remove {NAME_SLOT}", choices=one_choice(*edits))
        of_vendor = [
            gpu_class for gpu_class in self._gpu_classes if vendor_domain(gpu_class.resource) == requested
        ]
        if not of_vendor or self._is_by_annotation:
            return None
        or_pin, pins = self._pin_alternative(of_vendor, resource)
        remedy = f"request {offered}{or_pin}"
        return Complaint(OTHER_VENDOR, message, remedy, names=tuple(resources), choices=pins)

    def unknown_slice(self, resource: GPUResource, *, known_profiles_only: bool = False) -> Complaint | None:
        """Complain if no class on which the pod can run lists the profile of this slice.

        The complaint is a warning where a class may have profiles that it does not list, unless `known_profiles_only`.
        """
        if resource.profile is None:
            return None
        key = resource.name, known_profiles_only
        if key not in self._unknown_slices:
            self._unknown_slices[key] = self._unknown_slice(resource, resource.profile, known_profiles_only)
        return self._unknown_slices[key]

    def _unknown_slice(
        self, resource: GPUResource, profile: str, known_profiles_only: bool
    ) -> Complaint | None:
        with_profile = self._gpu_classes.with_profile(profile)
        if any(gpu_class in self.classes for gpu_class in with_profile):
            return None
        if self.other_vendor(resource) or (self._is_by_annotation and with_profile):
            return None
        requested = vendor_domain(resource.name)
        with_list = [
            c for c in self._gpu_classes if c.mig_profiles and vendor_domain(c.resource) == requested
        ]
        if not with_list:
            return None
        count_labels = self._slice_count_labels
        is_on_nodes = f"{resource.name}{_COUNT_SUFFIX}" in count_labels
        if is_on_nodes and not with_profile:  # a profile that no GPUClass lists yet
            return None
        # A class without a list of profiles may have any. A class with a list does not have the profiles of other classes.
        is_of_others = bool(with_profile) and all(gpu_class in with_list for gpu_class in self.classes)
        is_on_no_node = bool(count_labels) and not is_on_nodes
        is_denied = known_profiles_only or is_of_others or is_on_no_node
        severity = Severity.DENIAL if is_denied else Severity.WARNING
        nearest = self._nearest_slices(resource, [each for each in self._recommended if each in with_list])
        whole_gpu = self.classes[0].resource if self.pinned else with_list[0].resource
        remedy = f"request {' or '.join(nearest) or f'whole GPUs ({whole_gpu})'}"
        pins: tuple[Edits, ...] = ()
        if self.pinned:
            message = (
                f"must be a slice of {self._description}, to which the pod is pinned: it has no {profile}"
                if is_denied
                else f"should be a slice of {self._description}, to which the pod is pinned: it lists no {profile}"
            )
            or_pin, pins = self._pin_alternative(with_profile, resource)
            remedy += or_pin
        elif is_on_no_node and not known_profiles_only:
            message = f"must be a slice that some node has: none has {profile}"
        elif is_denied:
            message = f"must be a slice that some GPU class has: none has {profile}"
        else:
            message = f"should be a slice that some GPU class has: none lists {profile}"
        names = tuple(nearest or [whole_gpu])
        return Complaint(UNKNOWN_SLICE, message, remedy, severity, names=names, choices=pins)

    def no_node_has(
        self, resource: GPUResource, resource_mapping: ResourceMapping, count: int = 1
    ) -> Complaint | None:
        """Warn of a resource that no schedulable node has: the pod holds quota, and is not placed.

        The remedy names other resources of which a node has `count`. With a count of 0, it names none.
        """
        name = resource.name
        if not resource.measure.is_count or not self._is_on_no_node(name):
            return None
        if name.startswith(DEVICE_CLASS_PREFIX) or name in resource_mapping.extended_names.values():
            return None
        nearest = self._nearest_slices(resource, self.classes) if resource.profile is not None else []
        offered = nearest or sorted(
            node
            for node in self._gpus_on_nodes
            if not self.pinned or vendor_domain(node) == vendor_domain(name)
        )
        present = (name for name in offered if name in self._gpus_on_nodes)
        on_nodes = [(each, largest_amount(self._states, each)) for each in present]
        offered_texts = [f"{most} {name}" if most else name for name, most in on_nodes]
        but = f", but {alternatives_in_words(offered_texts)}" if on_nodes else ""
        too_few = {name for name, most in on_nodes if most and most < count}
        also = self._requested_on_nodes(resource_mapping) - {name}
        offered = [
            name for name in offered if count and name not in too_few and self._one_node_has({name, *also})
        ]
        message = f"no schedulable node has {name} now{but}: the pod stays pending"
        return Complaint(
            NO_NODE,
            message,
            f"request {alternatives_in_words(offered)}" if offered else "",
            Severity.WARNING,
            names=tuple(first_few(offered)),
        )

    def _is_on_no_node(self, name: str) -> bool:
        """Whether no schedulable node has the resource. False if that is not known, or an autoscaler may create such nodes."""
        if self._nodes is None or name in self._nodes.resources:
            return False
        if self.class_options.autoscaled_classes and any(
            vendor_domain(c.resource) == vendor_domain(name) and self.class_options.is_autoscaled(c)
            for c in self.classes
        ):
            return False
        if self._gpus_on_nodes or (not self.pinned and self._has_gpu_nodes):
            return True  # of a pod that is pinned, gpu-class says that nodes of its class have no devices
        labels = self._slice_count_labels
        return bool(labels) and name.startswith(MIG_SLICE) and f"{name}{_COUNT_SUFFIX}" not in labels

    @property
    def _has_gpu_nodes(self) -> bool:
        """Whether a label of a node names a class, whatever the node has. False if a pool may add others."""
        nodes = self._nodes
        if nodes is None or nodes.pools or not nodes.states:
            return False
        return any(classes_of_label(*label, self._gpu_classes) for state in nodes.states for label in state)

    @cached_property
    def _states(self) -> list[NodeState]:
        return [*chain.from_iterable(self._nodes.states.values())] if self._nodes is not None else []

    def _one_node_has(self, names: set[str]) -> bool:
        """Whether a schedulable node has all of the resources; True if that is not known."""
        return not self._gpus_on_nodes or any(names <= state.resources for state in self._states)

    def _requested_on_nodes(self, mapping: ResourceMapping) -> set[str]:
        """Return the resources that the pod requests and some node has."""
        return {request.resource.name for request in mapping.requests(self.pod)} & self._gpus_on_nodes

    @cached_property
    def _gpus_on_nodes(self) -> frozenset[str]:
        """The resources of GPU vendors that schedulable nodes have. Empty if they are not known, or none has any."""
        names = self._nodes.resources if self._nodes is not None else ()
        vendors = {vendor_domain(gpu_class.resource) for gpu_class in self._gpu_classes} if names else set()
        return frozenset(name for name in names if vendor_domain(name) in vendors)

    def too_many_slices(self, resource: GPUResource, count: int, gpus_per_node: int) -> Complaint | None:
        """Complain if the count exceeds the slices of a node: the slices of one card times the cards of a node.

        gpus_per_node: the cards of a node, for classes that do not state them.
        """
        per_node = [
            (profile.per_gpu * cards, profile.per_gpu, cards, gpu_class.name)
            for gpu_class in self._gpu_classes.with_profile(resource.profile or "")
            if gpu_class in self.classes
            and (profile := self._gpu_classes.mig_profile(gpu_class, resource.profile or ""))
            for cards in (gpu_class.gpus_per_node or gpus_per_node,)
        ]
        if not per_node:
            return None
        limit, per_gpu, cards, name = max(per_node)
        if count <= limit:
            return None
        why = f", for a pod runs on one node: {per_gpu} on each {name}, {cards} GPUs in a node"
        return _exceeds_node(resource, limit, why)

    def cards_per_node(self, resource: GPUResource) -> int | None:
        """Return how many whole cards the largest node of the pod's classes has.

        None if a class does not state its number, if the pod is not pinned, or if a unit of the resource may be less than a card.
        """
        if not self.pinned or resource.measure is not Measure.DEVICES:
            return None
        name = resource.name
        with_resource = [c for c in self.classes if c.resource == name and name not in c.equivalents]
        cards = [each.gpus_per_node for each in with_resource if each.gpus_per_node is not None]
        return max(cards) if cards and len(cards) == len(self.classes) else None

    def too_many_cards(self, resource: GPUResource, count: int) -> Complaint | None:
        """Complain if the count exceeds the cards of each node of the pod's class."""
        limit = self.cards_per_node(resource)
        if limit is None or count <= limit:
            return None
        return _exceeds_node(resource, limit, f": no node of {self._description} has more")

    def more_than_any_machine(self, resource: GPUResource, count: int, limit: int) -> Complaint | None:
        """Warn if the pod is not pinned and requests more than `limit` whole NVIDIA cards: no machine has more.

        A unit of another resource may be less than a card: AMD's partitions, and resources in a class's `equivalents`. A pinned
        pod may request more: a chassis may hold any number of cards.
        """
        is_card = resource.name == NVIDIA_GPU and resource.name not in self._gpu_classes.equivalents
        if not is_card or count <= limit or self.pinned or self._are_cards_shared:
            return None
        why = ": a pod runs on one node, and the largest machines have no more"
        return _exceeds_node(resource, limit, why, Severity.WARNING)

    def is_time_sliced(self, resource: GPUResource) -> bool:
        """Whether the resource is a time-sliced share, so that several units give no more of a card than one.

        It is one by its name, or if each class of the pod, or each node that it selects, says so of its cards. A smaller part
        of another vendor's card is a partition: several give more.
        """
        name = resource.name
        if name == NVIDIA_GPU and self._are_cards_shared:
            return True
        if resource.measure is not Measure.DEVICES or name not in self._gpu_classes.equivalents:
            return resource.measure is Measure.SHARES and name.endswith(_SHARED_SUFFIX)
        with_resource = [gpu_class for gpu_class in self._recommended if gpu_class.resource == name]
        shares = [parse_share(gpu_class.equivalents.get(name, 1)) for gpu_class in with_resource]
        return bool(shares) and max(shares) < 1 and vendor_domain(name) == vendor_domain(NVIDIA_GPU)

    @cached_property
    def _are_cards_shared(self) -> bool:
        """Whether all nodes with NVIDIA's cards that the pod selects share them under their own name; or else its classes."""
        labels: list[Mapping[str, Collection[str] | None]]
        if self._nodes is None:
            labels = [{label.key: label.values for label in each.node_labels} for each in self.pinned]
        else:
            matching = self._nodes.matching_groups(self.pod)
            labels = [
                group.labels
                for group in matching
                if group.pool or any(NVIDIA_GPU in state.resources for state in group.states or ())
            ]
        return bool(labels) and all(any(starmap(_means_sharing, label.items())) for label in labels)

    def smaller_resources(
        self, resource: GPUResource, part: Fraction, resource_mapping: ResourceMapping
    ) -> dict[str, str]:
        """Return resources for this part (< 1) of a GPU by name, and in words what each is: a slice, a time-sliced share."""
        ways = {}
        with_resource = [gpu_class for gpu_class in self._recommended if gpu_class.resource == resource.name]
        classes_by_profile = Counter(
            name for gpu_class in with_resource for name in self._smallest_slice(gpu_class, part)
        )
        if classes_by_profile:
            profile = min(classes_by_profile, key=lambda name: (-classes_by_profile[name], name))
            name = f"{vendor_domain(resource.name)}/mig-{profile}"
            known = resource_mapping.resource(name)
            if known is not None and known.measure is Measure.SLICES:
                ways[name] = "a slice"
        shared = resource_mapping.resource(f"{resource.name}.shared")
        # NVIDIA's device plugin has such shares, GPUStack those of any vendor.
        is_likely = self._nodes is None and resource.name == NVIDIA_GPU
        is_there = is_likely or (shared is not None and shared.name in self._gpus_on_nodes)
        if shared is not None and shared.measure is Measure.SHARES and is_there:
            ways[shared.name] = "a time-sliced share"
        return ways

    @cached_property
    def _slice_count_labels(self) -> frozenset[str]:
        """The node labels that count slices. Empty if the nodes are not known, or an autoscaler may create other nodes."""
        nodes = self._nodes
        if nodes is None or nodes.pools or self.class_options.autoscaled_classes:
            return frozenset()
        keys = (key for labels in nodes.label_sets for key, _ in labels)
        return frozenset(key for key in keys if key.startswith(MIG_SLICE) and key.endswith(_COUNT_SUFFIX))

    @property
    def _description(self) -> str:
        return f"{' or '.join(each.name for each in self.classes)} ({' and '.join(self._pinned_by)})"

    def _pin_alternative(
        self, others: Sequence[GPUClass], resource: GPUResource
    ) -> tuple[str, tuple[Edits, ...]]:
        """Return a further remedy, in words and as edits: pin the pod to a class with the resource. Empty without one."""
        having = (each for each in self._allowed(others) if has_resource(each, resource, self._gpu_classes))
        name = resource.name if resource.measure.is_count else ""
        first = next(
            (each for each in having if self.class_options.may_have_nodes(each, self._nodes, name)), None
        )
        if first is None:
            return "", ()
        pin = Edit(annotation_path(GPU_CLASS), first.name)
        words = f", or pin the pod to {first.name}, which has {resource.name}"
        return words, one_choice(*edits_to_unpin(self.pod, self._gpu_classes), pin)

    def _smallest_slice(self, gpu_class: GPUClass, part: Fraction) -> list[str]:
        """Return a list of one: the smallest profile with at least this part of the card. Empty if the class has none."""
        # A card has variants with media extensions (1g.10gb+me, 1g.24gb-me) only once, so do not recommend them.
        profiles = [
            profile
            for profile in gpu_class.mig_profiles
            if "+" not in profile and "-" not in profile and self._is_on_nodes(profile)
        ]
        weights = [(self._gpu_classes.mig_weight(gpu_class, profile), profile) for profile in profiles]
        return [profile for _, profile in sorted(weight for weight in weights if weight[0] >= part)[:1]]

    def _is_on_nodes(self, profile: str) -> bool:
        """Whether a node has slices of the profile; True if that is not known."""
        return not self._is_on_no_node(f"{MIG_SLICE}{profile.replace('+', '.')}")

    def _nearest_slices(self, resource: GPUResource, classes: Sequence[GPUClass]) -> list[str]:
        if self._searches >= _MAX_COMPARED:
            return []
        self._searches += 1
        requested = resource.profile or ""
        listed = {profile for gpu_class in classes for profile in gpu_class.mig_profiles}
        profiles = frozenset(profile.replace("+", ".") for profile in listed if self._is_on_nodes(profile))
        nearest = _nearest(requested[:_LONGEST_PROFILE], profiles)
        return [resource.name.removesuffix(requested) + profile for profile in nearest]


@lru_cache(maxsize=1024)  # a pod is evaluated with each choice
def _nearest(profile: str, profiles: frozenset[str]) -> Sequence[str]:
    return difflib.get_close_matches(profile, sorted(profiles), n=2, cutoff=0.0)


def _exceeds_node(
    resource: GPUResource, limit: int, why: str, severity: Severity = Severity.DENIAL
) -> Complaint:
    message = f"{'must' if severity is Severity.DENIAL else 'should'} be at most {limit}{why}"
    remedy = f"request {resource.name}: {limit} or less, and spread the work over several pods"
    return Complaint(EXCEEDS_NODE, message, remedy, severity, limit)


def _means_sharing(key: str, values: Collection[str] | None) -> bool:
    """Whether the label of a node, with each of its possible values, says that the node shares its cards."""
    return bool(values) and all(_SHARING_LABEL.fullmatch(f"{key}={value}") for value in values or ())
