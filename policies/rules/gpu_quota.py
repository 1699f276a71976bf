"""Keep a namespace from holding more GPUs than its GPUQuota and its team grant.

Reads:   the demand of the pod or ResourceClaim (policies.quota.demand), and the answer of the quota of its namespace.
Denies:  a new pod, a change of one, or a new ResourceClaim for which `used + reserved + requested ≤ hard` does not hold; with
         `required` also every GPU pod and claim in a namespace without a quota. And each of them while the budget of GPU-hours
         of something that it needs is spent.
Warns:   in every mode, about a ResourceClaimTemplate whose claims could never fit, and about a workload or autoscaler whose pods
         do not all fit, or whose rolling update could not finish (policies.quota.fit). Where pods wait in line, it says so. And
         that a budget of GPU-hours is spent soon.

Runs last, in the validation of creations and of pod updates, and only if no other rule denies. Of an update, only the increase
of demand has to fit. Templates have no demand. In modes warn and audit, it reserves what fits, and only reports the rest.
"""

from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from functools import partial

from msgspec.structs import replace

from policies.finding import PLATFORM_TEAM, Edit, Finding, Reason, Severity
from policies.gpus.amount import INVALID_QUANTITY
from policies.gpus.claims import ResourceClaim, ResourceClaimTemplate
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.pinning import pinning
from policies.pods.annotations import INVALID_ANNOTATION
from policies.pods.field_paths import value_at
from policies.pods.workload import Workload
from policies.quota.amounts import CLASSES, GPUS, NOTHING, exceeds, format_amount, unit
from policies.quota.budget_findings import BUDGET_LOW, BUDGET_SPENT, of_reservation, of_workload
from policies.quota.claims import PROTECTED_CLAIM, claim_demand
from policies.quota.demand import RULE_ID, UNCLASSIFIED_POD, UNCOUNTABLE_DEVICES
from policies.quota.fit import FitFailure, FitResult, fit_result
from policies.quota.ledger.decide import VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import team_title
from policies.quota.line_findings import (
    OTHERS_WAIT,
    QUEUE_FULL,
    QUOTA_QUEUED,
    UNWANTED_GATE,
    how_many,
    in_line,
    queued,
    why_not_queued,
)
from policies.quota.quota_request import LedgerError, QuotaRequest, ReservationOutcome
from policies.quota.shortage import (
    LEDGER_FULL,
    LEDGER_UNREADABLE,
    NOT_STORED,
    QUOTA_CAN_NEVER_FIT,
    QUOTA_EXCEEDED,
    QUOTA_NOT_COUNTED,
    QUOTA_RECALCULATING,
    WAIT_UNTIL_FREE,
    ClassPins,
    edits_to_request_part,
    exceeded,
    grants,
    largest_namespaces,
    undecided,
)
from policies.quota.spec import CHARGED_WHILE_WAITING, INEFFECTIVE_QUOTA, NAME, hard_field
from policies.quota.waiting import OnExceeded
from policies.rule import Context, Mode, Rule, RuleOptions
from policies.rules.parallelism import depends_on_gpu_count

QUOTA_MISSING = Reason("QuotaMissing", "the policy requires a GPUQuota, and the namespace has none")
LEDGER_UNREACHABLE = Reason("LedgerUnreachable", "the ledger of the quota could not be read or written")


class OnLedgerError(Enum):
    """What happens to a pod or claim if the ledger of its quota cannot be read or written in time."""

    DENY = "deny"
    ALLOW = "allow"


class GPUQuotaOptions(RuleOptions, frozen=True, kw_only=True):
    """`required` denies GPUs without a quota. With `onLedgerError: allow` a quota can be exceeded, with a warning.

    With `onExceeded: Queue`, a new pod that does not fit now waits under a scheduling gate instead of being denied, unless
    `trustKueue` is true and Kueue has admitted it.
    """

    required: bool = False
    on_exceeded: OnExceeded = OnExceeded.DENY
    on_ledger_error: OnLedgerError = OnLedgerError.DENY
    trust_kueue: bool = True

    @property
    def lets_wait(self) -> bool:
        """Whether pods that exceed the quota wait in line, instead of being denied."""
        return self.mode is Mode.ENFORCE and self.on_exceeded is OnExceeded.QUEUE


