"""Spec of a GPUQuota, and the keys of a ResourceQuota that limit no GPU.

Of extended resources the API server counts only `requests.<resource>` (`pkg/quota/v1/evaluator/core/pods.go`, v1.36): any
other key passes validation and limits nothing.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from policies.finding import Finding, Severity
from policies.gpus.resource_mapping import ResourceMapping
from policies.quota.amounts import Vector, VectorError, flattened
from policies.quota.charge import UnclassifiedPods

NAME = "default"
"""A namespace has one quota, and this is its name."""

RESOURCE_QUOTA = "resource-quota"
"""The rule id of findings about a ResourceQuota. No policy configures them: ResourceQuotas belong to administrators."""

REQUESTS, LIMITS = "requests.", "limits."


class Hard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whole numbers, or text with a decimal or a fraction; what is left out is unlimited. A zero forbids."""

    gpus: int | str | None = None
    classes: Mapping[str, int | str] = {}
    resources: Mapping[str, int | str] = {}


class QuotaSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spec of a GPUQuota document; `stated_unclassified_pods` is None where it says nothing."""

    hard: Hard
    stated_unclassified_pods: UnclassifiedPods | None = msgspec.field(name="unclassifiedPods", default=None)

    @property
    def unclassified_pods(self) -> UnclassifiedPods:
        """What is charged by class to a pod that pins none: what makes the limits by class hold, if there are any."""
        default = UnclassifiedPods.MOST_EXPENSIVE if self.hard.classes else UnclassifiedPods.TOTAL_ONLY
        return self.stated_unclassified_pods or default

    @property
    def amounts(self) -> Vector:
        """What is granted. Raises VectorError, of a spec without `problems` never."""
        return flattened(self.hard.gpus, self.hard.classes, self.hard.resources)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the spec, sentence) for every invalid amount."""
        hard = self.hard
        for gpus, classes, resources in (
            (hard.gpus, {}, {}),
            *((None, {name: amount}, {}) for name, amount in hard.classes.items()),
            *((None, {}, {name: amount}) for name, amount in hard.resources.items()),
        ):
            try:
                flattened(gpus, classes, resources)
            except VectorError as error:
                yield f"hard.{error.path}", str(error)


def hard_field(key: str) -> str:
    """Return the field of a GPUQuota that grants a key of its amounts: `spec.hard.classes[nvidia-t4]`."""
    group, _, name = key.partition("/")
    return f"spec.hard.{group}[{name}]" if name else f"spec.hard.{group}"


def unheld_classes(spec: QuotaSpec) -> str:
    """Return a warning about `unclassifiedPods` where pods that pin no class can exceed the limits by class, else ""."""
    if not spec.hard.classes or spec.unclassified_pods is not UnclassifiedPods.TOTAL_ONLY:
        return ""
    return (
        "TotalOnly lets pods that pin no class exceed hard.classes: they are charged by class only once they are bound; "
        "set MostExpensive, or Deny"
    )


def resource_quota_findings(hard: Iterable[str], resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield a warning for every key of `spec.hard` that names a GPU resource and has no effect, in the order of the keys."""
    keys = frozenset(hard)
    for key in sorted(keys):
        resource = key.removeprefix(LIMITS)
        if key.startswith(REQUESTS) or "/" not in resource or resource_mapping.resource(resource) is None:
            continue
        meant = REQUESTS + resource
        remedy = f"remove it, {meant} is set as well" if meant in keys else f"set {meant}"
        yield Finding(
            rule=RESOURCE_QUOTA,
            severity=Severity.WARNING,
            path=f"spec.hard[{key}]",
            message="has no effect: a ResourceQuota counts only requests of extended resources",
            remedy=remedy,
        )
