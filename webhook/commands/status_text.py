"""The text of `gpu-admission status`."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from policies.finding import truncate
from policies.printable import first_names
from policies.quota.amounts import GPUS, ZERO, format_amount, format_gpu_hours, unit_name
from policies.times import utc
from webhook.cluster.capacity import NO_CAPACITY
from webhook.commands import quota_text
from webhook.commands.output import Screen, amount_or_unknown, counted, since
from webhook.tools.doctor.check import DoctorSeverity
from webhook.tools.status.freshness import stale_figures
from webhook.tools.status.report import ClusterStatus, Health, PolicyStatus, only_problems, quota_totals
from webhook.tools.status.summaries import AuditedPods, QuotaHolder, QuotaRow, QuotaSummary

NAME_COLUMN = 24
NARROW = 72
"""Columns below which bars are short, so that amounts stay in the line."""
MAX_QUOTAS = 20
MAX_HOLDERS = 3
MAX_DENIALS = 5
MAX_PENDING = MAX_IDLE = 5
MAX_FINDINGS = 10
DAYS_FROM_HOURS = 48
"""A longer time is shown in days."""
HEALTH_STYLES = {Health.OK: "green", Health.FAILED: "red", Health.UNKNOWN: "yellow"}
SEVERITY_STYLES = {DoctorSeverity.ERROR: "red", DoctorSeverity.WARNING: "yellow"}


def show(screen: Screen, status: ClusterStatus, *, problems: bool = False) -> None:
    """Print the status as text, or only its problems. Only the first line, and what idle GPUs lost, depend on the time."""
    status = only_problems(status) if problems else status
    title = f"gpu-admission {status.version}  Kubernetes {status.kubernetes}"
    screen.line(f"{title}  {utc(status.at)}", "bold")
    for part in status.installation.parts:
        if part.for_administrators:
            continue
        text = f"{part.name:<12} {part.health.value:<8} {part.text}"
        screen.paragraph(text, indent=2, hanging=22, style=HEALTH_STYLES[part.health])
    if status.policies or (status.policies is not None and not problems):
        _print_policies(screen, status, status.policies)
    if not problems:
        _print_totals(screen, status)
    if status.quotas or not problems:
        _print_quotas(screen, status, len(status.quotas) if problems else MAX_QUOTAS)
    if status.teams:
        _print_heading(screen, "teams", f" {quota_text.LEGEND:<{_bar_cells(screen)}} used + reserved of hard")
        quota_text.print_teams(screen, status.teams, partial(_print_row, screen), indent=2)
    _print_waiting(screen, status)
    _print_kueue(screen, status)
    _print_pending(screen, status)
    _print_idle(screen, status)
    _print_classes(screen, status)
    _print_denials(screen, status)
    if status.audited is not None:
        _print_audited(screen, status.audited)
    _print_findings(screen, status)
    if problems and not (
        status.quotas or status.teams or status.policies or status.classes or status.denials
    ):
        parts = (part for part in status.installation.parts if not part.for_administrators)
        if not any(parts) and not status.installation.findings:
            screen.line("nothing is wrong with what you may read")
    screen.print_omissions(list(_omitted_sentences(status)), status.nodes_from)


def _omitted_sentences(status: ClusterStatus) -> Iterator[str]:
    installation = status.installation
    if parts := [part.name for part in installation.parts if part.for_administrators]:
        yield f"read the installation ({', '.join(parts)})"
    if installation.checks_for_administrators:
        yield f"run {counted(installation.checks_for_administrators, 'check')} of gpu-admission doctor"
    yield from status.omitted


def _print_heading(screen: Screen, title: str, columns: str = "") -> None:
    screen.heading(f"{title:<{NAME_COLUMN + 2}}{columns}".rstrip())


def _print_policies(screen: Screen, status: ClusterStatus, policies: Sequence[PolicyStatus]) -> None:
    _print_heading(screen, "policies", f" configuration {status.configuration}")
    if not policies:
        screen.line("  the built-in defaults are in force")
    for policy in policies:
        style = "yellow" if policy.paused_until is not None else "" if policy.in_force else "red"
        screen.paragraph(
            f"{policy.name:<{NAME_COLUMN}} {_policy_text(policy, status.at)}",
            indent=2,
            hanging=NAME_COLUMN + 1,
            style=style,
        )
        for exemption in policy.exemptions:
            screen.paragraph(f"exempt: {exemption}", indent=NAME_COLUMN + 3)


def _policy_text(policy: PolicyStatus, now: datetime) -> str:
    since = f" since {utc(policy.since, now)}" if policy.since else ""
    # The message has a line for each problem.
    why = policy.message.removeprefix("it is not in force").lstrip(":; \n").replace("\n", " ")
    state = f"in force{since}" if policy.in_force else f"not in force: {why}"
    if policy.paused_until is not None:
        state = f"PAUSED until {utc(policy.paused_until, now)}, every rule only audits"
    rules = ", ".join(f"{len(rules_in_mode)} {mode}" for mode, rules_in_mode in policy.modes.items())
    by_mode = f"; rules: {rules}" if rules else ""
    return f"{state}; priority {policy.priority}, matches {policy.where}{by_mode}"


def _print_totals(screen: Screen, status: ClusterStatus) -> None:
    totals = status.totals
    if totals.nodes is None and totals.quotas <= 1:  # the sum of one quota is that quota
        return
    _print_heading(screen, "GPUs")
    if totals.quotas:
        name = f"of {counted(totals.quotas, 'quota')}"
        screen.line(f"  {name:<{NAME_COLUMN}} {quota_text.bar_and_amounts(totals.row, _bar_cells(screen))}")
    if totals.nodes is not None:
        free = amount_or_unknown(totals.free)
        used = quota_text.bar(totals.nodes - (totals.free or ZERO), ZERO, totals.nodes, _bar_cells(screen))
        screen.line(f"  {'of nodes':<{NAME_COLUMN}} {used} {free} free of {format_amount(totals.nodes)}")


def _print_quotas(screen: Screen, status: ClusterStatus, lines_shown: int) -> None:
    _print_heading(screen, "quotas", f" {quota_text.LEGEND:<{_bar_cells(screen)}} used + reserved of hard")
    if status.figures_until is not None:
        screen.paragraph(stale_figures(status.figures_until, status.at), indent=2, style="red")
    if not status.quotas and status.quotas_are_known:
        where = f"in {', '.join(status.namespaces)}" if status.namespaces else "that you may read"
        teams = status.teams if status.teams and len(status.namespaces) == 1 else ()
        screen.paragraph(
            "; ".join([f"there is no GPUQuota {where}", *map(quota_text.team_limits, teams)]), indent=2
        )
    quotas = sorted(status.quotas, key=lambda summary: summary.urgency)
    for quota in quotas[:lines_shown]:
        denied = f", {quota.denied} denied{since(quota.denied_since, status.at)}" if quota.denied else ""
        screen.line(f"  {quota.namespace}  {quota.state.value}{denied}", quota_text.STATES[quota.state])
        if quota.message:
            screen.paragraph(quota.message, indent=4, style=quota_text.STATES[quota.state])
        for row in quota.rows:
            _print_row(screen, row)
        quota_text.print_team_view(screen, quota.team, indent=4)
        quota_text.print_budget(
            screen, quota.budget, status.at, indent=4, column=NAME_COLUMN - 2, cells=_bar_cells(screen)
        )
        _print_holders(screen, quota, status.at)
    if rest := quotas[lines_shown:]:
        screen.paragraph(quota_text.omitted_line(rest), indent=2)
        _print_row(screen, quota_totals(rest).row)


def _print_waiting(screen: Screen, status: ClusterStatus) -> None:
    quotas = status.waiting
    if not quotas:
        return
    _print_heading(screen, "waiting in line for quota")
    order = "the longest first; gpu-admission quota -n NAMESPACE lists a line"
    screen.paragraph(order, indent=2, style="dim")
    for quota in quotas[:MAX_PENDING]:
        if quota.waiting is not None:
            first = next(iter(quota.waiting.next), None)
            who = f": {first.title} {first.message}" if first else ""
            text = f"{quota.namespace} {quota_text.waiting_text(quota.waiting, status.at)}{who}"
            screen.paragraph(text, indent=2, style="yellow")
    screen.rest(len(quotas) - MAX_PENDING, "namespace")


def _print_kueue(screen: Screen, status: ClusterStatus) -> None:
    if status.queues:
        _print_heading(screen, "queues of Kueue")
        quota_text.print_queues(screen, status.queues, status.at, of_namespaces=True)


def _print_pending(screen: Screen, status: ClusterStatus) -> None:
    owners = status.pending
    if not owners:
        return
    namespaces = len({owner.namespace for owner in owners})
    total = (
        None
        if any(owner.gpus is None for owner in owners)
        else sum((owner.gpus or ZERO for owner in owners), ZERO)
    )
    gpus = f"{amount_or_unknown(total)} used {unit_name(GPUS, total or ZERO)}"
    _print_heading(screen, f"pending pods hold {gpus} in {counted(namespaces, 'namespace')}")
    order = "the longest first; gpu-admission why KIND/NAME -n NAMESPACE says why"
    screen.paragraph(order, indent=2, style="dim")
    for owner in owners[:MAX_PENDING]:
        pods = f"{counted(owner.pods, 'pod')}{since(owner.since, status.at)}"
        amount = f"{amount_or_unknown(owner.gpus)} {unit_name(GPUS, owner.gpus or ZERO)}"
        screen.line(f"  {owner.namespace} {owner.owner}, {amount}, {pods}", "yellow")
        screen.paragraph(owner.reason, indent=4, hanging=0, style="dim")
    screen.rest(len(owners) - MAX_PENDING, "owner")


def _print_idle(screen: Screen, status: ClusterStatus) -> None:
    owners = status.idle
    if status.not_measured:
        _print_heading(screen, "idle GPUs")
        screen.paragraph(f"not measured: {status.not_measured}", indent=2, style="yellow")
    elif owners:
        gpus = status.idle_gpus or ZERO
        lost = format_gpu_hours(sum((owner.lost(status.at) for owner in owners), ZERO))
        _print_heading(screen, f"{format_amount(gpus)} {unit_name(GPUS, gpus)} of quotas idle, {lost} lost")
        order = "the most lost first; gpu-admission ends none of them: ask who runs them"
        screen.paragraph(order, indent=2, style="dim")
    for owner in owners[:MAX_IDLE]:
        screen.line(f"  {owner.namespace} {quota_text.idle_text(owner, status.at)}", "yellow")
    screen.rest(len(owners) - MAX_IDLE, "owner")


def _bar_cells(screen: Screen) -> int:
    return quota_text.BAR if screen.width >= NARROW else quota_text.BAR // 4


def _print_row(screen: Screen, row: QuotaRow) -> None:
    amounts = quota_text.bar_and_amounts(row, _bar_cells(screen))
    screen.line(
        f"    {truncate(row.key, NAME_COLUMN - 2):<{NAME_COLUMN - 2}} {amounts}", quota_text.row_style(row)
    )


def _print_holders(screen: Screen, quota: QuotaSummary, now: datetime) -> None:
    if not quota.holders:
        return
    holders = [_holder_text(holder, now) for holder in quota.holders]
    screen.paragraph(f"held by {first_names(holders, MAX_HOLDERS)}", indent=4, style="dim")


def _holder_text(holder: QuotaHolder, now: datetime) -> str:
    idle = f" (idle{since(holder.idle_since, now)})" if holder.idle_since else ""
    return f"{holder.name} {holder.amount}{idle}"


def _print_classes(screen: Screen, status: ClusterStatus) -> None:
    rows = [gpu_class for gpu_class in status.classes if gpu_class.capacity is not None]
    if not rows:
        return
    _print_heading(screen, "classes", f"{'memory':>9} {'nodes':>7} {'GPUs':>7} {'free':>7}")
    for row in rows:
        memory = f"{row.memory_gib} GiB" if row.memory_gib else ""
        name, capacity = row.name or "unknown class", row.capacity or NO_CAPACITY
        free = amount_or_unknown(capacity.free)
        gpus = format_amount(capacity.gpus)
        screen.line(f"  {name:<{NAME_COLUMN}}{memory:>9} {capacity.nodes:>7} {gpus:>7} {free:>7}")
        if capacity.nodes_away:
            screen.line(f"    {counted(capacity.nodes_away, 'node')} not Ready or cordoned", "yellow")


def _print_denials(screen: Screen, status: ClusterStatus) -> None:
    if not status.denials:
        return
    _print_heading(screen, f"denied{since(status.denied_since, status.at)}")
    more = "gpu-admission why KIND/NAME -n NAMESPACE says more"
    screen.paragraph(f"from {status.denials_from}; {more}", indent=2, hanging=0, style="dim")
    for denial in status.denials[:MAX_DENIALS]:
        reason = f"{denial.reason}, " if denial.reason else ""
        times = f"{counted(denial.count, 'time')}, last at {utc(denial.last, status.at)}"
        screen.line(f"  {denial.namespace} {denial.owner}: {reason}{times}")
        screen.paragraph(denial.message, indent=4, hanging=0, style="dim")
    screen.rest(len(status.denials) - MAX_DENIALS, "owner", "")


def _print_audited(screen: Screen, audited: AuditedPods) -> None:
    """Print what would be denied, were every rule enforced: the number of the audit phase."""
    hours = round((audited.until - audited.since) / timedelta(hours=1))
    time = counted(hours // 24, "day") if hours >= DAYS_FROM_HOURS else counted(max(hours, 1), "hour")
    rules = ", ".join(f"{rule} ({pods})" for rule, pods in audited.by_rule.items())
    by_rule = f", by rule {rules}" if rules else ""
    _print_heading(screen, "only audited")
    text = f"in {time} {audited.denied or 'none'} of {counted(audited.pods, 'pod')} would have been denied{by_rule}"
    screen.paragraph(text, indent=2, hanging=0, style="yellow" if audited.denied else "")


def _print_findings(screen: Screen, status: ClusterStatus) -> None:
    installation = status.installation
    if installation.findings or installation.not_checked:
        _print_heading(screen, "doctor")
    findings = sorted(installation.findings, key=lambda finding: finding.severity is not DoctorSeverity.ERROR)
    for finding in findings[:MAX_FINDINGS]:
        text = f"{finding.severity.value:<8} {finding.id}: {finding.object} {finding.message}"
        screen.line(truncate(f"  {text}", screen.width), SEVERITY_STYLES[finding.severity])
    screen.rest(len(findings) - MAX_FINDINGS, "finding", ": gpu-admission doctor has all")
    if missing := len(installation.not_checked):
        are = "is" if missing == 1 else "are"
        screen.line(f"  {counted(missing, 'result')} {are} missing: gpu-admission doctor says why", "dim")
