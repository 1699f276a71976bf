"""Keep a namespace from holding more GPUs than its GPUQuota and its team grant.

Reads:   the demand of the pod or ResourceClaim (policies.quota.demand), and the answer of the quota of its namespace.
Denies:  a new pod, a change of one, or a new ResourceClaim for which `used + reserved + requested ≤ hard` does not hold; with
         `required` also every GPU pod and claim in a namespace without a quota. And each of them while the budget of GPU-hours
         of something that it needs is spent.
Warns:   in every mode, about a ResourceClaimTemplate whose claims could never fit, or whose selectors are not evaluated, and
         about a workload or autoscaler whose pods do not all fit, or whose rolling update could not finish (policies.quota.fit).
         Where pods wait in line, it says so. And that a budget of GPU-hours is spent soon.

Runs last, in the validation of creations and of pod updates, and only if no other rule denies. Of an update, only the increase
of demand has to fit. Templates have no demand. In modes warn and audit, it reserves what fits, and only reports the rest.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from functools import partial
from itertools import islice
from typing import ClassVar

from msgspec.structs import replace

from policies.finding import ContactEdit, Finding, Reason, Severity, Wait, separate_choices, warning
from policies.gpus.amount import INVALID_QUANTITY
from policies.gpus.claimed_devices import ResourceClaim, ResourceClaimTemplate
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.class_advice import MAX_CLASSES_NAMED
from policies.pods.annotations import INVALID_ANNOTATION
from policies.pods.pod import Pod
from policies.pods.workload import Workload
from policies.quota.amounts import exceeded_limits, format_amount
from policies.quota.budget_findings import BUDGET_LOW, BUDGET_SPENT, reservation_findings, workload_findings
from policies.quota.claim_demand import SELECTOR_IGNORED, claim_demand, ignored_selectors
from policies.quota.claim_protection import PROTECTED_CLAIM
from policies.quota.demand import UNCLASSIFIED_POD, UNCOUNTABLE_DEVICES, pod_demand
from policies.quota.fit import FitResult, fit_result
from policies.quota.fit_findings import fit_warning
from policies.quota.ledger.decide import VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.line_findings import (
    LEDGER_FULL,
    LEDGER_UNREADABLE,
    NOT_STORED,
    OTHERS_WAIT,
    QUEUE_FULL,
    QUOTA_NOT_COUNTED,
    QUOTA_QUEUED,
    QUOTA_RECALCULATING,
    UNWANTED_GATE,
    group_notes,
    line_advice,
    others_wait_denial,
    queued_warning,
    undecided_finding,
    why_not_queued,
)
from policies.quota.quota_request import LedgerError, QuotaRequest, ReservationOutcome
from policies.quota.shortage import (
    QUOTA_CAN_NEVER_FIT,
    QUOTA_EXCEEDED,
    Helps,
    exceeded_finding,
    helps_always,
)
from policies.quota.spec import CHARGED_WHILE_WAITING, INEFFECTIVE_QUOTA, NAME
from policies.quota.waiting import QUEUE_NAME, OnExceeded
from policies.rule import Context, Mode, Need, Rule, RuleOptions
from policies.rules.gpu_class import class_options, class_pins, edits_to_try

QUOTA_MISSING = Reason("QuotaMissing", "the policy requires a GPUQuota, and the namespace has none")
LEDGER_UNREACHABLE = Reason("LedgerUnreachable", "the ledger of the quota could not be read or written")

ID = "gpu-quota"
TRY_AGAIN_SECONDS = 10.0
MAX_WITHOUT_CLASS = 8
"""Templates of one object that are said to need a class: to name these takes as long as to count all of the object's pods."""


class OnLedgerError(Enum):
    """What happens to a pod or claim if the ledger of its quota cannot be read or written in time."""

    DENY = "deny"
    ALLOW = "allow"


class Kueue(Enum):
    """What the quota does with pods that Kueue has admitted."""

    LIMIT = "limit"
    """It limits them as it does any other."""
    RESPECT = "respect"
    """The controller starts them also beyond the quota. They count."""


class GPUQuotaOptions(RuleOptions, frozen=True, kw_only=True):
    """`required` denies GPUs without a quota. With `onLedgerError: allow` a quota can be exceeded, with a warning.

    With `onExceeded: Queue`, a new pod that does not fit now waits under a scheduling gate instead of being denied. With
    `kueue: respect`, what Kueue has admitted waits until the controller has seen that, and then starts also beyond the quota.
    """

    removed: ClassVar[Mapping[str, str]] = {
        "trustKueue": "must be removed, or replaced by kueue: respect: else what Kueue has admitted waits as any other pod"
    }
    required: bool = False
    on_exceeded: OnExceeded = OnExceeded.DENY
    on_ledger_error: OnLedgerError = OnLedgerError.DENY
    kueue: Kueue = Kueue.LIMIT

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.respects_kueue and not self.queues_pods:
            yield (
                "kueue",
                "must be limit without onExceeded: Queue: the controller starts what Kueue has admitted",
            )

    @property
    def queues_pods(self) -> bool:
        return self.on_exceeded is OnExceeded.QUEUE

    @property
    def respects_kueue(self) -> bool:
        return self.kueue is Kueue.RESPECT


