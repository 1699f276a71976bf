"""Fixes of a workload whose pods do not all fit a quota: a smaller pod, or fewer pods."""

from fractions import Fraction
from functools import partial
from math import floor
from typing import NamedTuple

from policies.finding import Edit, Edits, together
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.pinning import pinning
from policies.pods.workload import Workload, WorkloadPods
from policies.quota.amounts import CLASSES, GPUS
from policies.quota.demand import Catalogue
from policies.quota.fit import FitFailure, FitResult
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.shortage import WAIT_UNTIL_FREE, edits_to_request_part
from policies.quota.shortage_facts import amounts_in_words


class Advice(NamedTuple):
    """The field that a warning is about, and how to change it; in words where the edits do not say it."""

    path: str
    choices: tuple[Edits, ...] = ()
    remedy: str = ""


def smaller_pod(fit: FitResult, workload: Workload, ledger: QuotaLedger, catalogue: Catalogue) -> Advice:
    """Return the advice for a pod that exceeds the whole quota: it must fit all limits of classes on which it could run.

    All its pods fit then, or else one, where a field says how many and they need not run together. In words if several containers
    request GPUs: which of them requests less is for its author to choose.
    """
    pod = next((each for each in (workload.target or workload).pods if each.path == fit.path), None)
    fewer = _fewer_edit(fit, workload, now=False)
    if pod is None:
        return Advice(fewer.path, together(fewer)) if fewer else Advice(fit.path)
    is_unpinned = fit.key.startswith(CLASSES) and pinning(pod.admitted, catalogue.classes) is None
    limits = [
        limit
        for key, limit in ledger.maximum_hard.items()
        if key == GPUS or (is_unpinned and key.startswith(CLASSES))
    ]
    of_one = fit.needed / fit.pods
    part, pods = min([fit.hard, *limits]) / of_one, max(pod.count.gang or pod.count.running or 1, 1)
    request_part = partial(_request_part, pod, catalogue.resource_mapping)
    fix, number = request_part(part / pods), pod.count.number
    if not fix and fewer:
        return Advice(fewer.path, together(fewer))
    if not fix and number and not pod.count.gang and (fix := request_part(part / number.each)):
        fix, pods = (*fix, Edit(_MAXIMUM.get((workload.group, workload.kind), number.path), 1)), number.each
    containers = {edit.path.partition(".resources.")[0] for edit in fix if ".resources." in edit.path}
    at_most = {fit.key: Fraction(floor(part / pods * of_one))}
    spread = f"request {amounts_in_words(at_most)} or fewer" if len(containers) > 1 else ""
    one_pod = f" and {fix[-1].words}" if spread and ".resources." not in fix[-1].path else ""
    return Advice(fit.path, together(*fix), spread + one_pod)


def fewer_pods(fit: FitResult, workload: Workload) -> Advice:
    """Return the advice to set a number of pods. The fix is the number of pods that can start now.

    If none can, the remedy is the number that fits an unused quota.
    """
    path = _MAXIMUM.get((workload.group, workload.kind), "") if workload.target else fit.path
    if fit.failure is FitFailure.TOO_LITTLE_TO_GROW and not workload.target:
        return Advice(path)
    if edit := _fewer_edit(fit, workload, now=True):
        return Advice(edit.path, together(edit))
    if edit := _fewer_edit(fit, workload, now=False):
        return Advice(edit.path, together(edit), f"{edit.words} or less, {WAIT_UNTIL_FREE}")
    return Advice(path)


def smaller_now(fit: FitResult, workload: Workload, catalogue: Catalogue) -> tuple[Edits, ...]:
    """Return the choice by which all of several pods fit beside the usage of others: each requests less. Empty without one."""
    pod = next((each for each in workload.pods if each.path == fit.path), None)
    is_known = fit.failure is FitFailure.TOO_LITTLE and fit.pods > 1 and len(fit.missing) == 1
    if pod is None or not is_known:
        return ()
    return together(*_request_part(pod, catalogue.resource_mapping, fit.free_part))


def _request_part(pods: WorkloadPods, mapping: ResourceMapping, part: Fraction) -> Edits:
    """Return the edits of the object; empty where a part is requested in no field of it."""
    edits = edits_to_request_part(pods.pod, mapping, part)
    located = tuple(Edit(pods.located(each.path), each.value) for each in edits)
    return located if all(each.path for each in located) else ()


def _fewer_edit(fit: FitResult, workload: Workload, *, now: bool) -> Edit | None:
    """Return the number of pods by which all fit, `now` or in an unused quota; an autoscaler has a field of its own for it."""
    fewer = ((field, numbers[not now]) for field, numbers in fit.fewer.items() if numbers[not now])
    field, number = next(fewer, ("", 0))
    return Edit(_MAXIMUM.get((workload.group, workload.kind), field), number) if number else None


_MAXIMUM = {
    ("autoscaling", "HorizontalPodAutoscaler"): "spec.maxReplicas",
    ("keda.sh", "ScaledObject"): "spec.maxReplicaCount",
}
"""The field with the maximum of pods, by kind of the autoscaler."""
