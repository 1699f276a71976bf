"""How a pod gets another class, and what to ask for if no node takes it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from policies.finding import Asked, Edits, Finding, Reason, Severity
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path

ANNOTATION_PATH = annotation_path(GPU_CLASS)
MAX_NAMES_LISTED = 3
"""Names in one message."""
AUTOSCALED = "gpu-class.autoscaledClasses"
AUTOSCALED_PATH = "spec.rules.gpu-class.autoscaledClasses[-]"
ALLOWED_PATH = "spec.rules.gpu-class.allowed[-]"


class ClassAdvice(NamedTuple):
    """How a pod gets another class: choices, in words too, and what to ask for. The fields are those of `Finding`."""

    choices: tuple[Edits, ...] = ()
    remedy: str = ""
    ask: str = ""
    asks: tuple[Asked, ...] = ()


def or_autoscaled(classes: str) -> str:
    """Return what else to ask for than nodes of the classes: an autoscaler may add them, and nothing shows it."""
    return f", or to name {classes} in {AUTOSCALED} if an autoscaler adds them" if classes else ""


def nodes_of(classes: Iterable[str]) -> tuple[Asked, ...]:
    """Return what asking for nodes of one of the classes asks for."""
    return tuple(Asked("Node", "", name) for name in classes)


def listed(names: Sequence[str]) -> Sequence[str]:
    """Return the names that one message lists: "1 more" is not shorter than a name."""
    return names if len(names) == MAX_NAMES_LISTED + 1 else names[:MAX_NAMES_LISTED]


def alternatives_in_words(names: Sequence[str]) -> str:
    """Return `a or b`, `a or b or c or d`, `a or b or c or 2 more`."""
    words, left = " or ".join(listed(names)), len(names) - len(listed(names))
    return f"{words} or {left} more" if left else words


def about_annotation(
    reason: Reason,
    name: str,
    message: str,
    advice: ClassAdvice,
    severity: Severity = Severity.DENIAL,
) -> Finding:
    """Return a finding about the annotation that names a class."""
    return Finding(
        reason=reason,
        path=ANNOTATION_PATH,
        value=name,
        severity=severity,
        message=message,
        **advice._asdict(),
    )
