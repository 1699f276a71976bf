"""Pods that wait in line for quota: which get our scheduling gate at /mutate, and which keep it."""

from msgspec.structs import replace

from policies.pods.pod import Pod
from policies.quota.ledger.decide import Line
from policies.quota.line_findings import queued
from policies.quota.waiting import names_kueue, never_waits
from policies.registry import QUOTA_RULE
from policies.rule import Mode
from webhook.evaluation.decision import Decision
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.gate import gated
from webhook.workloads.gang_sources import may_be_in_gang


def queue(evaluator: Evaluator, decision: Decision, pod: Pod, uid: str, *, by_daemonset: bool) -> Decision:
    """Return the decision of /mutate with our scheduling gate, if the new pod has to wait in line for quota.

    The request in the decision may come from a pod that differs only in its metadata.
    """
    request, decision = decision.request, replace(decision, request=None)
    if request is None or evaluator.queue_outcome is None or not decision.allowed:
        return decision
    if line_of(pod, by_daemonset=by_daemonset) is Line.NEVER_WAITS:
        return decision
    in_gang = may_be_in_gang(pod, evaluator.configuration.workload_kinds)
    held = decision.policy.in_force(QUOTA_RULE.id, evaluator.now)
    by_kueue = bool(held and held[0].options.respects_kueue) and names_kueue(pod)
    request = replace(request, request_uid=uid, uid=uid, name="", in_gang=in_gang, by_kueue=by_kueue)
    outcome = evaluator.queue_outcome(request)
    if outcome is None:
        return decision
    finding = queued(decision.policy.namespace, outcome, evaluator.now)
    return gated(decision, pod).with_findings([finding], Mode.WARN, QUOTA_RULE.id)


def line_of(pod: Pod, *, by_daemonset: bool) -> Line:
    """Return what a new pod has to do with the line."""
    return Line.NEVER_WAITS if never_waits(pod, by_daemonset=by_daemonset) else Line.BEHIND


def keep_gate(evaluator: Evaluator, decision: Decision, pod: Pod) -> Decision:
    """Return the decision on an update with our scheduling gate, which a second apply of a manifest would remove."""
    return decision if evaluator.lets_wait(decision.policy) is None else gated(decision, pod)
