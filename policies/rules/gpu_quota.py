"""Keep a namespace from holding more GPUs than its GPUQuota grants.

Reads:   the demand of the pod or ResourceClaim (policies.quota.demand), and the answer of the quota of its namespace.
Denies:  a new pod, a change of one, or a new ResourceClaim for which `used + reserved + requested ≤ hard` does not hold; with
         `required` also every GPU pod and claim in a namespace without a GPUQuota.
Warns:   in every mode, about a ResourceClaimTemplate whose claims could never fit, and about a workload or autoscaler whose pods
         do not all fit, or whose rolling update could not finish (policies.quota.fit).

Runs last, in the validation of creations and of pod updates, and only if no other rule denies. Of an update, only the increase
of demand has to fit. Templates have no demand. In modes warn and audit, it reserves what fits, and only reports the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from fractions import Fraction
from functools import partial

from msgspec.structs import replace

from policies.finding import Edit, Finding, Reason, Severity
from policies.gpus.claims import ResourceClaimTemplate
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.pinning import pinning
from policies.pods.workload import Workload, WorkloadPods
from policies.quota.amounts import CLASSES, GPUS, format_amount, unit
from policies.quota.claims import template_findings
from policies.quota.demand import RULE_ID
from policies.quota.fit import FitFailure, FitResult, fit_result
from policies.quota.ledger.decide import VerdictReason
from policies.quota.quota_request import LedgerError, QuotaRequest, ReservationOutcome
from policies.quota.shortage import AND_WAIT, RELEASE_SECONDS, ClassPins, exceeded, fewer
from policies.quota.spec import NAME, hard_field
from policies.rule import Context, Mode, Rule, RuleOptions
from policies.rules.parallelism import depends_on_gpu_count


class OnLedgerError(Enum):
    """What happens to a pod or claim if the ledger of its quota cannot be read or written in time."""

    DENY = "deny"
    ALLOW = "allow"


class GPUQuotaOptions(RuleOptions, frozen=True, kw_only=True):
    """`required` denies GPUs without a quota. With `onLedgerError: allow` a quota can be exceeded, with a warning."""

    required: bool = False
    on_ledger_error: OnLedgerError = OnLedgerError.DENY


def check_reservation(
    outcome: ReservationOutcome | LedgerError,
    request: QuotaRequest,
    options: GPUQuotaOptions,
    namespace: str,
    now: datetime,
    class_pins: ClassPins = lambda _pod: {},
) -> Iterator[Finding]:
    """Yield the finding if the quota of the namespace denies the request, or cannot decide."""
    if isinstance(outcome, LedgerError):
        failure = partial(Finding, rule=RULE_ID, reason=Reason.LEDGER_UNREACHABLE)
        if options.on_ledger_error is OnLedgerError.ALLOW:
            message = f"admitted without a quota check, which failed: {outcome}"
            yield failure(severity=Severity.WARNING, message=message)
        else:
            message = f"the quota could not be checked: {outcome}"
            yield failure(message=message, remedy="try again", ask="if it persists")
        return
    ledger, verdict = outcome.ledger, outcome.verdict
    if ledger is None:
        if options.required and request.asks_for_gpus:
            message = f"namespace {namespace} must have a GPUQuota for pods and claims that request GPUs"
            ask = f"for a GPUQuota named {NAME}"
            yield Finding(rule=RULE_ID, reason=Reason.QUOTA_MISSING, message=message, ask=ask)
    elif outcome.request is None or verdict is None or verdict.allowed:
        return
    elif verdict.reason is VerdictReason.REFUSED:
        yield from outcome.request.denials
    elif verdict.reason is VerdictReason.EXCEEDED:
        because = outcome.request.because
        found = exceeded(namespace, ledger, verdict.shortfalls, because, request, now, class_pins)
        is_safe = request.pod is None or not depends_on_gpu_count(request.pod)
        yield found if is_safe else replace(found, fix=())
    else:
        reason, message, remedy, if_it_persists = _UNDECIDED[verdict.reason]
        message = f"quota {namespace}/{NAME} {message}; if it persists, {if_it_persists}"
        yield Finding(rule=RULE_ID, reason=reason, message=message, remedy=remedy)


def check_claim_template(template: ResourceClaimTemplate, context: Context) -> Iterator[Finding]:
    """Warn about a template whose claims could never fit the quota of its namespace."""
    if (grant := context.grant) is not None:
        yield from template_findings(template, grant.hard, context, grant.unclassified_pods)


def check_workload(workload: Workload, options: GPUQuotaOptions, context: Context) -> Iterator[Finding]:
    """Warn about a workload whose pods do not all fit the quota. Uses `context.grant` only if `needs_grant`."""
    if context.grant is not None and needs_grant(workload, context.resource_mapping):
        found = fit_result(workload, context.grant, context, is_stored=context.is_update)
        if found is not None:
            yield from _fit_warning(found, workload, context, options.mode)


def needs_grant(workload: Workload, mapping: ResourceMapping) -> bool:
    """Whether the check of the workload depends on the quota. An object with an owner is not checked, because its owner was."""
    pods = (workload.target or workload).pods
    return not workload.metadata.is_owned and any(mapping.pod_requests_gpus(each.pod) for each in pods)


RULE = Rule(
    id=RULE_ID,
    summary="a namespace holds no more GPUs than its GPUQuota grants",
    options=GPUQuotaOptions,
    check_claim_template=check_claim_template,
    check_workload=check_workload,
    on_update=True,
    not_exported="it counts all pods of a namespace, and CEL sees one object at a time",
)


_UNDECIDED: Mapping[VerdictReason, tuple[Reason, str, str, str]] = {
    VerdictReason.UNCOUNTED: (
        Reason.QUOTA_NOT_COUNTED,
        "has not been counted yet: it, or a dimension of it, is new",
        "try again in some seconds",
        "see its conditions and the log of `gpu-admission controller`",
    ),
    VerdictReason.OTHER_CATALOGUE: (
        Reason.QUOTA_RECALCULATING,
        "is being recalculated: this replica cannot read the GPUClasses or resource names by which it was counted",
        f"try again in some seconds, at most {RELEASE_SECONDS} while creations are in flight",
        "see its conditions and the log of `gpu-admission controller`, which publishes what replicas must read",
    ),
    VerdictReason.UNREADABLE: (
        Reason.LEDGER_UNREADABLE,
        "cannot be decided: its ledger has reservations that cannot be read",
        f"try again in {RELEASE_SECONDS} s, within which the controller drops them",
        "see its condition Ready and the log of `gpu-admission controller`",
    ),
    VerdictReason.FULL: (
        Reason.LEDGER_FULL,
        "cannot hold more reservations than it has now",
        f"try again in {RELEASE_SECONDS} s, within which each is counted or dropped",
        "`gpu-admission controller` is not running",
    ),
}
"""For a ledger that cannot decide: reason, message, remedy, and what to do if it persists."""


def _fit_warning(found: FitResult, workload: Workload, context: Context, mode: Mode) -> Iterator[Finding]:
    """Yield the warning. It says how many pods will start, or that the rule is in a mode that denies nothing."""
    namespace = context.namespace
    needs, hard = _count(found.key, found.needed), format_amount(found.hard)
    grants = f"the GPUQuota of {namespace} grants {hard} in all"
    free = f"{format_amount(found.left)} of {hard} free"
    path, remedy, ask = found.path, "", f"to raise {hard_field(found.key)}"
    fix: tuple[Edit, ...] = ()
    is_denied = mode is Mode.ENFORCE
    match found.failure:
        case FitFailure.POD_TOO_LARGE:
            pods = [each for each in (workload.target or workload).pods if each.path == found.path]
            part = min(found.hard, *_granted(found, pods, context)) / found.needed
            fix = fewer(pods[0].pod, context.resource_mapping, part, f"{found.path}.") if pods else ()
            if fix and depends_on_gpu_count(pods[0].pod):
                remedy, fix = fix[0].words, ()
            facts = f"a pod needs {needs}, which can never fit: {grants}"
        case FitFailure.GANG_TOO_LARGE:
            facts = f"{found.pods} pods that must run together need {needs}, which can never fit: {grants}"
        case FitFailure.NO_SURGE:
            if not is_denied:
                return
            path, remedy, ask = "spec.strategy", "set type: Recreate, or rollingUpdate.maxUnavailable: 1", ""
            if found.starting:
                remedy += f", or replicas: {found.starting}"
            facts = f"an update needs {needs} for a pod beside the others, and will not finish: {namespace} will have {free}"
        case _:
            is_growth = found.failure is FitFailure.TOO_LITTLE_TO_GROW
            subject = f"may grow to {found.pods} pods and then " if is_growth else ""
            path = _MAXIMUM.get(workload.kind, path)
            path, fix, remedy = _fewer_pods(found, workload, path)
            facts = f"{subject}needs {needs}; {namespace} has {free}: "
            if found.needed > found.hard:
                facts = f"{subject}needs {needs}, which can never fit: {grants}; "
            else:
                ask = ""
            facts += f"{found.starting} of {found.pods} pods will start" if is_denied else ""
    if not is_denied:
        facts = f"{facts.rstrip(':; ')}; {RULE_ID} is in mode {mode.value} and denies nothing"
    yield Finding(
        rule=RULE_ID,
        reason=Reason.QUOTA_CAN_NEVER_FIT if found.needed > found.hard else Reason.QUOTA_EXCEEDED,
        severity=Severity.WARNING,
        path=path,
        message=facts,
        fix=fix,
        remedy=remedy,
        ask=ask,
    )


def _granted(found: FitResult, pods: Sequence[WorkloadPods], context: Context) -> Iterator[Fraction]:
    """Yield other limits that a smaller pod must also fit. They include all classes if a pod is not pinned to one."""
    hard = context.grant.hard if context.grant else {}
    yield from (of for key, of in hard.items() if key == GPUS)
    if found.key.startswith(CLASSES) and any(
        pinning(each.admitted, context.classes) is None for each in pods
    ):
        yield from (of for key, of in hard.items() if key.startswith(CLASSES))


def _fewer_pods(found: FitResult, workload: Workload, path: str) -> tuple[str, tuple[Edit, ...], str]:
    """Return the path, fix and remedy of a number of pods. The fix is the number of pods that can start now.

    If none can, the remedy is the number that fits an unused quota. Without a field for the number, the path is `path`.
    """
    field = _MAXIMUM.get(workload.kind, "") if workload.target else ""
    if not workload.target and found.failure is FitFailure.TOO_LITTLE:
        field = _PODS.get((workload.group, workload.kind), "")
    edit = Edit(field, found.starting or found.fitting)
    if not field or not 0 < (found.starting or found.fitting) < found.pods:
        return path, (), ""
    return (field, (edit,), "") if found.starting else (field, (), f"{edit.words} or less, {AND_WAIT}")


_PODS = {
    ("", "ReplicationController"): "spec.replicas",
    ("apps", "Deployment"): "spec.replicas",
    ("apps", "ReplicaSet"): "spec.replicas",
    ("apps", "StatefulSet"): "spec.replicas",
    ("argoproj.io", "Rollout"): "spec.replicas",
    ("batch", "CronJob"): "spec.jobTemplate.spec.parallelism",
    ("batch", "Job"): "spec.parallelism",
}
"""The field with the number of pods, by kind."""
_MAXIMUM = {"HorizontalPodAutoscaler": "spec.maxReplicas", "ScaledObject": "spec.maxReplicaCount"}


def _count(key: str, amount: Fraction) -> str:
    """Return an amount with what it counts: `32 nvidia-a100`, `1 GPU`."""
    return f"{format_amount(amount)} {unit(key, amount)}"
