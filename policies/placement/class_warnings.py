"""Warnings about the class of a pod: no node of it can take the pod, or its memory is too small for the model."""

from collections.abc import Iterator
from itertools import chain

from policies.finding import ContactEdit, Finding, warning
from policies.models.memory import enough_in_words, sufficient_card_counts
from policies.placement.availability import NO_NODE
from policies.placement.class_advice import ClassAdvice, alternatives_in_words
from policies.placement.class_case import BY_DAEMONSET, BY_NODE_NAME, ClassCase
from policies.placement.class_choice import MODEL_TOO_LARGE
from policies.placement.class_selection import Choice
from policies.placement.nodes import NodeFacts
from policies.pods.annotations import GPU_CLASS, MODEL_FAMILY, MODEL_LAYERS
from policies.pods.field_paths import annotation_path


def class_without_nodes(case: ClassCase) -> Iterator[Finding]:
    """Warn if the pod is pinned to a class without nodes, and no autoscaler adds nodes of it."""
    nodes, key = case.selection.nodes, case.selection.label_key
    if nodes is None or case.placed_by in {BY_DAEMONSET, BY_NODE_NAME} or case.pod.is_gated:
        return
    if case.query and case.excludes_choice():
        yield _choice_not_added(case, case.query)
        return
    values = case.added_values()
    if case.query and values:
        chosen, class_text = case.query.names, case.query.text
        label_text = f"{key}={alternatives_in_words(values)}"
    elif case.pinned:
        chosen, class_text = frozenset(case.pinned.classes), alternatives_in_words(case.pinned.classes)
        label_text = " and ".join(case.pinned.because)
    else:
        return
    classes = case.selection.gpu_classes.named(chosen)
    if not classes or any(map(case.selection.is_autoscaled, classes)):
        return
    if nodes.labels_match(case.pod, key, values):
        yield from _not_schedulable(case, nodes, values, class_text)
    elif more := case.too_few_cards_warning(nodes):
        yield more
    else:
        yield warning(
            reason=NO_NODE,
            message=f"class {class_text}: no node matches {label_text}, so the pod stays pending",
            **case.advice_without_nodes(nodes, chosen)._asdict(),
        )


def _choice_not_added(case: ClassCase, choice: Choice) -> Finding:
    key = case.selection.label_key
    label = f"{key}={alternatives_in_words(choice.label_values(key))}"
    naming = case.selection.advice_to_name([each.name for each in case.selection.usable_classes()]).choices
    return warning(
        reason=NO_NODE,
        message=f"class {choice.text} ({choice.because}) is not added: no node matches both {label} and the "
        "pod's own nodeSelector and affinity",
        remedy=f"name a class with the annotation {GPU_CLASS}" if naming else "",
        choices=naming,
    )


def _not_schedulable(
    case: ClassCase, nodes: NodeFacts, values: tuple[str, ...], class_text: str
) -> Iterator[Finding]:
    """Warn if all nodes of the class are cordoned, or none of them has what the pod requests."""
    names = {resource.name for resource in case.selection.resources if resource.measure.is_count}
    states = nodes.states_for(case.pod, names, case.selection.label_key, values)
    if states is None or any(names <= state.resources for state in states):
        return
    if states and nodes.existing_resources:
        if not names <= nodes.existing_resources:
            return  # gpu-requests reports resources that no node has
        if len(names) > 1 and not any(names <= state.resources for state in chain(*nodes.states.values())):
            return  # gpu-toleration says that no node has them together
    resources, together_text = " and ".join(sorted(names)), " together" if len(names) > 1 else ""
    if states:
        uncordoning_helps, problem = False, f"no schedulable node of it has {resources}{together_text} now"
    else:
        cordoned = chain.from_iterable(
            group.cordoned for group in nodes.matching_groups(case.pod, case.selection.label_key, values)
        )
        problem = "all its nodes are cordoned now"
        uncordoning_helps = any(
            node_state.has_amounts(case.selection.amounts) and not node_state.untolerated_by(case.pod)
            for node_state in cordoned
        )
    yield warning(
        reason=NO_NODE,
        message=f"class {class_text}: {problem}, so the pod stays pending",
        ask_contact=f"to uncordon one of them with {resources}" if uncordoning_helps else "",
        contact_choices=((ContactEdit("Node", "spec.unschedulable"),),) if uncordoning_helps else (),
    )


def model_too_large(case: ClassCase) -> Iterator[Finding]:
    """Warn of a model that is larger than the memory of the class."""
    need, gpu_classes = case.need, case.selection.gpu_classes
    chosen = case.query.classes if case.query else ()
    classes = gpu_classes.named(case.pinned.classes) if case.pinned else chosen or case.claimed_classes
    if need is not None and classes and not any(need.fits(gpu_class, gpu_classes) for gpu_class in classes):
        largest = max(classes, key=lambda gpu_class: need.memory_gib(gpu_class, gpu_classes))
        key, value = need.declared
        usable = [*filter(case.selection.has_whole_resources, case.selection.usable_classes())]
        fitting = [gpu_class for gpu_class in usable if need.fits(gpu_class, gpu_classes)]
        to_name = case.advice_to_run_on(fitting) if fitting else ClassAdvice()
        more_cards = tuple(
            filter(None, map(case.selection.edits_to_count, sufficient_card_counts(need, classes)))
        )
        enough, words = enough_in_words(need, classes), need.text
        claims = [f"name a claim for {enough}"] if enough and case.claimed_class_names else []
        ways = [*claims, *([f"request {enough}"] if more_cards else ()), *filter(None, (to_name.remedy,))]
        several = () if ways else case.edits_for_several_cards(usable)
        request = "" if ways or several else "for larger cards"
        if not need.weights_fit(largest, gpu_classes):
            words = need.weights_text
        elif not need.estimate.knows_kv_cache:
            words += f"; {MODEL_FAMILY} or {MODEL_LAYERS} states it exactly"
        words += f"; {enough} would do" if enough and not (more_cards or claims) else ""
        yield warning(
            reason=MODEL_TOO_LARGE,
            path=annotation_path(key),
            value=value,
            message=f"should fit on {largest.name} ({need.usable_text(largest, gpu_classes)}): {words}",
            choices=(*more_cards, *to_name.choices, *several),
            remedy=", or ".join(ways),
            ask_contact=request,
            contact_choices=((ContactEdit("Node"),),) if request else (),
        )
