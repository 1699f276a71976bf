"""Warnings that no node can take a pod that is pinned to a class."""

from collections.abc import Iterator

from policies.finding import ContactEdit, Finding, warning
from policies.placement.availability import NO_NODE
from policies.placement.class_advice import alternatives_in_words
from policies.placement.class_case import DAEMONSET, NODE_NAME, ClassCase
from policies.placement.nodes import NodeFacts
from policies.pods.annotations import GPU_CLASS


def class_without_nodes(case: ClassCase) -> Iterator[Finding]:
    """Warn if the pod is pinned to a class without nodes, and none can be made."""
    nodes, key, gpu_classes = case.selection.nodes, case.selection.label_key, case.selection.gpu_classes
    if nodes is None or case.placed_by in {DAEMONSET, NODE_NAME} or case.pod.is_gated:
        return
    if case.choice and case.excludes_choice():
        choice, values = case.choice, case.choice.label_values(key)
        label = f"{key}={alternatives_in_words(values)}"
        yield warning(
            reason=NO_NODE,
            message=f"class {choice.in_words} ({choice.because}) is not added: no node matches both {label} and the "
            "pod's own nodeSelector and affinity",
            remedy=f"name a class with the annotation {GPU_CLASS}",
            choices=case.selection.advice_to_name([each.name for each in case.selection.usable()]).choices,
        )
        return
    values = case.added_values()
    if case.choice and values:
        chosen, requested = case.choice.names, case.choice.in_words
        demanded = f"{key}={alternatives_in_words(values)}"
    elif case.pinned:
        chosen, requested = frozenset(case.pinned.classes), alternatives_in_words(case.pinned.classes)
        demanded = " and ".join(case.pinned.because)
    else:
        return
    classes = gpu_classes.named(chosen)
    if not classes or any(map(case.selection.is_autoscaled, classes)):
        return
    if nodes.labels_match(case.pod, key, values):
        yield from _not_schedulable(case, nodes, values, requested)
        return
    if more := case.needs_more_cards(nodes):
        yield more
        return
    yield warning(
        reason=NO_NODE,
        message=f"class {requested}: no node matches {demanded}, so the pod stays pending",
        **case.advice_without_nodes(nodes, chosen)._asdict(),
    )


def _not_schedulable(
    case: ClassCase, nodes: NodeFacts, values: tuple[str, ...], requested: str
) -> Iterator[Finding]:
    """Warn if all nodes of the class are cordoned, or none of them has what the pod requests."""
    names = {resource.name for resource in case.selection.resources if resource.measure.is_count}
    states = nodes.states_for(case.pod, names, case.selection.label_key, values)
    if states is None or (states and nodes.existing_resources and not names <= nodes.existing_resources):
        return  # gpu-requests reports resources that no node has
    all_states = [state for states_of in nodes.states.values() for state in states_of]
    reported_by_toleration = bool(nodes.existing_resources and states and len(names) > 1)
    if reported_by_toleration and not any(names <= each.resources for each in all_states):
        return  # gpu-toleration says that no node has them together
    if not any(names <= state.resources for state in states):
        resources, together = " and ".join(sorted(names)), " together" if len(names) > 1 else ""
        has = (
            f"no schedulable node of it has {resources}{together} now"
            if states
            else "all its nodes are cordoned now"
        )
        offers = nodes.matching_offers(case.pod, case.selection.label_key, values)
        helps = not states and any(
            each.has(case.selection.amounts) and not each.untolerated_by(case.pod)
            for offer in offers
            for each in offer.cordoned
        )
        yield warning(
            reason=NO_NODE,
            message=f"class {requested}: {has}, so the pod stays pending",
            ask_contact=f"to uncordon one of them with {resources}" if helps else "",
            contact_choices=((ContactEdit("Node", "spec.unschedulable"),),) if helps else (),
        )
