"""Warnings about a workload whose pods do not all fit a quota: how many will start, and what to change."""

from collections.abc import Callable
from functools import partial

from policies.finding import PLATFORM_TEAM, Finding, Severity
from policies.pods.pod import Pod
from policies.pods.workload import Workload
from policies.quota.amounts import NOTHING, format_amount, unit
from policies.quota.demand import Catalogues
from policies.quota.fit import FitFailure, FitResult
from policies.quota.fit_fixes import Advice, fewer_pods, smaller_pod
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import team_title
from policies.quota.line_findings import QUOTA_QUEUED, deadline_note, how_many
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT, QUOTA_EXCEEDED
from policies.quota.shortage_facts import grants, largest_namespaces
from policies.quota.spec import hard_field


def fit_warning(
    fit: FitResult,
    workload: Workload,
    ledger: QuotaLedger,
    catalogues: Catalogues,
    namespace: str,
    depends_on_gpu_count: Callable[[Pod], bool],
    *,
    is_enforced: bool,
    lets_wait: bool,
) -> Finding | None:
    """Return the warning. If the quota is enforced, it says how many pods will start.

    `lets_wait`: pods that exceed the quota wait in line. None: nothing is wrong unless the quota is enforced.
    """
    is_impossible = fit.needed > fit.hard
    waits = lets_wait and not is_impossible
    runs, failure = workload.target or workload, fit.failure
    if lets_wait and is_impossible and runs.starts_together and failure is FitFailure.TOO_LITTLE:
        failure = FitFailure.GANG_TOO_LARGE
    amount = f"{format_amount(fit.needed)} {unit(fit.key, fit.needed)}"
    whose, granted, free = _limits(fit, namespace)
    never_fits = f"{amount}, which can never fit: {granted}"
    warning = partial(
        Finding,
        reason=QUOTA_CAN_NEVER_FIT if is_impossible else _FIT_REASONS[waits],
        severity=Severity.WARNING,
        path=fit.path,
        contact=(fit.share.team.contact if fit.share else "") or PLATFORM_TEAM,
    )
    ask = f"to raise {hard_field(fit.key)}{f' of {whose}' if fit.share else ''}"
    match failure:
        case FitFailure.POD_TOO_LARGE:
            path, fix, remedy = smaller_pod(fit, workload, ledger, catalogues, depends_on_gpu_count)
            return warning(path=path, message=f"a pod needs {never_fits}", fix=fix, remedy=remedy, ask=ask)
        case FitFailure.GANG_TOO_LARGE:
            return warning(message=f"{fit.pods} pods that must run together need {never_fits}", ask=ask)
        case FitFailure.NO_SURGE:
            if not is_enforced:
                return None
            remedy = "set type: Recreate, or rollingUpdate.maxUnavailable: 1"
            remedy += f", or replicas: {fit.starting}" if fit.starting else ""
            effect = "which will wait in line" if waits else "and will not finish"
            facts = (
                f"an update needs {amount} for a pod beside the others, {effect}: {whose} will have {free}"
            )
            return warning(path="spec.strategy", message=facts, remedy=remedy)
        case _:
            path, fix, remedy = Advice(fit.path) if waits else fewer_pods(fit, workload)
            facts = f"needs {never_fits};" if is_impossible else f"needs {amount}; {whose} has {free}:"
            if fit.failure is FitFailure.TOO_LITTLE_TO_GROW:
                facts = f"may grow to {fit.pods} pods and then {facts}"
            starting = f"{fit.starting} of {fit.pods} pods will start"
            if lets_wait:
                starting = _starting_in_line(starting, fit, workload, ledger.pods_before)
            message = f"{facts} {starting}" if is_enforced else facts[:-1]
            ask = ask if is_impossible else ""
            return warning(path=path, message=message, fix=fix, remedy=remedy, ask=ask, details=_largest(fit))


def _limits(fit: FitResult, namespace: str) -> tuple[str, str, str]:
    """Return the quota that has too little, what it grants, and how much of that is free, in words."""
    if fit.share is None:
        whose, hard = namespace, fit.hard
        granted = f"the GPUQuota of {namespace} grants {format_amount(hard)} in all"
    else:
        whose, hard = team_title(fit.share.team.name), fit.share.team.hard[fit.key]
        granted = f"{whose} {grants(hard, fit.share.guaranteed_to_others.get(fit.key, NOTHING))}"
    return whose, granted, f"{format_amount(fit.left)} of {format_amount(hard)} free"


def _largest(fit: FitResult) -> tuple[str, ...]:
    """Return the largest namespaces of a team that has too little, as a detail of the warning."""
    largest = largest_namespaces(fit.share, fit.key) if fit.share else ""
    return (f"largest namespaces of {_limits(fit, '')[0]}: {largest}",) if largest else ()


_FIT_REASONS = {False: QUOTA_EXCEEDED, True: QUOTA_QUEUED}


def _starting_in_line(starting: str, fit: FitResult, workload: Workload, before: int) -> str:
    """Return which pods will start, and which wait in line. `starting` says how many start if no pod is before them."""
    if (workload.target or workload).waits_whole and fit.pods > 1:
        starting = "its pods will wait in line until enough of them fit to run together"
    elif fit.starting and not before:
        starting = f"{starting}, and the others will wait in line"
    else:
        starting = "its pods will wait in line"
    return starting + (f", {how_many(before)} before them" if before else "") + deadline_note(workload)