def queues(options: RuleOptions) -> bool:
    """Whether pods that do not fit now wait in line, while the rule is enforced."""
    return isinstance(options, GPUQuotaOptions) and options.on_exceeded is OnExceeded.QUEUE


def check_reservation(
    outcome: ReservationOutcome | LedgerError,
    request: QuotaRequest,
    options: GPUQuotaOptions,
    namespace: str,
    now: datetime,
    class_pins: ClassPins = lambda _pod: {},
    *,
    would_wait: bool = False,
) -> Iterator[Finding]:
    """Yield the finding if the quota of the namespace denies the request, or cannot decide.

    `would_wait`: a pod that does not fit now would get the scheduling gate, if this were not only an evaluation or a dry run.
    """
    if isinstance(outcome, LedgerError):
        failure = partial(Finding, rule=RULE_ID, reason=LEDGER_UNREACHABLE)
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
            yield Finding(rule=RULE_ID, reason=QUOTA_MISSING, message=message, ask=ask)
    elif outcome.request is None or verdict is None or verdict.allowed or verdict.is_spent:
        yield from of_reservation(namespace, outcome, now)
    elif verdict.reason is VerdictReason.REFUSED:
        yield from outcome.request.denials
    elif would_wait and verdict.must_wait:
        yield queued(namespace, outcome, now)
    elif verdict.reason in _IN_LINE:
        joins = queues(options) and request.before is None
        found = in_line(namespace, verdict.reason, ledger, outcome.request, joins=joins)
        yield replace(found, details=tuple(why_not_queued(request, queues=queues(options))))
    elif verdict.reason is VerdictReason.EXCEEDED:
        because = outcome.request.because
        found = exceeded(namespace, ledger, verdict.shortfalls, because, request, now, class_pins)
        is_safe = request.pod is None or not depends_on_gpu_count(request.pod)
        details = (
            (*found.details, *why_not_queued(request, queues=queues(options)))
            if verdict.must_wait
            else found.details
        )
        yield replace(found, fix=found.fix if is_safe else (), details=details)
    else:
        yield undecided(namespace, ledger, verdict.reason)


_IN_LINE = frozenset({VerdictReason.OTHERS_WAIT, VerdictReason.QUEUE_FULL, VerdictReason.NOT_HELD})


def check_claim_template(template: ResourceClaimTemplate, context: Context) -> Iterator[Finding]:
    """Warn about a template whose claims could never fit the quota of its namespace."""
    ledger, claim = context.ledger, ResourceClaim(spec=template.spec.spec if template.spec else None)
    if ledger is None:
        return
    demand = claim_demand(claim, context, ledger.unclassified_pods, "spec.spec")
    for denial in demand.denials:
        yield replace(denial, severity=Severity.WARNING)
    if excesses := exceeds(demand.vector, ledger.maximum_hard):
        # In the words of ResourceQuota.
        requested = ", ".join(f"{each.key}={format_amount(each.amount)}" for each in excesses)
        limited = ", ".join(f"{each.key}={format_amount(each.hard)}" for each in excesses)
        yield Finding(
            rule=RULE_ID,
            reason=QUOTA_CAN_NEVER_FIT,
            severity=Severity.WARNING,
            path="spec.spec.devices.requests",
            message=f"no claim of this template can ever fit the quota, requested: {requested}, limited: {limited}",
            remedy="request fewer devices",
        )
    options = context.options_of(RULE_ID)
    if demand.vector and not excesses and isinstance(options, GPUQuotaOptions) and options.lets_wait:
        message = "claims do not wait in line for quota: while it has no room, they are denied and their pods stay pending"
        yield Finding(
            rule=RULE_ID,
            reason=QUOTA_QUEUED,
            severity=Severity.WARNING,
            path="spec.spec.devices.requests",
            message=message,
        )


def check_workload(workload: Workload, options: GPUQuotaOptions, context: Context) -> Iterator[Finding]:
    """Warn about a workload whose pods do not all fit the quota. Uses `context.ledger` only if `needs_ledger`."""
    ledger = context.ledger
    if ledger is not None and needs_ledger(workload, context.resource_mapping):
        found = fit_result(workload, ledger, context, is_stored=context.is_update)
        if found is not None:
            yield from _fit_warning(found, workload, context, options)
        yield from of_workload(workload, ledger, context, context.namespace)
        if options.lets_wait:
            is_behind = found is None and ledger.pods_before and not context.is_update
            yield from _line_advice(workload, context, ledger.pods_before if is_behind else 0)


