"""A GPU pod and its classes: its own pin, the class chosen for it, and other classes to suggest."""

from collections.abc import Collection

from msgspec.structs import replace

from policies.finding import Finding
from policies.gpus.classes import GPUClass
from policies.gpus.resource_mapping import ResourceMapping
from policies.models.memory import ModelNeed, advice, model_need
from policies.placement.class_choice import OPEN_POD, Choice, ClassSelection, alternatives_in_words, choose
from policies.placement.nodes import NodeFacts
from policies.placement.pinning import Pinning, admits, classes_of_label, is_narrowed_to, pinning
from policies.pods.annotations import GPU_CLASS

# Why rule gpu-class cannot pin a pod that something else places, and how its author can.
DAEMONSET = "pods of a DaemonSet are placed by its controller", "in the template of the DaemonSet set"
NODE_NAME = "spec.nodeName says where the pod runs", "set"
GATE = (
    "gated pods are placed by the controller that removes their gates",
    "have the controller that removes its gates set",
)


class ClassCase:
    """A GPU pod under a policy: its own pin, the class chosen for it, and the values by which rule gpu-class would pin it.

    `placed_by`: what places the pod instead of the scheduler, and how its author can pin it.
    """

    def __init__(
        self, selection: ClassSelection, resource_mapping: ResourceMapping, placed_by: tuple[str, str] | None
    ) -> None:
        self.selection, self.resource_mapping, self.placed_by = selection, resource_mapping, placed_by
        self.pod = pod = selection.pod
        self.pinned = pinning(pod, selection.catalogue)
        need = model_need(pod, resource_mapping) if pod.annotations else None
        self.need = need if isinstance(need, ModelNeed) else None
        self.bad_annotations = need if isinstance(need, tuple) else ()
        chosen = choose(self.selection, self.need, is_pinned=self.pinned is not None)
        self.choice = chosen if isinstance(chosen, Choice) else None
        self.refusal = chosen if isinstance(chosen, Finding) else None

    @property
    def is_requested(self) -> bool:
        return self.choice is not None and self.choice.by_annotation

    def remedy_naming(self, classes: Collection[GPUClass]) -> str:
        """Return the remedy that puts the pod on one of the classes."""
        key, pinned = self.selection.label_key, self.pinned
        values_of = self.selection.values_of(classes)
        names = alternatives_in_words(list(values_of))
        values = alternatives_in_words([value for each in values_of.values() for value in each[:1]])
        if self.placed_by is not None:
            return f"{self.placed_by[1]} nodeSelector {key}: {values}"
        if pinned is None or self.is_requested or pinned.is_injected:
            return f"set {GPU_CLASS}: {names}"
        if list(self.pod.node_selector) == [key] and len(pinned.because) == 1:
            return f"set nodeSelector {key}: {values}"
        return f"remove {' and '.join(pinned.because)}, and set {GPU_CLASS}: {names}"

    def is_alone(self, key: str, name: str) -> bool:
        """Whether only the nodeSelector on this label pins the pod, and the class would take the pod."""
        pod = self.pod
        is_free = list(pod.node_selector) == [key] and not pod.spec.affinity and not pod.annotations
        open_to_all = replace(self.selection, pod=OPEN_POD)
        return is_free and open_to_all.would_take(name)

    def has_room(self, name: str) -> bool:
        """Whether each class of that name may have a node with as many GPUs as the pod requests."""
        requested = sum(max(each.quantity.value, 0) for each in self.resource_mapping.requests(self.pod))
        named = self.selection.catalogue.resolve(name)
        return all(each.gpus_per_node is None or requested <= each.gpus_per_node for each in named)

    def remedy_with_usable_class(self) -> tuple[str, str]:
        """Return remedy and request to the platform team that put the pod on a usable class."""
        usable = self.selection.usable()
        return (self.remedy_naming(usable), "") if usable else self.selection.remedy_without_usable_class()

    def remedy_with_nodes(self, nodes: NodeFacts, pinned: frozenset[str]) -> tuple[str, str]:
        """Return remedy and request to the platform team, if the classes have no nodes."""
        key, catalogue = self.selection.label_key, self.selection.catalogue
        values = self.lacking_values() or tuple(v for k, v in self.pod.node_selector.items() if k == key)
        if values and nodes.could_take(OPEN_POD, key, values):
            return "remove what else the pod's nodeSelector or affinity demands", ""
        known_otherwise = sorted(
            f"{each}={value}"
            for labels in nodes.label_sets
            if key not in dict(labels)
            for each, value in labels
            if classes_of_label(each, value, catalogue) & pinned
        )
        if known_otherwise:
            return "", f"to label nodes with {known_otherwise[0]}, which lack {key}"
        on_nodes = {
            name for value in nodes.values_of(key) for name in classes_of_label(key, value, catalogue)
        }
        selection = self.selection
        usable = [c for c in catalogue.named(on_nodes) if selection.offers(c) and selection.allows(c)]
        need = self.need
        holding = usable if need is None else [c for c in usable if need.weights_fit(c, catalogue)]
        if selection.can_name_nodes(holding):
            return f"{self.remedy_naming(holding)}, of which there are nodes", ""
        is_guess = not self.is_requested and (self.pinned is None or self.pinned.is_injected)
        more_cards = advice(need, usable) if need is not None and is_guess else ""
        return more_cards, f"for nodes of {alternatives_in_words(sorted(pinned))}"

    def added_values(self) -> tuple[str, ...]:
        """Return the values of the label key that rule gpu-class adds."""
        return () if self.is_out_of_reach() else self.lacking_values()

    def is_out_of_reach(self) -> bool:
        """Whether the pod did not request the chosen class, and its own constraints exclude all nodes of that class.

        False if the nodes are created on demand or do not exist, or if a pod must be pinned to be admitted.
        """
        nodes = self.selection.nodes
        if nodes is None or not self.pod.constrains_nodes or self.selection.is_restricted:
            return False
        if (
            self.is_requested
            or self.choice is None
            or any(map(self.selection.is_autoscaled, self.choice.classes))
        ):
            return False
        key, values = self.selection.label_key, self.lacking_values()
        return (
            bool(values)
            and not nodes.could_take(self.pod, key, values)
            and nodes.could_take(OPEN_POD, key, values)
        )

    def lacking_values(self) -> tuple[str, ...]:
        """Return the label values that would pin the pod to the choice; empty if it is pinned already, or must not be."""
        if self.choice is None or self.placed_by is not None:
            return ()
        if self.pinned is not None and not is_wider(self.pinned, self.choice):
            return ()
        key, values = self.selection.label_key, self.choice.label_values(self.selection.label_key)
        is_open = admits(self.pod, key, values) and not is_narrowed_to(self.pod, key, values)
        return values if is_open else ()


def is_wider(pinned: Pinning, choice: Choice) -> bool:
    """Whether the pod pins itself to classes of the choice and to others."""
    classes = set(pinned.classes)
    return bool(classes & choice.names) and not classes <= choice.names
