"""What a rule is: an id, options, and up to two pure functions over a pod.

`mutate` changes a draft and may yield findings; `check` only yields findings. When each runs:

=============  ==========================  =======================================
phase          `mutate`                    `check`
=============  ==========================  =======================================
/mutate        yes, its changes are sent   if `check_before_mutation`, first of all
/validate      on a scratch copy: what it  yes
               still wants did not survive
template       on a scratch copy, findings yes
               only
=============  ==========================  =======================================
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import msgspec

from policies.finding import Finding
from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.nodes import NodeFacts
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod


class Mode(Enum):
    """How strictly a rule is applied."""

    ENFORCE = "enforce"
    WARN = "warn"
    AUDIT = "audit"
    DISABLED = "disabled"


class Phase(Enum):
    MUTATE = "mutate"
    VALIDATE = "validate"
    TEMPLATE = "template"


class RuleOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The options of every rule; a rule's own are a subclass."""

    mode: Mode = Mode.ENFORCE

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the options, sentence) for every value that is of the right type but makes no sense."""
        yield from ()

    def class_problems(self, catalogue: ClassCatalogue) -> Iterator[tuple[str, str]]:  # noqa: ARG002 - for subclasses
        """Yield likewise what is said about GPU classes that the catalogue does not know."""
        yield from ()


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Everything besides the pod that a rule may look at."""

    phase: Phase
    namespace: str
    classes: ClassCatalogue
    resource_mapping: ResourceMapping
    made_by_daemonset: bool = False
    """The DaemonSet controller made this pod, or this is the template of a DaemonSet: placement is decided already."""
    is_update: bool = False
    nodes: NodeFacts | None = None
    """The nodes of the cluster, None where they are not known."""
    options_of: Callable[[str], RuleOptions | None] = lambda _rule_id: None
    """The options of another rule if it is not disabled, for the few that depend on one another."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the registry."""

    id: str
    summary: str
    options: type[RuleOptions]
    mutate: Callable[[PodPatch, Any, Context], Iterator[Finding]] | None = None
    check: Callable[[Pod, Any, Context], Iterator[Finding]] | None = None
    check_before_mutation: bool = False
    """Also check what came in, because the API server would refuse it right after /mutate with a worse sentence."""
    on_update: bool = False
    """Also check a pod whose placement changed after it was created (a scheduling gate was lifted)."""
