"""The GPU classes that a pod may use, and the words and edits that put it on one of them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from policies.finding import ContactEdit, Edit, Edits
from policies.gpus.cards import vendor_domain
from policies.gpus.claimed_devices import GPUCount
from policies.gpus.classes import GPUClass, GPUClasses
from policies.gpus.mapping_spec import DEVICE_CLASS_PREFIX
from policies.gpus.resource_mapping import GPUResource
from policies.placement.class_advice import (
    ANNOTATION_PATH,
    ClassAdvice,
    alternatives_in_words,
    ask_for_classes,
    first_few,
)
from policies.placement.class_options import ClassOptions, has_resource
from policies.placement.hardware import LabelKeys, chosen_hardware
from policies.placement.nodes import NodeFacts
from policies.placement.pinning import allows_label, pinning
from policies.pods.annotations import GPU_CLASS
from policies.pods.pod import Pod, Toleration

REQUIRED_AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"


class Choice(msgspec.Struct, frozen=True):
    """The classes on which the pod may run, at least one.

    text: names them in a sentence: `nvidia-h100`, or `that holds the weights`.
    """

    classes: tuple[GPUClass, ...]
    text: str
    because: str
    by_annotation: bool
    family: str | None
    """The family, if the choice is all its classes."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(gpu_class.name for gpu_class in self.classes)

    def label_values(self, key: str) -> tuple[str, ...]:
        return label_values(self.classes, self.family, key)


class NamedValues(NamedTuple):
    """The name of a class or family, and the values of the node label that pin a pod to it."""

    name: str
    values: tuple[str, ...]


