"""The report of one scan, as `-o json` prints it and the page shows it.

Amounts are in whole cards. An object counts once for each of its effects, however many findings it has.
"""

from collections.abc import Iterable
from enum import Enum
from fractions import Fraction
from importlib import resources

import jinja2
import msgspec

from policies.printable import printable_lines
from policies.quota.amounts import format_amount
from webhook.cluster.capacity import ClassCapacity
from webhook.tools.json_struct import JsonStruct
from webhook.tools.rightsize.workloads import SizeReport


class Effect(Enum):
    """What the rules would do to an object if it were created now; the worst first."""

    DENIED = "denied"
    CHANGED = "changed"
    WARNED = "warned"
    LOGGED = "logged"
    """A rule in mode audit found something."""


Effects = dict[Effect, int]
"""The number of objects by effect, without zeros."""


class FoundProblem(msgspec.Struct, kw_only=True, rename="camel"):
    """One finding on the pods of one owner. The owner is `Pod/NAME` where no controller made the pod.

    pods: number of pods with it. is_written: whether the owner's own template has it, so that new pods will too.
    """

    namespace: str
    owner: str
    rule: str
    effect: Effect
    sentence: str
    pods: int = 0
    is_written: bool = False


MAX_NAMESPACES = 50
MAX_FINDINGS = 20
"""Rows of the page; a click shows the others."""


def by_sentence(problems: Iterable[FoundProblem]) -> dict[str, list[FoundProblem]]:
    """Group the problems by their sentence, in their order: hundreds of owners make the same mistake."""
    grouped: dict[str, list[FoundProblem]] = {}
    for problem in problems:
        grouped.setdefault(problem.sentence, []).append(problem)
    return grouped


class PlannedChange(JsonStruct, frozen=True):
    """One change of the pods of one owner, in the words of the annotation `injected`."""

    namespace: str
    owner: str
    rule: str
    change: str
    pods: int


class NamespaceUse(JsonStruct, frozen=True):
    """One namespace: its pods, the effects of the rules on them, and the GPUs that it uses."""

    namespace: str
    policy: str
    pods: int
    gpu_pods: int
    effects: Effects
    gpus: Fraction
    classes: dict[str, Fraction]
    resources: dict[str, Fraction]
    """In the units of each resource."""


class Remark(JsonStruct, frozen=True):
    """A fact about a node, a kind or a resource name, and what to do about it."""

    subject: str
    message: str
    remedy: str


class Proposal(JsonStruct, frozen=True):
    """A configuration to begin with; `files` are texts by name, in the order in which they are read.

    denied: the number of pods that it would deny; None where it was not tried.
    """

    classes: tuple[str, ...]
    quotas: dict[str, Fraction]
    teams: dict[str, Fraction]
    """GPUs by the name of a ClusterGPUQuota."""
    exemptions: dict[str, tuple[str, ...]]
    """By namespace, the rules from which the GPU stack there is exempted."""
    relaxed: tuple[str, ...]
    """The rules in mode warn, because pods of the cluster break them."""
    files: dict[str, str]
    denied: int | None = None


class ScanReport(JsonStruct, frozen=True):
    """Everything that one scan found. `omitted` are the missing rights, in the words of `kubectl auth can-i`.

    left_out: the number of findings and changes that are not listed.
    """

    scanned_at: str
    source: str
    """Where the documents of the evaluation are from."""
    is_enforced: bool
    """Whether rules in mode warn or audit counted as enforced."""
    omitted: tuple[str, ...]
    pods: int
    gpu_pods: int
    workloads: int
    pod_effects: Effects
    workload_effects: Effects
    rules: dict[str, Effects]
    """The number of pods by rule and effect."""
    problems: tuple[FoundProblem, ...]
    changes: tuple[PlannedChange, ...]
    left_out: int
    namespaces: tuple[NamespaceUse, ...]
    classes: dict[str, ClassCapacity]
    """The GPU nodes by class, "" for nodes without a class. What is free is unknown."""
    unread: tuple[Remark, ...]
    nodes: tuple[Remark, ...]
    limit_ranges: tuple[Remark, ...]
    """Those that give GPUs to containers that request none."""
    proposal: Proposal
    right_size: SizeReport | None = None
    """None where no Prometheus was named."""


def page(report: ScanReport) -> str:
    """Return the report as one HTML page without scripts or requests.

    Texts from the cluster are escaped. Characters that are not printable are replaced, because HTML cannot write them.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["amount"] = format_amount
    template = (resources.files("webhook.tools.scan") / "page.html").read_text(encoding="utf-8")
    html = environment.from_string(template).render(
        report=report,
        Effect=Effect,
        effects=list(Effect),
        by_sentence=by_sentence,
        shown=MAX_NAMESPACES,
        shown_findings=MAX_FINDINGS,
    )
    return printable_lines(html)
