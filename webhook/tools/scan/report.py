"""The report of one scan, as `-o json` prints it and the page shows it.

Amounts are in whole cards. Objects are counted once for each of their effects, whatever number of findings they have.
"""

from collections.abc import Iterable
from enum import Enum
from fractions import Fraction

import msgspec

from webhook.tools.status.capacity import ClassCapacity


class Effect(Enum):
    """The effect of the rules on an object, were it created now; the worst first."""

    REFUSED = "refused"
    CHANGED = "changed"
    WARNED = "warned"
    LOGGED = "logged"
    """A rule in mode audit found something."""


Effects = dict[Effect, int]
"""Objects by effect; an effect that none has is left out."""


class FoundProblem(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One finding on the pods of one owner, who is `Pod/NAME` where no controller made it.

    pods: of the owner's running ones. is_written: whether the owner's own template has it, too, so that new pods will.
    """

    namespace: str
    owner: str
    rule: str
    effect: Effect
    sentence: str
    pods: int
    is_written: bool


def alike(problems: Iterable[FoundProblem]) -> dict[str, list[FoundProblem]]:
    """Return the problems by their sentence, in their order: hundreds of owners make the same mistake."""
    found: dict[str, list[FoundProblem]] = {}
    for each in problems:
        found.setdefault(each.sentence, []).append(each)
    return found


class PlannedChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One change of the pods of one owner, in the words of the annotation `injected`."""

    namespace: str
    owner: str
    rule: str
    change: str
    pods: int


class NamespaceUse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One namespace: what runs there, what would become of it, and the GPUs that it holds."""

    namespace: str
    policy: str
    pods: int
    gpu_pods: int
    effects: Effects
    gpus: Fraction
    classes: dict[str, Fraction]
    resources: dict[str, Fraction]
    """In the units of each resource."""


class Remark(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A fact about a node, a kind or a resource name, and what to do about it."""

    subject: str
    message: str
    remedy: str


class Proposal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A configuration to begin with; `files` are texts by name, in the order in which they are read.

    refused: running pods that would be refused under it, None where it was not tried.
    """

    classes: tuple[str, ...]
    quotas: dict[str, Fraction]
    exemptions: dict[str, tuple[str, ...]]
    """By namespace, the rules from which the GPU stack there is exempted."""
    relaxed: tuple[str, ...]
    """The rules in mode warn, which what runs now would not pass."""
    files: dict[str, str]
    refused: int | None = None


class ScanReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All that one scan found. `omitted` are rights that it lacked, in the words of `kubectl auth can-i`.

    left_out: findings and changes beyond those that are listed.
    """

    scanned_at: str
    source: str
    """Where the documents are from by which it was evaluated."""
    is_enforced: bool
    """Whether rules in the modes warn and audit were taken as enforced."""
    omitted: tuple[str, ...]
    pods: int
    gpu_pods: int
    workloads: int
    pod_effects: Effects
    workload_effects: Effects
    rules: dict[str, Effects]
    """Pods by the rule and the effect that it has on them."""
    problems: tuple[FoundProblem, ...]
    changes: tuple[PlannedChange, ...]
    left_out: int
    namespaces: tuple[NamespaceUse, ...]
    classes: dict[str, ClassCapacity]
    """The GPU nodes by class; "" are those of none. Nothing is known of what is free."""
    unread: tuple[Remark, ...]
    nodes: tuple[Remark, ...]
    proposal: Proposal
