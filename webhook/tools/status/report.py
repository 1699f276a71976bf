"""The content of `status` as frozen structs. Amounts are exact; what the caller may not read is None.

`plain` converts them for `-o json`: camelCase, amounts as text ("3", "2/7"), moments in RFC 3339.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from fractions import Fraction
from typing import Any

import msgspec

from policies.quota.amounts import GPUS, NOTHING, format_amount, unit
from policies.quota.budget import Period
from policies.quota.budget_findings import THIS_PERIOD
from webhook.cluster.capacity import ClassCapacity
from webhook.quota.documents import IdleGPUs, ShareStatus, WaitingPods
from webhook.tools.doctor.check import DoctorFinding


class Shown(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all parts of a report."""


class QuotaState(Enum):
    """The most urgent state of a GPUQuota or ClusterGPUQuota, the worst first."""

    NOT_COUNTED = "NotCounted"
    """It was not counted yet: every GPU pod is denied."""
    UNREADABLE = "Unreadable"
    """It, or its ledger, cannot be read."""
    EXCEEDED = "Exceeded"
    TOO_MANY_NAMESPACES = "TooManyNamespaces"
    STALE = "Stale"
    READY = "Ready"

    @property
    def order(self) -> int:
        return list(QuotaState).index(self)

    @property
    def denies(self) -> bool:
        """Whether every GPU pod is denied, if its spec can be read."""
        return self in {QuotaState.NOT_COUNTED, QuotaState.UNREADABLE}


class QuotaRow(Shown, frozen=True):
    """One dimension of a quota: `gpus`, `classes/NAME` or `resources/NAME`. `used` is None before the first count.

    pending: the part of `used` that pending pods hold; None where pods cannot be read.
    """

    key: str
    hard: Fraction
    used: Fraction | None
    reserved: Fraction = NOTHING
    pending: Fraction | None = None

    @property
    def held(self) -> Fraction:
        return (self.used or NOTHING) + self.reserved

    @property
    def free(self) -> Fraction:
        return max(self.hard - self.held, NOTHING)


class BudgetRow(Shown, frozen=True):
    """GPU-hours of a budget: of all GPUs (`gpus`), or of a class (`classes/NAME`). `unknown`: what may have been used besides."""

    key: str
    granted: Fraction
    used: Fraction
    unknown: Fraction

    @property
    def name(self) -> str:
        return "GPU-hours" if self.key == GPUS else f"GPU-hours of {unit(self.key)}"


class BudgetSummary(Shown, frozen=True):
    """The budget of a quota in the period that was counted last: from `start` to `end`, until `until`.

    message: that it is spent, or will be soon, in the words of the condition; "" else.
    """

    period: str
    start: datetime
    end: datetime
    until: datetime
    rows: tuple[BudgetRow, ...]
    message: str = ""

    def spent(self, now: datetime) -> tuple[BudgetRow, ...]:
        """Return the rows of which nothing is left until the end of the period."""
        return tuple(row for row in self.rows if row.used >= row.granted) if now < self.end else ()

    def when(self, now: datetime) -> str:
        """Return the period in words: `this month`; `up to 2026-12-01` of one that no controller followed by the next."""
        return THIS_PERIOD[Period(self.period)] if now < self.end else f"up to {self.end:%Y-%m-%d}"

    def unknown(self) -> str:
        """Return how many GPU-hours may have been used besides; "" if none."""
        found = [f"{format_amount(row.unknown)} {row.name}" for row in self.rows if row.unknown]
        return f"{' and '.join(found)} more may have been used while no controller watched" if found else ""


class QuotaHolder(Shown, frozen=True):
    """An owner of pods (`Job/train`), or a pod or claim without an owner, and its amounts by the keys of the quota's rows.

    idle_since: since when all its GPUs do no work; None if one works, or if that is not known.
    """

    name: str
    held: dict[str, Fraction]
    idle_since: datetime | None = None

    @property
    def most(self) -> tuple[str, Fraction]:
        """The dimension that says most of the holder, and its amount: its GPUs, unless others hold more of them."""
        found = self.held if GPUS not in self.held else {GPUS: self.held[GPUS]}
        return max(found.items(), key=lambda each: each[1])

    @property
    def order(self) -> tuple[bool, bool, Fraction, str]:
        """The sort key: idle ones first, then those of most GPUs."""
        return self.idle_since is None, GPUS not in self.held, -self.most[1], self.name


