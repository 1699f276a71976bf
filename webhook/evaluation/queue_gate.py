"""Our scheduling gate: which pods get it at /mutate to wait in line for quota, which keep it, and which lose it."""

from functools import partial

from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.pods.patch import Change, Operation, PodPatch
from policies.pods.pod import Pod
from policies.quota.ledger.decide import Line
from policies.quota.line_findings import UNWANTED_GATE, queued_warning
from policies.quota.waiting import GATE, names_kueue, why_never_waits, without_gate
from policies.registry import QUOTA_RULE
from policies.rule import Mode, Phase
from webhook.evaluation.decision import Decision
from webhook.evaluation.evaluator import Evaluator
from webhook.workloads.gang_sources import may_be_in_gang


def queue_pod(
    evaluator: Evaluator, decision: Decision, pod: Pod, uid: str, *, by_daemonset: bool
) -> Decision:
    """Return the decision of /mutate with our scheduling gate, if the new pod has to wait in line for quota.

    The request in the decision may come from a pod that differs only in its metadata.
    """
    request, decision = decision.request, replace(decision, request=None)
    if request is None or evaluator.queue_outcome is None or not decision.allowed:
        return decision
    if line_of(pod, by_daemonset=by_daemonset) is Line.NEVER_WAITS:
        return decision
    in_gang = may_be_in_gang(pod, evaluator.configuration.workload_kinds)
    rule_in_force = decision.policy.in_force(QUOTA_RULE.id, evaluator.now)
    by_kueue = bool(rule_in_force and rule_in_force[0].options.respects_kueue) and names_kueue(pod)
    request = replace(request, request_uid=uid, uid=uid, name="", in_gang=in_gang, by_kueue=by_kueue)
    outcome = evaluator.queue_outcome(request)
    if outcome is None:
        return decision
    finding = queued_warning(decision.policy.namespace, outcome, evaluator.now)
    return with_gate(decision, pod).with_findings([finding], Mode.WARN, QUOTA_RULE.id)


def line_of(pod: Pod, *, by_daemonset: bool) -> Line:
    """Return what a new pod has to do with the line."""
    return Line.NEVER_WAITS if why_never_waits(pod, by_daemonset=by_daemonset) else Line.BEHIND


def keep_gate(evaluator: Evaluator, decision: Decision, pod: Pod) -> Decision:
    """Return the decision on an update with our scheduling gate, which a second apply of a manifest would remove."""
    return decision if evaluator.lets_wait(decision.policy) is None else with_gate(decision, pod)


def without_unwanted_gate(decision: Decision, pod: Pod, phase: Phase) -> Decision:
    """Return the decision on a new pod with our gate, where pods do not wait in line: it goes. A pod that keeps it is denied."""
    finding = partial(
        Finding, rule=QUOTA_RULE.id, reason=UNWANTED_GATE, path="spec.schedulingGates", value=GATE
    )
    if phase is Phase.VALIDATE:
        denial = finding(message="must be omitted: pods of this namespace do not wait in line for quota")
        return decision.with_findings([denial], Mode.ENFORCE)
    removal = Operation("replace", "/spec/schedulingGates", without_gate(pod).spec.scheduling_gates or ())
    change = Change(f"no schedulingGate {GATE}", (removal,), QUOTA_RULE.id)
    message = "is removed: pods of this namespace do not wait in line for quota"
    changed = replace(decision, changes=(*decision.changes, change))
    return changed.with_findings([finding(message=message, severity=Severity.WARNING)], Mode.WARN)


def with_gate(decision: Decision, pod: Pod) -> Decision:
    patch = PodPatch(pod)
    patch.add_scheduling_gate(GATE)
    (change,) = patch.changes
    return replace(decision, changes=(*decision.changes, replace(change, rule=QUOTA_RULE.id)))