def check_reservation(
    outcome: ReservationOutcome | LedgerError,
    request: QuotaRequest,
    options: GPUQuotaOptions,
    namespace: str,
    now: datetime,
    context_of: Callable[[Pod], Context],
    *,
    helps: Helps = helps_always,
    would_wait: bool = False,
) -> Iterator[Finding]:
    """Yield the finding if the quota of the namespace denies the request, or cannot decide.

    `context_of`: the context of a pod, for advice on its class. `helps`: edits for which it is false are not offered.
    `would_wait`: a pod that does not fit now would get the scheduling gate, if this were not only an evaluation or a dry run.
    """
    if isinstance(outcome, LedgerError):
        failure = partial(Finding, reason=LEDGER_UNREACHABLE)
        if options.on_ledger_error is OnLedgerError.ALLOW:
            message = f"admitted without a quota check, which failed: {outcome}"
            yield failure(severity=Severity.WARNING, message=message)
        else:
            message = f"the quota could not be checked: {outcome}"
            again = Wait(seconds=TRY_AGAIN_SECONDS)
            yield failure(message=message, remedy="try again", awaits=again, ask_contact="if it persists")
        return
    ledger, verdict = outcome.ledger, outcome.verdict
    if ledger is None:
        if options.required and request.requests_gpus:
            message = f"namespace {namespace} must have a GPUQuota for pods and claims that request GPUs"
            words, new = f"for a GPUQuota named {NAME}", ((ContactEdit("GPUQuota"),),)
            yield Finding(reason=QUOTA_MISSING, message=message, ask_contact=words, contact_choices=new)
    elif outcome.request is None or verdict is None or verdict.allowed or verdict.is_spent:
        yield from reservation_findings(namespace, outcome, now)
    elif verdict.reason is VerdictReason.UNCOUNTABLE:
        yield from (_naming_classes(each, request.pod, context_of, helps) for each in outcome.request.denials)
    elif would_wait and verdict.must_wait:
        yield queued_warning(namespace, outcome, now)
    elif verdict.reason in _LINE_REASONS:
        joins = options.queues_pods and request.before is None
        finding = others_wait_denial(namespace, verdict.reason, ledger, outcome.request, joins=joins)
        yield replace(finding, details=tuple(why_not_queued(request, queues_pods=options.queues_pods)))
    elif verdict.reason is VerdictReason.EXCEEDED:
        because = outcome.request.because
        finding = exceeded_finding(
            namespace,
            ledger,
            verdict.shortfalls,
            because,
            request,
            now,
            lambda pod: class_pins(pod, context_of(pod)),
            helps,
        )
        notes = why_not_queued(request, queues_pods=options.queues_pods) if verdict.must_wait else ()
        yield replace(finding, details=(*finding.details, *notes, *group_notes(request)))
    else:
        yield undecided_finding(namespace, ledger, verdict.reason)


def _naming_classes(
    denial: Finding, pod: Pod | None, context_of: Callable[[Pod], Context], helps: Helps
) -> Finding:
    """Return the denial with the classes that an unpinned pod may name, or else with another way to be admitted."""
    if denial.reason is not UNCLASSIFIED_POD or pod is None:
        return denial
    context = context_of(pod)
    naming = separate_choices(*(pin.edit for pin in class_pins(pod, context).values()))
    nameable = naming if class_options(context).reads_annotation else ()
    candidates = (
        islice((edits for edits in naming if helps(edits, False)), MAX_CLASSES_NAMED),
        islice((edits for edits in edits_to_try(pod, context) if helps(edits, False)), 1),
        islice((edits for edits in naming if helps(edits, True)), MAX_CLASSES_NAMED),
        islice((edits for edits in nameable if helps(edits, None)), MAX_CLASSES_NAMED),
    )
    return replace(denial, choices=next(filter(None, map(tuple, candidates)), ()))


_LINE_REASONS = frozenset({VerdictReason.OTHERS_WAIT, VerdictReason.QUEUE_FULL, VerdictReason.NOT_HELD})