class PendingOwner(Shown, frozen=True):
    """Pending pods of one owner that hold quota: their number, what they hold, and the creation of the oldest one.

    has_node: whether they are on nodes, or without one. reason: why most of them do not run.
    """

    namespace: str
    owner: str
    pods: int
    held: dict[str, Fraction]
    since: datetime
    has_node: bool
    reason: str

    @property
    def gpus(self) -> Fraction:
        return self.held.get(GPUS, NOTHING)

    @property
    def order(self) -> tuple[datetime, str, str, bool]:
        """The sort key: the longest first."""
        return self.since, self.namespace, self.owner, self.has_node


class IdleOwner(Shown, frozen=True):
    """An owner of pods whose GPUs all do no work, and since when."""

    namespace: str
    owner: str
    gpus: Fraction
    since: datetime

    def lost(self, now: datetime) -> Fraction:
        """Return the GPU-hours in which they did nothing."""
        return self.gpus * max(Fraction(int((now - self.since).total_seconds()), 3600), NOTHING)


class DeniedOwner(Shown, frozen=True):
    """Denied pods of one owner: their number, the times of the first and the last one, and the first line of its message.

    reason: of the last one, in CamelCase (docs/rules.md); the rule where only that is known; "" without either.
    """

    namespace: str
    owner: str
    count: int
    first: datetime
    last: datetime
    message: str
    reason: str = ""

    @property
    def order(self) -> tuple[float, str, str]:
        """The sort key: the most recent first."""
        return -self.last.timestamp(), self.namespace, self.owner


class LimitsSummary(Shown, frozen=True, kw_only=True):
    """What the summaries of GPUQuota and ClusterGPUQuota share; `message` says why it is not Ready.

    Rows: `gpus` first, then classes, then resources.
    """

    state: QuotaState
    message: str = ""
    rows: tuple[QuotaRow, ...] = ()

    @property
    def has_problem(self) -> bool:
        """Whether something is wrong with this one, not with all of them, as while no controller leads."""
        return self.state not in {QuotaState.STALE, QuotaState.READY} or bool(self.message)

    @property
    def row(self) -> QuotaRow | None:
        """The row of all GPUs; None if they are not limited."""
        return next((row for row in self.rows if row.key == GPUS), None)

    @property
    def fullest(self) -> Fraction:
        """The largest part of a row that is held."""
        return max((row.held / row.hard for row in self.rows if row.hard), default=NOTHING)


class QuotaSummary(LimitsSummary, frozen=True, kw_only=True):
    """The GPUQuota of a namespace.

    holders: the largest ones in the status of the quota: at most five for each row.
    pending: the owners of pending pods that hold it, the longest first. is_held_up: whether one is pending for over a minute.
    waiting: the pods that wait in line, as in the status of the quota; None if there are none.
    idle: owners of GPUs that do no work, likewise; None where no controller measures that.
    budget: None without one, or before its first count. team: what the namespace sees of its team; None if it has none.
    denied: the number of denied pods of the namespace since `denied_since`; None where it cannot be read.
    """

    namespace: str
    holders: tuple[QuotaHolder, ...] = ()
    pending: tuple[PendingOwner, ...] = ()
    is_held_up: bool = False
    waiting: WaitingPods | None = None
    team: ShareStatus | None = None
    idle: IdleGPUs | None = None
    budget: BudgetSummary | None = None
    denied: int | None = None
    denied_since: datetime | None = None

    @property
    def has_problem(self) -> bool:
        return super().has_problem or bool(self.denied) or self.is_held_up

    @property
    def urgency(self) -> tuple[int, int, bool, Fraction, str]:
        """The sort key: the worst state first, then most denied pods, then most GPUs of pods that are pending for long."""
        return self.state.order, -(self.denied or 0), not self.is_held_up, -self.pending_gpus, self.namespace

    @property
    def pending_gpus(self) -> Fraction:
        return sum((each.gpus for each in self.pending), NOTHING)

    @property
    def waiting_gpus(self) -> Fraction:
        return self.waiting.demand.get(GPUS, NOTHING) if self.waiting else NOTHING

    @property
    def idle_gpus(self) -> Fraction | None:
        """The GPUs that do no work; None where that is not measured."""
        return self.idle.gpus if self.idle else None

    @property
    def idle_owners(self) -> tuple[IdleOwner, ...]:
        return tuple(
            IdleOwner(
                namespace=self.namespace,
                owner=each.name,
                gpus=each.gpus,
                since=datetime.fromisoformat(each.since),
            )
            for each in (self.idle.holders if self.idle else ())
        )


