"""What pages compute of a status: sums, words for amounts and moments, how a state looks, and pages of a list."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from markupsafe import Markup

from policies.quota.amounts import GPUS, ZERO, format_amount, format_gpu_hours
from policies.times import utc
from webhook.tools.doctor.check import DoctorSeverity
from webhook.tools.status import summaries
from webhook.tools.status.report import ClusterStatus, Health, PolicyStatus
from webhook.tools.why.explanation import Answer
from webhook.tools.why.problems import OwnerProblem

T = TypeVar("T")

LOOKS: dict[summaries.QuotaState | Health | Answer | DoctorSeverity, str] = {
    **dict.fromkeys(summaries.QuotaState, "bad"),
    **dict.fromkeys((summaries.QuotaState.READY, Health.OK, Answer.RUNNING), "good"),
    **dict.fromkeys(
        (summaries.QuotaState.STALE, Answer.PENDING, Answer.GATED, Answer.WAITING, DoctorSeverity.WARNING),
        "warn",
    ),
    **dict.fromkeys((Health.FAILED, Answer.DENIED, DoctorSeverity.ERROR), "bad"),
    **dict.fromkeys((Health.UNKNOWN, Answer.STOPPED, Answer.ENDED, Answer.UNKNOWN), ""),
}
"""The CSS class of each state."""


def fill(row: summaries.QuotaRow) -> str:
    """Return how full a row is, as a CSS class; "" if something is free."""
    if (row.used or ZERO) > row.hard:
        return "over"
    return "full" if row.held >= row.hard else ""


def percent(part: Fraction, whole: Fraction) -> str:
    """Return a share as a width in an SVG. A share above 0 is at least 1.5%, so that it shows."""
    if whole <= ZERO:
        return "100%" if part > ZERO else "0%"
    share = min(float(part / whole) * 100, 100.0)
    return f"{max(share, 1.5) if part > ZERO else 0.0:.4g}%"


def amount(value: Fraction | None) -> str:
    return "?" if value is None else format_amount(value)


def by_namespace(denials: Iterable[summaries.DeniedOwner]) -> list[tuple[str, int]]:
    """Return the number of denied pods of each namespace, the largest first."""
    counts = Counter[str]()
    for denial in denials:
        counts[denial.namespace] += denial.count
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def number(value: float) -> str:
    return f"{round(value, 2):g}"


def height(value: float | Fraction, top: float) -> str:
    """Return the distance of an amount from the top of its chart."""
    return f"{100 - float(value) / top * 100:.4g}%"


def words(state: summaries.QuotaState) -> str:
    """Return a state as a word of a sentence: `not counted`."""
    return "".join(f" {each.lower()}" if each.isupper() else each for each in state.value).strip()


def idle_gpus(quota: summaries.QuotaSummary) -> str:
    """Return the GPUs of a quota that do no work, for its cell of the table."""
    return "?" if quota.idle_gpus is None else format_amount(quota.idle_gpus) if quota.idle_gpus else "–"


def lost(owners: Sequence[summaries.IdleOwner], now: datetime) -> str:
    """Return the GPU-hours that idle GPUs of these owners lost."""
    return f"{format_gpu_hours(sum((owner.lost(now) for owner in owners), ZERO))} lost"


def denied(count: int | None) -> str:
    return "?" if count is None else str(count or "–")


def in_force(policy: PolicyStatus) -> Markup:
    if policy.paused_until is None and policy.in_force:
        return Markup("")
    until = policy.paused_until and f"paused until {utc(policy.paused_until)}"
    look, text = ("warn", until) if until else ("bad", "not in force")
    return Markup('<span class="pill {}">{}</span>').format(look, text)


def summary(status: ClusterStatus) -> str:
    """Return the findings of doctor in a phrase; "" where the caller may read nothing of the installation."""
    if all(part.for_administrators for part in status.installation.parts):
        return ""
    severities = [finding.severity for finding in status.installation.findings]
    parts = [
        f"{count} {word}{'s' * (count > 1)}"
        for severity, word in ((DoctorSeverity.ERROR, "error"), (DoctorSeverity.WARNING, "warning"))
        if (count := severities.count(severity))
    ]
    return ", ".join(parts) or "no findings"


class MemberRow(NamedTuple):
    """A namespace of a team. gpus: what it holds, or is guaranteed if that is more. of: what the team grants, 0 if not known."""

    namespace: str
    gpus: Fraction
    of: Fraction
    quota: summaries.QuotaSummary | None
    is_guaranteed: bool


def members(status: ClusterStatus, name: str) -> list[MemberRow]:
    """Return the namespaces of a team that are known, those with the most GPUs first.

    They are those whose GPUQuotas name the team, and the largest in the status of the ClusterGPUQuota.
    """
    team = next((team for team in status.teams or () if team.name == name), None)
    granted = next((row.hard for row in team.rows if row.key == GPUS), ZERO) if team else ZERO
    quotas = {
        each.namespace: each for each in status.quotas if each.team is not None and each.team.name == name
    }
    gpus = {namespace: quota.row.held if quota.row else ZERO for namespace, quota in quotas.items()}
    guaranteed = set[str]()
    for member in team.largest if team else ():
        gpus[member.name] = member.held.get(GPUS, ZERO)
        guaranteed |= {member.name} if member.guaranteed else set()
    for quota in quotas.values():
        granted = granted or (quota.team.hard.get(GPUS, ZERO) if quota.team else ZERO)
    rows = (
        MemberRow(namespace, held, granted, quotas.get(namespace), namespace in guaranteed)
        for namespace, held in gpus.items()
    )
    return sorted(rows, key=lambda row: (-row.gpus, row.namespace))


def knows_team(status: ClusterStatus, name: str) -> bool:
    """Whether the caller can read a team of that name."""
    return any(team.name == name for team in status.teams or ()) or bool(members(status, name))


# ---- the part of a list that the query of the URL asks for

ROWS = 50
"""Lines of one page."""


class Order(Enum):
    """How quotas are sorted, in the words of the page; equal ones by namespace."""

    WORST = "worst first"
    NAMESPACE = "by namespace"
    PENDING = "most pending first"
    IDLE = "most idle first"
    FULLEST = "fullest first"
    LARGEST = "most GPUs first"
    DENIED = "most denied first"


class Page(NamedTuple, Generic[T]):
    """At most ROWS of `total` items. `query` is the query of the URL without the page number, as pairs."""

    items: Sequence[T]
    number: int
    last: int
    total: int
    query: tuple[tuple[str, str], ...]

    def address(self, number: int) -> str:
        return "?" + urlencode([*self.query, *([("page", str(number))] if number > 1 else [])])


def page_of(items: Sequence[T], arguments: Mapping[str, str]) -> Page[T]:
    """Return the page whose number is in `arguments`: the first one without a number, the last one if it is too large."""
    last = max(1, -(-len(items) // ROWS))
    text = arguments.get("page", "")
    number = min(max(int(text), 1), last) if re.fullmatch("[0-9]{1,6}", text) else 1
    query = tuple((key, value) for key, value in sorted(arguments.items()) if key != "page" and value)
    return Page(items[(number - 1) * ROWS : number * ROWS], number, last, len(items), query)


def problem_page(problems: Sequence[OwnerProblem], arguments: Mapping[str, str]) -> Page[OwnerProblem]:
    """Return a page of the problems whose owner or message contains each word of `search`."""
    matching = [
        problem for problem in problems if _matches_pattern(f"{problem.owner} {problem.message}", arguments)
    ]
    return page_of(matching, arguments)


def _matches_pattern(text: str, arguments: Mapping[str, str]) -> bool:
    return all(word in text.lower() for word in arguments.get("search", "").lower().split())


def quota_page(
    quotas: Sequence[summaries.QuotaSummary], arguments: Mapping[str, str]
) -> Page[summaries.QuotaSummary]:
    """Return a page of the quotas: filtered by `search` (namespace or holder), `problems` and `idle`, in the order of `sort`."""
    matching = [
        quota
        for quota in quotas
        if _matches_pattern(
            " ".join([quota.namespace, *(holder.name for holder in quota.holders)]), arguments
        )
        if quota.has_problem or not arguments.get("problems")
        if quota.idle_gpus or not arguments.get("idle")
    ]
    return page_of(sorted(matching, key=lambda quota: _sort_key(quota, order_of(arguments))), arguments)


def team_page(status: ClusterStatus, arguments: Mapping[str, str]) -> Page[summaries.TeamSummary]:
    """Return a page of the teams, the worst first. `search`: words in the name of the team, or of a namespace that is known."""
    known: dict[str, list[str]] = defaultdict(list)
    for quota in status.quotas:
        if quota.team is not None:
            known[quota.team.name].append(quota.namespace)
    matching = [
        team
        for team in status.teams or ()
        for names in [[team.name, *(member.name for member in team.largest), *known[team.name]]]
        if any(_matches_pattern(name, arguments) for name in names)
    ]
    return page_of(sorted(matching, key=lambda team: team.urgency), arguments)


def order_of(arguments: Mapping[str, str]) -> Order:
    try:
        return Order(arguments.get("sort", ""))
    except ValueError:
        return Order.WORST


_SORT_AMOUNTS: dict[Order, Callable[[summaries.QuotaSummary], Fraction | int]] = {
    Order.NAMESPACE: lambda _quota: 0,
    Order.DENIED: lambda quota: quota.denied or 0,
    Order.FULLEST: lambda quota: quota.fullest,
    Order.LARGEST: lambda quota: quota.row.held if quota.row else 0,
    Order.PENDING: lambda quota: quota.pending_gpus,
    Order.IDLE: lambda quota: quota.idle_gpus or ZERO,
}


def _sort_key(quota: summaries.QuotaSummary, order: Order) -> tuple[Any, ...]:
    return quota.urgency if order is Order.WORST else (-_SORT_AMOUNTS[order](quota), quota.namespace)
