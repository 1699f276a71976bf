"""How a pod gets another class, and what to ask for if no node takes it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from policies.finding import ContactChange, ContactEdit, Edits, Finding, Reason, Severity
from policies.gpus.classes import GPUClasses
from policies.placement.class_options import matches_new_node
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path
from policies.pods.pod import Pod

T = TypeVar("T")
ANNOTATION_PATH = annotation_path(GPU_CLASS)
MAX_CLASSES_NAMED = 3
"""Names in one message."""
AUTOSCALED = "gpu-class.autoscaledClasses"
AUTOSCALED_PATH = "spec.rules.gpu-class.autoscaledClasses[-]"
ALLOWED_PATH = "spec.rules.gpu-class.allowed[-]"


class ClassAdvice(NamedTuple):
    """How a pod gets another class: choices, in words too, and what to ask for. The fields are those of `Finding`."""

    choices: tuple[Edits, ...] = ()
    remedy: str = ""
    ask_contact: str = ""
    contact_choices: tuple[ContactChange, ...] = ()


def autoscaler_alternative(classes: str) -> str:
    """Return the alternative to new nodes, in words: an autoscaler may add nodes of the classes, which no object shows."""
    return f", or to name {classes} in {AUTOSCALED} if an autoscaler adds them" if classes else ""


def nodes_to_add(classes: Iterable[str]) -> tuple[ContactChange, ...]:
    """Return `contact_choices` that add nodes of one of the classes."""
    return tuple((ContactEdit("Node", value=name),) for name in classes)


def ask_for_nodes(pod: Pod, classes: Sequence[str], key: str, gpu_classes: GPUClasses) -> ClassAdvice:
    """Return the advice to ask for nodes of the classes that would match the pod; empty if none would.

    `key`: of the label that pins pods to classes. Without `classes`, any node with GPUs is asked for.
    """
    value = pod.node_selector.get(key, "")
    if value not in classes and gpu_classes.of_family(value):
        return ClassAdvice(ask_contact=f"for nodes with {key}={value}", contact_choices=nodes_to_add([value]))
    matching = [each.name for each in gpu_classes.named(classes) if matches_new_node(pod, each)]
    # A pod that matches no class at all would match no new node either.
    any_node_helps = not classes and any(matches_new_node(pod, gpu_class) for gpu_class in gpu_classes)
    changes = ((ContactEdit("Node"),),) if any_node_helps else nodes_to_add(matching)
    request = f"for nodes{autoscaler_alternative(' or '.join(matching))}" if changes else ""
    return ClassAdvice(ask_contact=request, contact_choices=changes)


def ask_for_classes(
    pod_edits_by_class: Mapping[str, Edits], namespace: str, *, is_allowed: bool, needs_nodes: bool
) -> ClassAdvice:
    """Return the advice to ask for one of these classes, and then to edit the pod. pod_edits_by_class: may be empty."""
    classes = alternatives_in_words([*pod_edits_by_class])
    request = f"for nodes of {classes}"
    if not is_allowed:
        request = (
            f"to allow {classes} in namespace {namespace}{', and for nodes of it' if needs_nodes else ''}"
        )
    changes = (
        (
            *(() if is_allowed else (ContactEdit("GPUPolicy", ALLOWED_PATH, name),)),
            *((ContactEdit("Node", value=name),) if is_allowed or needs_nodes else ()),
            *pod_edits,
        )
        for name, pod_edits in first_few([*pod_edits_by_class.items()])
    )
    return (
        ClassAdvice(ask_contact=request, contact_choices=tuple(changes))
        if pod_edits_by_class
        else ClassAdvice()
    )


def first_few(names: Sequence[T]) -> Sequence[T]:
    """Return the first MAX_NAMES_LISTED names; one more, if it is the last: "1 more" is not shorter than a name."""
    return names if len(names) == MAX_CLASSES_NAMED + 1 else names[:MAX_CLASSES_NAMED]


def alternatives_in_words(names: Sequence[str]) -> str:
    """Return `a or b`, `a or b or c or d`, `a or b or c or 2 more`."""
    words, more = " or ".join(first_few(names)), len(names) - len(first_few(names))
    return f"{words} or {more} more" if more else words


def class_finding(
    reason: Reason, name: str, message: str, advice: ClassAdvice, severity: Severity = Severity.DENIAL
) -> Finding:
    """Return a finding about the class that the annotation names."""
    return Finding(
        reason=reason,
        path=ANNOTATION_PATH,
        value=name,
        severity=severity,
        message=message,
        **advice._asdict(),
    )