class TeamSummary(LimitsSummary, frozen=True, kw_only=True):
    """A ClusterGPUQuota, the quota of a team.

    namespaces: how many it has; largest: those with the most, used or guaranteed. granted: the sum of `hard` of their GPUQuotas.
    guaranteed_idle: what is guaranteed to some of them and not used. contact: whom to ask for more.
    """

    name: str
    namespaces: int = 0
    largest: tuple[QuotaHolder, ...] = ()
    granted: dict[str, Fraction] = msgspec.field(default_factory=dict)
    guaranteed_idle: dict[str, Fraction] = msgspec.field(default_factory=dict)
    contact: str = ""

    @property
    def urgency(self) -> tuple[int, Fraction, str]:
        """The sort key: the worst state first, then the fullest."""
        return self.state.order, -self.fullest, self.name


class ClassStatus(Shown, frozen=True):
    """A GPU class; a family, or "", for nodes without a class. `capacity` is None where nodes cannot be read."""

    name: str
    family: str = ""
    memory_gib: int | None = msgspec.field(name="memoryGiB", default=None)
    capacity: ClassCapacity | None = None


class PolicyStatus(Shown, frozen=True):
    """A GPUPolicy. `since`: since when it is in force, if the controller wrote that. `message`: why it is not in force.

    where: the namespaces that it matches, in words. exemptions: the current exemptions, in words. modes: its rules by mode, from
    its document and the defaults of the rules; pauses and exemptions do not change them.
    """

    name: str
    version: str
    priority: int
    where: str
    in_force: bool
    since: datetime | None = None
    message: str = ""
    paused_until: datetime | None = None
    exemptions: tuple[str, ...] = ()
    modes: dict[str, tuple[str, ...]] = {}


class ClusterTotals(Shown, frozen=True):
    """GPUs of all quotas that limit them, and of all nodes, in whole cards.

    pending: the part of `used` that pending pods hold. None stands for what cannot be read.
    """

    quotas: int = 0
    granted: Fraction = NOTHING
    used: Fraction = NOTHING
    reserved: Fraction = NOTHING
    pending: Fraction | None = None
    nodes: Fraction | None = None
    free: Fraction | None = None

    @property
    def row(self) -> QuotaRow:
        """The sum of the quotas."""
        return QuotaRow(
            key=GPUS, hard=self.granted, used=self.used, reserved=self.reserved, pending=self.pending
        )


def quota_totals(quotas: Iterable[QuotaSummary]) -> ClusterTotals:
    rows = [quota.row for quota in quotas if quota.row is not None]
    pending = [row.pending for row in rows]
    return ClusterTotals(
        quotas=len(rows),
        granted=sum((row.hard for row in rows), NOTHING),
        used=sum((row.used or NOTHING for row in rows), NOTHING),
        reserved=sum((row.reserved for row in rows), NOTHING),
        pending=None if None in pending else sum((each or NOTHING for each in pending), NOTHING),
    )


def idle_gpus(quotas: Iterable[QuotaSummary]) -> Fraction | None:
    """Return the GPUs of these quotas that do no work; None where none of them is measured."""
    measured = [each.idle_gpus for each in quotas if each.idle_gpus is not None]
    return sum(measured, NOTHING) if measured else None


