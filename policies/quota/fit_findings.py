"""Warnings about a workload whose pods do not all fit a quota: how many will start, and what to change."""

from fractions import Fraction
from functools import partial
from math import floor
from typing import NamedTuple

from policies.finding import (
    ContactEdit,
    Edit,
    Edits,
    Finding,
    Wait,
    choices_text,
    one_choice,
    separate_choices,
    warning,
)
from policies.gpus.amount import edits_to_request_share
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.pinning import pinning
from policies.pods.workload import Workload, WorkloadPods
from policies.quota.amounts import CLASSES, GPUS, ZERO, amount_texts, format_amount, unit_name
from policies.quota.demand import Catalogue
from policies.quota.fit import FitFailure, FitResult
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import team_title
from policies.quota.line_findings import QUOTA_QUEUED, deadline_note, pod_count_text
from policies.quota.shortage import (
    QUOTA_CAN_NEVER_FIT,
    QUOTA_EXCEEDED,
    ROOM_FOR_UPDATE,
    WAIT_UNTIL_FREE,
    room_for_update,
)
from policies.quota.shortage_facts import (
    amounts_in_words,
    escalation,
    granted_text,
    largest_namespaces,
    missing_in_words,
)
from policies.quota.spec import hard_field


class Advice(NamedTuple):
    """The field that a warning is about, and how to change it; in words where the edits do not say it."""

    path: str
    choices: tuple[Edits, ...] = ()
    remedy: str = ""


def fit_warning(
    fit: FitResult,
    workload: Workload,
    ledger: QuotaLedger,
    catalogue: Catalogue,
    namespace: str,
    *,
    is_enforced: bool,
    queueing_enabled: bool,
) -> Finding | None:
    """Return the warning. If the quota is enforced, it says how many pods will start.

    `queueing_enabled`: pods that exceed the quota wait in line. Return None for NO_SURGE if the quota is not enforced.
    """
    is_impossible = fit.needed > fit.hard
    will_queue = queueing_enabled and not is_impossible
    failure = fit.failure
    is_one_gang = (workload.target or workload).is_one_gang
    if queueing_enabled and is_impossible and is_one_gang and failure is FitFailure.TOO_LITTLE:
        failure = FitFailure.GANG_TOO_LARGE
    _, granted, _ = _limit_texts(fit, namespace)
    never_fits = f"{_needed_text(fit)}, which can never fit: {granted}"
    keys, team = [fit.key], fit.team_state.team if fit.team_state else None
    to_raise, contact = escalation([] if team else keys, keys if team else [], team)
    kind = "ClusterGPUQuota" if fit.team_state else "GPUQuota"
    raised = ((ContactEdit(kind, hard_field(fit.key), str(fit.needed)),),)
    misfit = partial(
        warning,
        reason=QUOTA_CAN_NEVER_FIT if is_impossible else QUOTA_QUEUED if will_queue else QUOTA_EXCEEDED,
        path=fit.path,
        contact=contact,
    )
    match failure:
        case FitFailure.POD_TOO_LARGE | FitFailure.GANG_TOO_LARGE:
            path, choices, spread = smaller_pod(fit, workload, ledger, catalogue)
            is_beside = bool(choices and fit.held)
            is_one = failure is FitFailure.POD_TOO_LARGE
            who = "a pod needs" if is_one else f"{fit.pods} pods that must run together need"
            return misfit(
                path=path,
                message=f"{who} {never_fits}",
                choices=choices,
                awaits=Wait(beside_choice=True, amounts=((fit.key, str(fit.held)),)) if is_beside else None,
                is_example=bool(spread),
                remedy=f"{spread or choices_text(choices)}, {WAIT_UNTIL_FREE}" if is_beside else spread,
                ask_contact=to_raise,
                contact_choices=raised,
            )
        case FitFailure.NO_SURGE:
            facts, remedy = _no_surge_texts(fit, namespace, will_queue=will_queue)
            choices = ROOM_FOR_UPDATE
            if fit.starting:
                choices += separate_choices(Edit("spec.replicas", fit.starting))
            no_surge = misfit(path="spec.strategy", message=facts, choices=choices, remedy=remedy)
            return no_surge if is_enforced else None
        case _:
            advice = Advice(fit.path) if will_queue else fewer_pods(fit, workload)
            path, choices, remedy = advice
            choices = choices or (() if will_queue else smaller_now(fit, workload, catalogue))
            message = _too_little_text(fit, namespace)
            if is_enforced:
                before = ledger.pods_ahead if queueing_enabled else None
                message += f"{';' if is_impossible else ':'} {_starting_text(fit, workload, before)}"
            awaits, wait = _awaited(fit, workload, advice, will_queue=will_queue)
            return misfit(
                path=path,
                message=message,
                choices=choices,
                awaits=awaits,
                remedy=remedy or ", or ".join(filter(None, (choices_text(choices), wait))),
                ask_contact=to_raise if is_impossible else "",
                contact_choices=raised if is_impossible else (),
                details=_largest_namespaces(fit),
            )


