"""All rules, in the order in which they run.

A new rule is one file, its test, its page of docs, and its import and place here. The order matters for mutation: a class must
be chosen before its tolerations can be added, and everything that adds a container comes before what looks at every container.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

from policies.finding import REASONS_OUTSIDE_RULES, Reason
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.annotations import DOMAIN
from policies.pods.fingerprint import Fingerprints
from policies.pods.injected import INJECTION_REASONS
from policies.rule import Rule
from policies.rules import (
    cuda_version,
    disruption,
    gpu_class,
    gpu_isolation,
    gpu_quota,
    gpu_requests,
    gpu_toleration,
    host_resources,
    ineffective_fields,
    max_runtime,
    model_warming,
    parallelism,
    readiness_delay,
    shared_memory,
    spot,
)

RULES: tuple[Rule, ...] = (
    gpu_requests.RULE,
    ineffective_fields.RULE,
    gpu_class.RULE,
    cuda_version.RULE,
    gpu_toleration.RULE,
    spot.RULE,
    max_runtime.RULE,
    disruption.RULE,
    host_resources.RULE,
    readiness_delay.RULE,
    shared_memory.RULE,
    parallelism.RULE,
    model_warming.RULE,
    gpu_isolation.RULE,
    gpu_quota.RULE,
)
RULES_BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}
PLACEMENT_RULES = frozenset({gpu_class.ID, gpu_requests.ID, gpu_toleration.ID})
"""The rules whose findings another class, constraint, toleration or amount may remove: `edits_to_try` a pod."""
edits_to_try = gpu_class.edits_to_try
(QUOTA_RULE,) = (rule for rule in RULES if rule.check_reservation is not None)


def _reasons(rule: Rule) -> tuple[Reason, ...]:
    return (*rule.reasons, *(INJECTION_REASONS if rule.mutate else ()))


RULES_BY_REASON: Mapping[Reason, tuple[str, ...]] = {
    reason: tuple(rule.id for rule in RULES if reason in _reasons(rule))
    for reason in (*chain.from_iterable(map(_reasons, RULES)), *REASONS_OUTSIDE_RULES)
}
"""The rules whose findings have the reason."""


def fingerprints(rules: Iterable[Rule], resource_mapping: ResourceMapping) -> Fingerprints:
    """Return what makes equal fingerprints of pods that these rules treat the same."""
    prefixes = chain.from_iterable(resource_mapping.other_schedulers.values())
    globs = (*(glob for rule in rules for glob in rule.metadata_keys), *(f"{prefix}*" for prefix in prefixes))
    # Schedulers write devices into annotations with the names of their resources (Ascend).
    of_resources = (pattern.pattern for pattern in resource_mapping.patterns)
    return Fingerprints(
        (f"{DOMAIN}*", *globs, *of_resources), (key.key for key in resource_mapping.fraction_annotations)
    )