def needs_ledger(workload: Workload, mapping: ResourceMapping) -> bool:
    """Whether the check of the workload depends on the quota. An object with an owner is not checked, because its owner was."""
    pods = (workload.target or workload).pods
    return not workload.metadata.controlled_by and any(mapping.pod_requests_gpus(each.pod) for each in pods)


RULE = Rule(
    id=RULE_ID,
    reasons=(
        INVALID_QUANTITY,
        INVALID_ANNOTATION,
        QUOTA_EXCEEDED,
        QUOTA_CAN_NEVER_FIT,
        BUDGET_SPENT,
        BUDGET_LOW,
        QUOTA_QUEUED,
        OTHERS_WAIT,
        UNWANTED_GATE,
        NOT_STORED,
        QUEUE_FULL,
        QUOTA_MISSING,
        QUOTA_NOT_COUNTED,
        QUOTA_RECALCULATING,
        LEDGER_UNREACHABLE,
        LEDGER_UNREADABLE,
        LEDGER_FULL,
        CHARGED_WHILE_WAITING,
        INEFFECTIVE_QUOTA,
        UNCOUNTABLE_DEVICES,
        UNCLASSIFIED_POD,
        PROTECTED_CLAIM,
    ),
    summary="a namespace holds no more GPUs than its GPUQuota and its team grant",
    options=GPUQuotaOptions,
    check_claim_template=check_claim_template,
    check_workload=check_workload,
    on_update=True,
    not_exported="it counts all pods of a namespace, and CEL sees one object at a time",
)


def _fit_warning(
    found: FitResult, workload: Workload, context: Context, options: GPUQuotaOptions
) -> Iterator[Finding]:
    """Yield the warning. It says how many pods will start, or that the rule is in a mode that denies nothing."""
    mode, namespace = options.mode, context.namespace
    is_enforced, is_impossible = mode is Mode.ENFORCE, found.needed > found.hard
    waits = options.lets_wait and not is_impossible
    runs, failure = workload.target or workload, found.failure
    if options.lets_wait and is_impossible and runs.starts_together and failure is FitFailure.TOO_LITTLE:
        failure = FitFailure.GANG_TOO_LARGE
    amount = f"{format_amount(found.needed)} {unit(found.key, found.needed)}"
    whose, granted, free = _limits(found, namespace)
    never_fits = f"{amount}, which can never fit: {granted}"
    warning = partial(
        Finding,
        rule=RULE_ID,
        reason=QUOTA_CAN_NEVER_FIT if is_impossible else _FIT_REASONS[waits],
        severity=Severity.WARNING,
        path=found.path,
        contact=(found.share.team.contact if found.share else "") or PLATFORM_TEAM,
    )
    ask = f"to raise {hard_field(found.key)}{f' of {whose}' if found.share else ''}"
    match failure:
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
            effect = "which will wait in line" if waits else "and will not finish"
            facts = (
                f"an update needs {amount} for a pod beside the others, {effect}: {whose} will have {free}"
            )
            made = warning(path="spec.strategy", message=facts, remedy=remedy)
        case _:
            path, fix, remedy = (found.path, (), "") if waits else _fewer_pods(found, workload)
            facts = f"needs {never_fits};" if is_impossible else f"needs {amount}; {whose} has {free}:"
            if found.failure is FitFailure.TOO_LITTLE_TO_GROW:
                facts = f"may grow to {found.pods} pods and then {facts}"
            starting = f"{found.starting} of {found.pods} pods will start"
            if options.lets_wait:
                starting = _starting_in_line(starting, found, workload, context.ledger)
            message = f"{facts} {starting}" if is_enforced else facts[:-1]
            ask = ask if is_impossible else ""
            made = warning(
                path=path, message=message, fix=fix, remedy=remedy, ask=ask, details=_largest(found)
            )
    if not is_enforced:
        made = replace(made, message=f"{made.message}; {RULE_ID} is in mode {mode.value} and denies nothing")
    yield made