def _awaited(
    fit: FitResult, workload: Workload, advice: Advice, *, will_queue: bool
) -> tuple[Wait | None, str]:
    """Return what must be released for fewer pods; or else for all, unless some start without the others, also in words."""
    if advice.remedy:
        return Wait(beside_choice=True, amounts=((fit.key, str(fit.held)),)), ""
    starts_some = advice.choices and not (workload.target or workload).starts_whole
    never_fits = fit.needed > fit.hard or fit.pods == 1 or fit.failure is not FitFailure.TOO_LITTLE
    if will_queue or starts_some or never_fits:
        return None, ""
    missing = tuple(amount_texts(fit.missing).items())
    return Wait(amounts=missing), f"wait until others release {missing_in_words(fit.missing)}"


def _needed_text(fit: FitResult) -> str:
    return f"{format_amount(fit.needed)} {unit_name(fit.key, fit.needed)}"


def _no_surge_texts(fit: FitResult, namespace: str, *, will_queue: bool) -> tuple[str, str]:
    """Return that a pod of an update does not fit beside the others, and the remedy."""
    whose, _, free = _limit_texts(fit, namespace)
    effect = "which will wait in line" if will_queue else "and will not finish"
    facts = (
        f"an update needs {_needed_text(fit)} for a pod beside the others, {effect}: {whose} will have {free}"
    )
    return facts, f"set {room_for_update(fit.starting)}"


def _too_little_text(fit: FitResult, namespace: str) -> str:
    """Return what the pods need, and how much of it is granted or free."""
    whose, granted, free = _limit_texts(fit, namespace)
    if fit.needed > fit.hard:
        facts = f"needs {_needed_text(fit)}, which can never fit: {granted}"
    else:
        facts = f"needs {_needed_text(fit)}; {whose} has {free}"
    if fit.failure is FitFailure.TOO_LITTLE_TO_GROW:
        return f"may grow to {fit.pods} pods and then {facts}"
    return facts


def _limit_texts(fit: FitResult, namespace: str) -> tuple[str, str, str]:
    """Return in words: the quota that is too small, what it grants, and how much is free."""
    state = fit.team_state
    if state is None:
        whose, hard = namespace, fit.hard
        granted = f"the GPUQuota of {namespace} grants {format_amount(hard)} in all"
    else:
        whose, hard = team_title(state.team.name), state.team.hard[fit.key]
        granted = f"{whose} {granted_text(hard, state.guaranteed_to_others.get(fit.key, ZERO))}"
    return whose, granted, f"{format_amount(fit.left)} of {format_amount(hard)} free"


def _largest_namespaces(fit: FitResult) -> tuple[str, ...]:
    """Return the largest namespaces of a team that has too little, as a detail of the warning."""
    if fit.team_state is None:
        return ()
    largest = largest_namespaces(fit.team_state, fit.key)
    return (f"largest namespaces of {team_title(fit.team_state.team.name)}: {largest}",) if largest else ()


def _starting_text(fit: FitResult, workload: Workload, before: int | None) -> str:
    """Return which pods will start, and which wait in line. `before`: the pods before them in line, None without a line."""
    starting = f"{fit.starting} of {fit.pods} pods will start"
    if before is None:
        return starting
    if (workload.target or workload).starts_whole and fit.pods > 1:
        starting = "its pods will wait in line until enough of them fit to run together"
    elif fit.starting and not before:
        starting = f"{starting}, and the others will wait in line"
    else:
        starting = "its pods will wait in line"
    return starting + (f", {pod_count_text(before)} before them" if before else "") + deadline_note(workload)


