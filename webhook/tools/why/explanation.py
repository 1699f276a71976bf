"""The answer of `why`, as the frozen structs that `-o json` prints."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import Enum
from fractions import Fraction
from itertools import chain

import msgspec
from msgspec.structs import replace

from policies.finding import ContactChange, ContactEdit, Edit, Edits, Finding, Wait
from webhook.quota.documents import PlaceInLine, TeamView
from webhook.tools.json_struct import JsonStruct
from webhook.tools.status.kueue import KueueState
from webhook.tools.status.summaries import BudgetSummary, IdleOwner, QuotaRow, QuotaState
from webhook.tools.stored_objects import Evaluation
from webhook.tools.stored_pod import StoredPod


class Answer(Enum):
    DENIED = "denied"
    """Its pods are denied: by the policy, or by the quota."""
    PENDING = "pending"
    """Pods exist, and are on no node, or do not start there."""
    GATED = "gated"
    """Pods exist, and wait for something to remove their scheduling gates."""
    WAITING = "waiting"
    """Pods exist, and wait in line for quota, or Kueue has not started the object yet."""
    STOPPED = "stopped"
    """It makes no pods as it is written: suspended, scaled to zero, or only a template."""
    ENDED = "ended"
    RUNNING = "running"
    UNKNOWN = "unknown"
    """Nothing that can be read says why; `omitted` says what cannot be read."""


class Source(Enum):
    POLICY = "policy"
    QUOTA = "quota"
    LINE = "line"
    """The line of the pods that wait for quota."""
    KUEUE = "kueue"
    EVENT = "event"
    CONTROLLER = "controller"
    SCHEDULER = "scheduler"
    NODES = "nodes"
    DEVICES = "devices"
    """Devices of ResourceClaims (DRA)."""
    POD = "pod"


class Awaited(Enum):
    """What lets a pod run once it comes."""

    READY = "nodeReady"
    TAINT_GONE = "taintRemoved"
    NODE = "nodeAdded"
    ROOM = "roomOnNode"
    END_OF_POD = "podEnded"
    TURN = "turnInLine"
    KUEUE = "admittedByKueue"


class Remedy(JsonStruct, frozen=True):
    """What is done together: edits of the object, what is awaited, `quota` too, and what the contact changes."""

    edits: Edits = ()
    awaits: tuple[Awaited, ...] = ()
    quota: Wait | None = None
    contact_edits: tuple[ContactEdit, ...] = msgspec.field(name="asks", default=())

    @classmethod
    def together(cls, ways: Iterable["Remedy"]) -> "Remedy":
        ways = tuple(ways)
        return cls(
            edits=tuple(dict.fromkeys(chain.from_iterable(way.edits for way in ways))),
            awaits=tuple(dict.fromkeys(chain.from_iterable(way.awaits for way in ways))),
            contact_edits=tuple(dict.fromkeys(chain.from_iterable(way.contact_edits for way in ways))),
        )

    def located(self, path_of: Callable[[str], str]) -> "Remedy":
        """Return the way with its edits at the object that contains the pod. `path_of` converts a path in the pod."""
        return replace(self, edits=tuple(Edit(path_of(edit.path), edit.value) for edit in self.edits))


def remedy_of_change(change: ContactChange) -> Remedy:
    edits = tuple(edit for edit in change if isinstance(edit, Edit))
    return Remedy(edits=edits, contact_edits=tuple(edit for edit in change if isinstance(edit, ContactEdit)))


def remedies_of(finding: Finding) -> tuple[Remedy, ...]:
    """Return what a finding says to do: each alone is enough."""
    beside = finding.awaits if finding.awaits and finding.awaits.beside_choice else None
    alone = finding.awaits if not beside else None
    edits = (Remedy(edits=choice, quota=beside) for choice in finding.choices)
    return (
        *edits,
        *([Remedy(quota=alone)] if alone else ()),
        *map(remedy_of_change, finding.contact_choices),
    )


class Cause(JsonStruct, frozen=True):
    """One cause, in one sentence. remedy: what to do, "" if nothing can be done; ways: the same as data, each enough alone.

    reason and details: those of the finding, if a rule found the cause.
    """

    source: Source
    message: str
    remedy: str = ""
    reason: str = ""
    details: tuple[str, ...] = ()
    ways: tuple[Remedy, ...] = ()


def cause_of(source: Source, finding: Finding) -> Cause:
    """Return the cause that a finding states, in its own words."""
    remedy = ", or ".join(filter(None, (finding.advice, finding.escalation)))
    return Cause(
        source=source,
        message=replace(finding, remedy="", choices=(), ask_contact="").sentence(),
        remedy=remedy,
        reason=finding.reason.name,
        details=finding.details,
        ways=remedies_of(finding),
    )


class RuleSentence(JsonStruct, frozen=True):
    """A finding of the rules about the object as if it were created now: `denied`, `warned`, `audited`, or `unreadable`."""

    outcome: str
    sentence: str
    reason: str = ""


class QuotaDemand(QuotaRow, frozen=True, kw_only=True):
    """The demand of one pod on a dimension of the quota, and what there is. A Cause says whether it fits."""

    requested: Fraction


class QuotaFit(JsonStruct, frozen=True):
    """The demand of one pod on the GPUQuota of its namespace, by dimension. `state` is None without a GPUQuota.

    is_held: the pod exists, so what is used or reserved includes its demand. unbound_since: since when it has had no node, if
      for longer than 10 minutes. team: what the namespace sees of its team.
    """

    is_held: bool
    state: QuotaState | None
    rows: tuple[QuotaDemand, ...]
    team: TeamView | None = None
    unbound_since: datetime | None = None


class NodeFit(JsonStruct, frozen=True):
    """A GPU node, and why the pod could not run there now: `against` is empty where it could.

    name: "" if it stands for `number` nodes of its class; its amounts are then those of the node with the most.
    free: by requested resource; None where the pods of the cluster cannot be read. remedy: what to write or wait for, "" where
      nothing helps; way: the same as data.
    """

    name: str
    kind: str
    free: dict[str, Fraction] | None
    allocatable: dict[str, Fraction]
    against: tuple[str, ...] = ()
    remedy: str = ""
    way: Remedy = Remedy()
    number: int = 1

    @property
    def subject(self) -> str:
        return f"Node {self.name}" if self.name else "the one with the most"

    @property
    def order(self) -> tuple[object, ...]:
        """The sort key: the node with the fewest obstacles and the most free first, the same for all users."""
        free, has = (sum((amounts or {}).values()) for amounts in (self.free, self.allocatable))
        return len(self.against), -free, -has, self.against, self.name


class PodState(JsonStruct, frozen=True):
    """A pod of the object: its phase, its node ("" for none), and why it does not run."""

    name: str
    phase: str
    node: str = ""
    reason: str = ""

    @classmethod
    def of(cls, pod: StoredPod) -> "PodState":
        gated = f"waits for {', '.join(pod.gates)}" if pod.gates else ""
        ending = "terminating" if pod.is_terminating else ""
        why = (
            ending or gated or pod.unscheduled or "; ".join(pod.waiting) or pod.failure or pod.status.message
        )
        return cls(name=pod.metadata.name, phase=pod.status.phase, node=pod.spec.node_name, reason=why)


class ObservedEvent(JsonStruct, frozen=True):
    """A warning about the object, what owns its pods, or a pod of it."""

    about: str
    reason: str
    message: str
    count: int
    last: datetime | None


class Explanation(JsonStruct, frozen=True):
    """Why an object's pods are denied, or pending. `summary` is the answer in one sentence.

    reasons: the most certain first. requested: by one pod, by resource name.
    classes: those on which a pod can run; empty where it pins none.
    verdicts: what the rules say now. quota: None where the namespace has none, or it cannot be read.
    line: the place in line of the first of its pods that wait for quota; None if none waits, or the quota does not name it.
    pods: at most MAX_PODS, those that do not run first; pods_total is how many there are, pods_wanted how many it makes.
    kueue: what Kueue says of it; None where Kueue does not queue it.
    idle: its GPUs, if they are known to do no work. budget: of the namespace.
    nodes: the GPU nodes of its classes; None where they cannot be read.
    omitted: what the caller may not read. nodes_from: where else nodes are from, in words, if the caller may not list them.
    figures_until: of the quota, since when no controller counts; None while one does.
    """

    kind: str
    name: str
    namespace: str
    at: datetime
    answer: Answer
    summary: str
    reasons: tuple[Cause, ...] = ()
    policy: str = ""
    verdicts: tuple[RuleSentence, ...] = ()
    requested: dict[str, Fraction] = msgspec.field(default_factory=dict)
    classes: tuple[str, ...] = ()
    quota: QuotaFit | None = None
    line: PlaceInLine | None = None
    kueue: KueueState | None = None
    idle: IdleOwner | None = None
    budget: BudgetSummary | None = None
    nodes: tuple[NodeFit, ...] | None = None
    pods: tuple[PodState, ...] = ()
    pods_total: int = 0
    pods_wanted: int | None = None
    events: tuple[ObservedEvent, ...] = ()
    omitted: tuple[str, ...] = ()
    nodes_from: str = ""
    figures_until: datetime | None = None

    @property
    def headline(self) -> str:
        """The answer without its first reason, which is said below it; "" if that is all."""
        if not self.reasons or self.answer in {Answer.STOPPED, Answer.ENDED}:
            return self.summary
        return "" if self.pods_wanted == 1 else self.summary.partition(":")[0]

    def says(self, text: str) -> bool:
        """Whether a reason has this text of another program, or is in it, so that it need not be shown again."""
        said = (reason.message.partition(" [")[0] for reason in self.reasons)
        return any(text in known or known in text for known in said)


def rule_outcomes(evaluation: Evaluation | None) -> Iterator[RuleSentence]:
    if evaluation is not None and evaluation.unreadable:
        yield RuleSentence(outcome="unreadable", sentence=evaluation.unreadable)
    for violation in evaluation.findings() if evaluation else ():
        outcome, finding = violation.outcome.value, violation.finding
        yield RuleSentence(outcome=outcome, sentence=finding.sentence(), reason=finding.reason.name)
