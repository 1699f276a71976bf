"""The LimitRanges of a namespace in a decision: what needs them, what they refuse, and the one that gave a pod its GPUs."""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from policies.finding import Finding
from policies.gpus import default_gpus
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.limit_ranges import DEFAULTS_ANNOTATION, NamespaceLimits
from policies.pods.pod import Pod
from policies.policy import EffectivePolicy
from policies.rule import Need, Phase
from webhook.evaluation.decision import Decision, Outcome, Violation
from webhook.evaluation.facts import Facts


def limits_needed(facts: Facts, policy: EffectivePolicy, phase: Phase, pod: Pod) -> NamespaceLimits | None:
    """Return the LimitRanges of the namespace; None if nothing depends on them, or they cannot be read."""
    is_annotated = DEFAULTS_ANNOTATION in pod.annotations
    is_needed = is_annotated or phase is Phase.TEMPLATE or Need.LIMIT_RANGES in policy.needs
    return facts.limits_of(policy.namespace) if is_needed else None


def refusals(
    facts: Facts, mapping: ResourceMapping, namespace: str, pod: Pod, *, is_partial: bool = False
) -> Iterator[Finding]:
    """Yield why LimitRanges would refuse the final pod."""
    limits = facts.limits_of(namespace)
    if limits is not None:
        yield from default_gpus.refusal_findings(pod, limits, mapping, is_partial=is_partial)


def naming_limit_ranges(
    decision: Decision,
    pod: Pod,
    limits: NamespaceLimits | None,
    mapping: ResourceMapping,
    evaluate: Callable[[Pod], Decision] | None = None,
) -> Decision:
    """Return the decision, whose denials name the LimitRange that gave the pod the GPUs they are about.

    A warning of the same amount goes where its denial says what the warning does.

    evaluate: decides on the pod without these GPUs, as on this one; None if only the quota denies, which has nothing against it.
    """
    if decision.allowed or limits is None:
        return decision
    defaults = default_gpus.gpus_by_default(pod, limits, mapping)
    if not defaults:
        return decision
    all_of_pod = default_gpus.has_no_other_gpus(pod, defaults, mapping)
    without = default_gpus.without_gpus(pod, defaults, limits)
    left = evaluate(without).findings(Outcome.DENIED) if evaluate and without is not None else ()
    denied = {(finding.rule, finding.reason) for finding in left}

    def named(violation: Violation) -> Violation:
        if violation.outcome is not Outcome.DENIED:
            return violation
        finding = violation.finding
        is_denied_likewise = (finding.rule, finding.reason) in denied
        removes = not is_denied_likewise if without is not None else None
        explained = default_gpus.explained(finding, defaults, all_of_pod=all_of_pod, removes=removes)
        return replace(violation, finding=explained)

    violations = tuple(map(named, decision.violations))
    said = {
        after.finding.path
        for before, after in zip(decision.violations, violations, strict=True)
        if (after.finding.choices, after.finding.contact_choices)
        != (before.finding.choices, before.finding.contact_choices)
    }
    once = (
        each
        for each in violations
        if each.finding.reason != default_gpus.GPUS_BY_DEFAULT or each.finding.path not in said
    )
    return replace(decision, violations=tuple(once))