def smaller_pod(fit: FitResult, workload: Workload, ledger: QuotaLedger, catalogue: Catalogue) -> Advice:
    """Return the advice for a pod that exceeds the whole quota: it must fit all limits of classes on which it could run.

    All its pods fit then, or else one, where a field says how many and they need not run together. In words if several containers
    request GPUs: which of them requests less is for its author to choose.
    """
    pod = next((pod for pod in (workload.target or workload).pods if pod.path == fit.path), None)
    fewer = _fewer_edit(fit, workload, now=False)
    if pod is None:
        return Advice(fewer.path, one_choice(fewer)) if fewer else Advice(fit.path)
    is_unpinned = fit.key.startswith(CLASSES) and pinning(pod.admitted, catalogue.classes) is None
    limits = [
        limit
        for key, limit in ledger.maximum_hard.items()
        if key == GPUS or (is_unpinned and key.startswith(CLASSES))
    ]
    needed_by_one = fit.needed / fit.pods
    share, pods = min([fit.hard, *limits]) / needed_by_one, max(pod.count.gang or pod.count.running or 1, 1)
    edits_of_share = partial(_edits_to_request_share, pod, catalogue.resource_mapping)
    fix, number = edits_of_share(share / pods), pod.count.number
    if not fix and fewer:
        return Advice(fewer.path, one_choice(fewer))
    if not fix and number and not pod.count.gang and (fix := edits_of_share(share / number.each)):
        fix, pods = (
            (*fix, Edit(_MAXIMUM_FIELD.get((workload.group, workload.kind), number.path), 1)),
            number.each,
        )
    containers = {edit.path.partition(".resources.")[0] for edit in fix if ".resources." in edit.path}
    at_most = {fit.key: Fraction(floor(share / pods * needed_by_one))}
    spread = f"request {amounts_in_words(at_most)} or fewer" if len(containers) > 1 else ""
    one_pod = f" and {fix[-1].words}" if spread and ".resources." not in fix[-1].path else ""
    return Advice(fit.path, one_choice(*fix), spread + one_pod)


def fewer_pods(fit: FitResult, workload: Workload) -> Advice:
    """Return the advice to set a number of pods. The fix is the number of pods that can start now.

    If none can, the remedy is the number that fits an unused quota.
    """
    path = _MAXIMUM_FIELD.get((workload.group, workload.kind), "") if workload.target else fit.path
    if fit.failure is FitFailure.TOO_LITTLE_TO_GROW and not workload.target:
        return Advice(path)
    if edit := _fewer_edit(fit, workload, now=True):
        return Advice(edit.path, one_choice(edit))
    if edit := _fewer_edit(fit, workload, now=False):
        return Advice(edit.path, one_choice(edit), f"{edit.words} or less, {WAIT_UNTIL_FREE}")
    return Advice(path)


def smaller_now(fit: FitResult, workload: Workload, catalogue: Catalogue) -> tuple[Edits, ...]:
    """Return the choice by which all of several pods fit beside the usage of others: each requests less. Empty without one."""
    pod = next((pod for pod in workload.pods if pod.path == fit.path), None)
    is_known = fit.failure is FitFailure.TOO_LITTLE and fit.pods > 1 and len(fit.missing) == 1
    if pod is None or not is_known:
        return ()
    return one_choice(*_edits_to_request_share(pod, catalogue.resource_mapping, fit.free_part))


def _edits_to_request_share(pods: WorkloadPods, mapping: ResourceMapping, part: Fraction) -> Edits:
    """Return the edits of the object; empty where a part is requested in no field of it."""
    edits = edits_to_request_share(pods.pod, mapping, part)
    located = tuple(Edit(pods.located(edit.path), edit.value) for edit in edits)
    return located if all(edit.path for edit in located) else ()


def _fewer_edit(fit: FitResult, workload: Workload, *, now: bool) -> Edit | None:
    """Return the number of pods by which all fit, `now` or in an unused quota; an autoscaler has a field of its own for it."""
    fewer = ((field, numbers[not now]) for field, numbers in fit.fewer.items() if numbers[not now])
    field, number = next(fewer, ("", 0))
    return Edit(_MAXIMUM_FIELD.get((workload.group, workload.kind), field), number) if number else None


_MAXIMUM_FIELD = {
    ("autoscaling", "HorizontalPodAutoscaler"): "spec.maxReplicas",
    ("keda.sh", "ScaledObject"): "spec.maxReplicaCount",
}
"""The field with the maximum of pods, by kind of the autoscaler."""
