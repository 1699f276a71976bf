"""Quotas, teams and owners of pods in the content of `status`, as frozen structs. Amounts are exact.

What the caller may not read is None.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from fractions import Fraction

import msgspec

from policies.quota.amounts import GPUS, ZERO, format_amount, unit_name
from policies.quota.budget import Period
from policies.quota.budget_findings import THIS_PERIOD
from webhook.quota.documents import IdleGPUs, TeamView, WaitingPods
from webhook.tools.json_struct import JsonStruct
from webhook.tools.pending_pods import PendingOwner


class QuotaState(Enum):
    """The most urgent state of a GPUQuota or ClusterGPUQuota, the worst first."""

    NOT_COUNTED = "NotCounted"
    """It was not counted yet: every GPU pod is denied."""
    UNREADABLE = "Unreadable"
    """It, or its ledger, cannot be read."""
    EXCEEDED = "Exceeded"
    TOO_MANY_NAMESPACES = "TooManyNamespaces"
    TOO_LARGE = "TooLarge"
    """One object has no room for all ledgers of the team."""
    STALE = "Stale"
    READY = "Ready"

    @property
    def order(self) -> int:
        return list(QuotaState).index(self)

    @property
    def denies(self) -> bool:
        """Whether every GPU pod is denied, if its spec can be read."""
        return self in {QuotaState.NOT_COUNTED, QuotaState.UNREADABLE}


class QuotaRow(JsonStruct, frozen=True):
    """One dimension of a quota: `gpus`, `classes/NAME` or `resources/NAME`. `used` is None before the first count.

    pending: the part of `used` that pending pods hold; None where pods cannot be read.
    """

    key: str
    hard: Fraction
    used: Fraction | None
    reserved: Fraction = ZERO
    pending: Fraction | None = None

    @property
    def held(self) -> Fraction:
        return (self.used or ZERO) + self.reserved

    @property
    def free(self) -> Fraction:
        return max(self.hard - self.held, ZERO)


class BudgetRow(JsonStruct, frozen=True):
    """GPU-hours of a budget: of all GPUs (`gpus`), or of a class (`classes/NAME`). `unknown`: what may have been used unseen."""

    key: str
    granted: Fraction
    used: Fraction
    unknown: Fraction

    @property
    def name(self) -> str:
        return "GPU-hours" if self.key == GPUS else f"GPU-hours of {unit_name(self.key)}"


class BudgetSummary(JsonStruct, frozen=True):
    """The budget of a quota in the last counted period, from `start` to `end`. It is counted up to `until`.

    message: of the condition that the budget is spent, or will be soon; "" without one.
    """

    period: str
    start: datetime
    end: datetime
    until: datetime
    rows: tuple[BudgetRow, ...]
    message: str = ""

    def spent(self, now: datetime) -> tuple[BudgetRow, ...]:
        """Return the rows with nothing left until the end of the period."""
        return tuple(row for row in self.rows if row.used >= row.granted) if now < self.end else ()

    def when(self, now: datetime) -> str:
        """Return the period in words: `this month`; `up to 2026-12-01` if it has ended and no controller began the next."""
        return THIS_PERIOD[Period(self.period)] if now < self.end else f"up to {self.end:%Y-%m-%d}"

    def unknown(self) -> str:
        """Return how many GPU-hours more may have been used, in words; "" if none."""
        amounts = [f"{format_amount(row.unknown)} {row.name}" for row in self.rows if row.unknown]
        return (
            f"{' and '.join(amounts)} more may have been used while no controller watched" if amounts else ""
        )


class QuotaHolder(JsonStruct, frozen=True):
    """An owner of pods (`Job/train`), or a pod or claim without an owner, and its amounts by the keys of the quota's rows.

    idle_since: since when all its GPUs do no work; None if one works, or if that is not known.
    guaranteed: whether a namespace uses less than its main amount, which is guaranteed to it.
    """

    name: str
    held: dict[str, Fraction]
    idle_since: datetime | None = None
    guaranteed: bool = False

    @property
    def main_amount(self) -> tuple[str, Fraction]:
        """The dimension to show, and its amount: GPUs if it holds any, else the dimension with the largest amount."""
        amounts = self.held if GPUS not in self.held else {GPUS: self.held[GPUS]}
        return max(amounts.items(), key=lambda item: item[1])

    @property
    def amount(self) -> str:
        """`main_amount` in words: `2`, `2 nvidia-t4`, `2 (guaranteed)`."""
        key, amount = self.main_amount
        guaranteed = " (guaranteed)" if self.guaranteed else ""
        return f"{format_amount(amount)}{'' if key == GPUS else f' {unit_name(key)}'}{guaranteed}"

    @property
    def order(self) -> tuple[bool, bool, Fraction, str]:
        """The sort key: idle owners first, then by GPUs, descending."""
        return self.idle_since is None, GPUS not in self.held, -self.main_amount[1], self.name


class IdleOwner(JsonStruct, frozen=True):
    """An owner of pods whose GPUs all do no work, and since when."""

    namespace: str
    owner: str
    gpus: Fraction
    since: datetime

    def lost(self, now: datetime) -> Fraction:
        """Return the GPU-hours in which its GPUs did no work until now."""
        return self.gpus * max(Fraction(int((now - self.since).total_seconds()), 3600), ZERO)


class DeniedOwner(JsonStruct, frozen=True):
    """Denied pods of one owner: their number, the times of the first and the last one, and the first line of its message.

    reason: of the last one, in CamelCase (docs/reference/rules/reasons.md); the rule where only that is known; "" without either.
    of_change: whether it was a change of a stored pod.
    """

    namespace: str
    owner: str
    count: int
    first: datetime
    last: datetime
    message: str
    reason: str = ""
    of_change: bool = False

    @property
    def order(self) -> tuple[float, str, str]:
        """The sort key: the most recent first."""
        return -self.last.timestamp(), self.namespace, self.owner


class AuditedPods(JsonStruct, frozen=True):
    """What the rules that only audit found in audit logs, of the `pods` whose creation was reviewed from `since` to `until`.

    denied: the number of pods that would have been denied, were every rule enforced. by_rule: how many of them by each rule.
    """

    since: datetime
    until: datetime
    pods: int
    denied: int
    by_rule: dict[str, int]


class LimitsSummary(JsonStruct, frozen=True, kw_only=True):
    """Common fields of the summaries of GPUQuota and ClusterGPUQuota. `message`: why it is not Ready.

    Rows: `gpus` first, then classes, then resources.
    """

    state: QuotaState
    message: str = ""
    rows: tuple[QuotaRow, ...] = ()

    @property
    def has_problem(self) -> bool:
        """Whether this quota has a problem of its own. STALE is not one: while no controller leads, all quotas are stale."""
        return self.state not in {QuotaState.STALE, QuotaState.READY} or bool(self.message)

    @property
    def row(self) -> QuotaRow | None:
        """The row of all GPUs; None if they are not limited."""
        return next((row for row in self.rows if row.key == GPUS), None)

    @property
    def fullest(self) -> Fraction:
        """The part of `hard` that is held, of the row where it is largest."""
        return max((row.held / row.hard for row in self.rows if row.hard), default=ZERO)


class QuotaSummary(LimitsSummary, frozen=True, kw_only=True):
    """The GPUQuota of a namespace.

    holders: the largest ones in the status of the quota: at most five for each row.
    pending: the owners of pending pods that hold it, the longest pending first. is_held_up: whether one has been pending for over
      a minute.
    waiting: the pods that wait in line, as in the status of the quota; None if there are none.
    idle: GPUs that do no work and their owners, as in the status of the quota; None where no controller measures that.
    budget: None without one, or before its first count. team: what the namespace sees of its team; None if it has none.
    denied: the number of denied pods of the namespace since `denied_since`; None where it cannot be read.
    """

    namespace: str
    holders: tuple[QuotaHolder, ...] = ()
    pending: tuple[PendingOwner, ...] = ()
    is_held_up: bool = False
    waiting: WaitingPods | None = None
    team: TeamView | None = None
    idle: IdleGPUs | None = None
    budget: BudgetSummary | None = None
    denied: int | None = None
    denied_since: datetime | None = None

    @property
    def has_problem(self) -> bool:
        return super().has_problem or bool(self.denied) or self.is_held_up

    @property
    def urgency(self) -> tuple[int, int, bool, Fraction, str]:
        """The sort key: by state, worst first; then by denied pods; then by GPUs of pods that are pending for long."""
        return self.state.order, -(self.denied or 0), not self.is_held_up, -self.pending_gpus, self.namespace

    @property
    def pending_gpus(self) -> Fraction:
        return sum((pending_owner.gpus or ZERO for pending_owner in self.pending), ZERO)

    @property
    def waiting_gpus(self) -> Fraction:
        return self.waiting.demand.get(GPUS, ZERO) if self.waiting else ZERO

    @property
    def idle_gpus(self) -> Fraction | None:
        """The GPUs that do no work; None where that is not measured."""
        return self.idle.gpus if self.idle else None

    @property
    def idle_owners(self) -> tuple[IdleOwner, ...]:
        return tuple(
            IdleOwner(
                namespace=self.namespace,
                owner=holder.name,
                gpus=holder.gpus,
                since=datetime.fromisoformat(holder.since),
            )
            for holder in (self.idle.holders if self.idle else ())
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


def idle_gpus(quotas: Iterable[QuotaSummary]) -> Fraction | None:
    """Return the GPUs of these quotas that do no work; None where none of them is measured."""
    measured = [quota.idle_gpus for quota in quotas if quota.idle_gpus is not None]
    return sum(measured, ZERO) if measured else None
