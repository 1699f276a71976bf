"""Keep a namespace from holding more GPUs than its GPUQuota grants.

Reads:   the demand of the pod or ResourceClaim (policies.quota.demand), and the answer of the quota of its namespace.
Denies:  a new pod, a change of one, or a new ResourceClaim for which `used + reserved + requested ≤ hard` does not hold; with
         `required` also every GPU pod and claim in a namespace without a GPUQuota.
Warns:   in every mode, about a ResourceClaimTemplate whose claims could never fit, and about a workload or autoscaler whose pods
         do not all fit, or whose rolling update could not finish (policies.quota.fit).

Runs last, in the validation of creations and of pod updates, and only if no other rule denies. Of an update, only the increase
of demand has to fit. Templates have no demand. In modes warn and audit, it reserves what fits, and only reports the rest.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum
from functools import partial

from msgspec.structs import replace

from policies.finding import Edit, Finding, Reason, Severity
from policies.gpus.claims import ResourceClaim, ResourceClaimTemplate
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.pinning import pinning
from policies.pods.workload import Workload
from policies.quota.amounts import CLASSES, GPUS, exceeds, format_amount, unit
from policies.quota.claims import claim_demand
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
    grant, claim = context.grant, ResourceClaim(spec=template.spec.spec if template.spec else None)
    if grant is None:
        return
    demand = claim_demand(claim, context, grant.unclassified_pods, "spec.spec")
    for denial in demand.denials:
        yield replace(denial, severity=Severity.WARNING)
    if excesses := exceeds(demand.vector, grant.hard):
        # In the words of ResourceQuota.
        requested = ", ".join(f"{each.key}={format_amount(each.amount)}" for each in excesses)
        limited = ", ".join(f"{each.key}={format_amount(each.hard)}" for each in excesses)
        yield Finding(
            rule=RULE_ID,
            reason=Reason.QUOTA_CAN_NEVER_FIT,
            severity=Severity.WARNING,
            path="spec.spec.devices.requests",
            message=f"no claim of this template can ever fit the quota, requested: {requested}, limited: {limited}",
            remedy="request fewer devices",
        )


def check_workload(workload: Workload, options: GPUQuotaOptions, context: Context) -> Iterator[Finding]:
    """Warn about a workload whose pods do not all fit the quota. Uses `context.grant` only if `needs_grant`."""
    if context.grant is not None and needs_grant(workload, context.resource_mapping):
        found = fit_result(workload, context.grant, context, is_stored=context.is_update)
        if found is not None:
            yield from _fit_warning(found, workload, context, options.mode)


def needs_grant(workload: Workload, mapping: ResourceMapping) -> bool:
    """Whether the check of the workload depends on the quota. An object with an owner is not checked, because its owner was."""
    pods = (workload.target or workload).pods
    return not workload.metadata.controlled_by and any(mapping.pod_requests_gpus(each.pod) for each in pods)


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
    is_enforced, namespace = mode is Mode.ENFORCE, context.namespace
    is_impossible = found.needed > found.hard
    amount, hard = f"{format_amount(found.needed)} {unit(found.key, found.needed)}", format_amount(found.hard)
    never_fits = f"{amount}, which can never fit: the GPUQuota of {namespace} grants {hard} in all"
    free = f"{format_amount(found.left)} of {hard} free"
    warning = partial(
        Finding,
        rule=RULE_ID,
        reason=Reason.QUOTA_CAN_NEVER_FIT if is_impossible else Reason.QUOTA_EXCEEDED,
        severity=Severity.WARNING,
        path=found.path,
    )
    ask = f"to raise {hard_field(found.key)}"
    match found.failure:
        case FitFailure.POD_TOO_LARGE:
            fix, remedy = _smaller_pod(found, workload, context)
            made = warning(message=f"a pod needs {never_fits}", fix=fix, remedy=remedy, ask=ask)
        case FitFailure.GANG_TOO_LARGE:
            made = warning(message=f"{found.pods} pods that must run together need {never_fits}", ask=ask)
        case FitFailure.NO_SURGE:
            if not is_enforced:
                return
            remedy = "set type: Recreate, or rollingUpdate.maxUnavailable: 1"
            remedy += f", or replicas: {found.starting}" if found.starting else ""
            facts = f"an update needs {amount} for a pod beside the others, and will not finish: "
            made = warning(
                path="spec.strategy", message=f"{facts}{namespace} will have {free}", remedy=remedy
            )
        case _:
            path, fix, remedy = _fewer_pods(found, workload)
            facts = f"needs {never_fits};" if is_impossible else f"needs {amount}; {namespace} has {free}:"
            if found.failure is FitFailure.TOO_LITTLE_TO_GROW:
                facts = f"may grow to {found.pods} pods and then {facts}"
            starting = f" {found.starting} of {found.pods} pods will start"
            message = facts + starting if is_enforced else facts[:-1]
            ask = ask if is_impossible else ""
            made = warning(path=path, message=message, fix=fix, remedy=remedy, ask=ask)
    if not is_enforced:
        made = replace(made, message=f"{made.message}; {RULE_ID} is in mode {mode.value} and denies nothing")
    yield made


def _smaller_pod(found: FitResult, workload: Workload, context: Context) -> tuple[tuple[Edit, ...], str]:
    """Return fix and remedy of a pod that fits the whole quota, also its limits of other classes on which it could run."""
    pod = next((each for each in (workload.target or workload).pods if each.path == found.path), None)
    if pod is None:
        return (), ""
    hard = context.grant.hard if context.grant else {}
    is_open = found.key.startswith(CLASSES) and pinning(pod.admitted, context.classes) is None
    limits = [of for key, of in hard.items() if key == GPUS or (is_open and key.startswith(CLASSES))]
    part = min([found.hard, *limits]) / found.needed
    fix = fewer(pod.pod, context.resource_mapping, part, f"{found.path}.")
    return ((), fix[0].words) if fix and depends_on_gpu_count(pod.pod) else (fix, "")


def _fewer_pods(found: FitResult, workload: Workload) -> tuple[str, tuple[Edit, ...], str]:
    """Return the path, fix and remedy of a number of pods. The fix is the number of pods that can start now.

    If none can, the remedy is the number that fits an unused quota.
    """
    field = _NUMBER_OF_PODS.get((workload.group, workload.kind), "")
    path = field if workload.target else found.path
    edit = Edit(field, found.starting or found.fitting)
    grows_itself = found.failure is FitFailure.TOO_LITTLE_TO_GROW and not workload.target
    if grows_itself or not field or not 0 < (found.starting or found.fitting) < found.pods:
        return path, (), ""
    return (field, (edit,), "") if found.starting else (field, (), f"{edit.words} or less, {AND_WAIT}")


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
