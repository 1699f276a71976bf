"""Both phases of a pod that is created now, and the pods that a template makes, with what LimitRanges and the quota say."""

from msgspec.structs import replace

from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.annotations import DOMAIN
from policies.pods.injected import INJECTION_MISSING, WOULD_INJECT
from policies.pods.pod import Pod
from policies.pods.workload import NO_OWNER, Owner
from policies.policy import EffectivePolicy
from policies.quota.quota_request import quota_request_for_pod
from policies.quota.waiting import has_quota_gate, without_gate
from policies.rule import Mode, Phase
from webhook.evaluation.decision import Decision, Outcome, without_repeated
from webhook.evaluation.evaluator import Creation, Evaluator
from webhook.evaluation.queue_gate import line_of, without_unwanted_gate


def evaluate_creation(
    evaluator: Evaluator, policy: EffectivePolicy, pod: Pod, *, by_daemonset: bool, counted: bool = True
) -> list[Decision]:
    """Return what both phases decide on a pod that is created now. Duplicate findings are dropped.

    A pod that /mutate denies never reaches /validate; here its author sees the findings of both at once.
    """
    if too_long := evaluator.too_long(policy, pod):
        return [too_long]
    as_written, is_unwanted = pod, has_quota_gate(pod) and evaluator.lets_wait(policy) is False
    pod = without_gate(pod) if is_unwanted else pod
    creation = Creation(Phase.MUTATE, policy, by_daemonset)
    mutated = replace(evaluator.evaluate(creation, pod), request=None)
    if is_unwanted:
        mutated = without_unwanted_gate(mutated, as_written, Phase.MUTATE)
    final = evaluator.with_limit_range_defaults(policy, mutated.pod or pod)
    validated = evaluator.evaluate(replace(creation, phase=Phase.VALIDATE), final)
    if counted:
        line = line_of(final, by_daemonset=by_daemonset)
        nodes = evaluator.facts.named_nodes()
        demand = quota_request_for_pod("review", final, None, evaluator.configuration, nodes, line=line)
        validated = evaluator.reserve(validated, demand)
    by_limits = evaluator.with_helpful_choices(evaluator.by_limit_ranges(policy, final), creation, pod)
    validated = validated.with_findings(by_limits.findings(Outcome.DENIED), Mode.ENFORCE)
    new_violations = without_repeated(validated.violations, mutated.violations)
    return [mutated, replace(validated, violations=tuple(new_violations))]


def evaluate_template(
    evaluator: Evaluator,
    policy: EffectivePolicy,
    kind: str,
    pod: Pod,
    owner: Owner = NO_OWNER,
    *,
    is_partial: bool = False,
) -> Decision:
    """Return what is wrong with the pods that a template of an object of this kind makes.

    `owner`: the object with the template, or the one inside it that makes the pods. `is_partial`: it has only a part of them.
    """
    if too_long := evaluator.too_long(policy, pod):
        return too_long
    creation = Creation(Phase.TEMPLATE, policy, kind == "DaemonSet", owner)
    decision = evaluator.evaluate(creation, pod)
    by_limits = evaluator.by_limit_ranges(policy, decision.pod or pod, is_partial=is_partial)
    by_limits = evaluator.with_helpful_choices(by_limits, creation, pod)
    return decision.with_findings(by_limits.findings(Outcome.DENIED), Mode.ENFORCE)


def is_reviewed(pod: Pod, resource_mapping: ResourceMapping) -> bool:
    """Whether the API server sends the webhook a new pod: the matchConditions of the chart, `asksForAnAccelerator`."""
    containers = (place.container for place in pod.places)
    names = (name for container in containers for name in (*container.limits, *container.requests))
    keys = {annotation.key for annotation in resource_mapping.fraction_annotations}
    return (
        any("/" in name for name in names)
        or bool(pod.spec.resource_claims)
        or has_quota_gate(pod)
        or any(key in keys or key.startswith(DOMAIN) for key in pod.annotations)
    )


def unreviewed(decision: Decision, pod: Pod) -> Decision:
    """Return the decision on a pod that the webhook never sees: nothing is added to it."""
    about_changes = {WOULD_INJECT, INJECTION_MISSING}
    about_pod = (each for each in decision.violations if each.finding.reason not in about_changes)
    return replace(decision, changes=(), note=None, pod=pod, violations=tuple(about_pod))
