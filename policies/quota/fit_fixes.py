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


def smaller_pod(
    fit: FitResult,
    workload: Workload,
    ledger: QuotaLedger,
    catalogue: Catalogue,
) -> Advice:
    """Return the advice for a pod that exceeds the whole quota: it must fit all limits of classes on which it could run.

    All its pods fit then, or else one, where a field says how many and they need not run together. In words if several containers
    request GPUs: which of them requests less is for its author to choose.
    """
    pod = next((each for each in (workload.target or workload).pods if each.path == fit.path), None)
    if pod is None:
        return Advice(fit.path)
    is_unpinned = fit.key.startswith(CLASSES) and pinning(pod.admitted, catalogue.classes) is None
    limits = [
        limit
        for key, limit in ledger.maximum_hard.items()
        if key == GPUS or (is_unpinned and key.startswith(CLASSES))
    ]
    of_one = fit.needed / fit.pods
    part, pods = min([fit.hard, *limits]) / of_one, max(pod.count.gang or pod.count.running or 1, 1)
    request_part = partial(_request_part, pod, catalogue.resource_mapping)
    fix, field = request_part(part / pods), number_of_pods(workload)
    if not fix and field and not pod.count.gang and (fix := request_part(part)):
        fix, pods = (*fix, Edit(field, 1)), 1
    containers = {edit.path.partition(".resources.")[0] for edit in fix if ".resources." in edit.path}
    at_most = {fit.key: Fraction(floor(part / pods * of_one))}
    spread = f"request {amounts_in_words(at_most)} or fewer" if len(containers) > 1 else ""
    fewer = f" and set {field.rpartition('.')[2]}: 1" if spread and fix[-1].path == field else ""
    return Advice(fit.path, together(*fix), spread + fewer)


def fewer_pods(fit: FitResult, workload: Workload) -> Advice:
    """Return the advice to set a number of pods. The fix is the number of pods that can start now.

    If none can, the remedy is the number that fits an unused quota.
    """
    field = number_of_pods(workload)
    path = field if workload.target else fit.path
    edit = Edit(field, fit.starting or fit.fitting)
    grows_itself = fit.failure is FitFailure.TOO_LITTLE_TO_GROW and not workload.target
    if grows_itself or not field or not 0 < (fit.starting or fit.fitting) < fit.pods:
        return Advice(path)
    if fit.starting:
        return Advice(field, together(edit))
    return Advice(field, together(edit), f"{edit.words} or less, {WAIT_UNTIL_FREE}")


def smaller_now(fit: FitResult, workload: Workload, catalogue: Catalogue) -> tuple[Edits, ...]:
    """Return the choice by which all of several pods fit beside the usage of others: each requests less. Empty without one."""
    pod = next((each for each in workload.pods if each.path == fit.path), None)
    is_known = fit.failure is FitFailure.TOO_LITTLE and fit.pods > 1 and len(fit.missing) == 1
    if pod is None or not is_known:
        return ()
    return together(*_request_part(pod, catalogue.resource_mapping, fit.left / fit.needed))


def _request_part(pods: WorkloadPods, mapping: ResourceMapping, part: Fraction) -> Edits:
    """Return the edits of the object; empty where a part is requested in no field of it."""
    edits = edits_to_request_part(pods.pod, mapping, part)
    located = tuple(Edit(pods.located(each.path), each.value) for each in edits)
    return located if all(each.path for each in located) else ()


def number_of_pods(workload: Workload) -> str:
    """Return the field with the number of pods; "" without one."""
    return _NUMBER_OF_PODS.get((workload.group, workload.kind), "")


_NUMBER_OF_PODS = {
    ("", "ReplicationController"): "spec.replicas",
    ("apps", "Deployment"): "spec.replicas",
    ("apps", "ReplicaSet"): "spec.replicas",
    ("apps", "StatefulSet"): "spec.replicas",
    ("argoproj.io", "Rollout"): "spec.replicas",
    ("autoscaling", "HorizontalPodAutoscaler"): "spec.maxReplicas",
    ("batch", "CronJob"): "spec.jobTemplate.spec.parallelism",
    ("batch", "Job"): "spec.parallelism",
    ("keda.sh", "ScaledObject"): "spec.maxReplicaCount",
}
"""The field with the number of pods, or with their maximum, by kind."""