class Health(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Part(Shown, frozen=True):
    """A part of the installation: webhook, controller, canary, certificate. `text` describes it in one line.

    for_administrators: it is unknown because that needs rights that tenants do not have.
    """

    name: str
    health: Health
    text: str
    for_administrators: bool = False


class InstallationStatus(Shown, frozen=True):
    """The parts of an installation and the findings of `doctor`.

    not_checked: why something was not checked, except missing rights. checks_for_administrators: the number of checks that need
    rights that the caller lacks.
    """

    parts: tuple[Part, ...] = ()
    findings: tuple[DoctorFinding, ...] = ()
    not_checked: tuple[str, ...] = ()
    checks_for_administrators: int = 0


class ClusterStatus(Shown, frozen=True):
    """Everything that `status` shows at one moment.

    version: of this program. configuration: digest of the documents in force. namespaces: the shown ones, empty for all.
    policies: None where they cannot be read; empty where the built-in policy governs.
    quotas_are_known: whether the quotas of all these namespaces could be read. totals: of all of them. teams: None where they
    cannot be read, and where some namespaces are shown. figures_until: the last
    sign of life of the controller that writes their status, if it has none now. classes: with nodes, or in documents.
    denials: most recent first; `denials_from` names their source and its age limit.
    omitted: the missing rights, in the words of `kubectl auth can-i`: `list nodes`.
    nodes_from: what stands for nodes that the caller may not list, in words; "" else.
    """

    at: datetime
    version: str
    kubernetes: str
    configuration: str
    namespaces: tuple[str, ...]
    installation: InstallationStatus
    policies: tuple[PolicyStatus, ...] | None
    quotas: tuple[QuotaSummary, ...]
    quotas_are_known: bool
    totals: ClusterTotals
    figures_until: datetime | None
    classes: tuple[ClassStatus, ...]
    denials: tuple[DeniedOwner, ...] | None
    denials_from: str
    omitted: tuple[str, ...] = ()
    teams: tuple[TeamSummary, ...] | None = None
    nodes_from: str = ""

    @property
    def denied_since(self) -> datetime | None:
        """The time of the first denial that was seen."""
        return min((each.first for each in self.denials or ()), default=None)

    @property
    def waiting(self) -> tuple[QuotaSummary, ...]:
        """The quotas for which pods wait in line, that with the longest wait first."""
        found = ((each.waiting.since, each.namespace, each) for each in self.quotas if each.waiting)
        return tuple(quota for _, _, quota in sorted(found, key=lambda each: each[:2]))

    @property
    def idle_gpus(self) -> Fraction | None:
        """The GPUs of all quotas that do no work; None where none of them is measured."""
        return idle_gpus(self.quotas)

    @property
    def idle(self) -> tuple[IdleOwner, ...]:
        """The owners of GPUs that do no work, that which lost most GPU-hours first."""
        found = (each for quota in self.quotas for each in quota.idle_owners)
        return tuple(sorted(found, key=lambda each: (-each.lost(self.at), each.namespace, each.owner)))

    @property
    def not_measured(self) -> str:
        """Why the controller cannot measure the use of GPUs; "" if it can, and where it is not to."""
        return next((each.idle.measured for each in self.quotas if each.idle and each.idle.measured), "")

    @property
    def pending(self) -> tuple[PendingOwner, ...]:
        """The owners of pending pods that hold quota, the longest first."""
        found = (each for quota in self.quotas for each in quota.pending)
        return tuple(sorted(found, key=lambda each: each.order))


def only_problems(status: ClusterStatus) -> ClusterStatus:
    """Return the status without what works."""
    installation = status.installation
    return msgspec.structs.replace(
        status,
        installation=msgspec.structs.replace(
            installation, parts=tuple(each for each in installation.parts if each.health is not Health.OK)
        ),
        policies=status.policies
        and tuple(each for each in status.policies if each.paused_until or not each.in_force),
        quotas=tuple(each for each in status.quotas if each.has_problem),
        teams=status.teams and tuple(each for each in status.teams if each.has_problem),
        classes=tuple(each for each in status.classes if each.capacity and each.capacity.nodes_away),
    )


def plain(value: Any) -> Any:
    """Convert a struct of this module for JSON."""
    return msgspec.to_builtins(value, enc_hook=str)
