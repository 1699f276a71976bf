"""A GPU pod and its classes: its own pin, the class chosen for it, and other classes to suggest."""

from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from policies.finding import ContactEdit, Edit, Edits, Finding, one_choice, separate_choices, warning
from policies.gpus.classes import GPUClass
from policies.gpus.resource_mapping import ResourceMapping
from policies.models.memory import ModelNeed, model_need, sufficient_card_counts
from policies.placement.availability import NO_NODE
from policies.placement.claim_classes import NO_CLASS, class_names_text
from policies.placement.class_advice import (
    AUTOSCALED_PATH,
    ClassAdvice,
    alternatives_in_words,
    autoscaler_alternative,
    first_few,
    nodes_to_add,
)
from policies.placement.class_choice import CLASS_CONTRADICTION, choose_class
from policies.placement.class_options import matches_new_node
from policies.placement.class_selection import (
    REQUIRED_AFFINITY,
    Choice,
    ClassSelection,
    edits_to_unpin,
    node_label_values,
)
from policies.placement.nodes import NodeFacts
from policies.placement.pinning import Pinning, allows_label, classes_of_label, is_narrowed_to, pinning
from policies.pods.field_paths import annotation_path
from policies.pods.pod import Pod


class Placer(NamedTuple):
    """What places a pod instead of the scheduler: why rule gpu-class cannot pin it, and how its author can."""

    why: str
    instead: str


BY_DAEMONSET = Placer(
    "pods of a DaemonSet are placed by its controller", "in the template of the DaemonSet set"
)
BY_NODE_NAME = Placer("spec.nodeName says where the pod runs", "set")
BY_GATE_REMOVER = Placer(
    "gated pods are placed by the controller that removes their gates",
    "have the controller that removes its gates set",
)


def placer_of(pod: Pod, *, by_daemonset: bool) -> Placer | None:
    """Return what places the pod instead of the scheduler; None if nothing does."""
    if by_daemonset:
        return BY_DAEMONSET
    if pod.spec.node_name:
        return BY_NODE_NAME
    return BY_GATE_REMOVER if pod.is_gated else None


