"""The LimitRange that gave a pod its GPUs, in the decision on that pod."""

from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from policies.gpus import default_gpus
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.limit_ranges import NamespaceLimits
from policies.pods.pod import Pod
from policies.rule import Phase
from webhook.evaluation.decision import Decision, Outcome, Violation


def with_default_gpus(
    decision: Decision,
    pod: Pod,
    limits: NamespaceLimits,
    mapping: ResourceMapping,
    phase: Phase,
    now: datetime,
) -> Decision:
    """Return the decision with warnings of the GPUs that a LimitRange gave; /validate would repeat those of /mutate."""
    held = None if phase is Phase.VALIDATE else decision.policy.in_force(default_gpus.RULE, now)
    if held is None:
        return decision
    found = default_gpus.warnings(pod, default_gpus.gpus_by_default(pod, limits, mapping), limits)
    return decision.with_findings(found, held[1], default_gpus.RULE)


def naming_limit_ranges(
    decision: Decision,
    pod: Pod,
    limits: NamespaceLimits | None,
    mapping: ResourceMapping,
    evaluate: Callable[[Pod], Decision] | None = None,
) -> Decision:
    """Return the decision, whose denials name the LimitRange that gave the pod the GPUs they are about.

    evaluate: decides on the pod without these GPUs, as on this one; None if only the quota denies, which has nothing against it.
    """
    if decision.allowed or limits is None:
        return decision
    defaults = default_gpus.gpus_by_default(pod, limits, mapping)
    if not defaults:
        return decision
    all_of_pod = default_gpus.are_all(pod, defaults, mapping)
    without = default_gpus.without_gpus(pod, defaults, limits) if all_of_pod else None
    left = evaluate(without).findings(Outcome.DENIED) if evaluate and without is not None else ()
    denied = {(finding.rule, finding.reason) for finding in left}

    def named(violation: Violation) -> Violation:
        if violation.outcome is not Outcome.DENIED:
            return violation
        finding = violation.finding
        removes = without is not None and (finding.rule, finding.reason) not in denied
        explained = default_gpus.explained(finding, defaults, limits, all_of_pod=all_of_pod, removes=removes)
        return replace(violation, finding=explained)

    return replace(decision, violations=tuple(map(named, decision.violations)))