def check_claim_template(template: ResourceClaimTemplate, context: Context) -> Iterator[Finding]:
    """Warn about a template whose claims could never fit the quota of its namespace."""
    ledger, claim = context.ledger, ResourceClaim(spec=template.spec.spec if template.spec else None)
    if ledger is None:
        return
    demand = claim_demand(claim, context, ledger.unclassified_pods, "spec.spec")
    for denial in demand.denials:
        yield replace(denial, severity=Severity.WARNING)
    yield from ignored_selectors(claim, context, "spec.spec")
    if excesses := exceeded_limits(demand.vector, ledger.maximum_hard):
        # In the words of ResourceQuota.
        requested = ", ".join(f"{excess.key}={format_amount(excess.amount)}" for excess in excesses)
        limited = ", ".join(f"{excess.key}={format_amount(excess.hard)}" for excess in excesses)
        yield warning(
            reason=QUOTA_CAN_NEVER_FIT,
            path="spec.spec.devices.requests",
            message=f"no claim of this template can ever fit the quota, requested: {requested}, limited: {limited}",
            remedy="request fewer devices",
        )
    if demand.vector and not excesses and context.lets_wait:
        message = "claims do not wait in line for quota: while it has no room, they are denied and their pods stay pending"
        yield warning(reason=QUOTA_QUEUED, path="spec.spec.devices.requests", message=message)


def check_workload(workload: Workload, options: GPUQuotaOptions, context: Context) -> Iterator[Finding]:
    """Warn about a workload whose pods do not all fit the quota, or are not counted without a class."""
    ledger = context.ledger
    if ledger is not None:
        if options.mode is Mode.ENFORCE:
            yield from islice(_without_class(workload, ledger, context), MAX_WITHOUT_CLASS)
        fit = fit_result(workload, ledger, context, is_stored=context.is_update)
        if fit is not None:
            yield from _fit_warning(fit, workload, ledger, options, context)
        elif (resumed := workload.resumed) != workload:
            # It may be resumed when more or less is free than now. Kueue may do so at once.
            queue = workload.label(QUEUE_NAME)
            then = ledger if queue else ledger.using({})
            later = fit_result(resumed, then, context, is_stored=False)
            if later is not None and (queue or later.needed > later.hard):
                yield from _fit_warning(later, resumed, then, options, context)
        yield from workload_findings(workload, ledger, context, context.namespace)
        if context.lets_wait:
            is_behind = fit is None and ledger.pods_ahead and not context.is_update
            yield from line_advice(workload, context.resource_mapping, ledger.pods_ahead if is_behind else 0)


def _without_class(workload: Workload, ledger: QuotaLedger, context: Context) -> Iterator[Finding]:
    # Its pods are new, also those of a change.
    of_pods = replace(context, is_update=False, made_by_daemonset=workload.kind == "DaemonSet")
    for pods in (pod for pod in workload.pods if not pod.denied):
        for denial in pod_demand(pods.admitted, context, ledger.unclassified_pods).denials:
            if denial.reason is UNCLASSIFIED_POD:
                pins = islice(class_pins(pods.pod, of_pods).values(), MAX_CLASSES_NAMED)
                choices = separate_choices(*(pin.edit for pin in pins))
                denied = replace(denial, severity=Severity.WARNING, choices=choices)
                yield denied.located(partial("{}.{}".format, pods.path), pods.located)


def _fit_warning(
    fit: FitResult, workload: Workload, ledger: QuotaLedger, options: GPUQuotaOptions, context: Context
) -> Iterator[Finding]:
    """Yield the warning. If the rule is not enforced, it says so. What Kueue starts, it may start beyond the quota."""
    queue, is_enforced = workload.label(QUEUE_NAME), options.mode is Mode.ENFORCE
    if queue and options.respects_kueue:
        return
    warning = fit_warning(
        fit,
        workload,
        ledger,
        context,
        context.namespace,
        is_enforced=is_enforced,
        queueing_enabled=context.lets_wait,
    )
    if warning is not None:
        note = "" if is_enforced else f"; {ID} is in mode {options.mode.value} and denies nothing"
        if queue and is_enforced:
            waits = " or wait in line" if context.lets_wait else ""
            note = f"; Kueue may admit it by LocalQueue {queue} all the same: pods that do not fit are then denied{waits}"
        yield replace(warning, message=warning.message + note)


def requests_gpus(workload: Workload, mapping: ResourceMapping) -> bool:
    """Whether pods of the workload request GPUs. An object with an owner is not checked, because its owner was."""
    pods = (workload.target or workload).pods
    return not workload.metadata.controlled_by and any(mapping.pod_requests_gpus(pod.pod) for pod in pods)


RULE = Rule(
    id=ID,
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
        SELECTOR_IGNORED,
    ),
    summary="a namespace holds no more GPUs than its GPUQuota and its team grant",
    options=GPUQuotaOptions,
    check_claim_template=check_claim_template,
    check_workload=check_workload,
    concerns=requests_gpus,
    check_reservation=check_reservation,
    needs=frozenset({Need.LEDGER}),
    checks_updates=True,
    not_exported="it counts all pods of a namespace, and CEL sees one object at a time",
)