class ClassCase:
    """A GPU pod under a policy: its own pin, the class chosen for it, and the values by which rule gpu-class would pin it.

    `placed_by`: what places the pod instead of the scheduler.
    """

    def __init__(
        self, selection: ClassSelection, resource_mapping: ResourceMapping, placed_by: Placer | None
    ) -> None:
        self.selection, self.resource_mapping, self.placed_by = selection, resource_mapping, placed_by
        self.pod = pod = selection.pod
        self.pinned = pinning(pod, selection.gpu_classes)
        need = model_need(pod, resource_mapping, selection.claimed_gpus) if pod.annotations else None
        self.need = need if isinstance(need, ModelNeed) else None
        self.bad_annotations = need if isinstance(need, tuple) else ()
        chosen = choose_class(self.selection, self.need, is_pinned=self.pinned is not None)
        self.query = chosen if isinstance(chosen, Choice) else None
        self.refusal = chosen if isinstance(chosen, Finding) else None

    @property
    def claimed_class_names(self) -> frozenset[str]:
        """The classes that devices of its claims may have. Empty if not known, or if it also requests GPUs in resources."""
        of_claims = self.selection.claim_classes
        names = [claim.name for claim in self.pod.spec.resource_claims or ()]
        if any(name not in of_claims for name in names) or self.selection.resources:
            return frozenset()
        return frozenset[str]().union(*(of_claims[name] for name in names))

    @property
    def claimed_classes(self) -> tuple[GPUClass, ...]:
        """The classes of the devices of its claims. Empty if one may be of none."""
        names = self.claimed_class_names
        return () if NO_CLASS in names else self.selection.gpu_classes.named(names)

    @property
    def claims_are_allowed(self) -> bool:
        """Whether the classes of its devices are known by its claims, and the namespace may use all of them."""
        allowed = {gpu_class.name for gpu_class in self.selection.allowed_of(self.selection.gpu_classes)}
        return bool(self.claimed_class_names) and self.claimed_class_names <= allowed

    def contradicted_claims(self) -> Iterator[Finding]:
        """Warn of a pod that pins itself to other classes than its claims have devices of."""
        pinned, claimed = self.pinned, self.claimed_class_names
        if pinned is None or not (pinned.classes and claimed) or claimed & {*pinned.classes, NO_CLASS}:
            return
        yield warning(
            reason=CLASS_CONTRADICTION,
            path="spec",
            message=f"no device of its claims ({class_names_text(claimed)}) is on the nodes of {', '.join(pinned.classes)}, "
            f"to which the pod pins itself ({'; '.join(pinned.because)}): the pod stays pending",
            choices=one_choice(*self.edits_to_unpin()),
            remedy="remove the pod's own constraint, or name a claim with other devices",
        )

    @property
    def is_requested(self) -> bool:
        return self.query is not None and self.query.by_annotation

    def advice_to_run_on(self, classes: Collection[GPUClass]) -> ClassAdvice:
        """Return the advice by which the pod runs on one of the classes."""
        key, pinned = self.selection.label_key, self.pinned
        values_of = self.selection.names_to_suggest(classes)
        by_annotation = self.selection.advice_to_name(list(values_of))
        first_values = [value for values in values_of.values() for value in values[:1]]
        values = alternatives_in_words(first_values)
        selectors = separate_choices(
            *(Edit(f"spec.nodeSelector[{key}]", value) for value in first_few(first_values))
        )
        if self.placed_by is not None:
            return ClassAdvice(selectors, f"{self.placed_by.instead} nodeSelector {key}: {values}")
        if pinned is None or self.is_requested or pinned.is_injected:
            return by_annotation
        if list(self.pod.node_selector) == [key] and len(pinned.because) == 1:
            return ClassAdvice(selectors, f"set nodeSelector {key}: {values}")
        unpinning = self.edits_to_unpin()
        choices = tuple((*unpinning, *edits) for edits in by_annotation.choices)
        return ClassAdvice(choices, f"remove {' and '.join(pinned.because)}, and {by_annotation.remedy}")

    def edits_to_unpin(self) -> Edits:
        """Return the edits that remove what pins the pod to classes."""
        return edits_to_unpin(self.pod, self.selection.gpu_classes)

    def advice_for_usable_class(self) -> ClassAdvice:
        """Return the advice that puts the pod on a usable class."""
        usable = self.selection.usable_classes()
        return self.advice_to_run_on(usable) if usable else self.selection.advice_if_none_usable()

    def advice_without_nodes(self, nodes: NodeFacts, pinned: frozenset[str]) -> ClassAdvice:
        """Return the advice if the classes have no nodes."""
        key, gpu_classes = self.selection.label_key, self.selection.gpu_classes
        values = self.values_to_add() or tuple(v for k, v in self.pod.node_selector.items() if k == key)
        others = [Edit(f"spec.nodeSelector[{label}]") for label in self.pod.node_selector if label != key]
        others += [Edit(REQUIRED_AFFINITY)] if self.pod.required_terms else []
        is_there = bool(values) and nodes.has_label(key, values)
        if is_there or (
            others and not any(matches_new_node(self.pod, each) for each in gpu_classes.named(pinned))
        ):
            text = "remove what else the pod's nodeSelector or affinity demands"
            return ClassAdvice(one_choice(*others), text)
        otherwise_labelled = sorted(
            (f"{each}={value}", label)
            for labels in nodes.label_sets
            if key not in dict(labels)
            for each, value in labels
            for gpu_class in gpu_classes.named(classes_of_label(each, value, gpu_classes) & pinned)
            for label in node_label_values(gpu_class, key)[:1]
            if self._would_take_if_labelled(gpu_class, nodes.relabelled(labels, key, label), values)
        )
        if otherwise_labelled:
            known, label = otherwise_labelled[0]
            edit = ContactEdit("Node", f"metadata.labels[{key}]", label)
            return ClassAdvice((), "", f"to set label {key}={label} on nodes with {known}", ((edit,),))
        selection, usable, need = self.selection, self.selection.usable_classes(), self.need
        sufficient = usable if need is None else [c for c in usable if need.weights_fit(c, gpu_classes)]
        if any(selection.label_with_nodes(gpu_class, sufficient) for gpu_class in sufficient):
            advice = self.advice_to_run_on(sufficient)
            existing = self.classes_on_nodes(nodes)
            are = "there are" if any(each in existing for each in sufficient) else "an autoscaler makes"
            return advice._replace(remedy=f"{advice.remedy}, of which {are} nodes")
        matching = [
            gpu_class.name for gpu_class in gpu_classes.named(pinned) if matches_new_node(self.pod, gpu_class)
        ] or sorted(pinned)
        names = alternatives_in_words(matching)
        if family := next(
            (value for value in values if value not in pinned and gpu_classes.of_family(value)), None
        ):
            # Nodes may have the names of classes, which its pin does not match.
            text = f"for nodes of {names} with {key}={family}"
            return ClassAdvice(ask_contact=text, contact_choices=nodes_to_add([family]))
        text = f"for nodes of {names}{autoscaler_alternative(names)}"
        autoscaled = ((ContactEdit("GPUPolicy", AUTOSCALED_PATH, name),) for name in matching)
        return ClassAdvice(ask_contact=text, contact_choices=(*nodes_to_add(matching), *autoscaled))

    def _would_take_if_labelled(self, gpu_class: GPUClass, nodes: NodeFacts, values: tuple[str, ...]) -> bool:
        """Whether one of the nodes, labelled with the class, takes the pod with these values of the label, were its GPUs free."""
        key, requested = self.selection.label_key, self.selection.amounts
        pod = self.selection.pod_on((gpu_class,))
        states = nodes.states_for(self.pod, requested, key, values)
        is_free = states is None or any(
            state.has_amounts(requested) and not state.untolerated_by(pod) for state in states
        )
        return is_free and nodes.labels_match(self.pod, key, values)

    def classes_on_nodes(self, nodes: NodeFacts) -> list[GPUClass]:
        """Return the allowed classes of existing nodes that offer what the pod requests."""
        key, gpu_classes = self.selection.label_key, self.selection.gpu_classes
        values = nodes.values_of(key)
        names = {name for value in values for name in classes_of_label(key, value, gpu_classes)}
        return [
            c
            for c in gpu_classes.named(names)
            if self.selection.has_resources(c) and self.selection.allows(c)
        ]

    def too_few_cards_warning(self, nodes: NodeFacts) -> Finding | None:
        """Warn of a model that no card of the nodes holds, but several do; None if its author or a policy named the class."""
        need, usable, gpu_classes = self.need, self.classes_on_nodes(nodes), self.selection.gpu_classes
        is_named = self.is_requested or (self.pinned is not None and not self.pinned.is_injected)
        has_one_amount = len(self.selection.resources) == 1 and self.selection.edits_to_count(1)
        if need is None or need.profile is not None or is_named or not (has_one_amount and usable):
            return None
        if any(need.weights_fit(gpu_class, gpu_classes) for gpu_class in usable):
            return None  # naming their class is enough
        more = sorted(sufficient_card_counts(need, usable))
        largest = max(usable, key=lambda gpu_class: gpu_class.memory_gib)
        key, value = need.declared
        if not more:
            return None
        return warning(
            reason=NO_NODE,
            path=annotation_path(key),
            value=value,
            message=f"should fit on {largest.name} ({need.usable_text(largest, gpu_classes)}), the largest card of the nodes, or "
            f"the pod stays pending: {need.text}",
            choices=tuple(map(self.selection.edits_to_count, more)),
        )

    def edits_for_several_cards(self, classes: Sequence[GPUClass]) -> tuple[Edits, ...]:
        """Return the edits that give the pod the fewest cards of one node that hold its model, of one of these classes."""
        ways = [
            (cards, gpu_class)
            for gpu_class in classes
            if self.need
            for cards in sufficient_card_counts(self.need, (gpu_class,))
        ]
        cards, gpu_class = min(ways, key=itemgetter(0), default=(0, None))
        count = self.selection.edits_to_count(cards)
        names = self.advice_to_run_on((gpu_class,)).choices if gpu_class and count else ()
        return tuple((*edits, *count) for edits in names)

    def added_values(self) -> tuple[str, ...]:
        """Return the values of the label key that rule gpu-class adds."""
        return () if self.excludes_choice() else self.values_to_add()

    def excludes_choice(self) -> bool:
        """Whether the pod's own constraints exclude all nodes of the chosen class, which it did not request.

        False if the nodes are created on demand or do not exist, or if a pod must be pinned to be admitted.
        """
        nodes, choice = self.selection.nodes, self.query
        if nodes is None or not self.pod.constrains_nodes or self.selection.is_restricted:
            return False
        if choice is None or self.is_requested or any(map(self.selection.is_autoscaled, choice.classes)):
            return False
        key, values = self.selection.label_key, self.values_to_add()
        return bool(values) and not nodes.labels_match(self.pod, key, values) and nodes.has_label(key, values)

    def values_to_add(self) -> tuple[str, ...]:
        """Return the label values that would pin the pod to the choice; empty if it is pinned already, or must not be."""
        if self.query is None or self.placed_by is not None:
            return ()
        if self.pinned is not None and not is_wider_than(self.pinned, self.query):
            return ()
        key, values = self.selection.label_key, self.query.label_values(self.selection.label_key)
        can_be_narrowed = allows_label(self.pod, key, values) and not is_narrowed_to(self.pod, key, values)
        return values if can_be_narrowed else ()


def is_wider_than(pinned: Pinning, choice: Choice) -> bool:
    """Whether the pod pins itself to classes of the choice and to others."""
    classes = set(pinned.classes)
    return bool(classes & choice.names) and not classes <= choice.names
