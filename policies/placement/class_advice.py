"""How a pod gets another class, and what to ask for if no node takes it."""

from collections.abc import Iterable
from typing import NamedTuple

from policies.finding import Asked, Edits

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