def _limits(found: FitResult, namespace: str) -> tuple[str, str, str]:
    """Return what has too little, what it grants, and how much of that is free."""
    whose, hard, granted = (
        namespace,
        found.hard,
        f"the GPUQuota of {namespace} grants {format_amount(found.hard)} in all",
    )
    if found.share is not None:
        whose, hard = team_title(found.share.team.name), found.share.team.hard[found.key]
        granted = f"{whose} {grants(hard, found.share.guaranteed_to_others.get(found.key, NOTHING))}"
    return whose, granted, f"{format_amount(found.left)} of {format_amount(hard)} free"


def _largest(found: FitResult) -> tuple[str, ...]:
    """Return who has the most of a team that has too little."""
    largest = largest_namespaces(found.share, found.key) if found.share else ""
    return (f"largest namespaces of {_limits(found, '')[0]}: {largest}",) if largest else ()


_FIT_REASONS = {False: QUOTA_EXCEEDED, True: QUOTA_QUEUED}


def _starting_in_line(starting: str, found: FitResult, workload: Workload, ledger: QuotaLedger | None) -> str:
    """Return which pods will start, and which wait in line. `starting` says how many start where nobody waits."""
    waiting = ledger.pods_before if ledger else 0
    if (workload.target or workload).waits_whole and found.pods > 1:
        starting = "its pods will wait in line until enough of them fit to run together"
    elif found.starting and not waiting:
        starting = f"{starting}, and the others will wait in line"
    else:
        starting = "its pods will wait in line"
    return starting + (f", {how_many(waiting)} before them" if waiting else "") + _deadline(workload)


def _line_advice(workload: Workload, context: Context, before: int) -> Iterator[Finding]:
    """Yield what may surprise where pods wait in line. `before`: so many pods go before those of the workload, which fit."""
    warning = partial(Finding, rule=RULE_ID, reason=QUOTA_QUEUED, severity=Severity.WARNING)
    pods = [each for each in workload.pods if each.count.running]
    if pods and before:
        message = f"its pods will wait in line, {how_many(before)} before them{_deadline(workload)}"
        yield warning(path=pods[0].path, message=message)
    for each in pods:
        if each.pod.spec.resource_claims and context.resource_mapping.names_gpus(each.pod):
            message = (
                "pods with ResourceClaims do not wait in line: they are denied while the quota has no room"
            )
            yield warning(path=f"{each.path}.spec.resourceClaims", message=message)
    is_cron_job = (workload.group, workload.kind) == ("batch", "CronJob")
    policy, deadline = (value_at(workload.data, path) for path in _CRON_JOB)
    if pods and is_cron_job and policy in {None, "Allow"} and not deadline:
        message = "Jobs that wait in line for quota pile up, because each schedule adds one"
        yield warning(path="spec.concurrencyPolicy", message=message, remedy="set concurrencyPolicy: Forbid")


_CRON_JOB = ("spec", "concurrencyPolicy"), ("spec", "jobTemplate", "spec", "activeDeadlineSeconds")


def _deadline(workload: Workload) -> str:
    """Return that the deadline of a Job counts also while its pods wait, "" if it has none."""
    seconds = value_at(workload.data, ("spec", "activeDeadlineSeconds"))
    is_job = (workload.group, workload.kind) == ("batch", "Job")
    return f"; activeDeadlineSeconds: {seconds} counts meanwhile" if is_job and seconds else ""


def _smaller_pod(found: FitResult, workload: Workload, context: Context) -> tuple[tuple[Edit, ...], str]:
    """Return fix and remedy of a pod that fits the whole quota, also its limits of other classes on which it could run."""
    pod = next((each for each in (workload.target or workload).pods if each.path == found.path), None)
    if pod is None:
        return (), ""
    hard = context.ledger.maximum_hard if context.ledger else {}
    is_open = found.key.startswith(CLASSES) and pinning(pod.admitted, context.classes) is None
    limits = [of for key, of in hard.items() if key == GPUS or (is_open and key.startswith(CLASSES))]
    part = min([found.hard, *limits]) / found.needed
    fix = edits_to_request_part(pod.pod, context.resource_mapping, part, f"{found.path}.")
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
    return (field, (edit,), "") if found.starting else (field, (), f"{edit.words} or less, {WAIT_UNTIL_FREE}")


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
