"""ResourceQuota keys about GPUs that the API server accepts and never enforces.

Of extended resources it counts only `requests.<resource>` (`pkg/quota/v1/evaluator/core/pods.go`, v1.36): any other key
passes validation, and the quota limits nothing, in silence.
"""

from collections.abc import Iterable, Iterator

from policies.finding import Finding, Severity
from policies.gpus.resource_mapping import ResourceMapping

ID = "resource-quota"
"""Stands where a rule's id does; it is no rule of a policy, since ResourceQuotas are the administrators' own."""

REQUESTS, LIMITS = "requests.", "limits."


def resource_quota_findings(hard: Iterable[str], resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield a warning for every key of `spec.hard` that names a GPU resource and limits nothing, in the order of the keys."""
    keys = frozenset(hard)
    for key in sorted(keys):
        resource = key.removeprefix(LIMITS)
        if key.startswith(REQUESTS) or "/" not in resource or resource_mapping.resource(resource) is None:
            continue
        meant = REQUESTS + resource
        remedy = f"remove it, {meant} is set as well" if meant in keys else f"set {meant}"
        yield Finding(
            rule=ID,
            severity=Severity.WARNING,
            path=f"spec.hard[{key}]",
            message="has no effect: of a GPU resource the API server counts only what is requested",
            remedy=remedy,
        )
