"""LimitRanges in a decision: whether it needs them, and which one gave a pod its GPUs."""

from collections.abc import Callable, Iterable
from functools import cache
from itertools import product

from msgspec.structs import replace

from policies.finding import Edit, Edits, Finding
from policies.gpus import limit_range_findings
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.defaults_annotation import DEFAULTS_ANNOTATION, annotated_defaults, default_text
from policies.pods.limit_ranges import REQUESTS_AND_LIMITS, NamespaceLimits
from policies.pods.pod import Pod
from policies.policy import EffectivePolicy
from policies.rule import Need, Phase
from webhook.evaluation.decision import Decision, Outcome, Violation
from webhook.evaluation.facts import Facts
from webhook.evaluation.tried_choices import choice_test

FindPhasesUnder = Callable[[Pod, NamespaceLimits], Iterable[Iterable[Violation]]]
"""Returns what each phase finds of a pod that is created under these LimitRanges."""


def limits_needed(facts: Facts, policy: EffectivePolicy, phase: Phase, pod: Pod) -> NamespaceLimits | None:
    """Return the LimitRanges of the namespace; None if nothing depends on them, or they cannot be read."""
    is_annotated = DEFAULTS_ANNOTATION in pod.annotations
    is_needed = is_annotated or phase is Phase.TEMPLATE or Need.LIMIT_RANGES in policy.needs
    return facts.limits_of(policy.namespace) if is_needed else None


def with_limit_ranges_named(
    decision: Decision,
    pod: Pod,
    limits: NamespaceLimits | None,
    mapping: ResourceMapping,
    find: FindPhasesUnder,
) -> Decision:
    """Return the decision, whose denials name the LimitRange that gave the pod the GPUs they are about.

    A warning of the same amount goes where its denial says what the warning does. The contact is asked to take GPUs out of
    LimitRanges where that helps: the pod is tried under what is left of them.
    """
    defaults = limit_range_findings.gpus_by_default(pod, limits, mapping) if limits is not None else ()
    if limits is None or not defaults:
        return decision
    all_of_pod = limit_range_findings.has_no_other_gpus(pod, defaults, mapping)
    is_optional, annotated = limit_range_findings.can_be_zero(pod, defaults, limits), annotated_defaults(pod)

    @cache
    def trying_without(taken: frozenset[str]) -> Callable[[Finding, Edits], bool]:
        remaining = limits.without(taken) if taken else limits
        return choice_test(decision, pod, lambda pod: find(pod, remaining))

    def named(violation: Violation) -> Violation:
        finding = violation.finding
        if violation.outcome is Outcome.DENIED:
            zero = limit_range_findings.edits_to_zero(defaults)
            admitted_without = trying_without(frozenset())(finding, zero) if is_optional else None
            finding = limit_range_findings.with_limit_range_named(
                finding, defaults, limits, all_of_pod=all_of_pod, admitted_without=admitted_without
            )
        if taken := limit_range_findings.resources_to_remove(finding):
            edits = tuple(
                Edit(f"{place.path}.resources.{kind}[{name}]")
                for place, kind, name in product(pod.places, REQUESTS_AND_LIMITS, taken)
                if default_text(place, kind.removesuffix("s"), name) in annotated
            )
            # What the annotation does not list, the author may have written.
            if not edits or not trying_without(taken)(finding, edits):
                finding = replace(finding, ask_contact="", contact_choices=())
        return replace(violation, finding=finding)

    violations = tuple(map(named, decision.violations))
    paths_said = {
        after.finding.path
        for before, after in zip(decision.violations, violations, strict=True)
        if after.outcome is Outcome.DENIED
        and (after.finding.choices, after.finding.contact_choices)
        != (before.finding.choices, before.finding.contact_choices)
    }
    violations_said_once = (
        each
        for each in violations
        if each.finding.reason != limit_range_findings.GPUS_BY_DEFAULT or each.finding.path not in paths_said
    )
    return replace(decision, violations=tuple(violations_said_once))