class ClassSelection(ClassOptions, frozen=True, kw_only=True):
    """The input of `choose`: the pod, and the policy's options for classes. `label_key` is the label that pins pods."""

    pod: Pod
    gpu_classes: GPUClasses
    namespace: str
    label_key: str
    resources: tuple[GPUResource, ...]
    """The GPU resources that the pod requests, also from a fraction scheduler, each once."""
    other_vendors_resources: tuple[str, ...] = ()
    """Those of other vendors, which it cannot have beside them."""
    claim_classes: Mapping[str, frozenset[str]] = {}
    """By name of a claim of the pod, the classes that its devices may be of; "" for devices of no class."""
    claimed_gpus: GPUCount | None = None
    """The GPUs of its only claim."""
    hardware: LabelKeys
    """Keys of the node labels that choose hardware."""
    nodes: NodeFacts | None = None
    amounts: Mapping[str, int] = {}
    """The amounts of resources that nodes must have."""
    bypasses_scheduler: bool = False
    """Whether something else than the scheduler places the pod, so that its annotation of a class has no effect."""
    tolerations_of: Callable[[Sequence[GPUClass]], Sequence[Toleration]] = lambda _classes: ()
    """The tolerations that the policy gives a pod of these classes."""

    def allowed_of(self, classes: Iterable[GPUClass]) -> tuple[GPUClass, ...]:
        return tuple(gpu_class for gpu_class in classes if self.allows(gpu_class))

    def has_resources(self, gpu_class: GPUClass) -> bool:
        """Whether nodes of the class can have all requested resources, and devices for the claims."""
        can_be_claimed = all({gpu_class.name, ""} & names for names in self.claim_classes.values())
        return can_be_claimed and all(
            has_resource(gpu_class, resource, self.gpu_classes) for resource in self.resources
        )

    def may_have_resources(self, gpu_class: GPUClass) -> bool:
        """Whether `has_resource` holds when MIG profiles that no class lists are ignored. Rule gpu-requests warns about those."""
        listed = tuple(each for each in self.resources if not self.gpu_classes.is_unlisted(each.profile))
        return replace(self, resources=listed).has_resources(gpu_class)

    def has_own_nodes(self, gpu_class: GPUClass) -> bool:
        """Whether nodes have the label of the class itself, or are created on demand. False if the nodes are not known."""
        values = node_label_values(gpu_class, self.label_key)
        is_labelled = self.nodes is not None and bool(values) and self.nodes.has_label(self.label_key, values)
        return is_labelled or self.is_autoscaled(gpu_class)

    def advice_to_name(self, names: Sequence[str]) -> ClassAdvice:
        """Return the advice to name one of these classes or families by annotation."""
        choices = tuple(
            (*self._edits_without_others, Edit(ANNOTATION_PATH, name)) for name in first_few(names)
        )
        where = " of gpu-admission classes" if len(names) > len(choices) else ""
        removed = (
            f"remove {' and '.join(self.other_vendors_resources)}, and "
            if self.other_vendors_resources
            else ""
        )
        return ClassAdvice(choices, f"{removed}set {GPU_CLASS}: {alternatives_in_words(names)}{where}")

    @property
    def _edits_without_others(self) -> Edits:
        return tuple(map(Edit, self.pod.amount_paths(self.other_vendors_resources)))

    def certainly_takes(self, name: str) -> bool:
        """Whether the class or family certainly takes the pod: it may use it, and known nodes, if any, can take it."""
        classes = self.gpu_classes.resolve(name)
        values = label_values(classes, None, self.label_key)
        if not values or not allows_label(self.pod, self.label_key, values):
            return False
        if not all(self.allows(gpu_class) and self.has_resources(gpu_class) for gpu_class in classes):
            return False
        return self.nodes is None or any(
            self.is_autoscaled(each) or self.takes((each,), node_label_values(each, self.label_key))
            for each in classes
        )

    def usable_classes(self) -> tuple[GPUClass, ...]:
        """Return the allowed classes that have the requested resources, and, if nodes are known, a node that takes the pod."""
        offering = [each for each in self.allowed_of(self.gpu_classes) if self.may_have_resources(each)]
        placeable = tuple(gpu_class for gpu_class in offering if self.label_with_nodes(gpu_class, offering))
        return placeable if placeable or self._knows_classes_of_nodes else tuple(offering)

    def takes(self, classes: Sequence[GPUClass], values: Sequence[str]) -> bool:
        """Whether nodes with these label values could run the pod without its pins, if their GPUs were free."""
        nodes = self.nodes
        return (
            nodes is not None
            and bool(values)
            and not nodes.excluding_label(self.pod, self.label_key, values)
            and nodes.takes(self.pod_on(classes), self.amounts, self.label_key, values)
        )

    def pod_on(self, classes: Sequence[GPUClass]) -> Pod:
        """Return the pod without what pins it to other classes, and with the tolerations that it gets there."""
        spec, keys = self.pod.spec, self.gpu_classes.label_keys
        selector = {key: value for key, value in self.pod.node_selector.items() if key not in keys}
        affinity = None if pinning(self.pod, self.gpu_classes) is not None else spec.affinity
        tolerations = (*(spec.tolerations or ()), *self.tolerations_of(classes))
        return Pod(
            given_spec=replace(spec, node_selector=selector, affinity=affinity, tolerations=tolerations)
        )

    @property
    def _knows_classes_of_nodes(self) -> bool:
        """Whether nodes have the label that pins pods to classes, or can be created."""
        return any(map(self._surely_has_nodes, self.gpu_classes))

    def _surely_has_nodes(self, gpu_class: GPUClass) -> bool:
        """Whether the nodes are known, and some are of the class, or of its family by their label."""
        nodes, of_family = self.nodes, (gpu_class.family,)
        return nodes is not None and (
            self.has_own_nodes(gpu_class) or nodes.has_label(self.label_key, of_family)
        )

    def names_to_suggest(self, classes: Collection[GPUClass]) -> dict[str, tuple[str, ...]]:
        """Return the names to suggest for the classes, with label values. If some names have nodes, return only those."""
        with_nodes = [value for gpu_class in classes if (value := self.label_with_nodes(gpu_class, classes))]
        return dict(with_nodes or [self._label_values((gpu_class,), gpu_class.name) for gpu_class in classes])

    def label_with_nodes(self, gpu_class: GPUClass, among: Iterable[GPUClass]) -> NamedValues | None:
        """Return the label whose nodes take the pod: of the class, or else of its family. Nodes may have only the family's label.

        The family counts only if all its classes are in `among`. None if the nodes of neither do, or they are not known.
        """
        family = self.gpu_classes.of_family(gpu_class.family)
        own_label = self._label_values((gpu_class,), gpu_class.name)
        if self.is_autoscaled(gpu_class):
            return own_label
        if self.nodes is None:
            return None
        if self.takes((gpu_class,), own_label.values):
            return own_label
        of_family = self._label_values(family, gpu_class.family)
        return of_family if set(family) <= set(among) and self.takes(family, of_family.values) else None

    def _label_values(self, classes: tuple[GPUClass, ...], name: str) -> NamedValues:
        family = name if any(gpu_class.name != name for gpu_class in classes) else None
        return NamedValues(name, label_values(classes, family, self.label_key))

    def advice_if_none_usable(self) -> ClassAdvice:
        """Return the advice if no class is usable: request what an allowed class has, or ask the platform team.

        Ask for a GPUClass if none has the resources, for nodes if an allowed one has them, else for the right to use the others.
        """
        allowed = self.allowed_of(self.gpu_classes)
        if self._knows_classes_of_nodes:
            allowed = tuple(filter(self._surely_has_nodes, allowed))
        resources = {resource.name for resource in self.resources}
        # Nothing says which claims have devices of an allowed class.
        alternatives = {gpu_class.resource for gpu_class in allowed} - resources if resources else set[str]()
        having = [gpu_class for gpu_class in self.gpu_classes if self.may_have_resources(gpu_class)]
        offering = [gpu_class for gpu_class in having if node_label_values(gpu_class, self.label_key)]
        remedy = f"request {alternatives_in_words(sorted(alternatives))}: 1" if alternatives else ""
        choices = tuple(self._edits_to_resource(name) for name in first_few(sorted(alternatives)))
        if not offering:
            label = f" and node label {self.label_key}" if having else ""
            words = f"for a GPUClass with {self.requested_text}{label}"
            return ClassAdvice(choices, remedy, words, ((ContactEdit("GPUClass"),),))
        large_enough = [c for c in offering if self.amounts.get(c.resource, 0) <= (c.gpus_per_node or inf)]
        permitted = self.allowed_of(large_enough)
        placeable = () if permitted else tuple(c for c in large_enough if self.label_with_nodes(c, (c,)))
        with_nodes = tuple(filter(self._surely_has_nodes, permitted or large_enough))
        wanted = placeable or with_nodes or permitted or large_enough
        return ask_for_classes(
            {gpu_class.name: self._edits_to_get(gpu_class) for gpu_class in wanted},
            self.namespace,
            is_allowed=bool(permitted),
            needs_nodes=self._knows_classes_of_nodes and not placeable,
        )._replace(choices=choices, remedy=remedy)

    def _edits_to_get(self, gpu_class: GPUClass) -> Edits:
        """Return the edits by which the pod gets the class instead of what it pins itself to, and other vendors' GPUs."""
        key, values = self.label_key, node_label_values(gpu_class, self.label_key)
        is_free = pinning(self.pod, self.gpu_classes) is None and allows_label(self.pod, key, values)
        pins = (*self._edits_without_others, *(() if is_free else edits_to_unpin(self.pod, self.gpu_classes)))
        if not self.bypasses_scheduler:
            return (*pins, Edit(ANNOTATION_PATH, gpu_class.name))
        named = (Edit(ANNOTATION_PATH),) if GPU_CLASS in self.pod.annotations else ()
        kept = (pin for pin in pins if pin.path != f"spec.nodeSelector[{key}]")
        return (*kept, *named, *(Edit(f"spec.nodeSelector[{key}]", value) for value in values[:1]))

    def edits_to_count(self, count: int) -> Edits:
        """Return the edits that set the number of GPUs. Empty if several containers request some."""
        names = {resource.name for resource in self.resources}
        paths = self.pod.amount_paths(names)
        is_one = len(_container_paths(paths)) == 1 and len(names) == 1
        return tuple(Edit(path, count) for path in paths) if is_one else ()

    def _edits_to_resource(self, name: str) -> Edits:
        """Return the edits that request one of a resource in place of all GPU resources."""
        paths = self.pod.amount_paths({resource.name for resource in self.resources})
        return (
            *map(Edit, paths),
            *(Edit(f"{container}.resources.limits[{name}]", 1) for container in _container_paths(paths)),
        )

    def intended(self, word: str) -> str:
        """Return the class or family whose name is nearest to `word`, or "" if the pod cannot use it.

        Where only nodes of its family are known, that is the family.
        """
        near, usable = self.gpu_classes.nearest(word) or "", self.usable_classes()
        meant = [gpu_class for gpu_class in self.gpu_classes.resolve(near) if gpu_class in usable]
        named = {value.name for gpu_class in meant if (value := self.label_with_nodes(gpu_class, usable))}
        if not meant or len(named) != 1:
            return near if meant else ""
        return named.pop()

    def usable_in_list(self, text: str, names: Collection[str]) -> list[str]:
        """Return the classes and families of a list that the pod can use, or else all `names`. Empty for one name."""
        parts, usable = first_few([part.strip() for part in text.split(",")]), set(self.usable_classes())
        own = [part for part in parts if not usable.isdisjoint(self.gpu_classes.resolve(part))]
        return (own or [*names]) if len(parts) > 1 else []

    def why_unusable(self, name: str) -> str:
        """Return in words why the pod cannot use the class or family; "" without one."""
        classes = self.gpu_classes.resolve(name)
        if not classes:
            return ""
        if not self.allowed_of(classes):
            return f"; namespace {self.namespace} may not use {name}"
        if not any(map(self.may_have_resources, classes)):
            return f"; {name} has no {self.requested_text}"
        return f"; no node of {name} takes the pod now"

    @property
    def requested_text(self) -> str:
        """What nodes of the class must have."""
        claims = (f"devices for claim {name}" for name in self.claim_classes)
        return ", ".join(dict.fromkeys((*(resource.name for resource in self.resources), *claims))) or "nodes"

    @property
    def none_usable_message(self) -> str:
        offering = [each for each in self.allowed_of(self.gpu_classes) if self.may_have_resources(each)]
        if any(map(self._surely_has_nodes, offering)):
            return f"no class that namespace {self.namespace} may use has a node that takes the pod now"
        nodes = "with nodes " if offering and self.resources else ""
        return f"no class {nodes}that namespace {self.namespace} may use has {self.requested_text}"

    @property
    def has_claims(self) -> bool:
        """Whether the pod requests devices by DRA. Then the DeviceClass chooses the hardware."""
        if self.pod.spec.resource_claims:
            return True
        # Containers may use claims that another object adds, such as an Argo Workflow.
        resources = (place.container.resources for place in self.pod.places)
        if any(resource is not None and resource.claims for resource in resources):
            return True
        return any(resource.name.startswith(DEVICE_CLASS_PREFIX) for resource in self.resources)

    @property
    def chosen_hardware(self) -> str | None:
        """How the pod itself chooses its hardware, in words, or None."""
        return chosen_hardware(self.pod, self.hardware, self.label_key)

    def chooses_others_than(self, choice: Choice) -> str:
        """Return in words by which label of its own the pod chooses nodes of other classes; "" without one."""
        if self.nodes is None or any(map(self.is_autoscaled, choice.classes)):
            return ""
        return self.nodes.excluding_label(self.pod, self.label_key, choice.label_values(self.label_key))

    def can_be_default(self, gpu_class: GPUClass) -> bool:
        """Whether nodes of the class can have the requested resources, and all resources are of its vendor."""
        # A MIG profile of the class is of its vendor.
        resources = [r for r in self.resources if r.profile is None and r.name not in gpu_class.equivalents]
        return self.has_resources(gpu_class) and {vendor_domain(r.name) for r in resources} <= {
            vendor_domain(gpu_class.resource)
        }

    def has_whole_resources(self, gpu_class: GPUClass) -> bool:
        """Whether nodes of the class can have the requested resources as whole cards or slices, not as shares."""
        is_shared = any(resource.name in gpu_class.equivalents for resource in self.resources)
        return self.has_resources(gpu_class) and not is_shared


def node_label_values(gpu_class: GPUClass, key: str) -> tuple[str, ...]:
    return next((label.values for label in gpu_class.node_labels if label.key == key), ())


def label_values(classes: Sequence[GPUClass], family: str | None, key: str) -> tuple[str, ...]:
    """Return the values of the node label `key` that pin a pod to the classes. Empty if the classes lack the label.

    family: the name, if the classes are a whole family. If classes list their own names as values, it is a value, too (see
      `policies.placement.pinning`).
    """
    if family is not None and all(c.name in node_label_values(c, key) for c in classes):
        return (family,)
    return tuple(dict.fromkeys(value for c in classes for value in node_label_values(c, key)))


def edits_to_unpin(pod: Pod, gpu_classes: GPUClasses) -> Edits:
    """Return the edits that remove what pins the pod to classes."""
    keys = (key for key in pod.node_selector if key in gpu_classes.label_keys)
    terms = (Edit(REQUIRED_AFFINITY),) if pod.required_terms else ()
    return (*(Edit(f"spec.nodeSelector[{key}]") for key in keys), *terms)


def _container_paths(paths: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(path.partition(".resources.")[0] for path in paths)
