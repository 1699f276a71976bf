"""Keep a namespace from holding more GPUs than its GPUQuota grants.

Reads:   the demand of the pod or ResourceClaim (policies.quota.demand), and the answer of the quota of its namespace.
Denies:  a new pod, a change of one, or a new ResourceClaim for which `used + reserved + requested ≤ hard` does not hold; with
         `required` also every GPU pod and claim in a namespace without a GPUQuota.
Warns:   of a ResourceClaimTemplate whose claims could never fit, and of a workload or autoscaler whose pods will not all
         fit, or that could not be updated (policies.quota.fit); in every mode.

Runs last, at the validation of creations and of pod updates, and only if nothing else denies. Of an update, only the growth has
to fit. Templates have no demand. In modes warn and audit it reserves what fits, and only reports the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from fractions import Fraction
from math import ceil, floor

from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.gpus.claims import ResourceClaimTemplate
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.workload import Workload
from policies.quota.amounts import CLASSES, NOTHING, format_amount, unit
from policies.quota.claims import template_findings
from policies.quota.demand import RULE_ID
from policies.quota.fit import FitFailure, FitResult, fit_result
from policies.quota.ledger.decide import Reason, ReservationVerdict, Shortfall
from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, QuotaLedger
from policies.quota.quota_request import LedgerError, QuotaRequest, ReservationOutcome
from policies.quota.spec import NAME, hard_field
from policies.rule import Context, Mode, Rule, RuleOptions

RECOUNT_SECONDS = 10
"""A controller counts at most this long after a reservation has expired."""
HELD_SECONDS = ceil(EXPIRY_SECONDS) + RECOUNT_SECONDS


class OnLedgerError(Enum):
    """What happens to a pod if its quota cannot be read in time."""

    DENY = "deny"
    ALLOW = "allow"


class GPUQuotaOptions(RuleOptions, frozen=True, kw_only=True):
    """`required` denies GPUs where there is no quota. With `onLedgerError: allow` a quota can be exceeded; a warning says so."""

    required: bool = False
    on_ledger_error: OnLedgerError = OnLedgerError.DENY


def check_reservation(
    outcome: ReservationOutcome | LedgerError,
    request: QuotaRequest,
    options: GPUQuotaOptions,
    namespace: str,
    now: datetime,
) -> Iterator[Finding]:
    """Yield why the quota of the namespace denies the request."""
    if isinstance(outcome, LedgerError):
        if options.on_ledger_error is OnLedgerError.ALLOW:
            message = f"admitted without a quota check, which failed: {outcome}"
            yield Finding(rule=RULE_ID, severity=Severity.WARNING, message=message)
        else:
            message = f"the quota could not be checked: {outcome}"
            yield Finding(rule=RULE_ID, message=message, remedy="try again", ask="if it persists")
        return
    ledger, verdict = outcome.ledger, outcome.verdict
    if ledger is None:
        if options.required and request.asks_for_gpus:
            message = f"namespace {namespace} must have a GPUQuota for pods and claims that request GPUs"
            yield Finding(rule=RULE_ID, message=message, ask=f"for a GPUQuota named {NAME}")
    elif outcome.request is None or verdict is None or verdict.allowed:
        return
    elif verdict.reason is Reason.REFUSED:
        yield from outcome.request.denials
    elif verdict.reason is Reason.EXCEEDED:
        yield _exceeded(namespace, ledger, verdict, outcome.request.because, request.controlled_by, now)
    else:
        message, remedy, else_see = _UNDECIDED[verdict.reason]
        message = f"quota {namespace}/{NAME} {message}; if it persists, {else_see}"
        yield Finding(rule=RULE_ID, message=message, remedy=remedy)


def check_claim_template(template: ResourceClaimTemplate, context: Context) -> Iterator[Finding]:
    """Warn of a template whose claims could never fit the quota of its namespace."""
    if (grant := context.grant) is not None:
        yield from template_findings(template, grant.hard, context, grant.unclassified_pods)


def check_workload(workload: Workload, options: GPUQuotaOptions, context: Context) -> Iterator[Finding]:
    """Warn of a workload whose pods do not all fit the quota. Needs `context.grant` only if `needs_grant`."""
    if context.grant is not None and needs_grant(workload, context.resource_mapping):
        found = fit_result(workload, context.grant, context, is_stored=context.is_update)
        if found is not None:
            yield from _fit_warning(found, workload, context.namespace, options.mode)


def needs_grant(workload: Workload, mapping: ResourceMapping) -> bool:
    """Whether the check of the workload depends on the quota. Of an owned object, the owner was checked."""
    pods = (workload.target or workload).pods
    return not workload.metadata.is_owned and any(mapping.pod_asks(each.pod) for each in pods)


RULE = Rule(
    id=RULE_ID,
    summary="a namespace holds no more GPUs than its GPUQuota grants",
    options=GPUQuotaOptions,
    check_claim_template=check_claim_template,
    check_workload=check_workload,
    on_update=True,
    not_exported="it counts all pods of a namespace, and CEL sees one object at a time",
)


_UNDECIDED: Mapping[Reason, tuple[str, str, str]] = {
    Reason.UNCOUNTED: (
        "has not been counted yet: it, or a dimension of it, is new",
        "try again in some seconds",
        "see its conditions and the log of `gpu-admission controller`",
    ),
    Reason.OTHER_CATALOGUE: (
        "is being recalculated: this replica cannot read the GPUClasses or resource names by which it was counted",
        f"try again in some seconds, at most {HELD_SECONDS} while creations are in flight",
        "see its conditions and the log of `gpu-admission controller`, which publishes what replicas must read",
    ),
    Reason.UNREADABLE: (
        "cannot be decided: its ledger has reservations that cannot be read",
        f"try again in {HELD_SECONDS} s, within which the controller drops them",
        "see its condition Ready and the log of `gpu-admission controller`",
    ),
    Reason.FULL: (
        "cannot hold more reservations than it has now",
        f"try again in {HELD_SECONDS} s, within which each is counted or dropped",
        "`gpu-admission controller` is not running",
    ),
}


def _exceeded(
    namespace: str,
    ledger: QuotaLedger,
    verdict: ReservationVerdict,
    because: str,
    controlled_by: str,
    now: datetime,
) -> Finding:
    """Return the denial: what can never fit, and the rest in the words of ResourceQuota (`checkRequest` in the API server)."""
    never = [each for each in verdict.shortfalls if each.requested > each.hard]
    full = [each for each in verdict.shortfalls if each.requested <= each.hard]
    facts, ways = [], []
    if never:
        if granted_some := [_count(each.key, each.hard) for each in never if each.hard]:
            ways.append(f"request {_all(granted_some)} or fewer")
        requested = _all(format_amount(each.requested) for each in never)
        granted = _all(format_amount(each.hard) for each in never)
        facts.append(
            f"exceeded quota: {namespace}/{NAME}, {requested} can never fit: the quota grants {granted} in all"
        )
    if full:
        left = {each.key: each.hard - each.used - each.reserved for each in full}
        missing = _all(_count(each.key, each.requested - left[each.key]) for each in full)
        waiting = f"wait until others release {missing}"
        if not never and (replicas := _replicas(ledger, full, controlled_by)):
            waiting = f"set replicas: {replicas} (its own pods hold the quota)"
        elif not never and all(amount > 0 for amount in left.values()):
            waiting = f"request {_all(map(_count, left, left.values()))} or fewer, or {waiting}"
        ways.append(waiting)
        facts += _full(namespace, ledger, full, now)
    keys = [each.key for each in verdict.shortfalls]
    classes = [key.removeprefix(CLASSES) for key in keys if key.startswith(CLASSES)]
    if classes and because:
        facts.append(f"counted for {', '.join(classes)}: {because}")
    return Finding(
        rule=RULE_ID,
        message="; ".join(facts),
        remedy=", and ".join(ways),
        ask=f"to raise {_all(map(hard_field, keys))}",
    )


def _replicas(ledger: QuotaLedger, full: Iterable[Shortfall], controlled_by: str) -> int:
    """Return how many such pods fit, if the pods that the controller keeps leave no room for one more; else 0."""
    if controlled_by.partition("/")[0] not in _KEEPING:
        return 0
    found = [
        floor(each.hard / each.requested)
        for each in full
        for holder in ledger.holders.get(each.key, ())
        if holder.name == controlled_by and Fraction(holder.amount) + each.requested > each.hard
    ]
    return min(found, default=0)


def _full(namespace: str, ledger: QuotaLedger, full: Sequence[Shortfall], now: datetime) -> Iterator[str]:
    def amounts(of: Callable[[Shortfall], Fraction]) -> str:
        return ",".join(f"{each.key}={format_amount(of(each))}" for each in full)

    if not ledger.revisions.pods:  # without a cluster, no controller counts and reservations are usage
        full = [replace(each, used=each.used + each.reserved, reserved=NOTHING) for each in full]
    text = f"exceeded quota: {namespace}/{NAME}, requested: {amounts(lambda s: s.requested)}, used: {amounts(lambda s: s.used)}"
    if any(each.reserved for each in full):
        text += f", being created: {amounts(lambda s: s.reserved)}"
        text += f" (until {now.astimezone(UTC) + timedelta(seconds=HELD_SECONDS):%H:%M:%SZ})"
    yield f"{text}, limited: {amounts(lambda s: s.hard)}"
    for each in full:
        holders = ", ".join(f"{holder.name} {holder.amount}" for holder in ledger.holders.get(each.key, ()))
        if holders:
            yield f"largest holders of {each.key}: {holders}"


def _fit_warning(found: FitResult, workload: Workload, namespace: str, mode: Mode) -> Iterator[Finding]:
    """Yield the warning. If the rule denies nothing, it says so instead of how many pods will start."""
    needs, hard = _count(found.key, found.needed), format_amount(found.hard)
    grants, free = (
        f"the GPUQuota of {namespace} grants {hard} in all",
        f"{format_amount(found.left)} of {hard} free",
    )
    path, remedy, ask = found.path, "", f"to raise {hard_field(found.key)}"
    is_denied = mode is Mode.ENFORCE
    match found.failure:
        case FitFailure.POD_TOO_LARGE:
            remedy = f"request {_count(found.key, found.hard)} or fewer" if found.hard else ""
            facts = f"a pod needs {needs}, which can never fit: {grants}"
        case FitFailure.GANG_TOO_LARGE:
            facts = f"{found.pods} pods that must run together need {needs}, which can never fit: {grants}"
        case FitFailure.NO_SURGE:
            if not is_denied:
                return
            path, remedy, ask = "spec.strategy", "set type: Recreate, or rollingUpdate.maxUnavailable: 1", ""
            facts = f"an update needs {needs} for a pod beside the others, and will not finish: {namespace} will have {free}"
        case _:
            is_growth = found.failure is FitFailure.TOO_LITTLE_TO_GROW
            subject = f"may grow to {found.pods} pods and then " if is_growth else ""
            path = _MAXIMUM.get(workload.kind, path) if workload.target else path
            if field := _pods_field(found, workload):
                path, remedy = field, f"set {field.removeprefix('spec.')}: {found.starting}"
            facts = f"{subject}needs {needs}; {namespace} has {free}: "
            if found.needed > found.hard:
                facts = f"{subject}needs {needs}, which can never fit: {grants}; "
            else:
                ask = ""
            facts += f"{found.starting} of {found.pods} pods will start" if is_denied else ""
    if not is_denied:
        facts = f"{facts.rstrip(':; ')}; {RULE_ID} is in mode {mode.value} and denies nothing"
    yield Finding(rule=RULE_ID, severity=Severity.WARNING, path=path, message=facts, remedy=remedy, ask=ask)


def _pods_field(found: FitResult, workload: Workload) -> str:
    """Return the one field with the number of pods, if fewer of them would start, else ""."""
    if found.starting and workload.target:
        return _MAXIMUM.get(workload.kind, "")
    if found.starting and found.failure is FitFailure.TOO_LITTLE:
        return _PODS.get((workload.group, workload.kind), "")
    return ""


_KEEPING = frozenset({"ReplicationController", "ReplicaSet", "StatefulSet"})
"""Controllers whose pods do not end by themselves."""
_PODS = {
    ("", "ReplicationController"): "spec.replicas",
    ("apps", "Deployment"): "spec.replicas",
    ("apps", "ReplicaSet"): "spec.replicas",
    ("apps", "StatefulSet"): "spec.replicas",
    ("batch", "Job"): "spec.parallelism",
}
"""The field with the number of pods."""
_MAXIMUM = {"HorizontalPodAutoscaler": "spec.maxReplicas", "ScaledObject": "spec.maxReplicaCount"}


def _count(key: str, amount: Fraction) -> str:
    """Return an amount with what it counts: `32 nvidia-a100`, `1 GPU`."""
    return f"{format_amount(amount)} {unit(key, amount)}"


def _all(words: Iterable[str]) -> str:
    return " and ".join(words)
