"""Spec of a GPUQuota, and the keys of a ResourceQuota that limit no GPU.

For extended resources, the API server counts only `requests.<resource>` (`pkg/quota/v1/evaluator/core/pods.go`, v1.37). Any
other key passes validation and limits nothing.
"""

from collections.abc import Iterable, Iterator

import msgspec

from policies.finding import Edit, Finding, Reason, Severity, one_choice, separate_choices, warning
from policies.gpus.cards import is_limit
from policies.gpus.near_names import INVALID_NAME_MESSAGE
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.names import is_resource_name
from policies.pods.pod import ResourceList
from policies.pods.quantity import QuantityText, parse_or_none
from policies.quota.amounts import CLASSES, Amounts, Hard, amount_problems, limits_of
from policies.quota.budget import BudgetSpec
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.waiting import QueueSpec

CHARGED_WHILE_WAITING = Reason("ChargedWhileWaiting", "a ResourceQuota also counts pods that wait in line")
INEFFECTIVE_QUOTA = Reason(
    "IneffectiveQuota", "a key of a ResourceQuota or GPUQuota has no effect, or is invalid"
)

NAME = "default"
"""The name that every GPUQuota must have, so that a namespace has only one."""

RESOURCE_QUOTA = "resource-quota"
"""Rule id of findings about a ResourceQuota. No policy configures them, because administrators write ResourceQuotas."""

REQUESTS, LIMITS = "requests.", "limits."
CHARGED_AT_CREATION = frozenset(
    ("pods", "count/pods", *(f"{of}{each}" for of in ("", REQUESTS, LIMITS) for each in ("cpu", "memory")))
)
"""Keys of a ResourceQuota, besides GPUs, that count every pod that has not ended, also under a scheduling gate."""


class LimitsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the specs of GPUQuota and ClusterGPUQuota share. `stated_unclassified_pods` is None if the field is missing."""

    hard: Hard
    stated_unclassified_pods: UnclassifiedPods | None = msgspec.field(name="unclassifiedPods", default=None)

    @property
    def unclassified_pods(self) -> UnclassifiedPods:
        """The stated value, or else the default: MostExpensive if there are limits by class, so that no pod exceeds them."""
        default = UnclassifiedPods.MOST_EXPENSIVE if self.class_fields else UnclassifiedPods.TOTAL_ONLY
        return self.stated_unclassified_pods or default

    @property
    def class_fields(self) -> list[str]:
        """The fields below the spec that limit classes."""
        return ["hard.classes"] if self.hard.classes else []

    @property
    def amounts(self) -> Amounts:
        """The limits, including limits of zero. Raises ValueError only if the spec has `problems`."""
        return limits_of(self.hard)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the spec, message) for every invalid value."""
        yield from amount_problems(self.hard, "hard")

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the spec, message) for what is valid, and may not be meant."""
        if self.class_fields and self.unclassified_pods is UnclassifiedPods.TOTAL_ONLY:
            fields = " and ".join(self.class_fields)
            yield (
                "unclassifiedPods",
                f"TotalOnly lets pods that pin no class exceed {fields}: they count for a class only once they are bound; set "
                "MostExpensive, or Deny",
            )


class QuotaSpec(LimitsSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spec of a GPUQuota document."""

    queue: QueueSpec = QueueSpec()
    budget: BudgetSpec | None = None

    @property
    def class_fields(self) -> list[str]:
        return [*super().class_fields, *(["budget.byClass"] if self.budget and self.budget.by_class else ())]

    def ledger(self, uid: str = "unknown", generation: int = 0) -> QuotaLedger:
        """Return the ledger of a GPUQuota with this spec, never counted. Raises ValueError only if the spec has `problems`."""
        return QuotaLedger(
            quota_uid=uid,
            generation=generation,
            hard=self.amounts,
            unclassified_pods=self.unclassified_pods,
            max_waiting=self.queue.max_waiting,
            budget=self.budget.budget if self.budget else None,
        )

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.queue.max_waiting < 0:
            yield "queue.maxWaiting", "must be 0 or more"
        if self.budget is not None:
            yield from (
                (f"budget.{path}" if path else "budget", text) for path, text in self.budget.problems()
            )


def hard_field(key: str) -> str:
    """Return the field path of a limit in a GPUQuota: `spec.hard.classes[nvidia-t4]`."""
    group, _, name = key.partition("/")
    return f"spec.hard.{group}[{name}]" if name else f"spec.hard.{group}"


def budget_field(key: str) -> str:
    """Return the field path of a budget in a GPUQuota: `spec.budget.byClass[nvidia-t4]`."""
    of_class = key.startswith(CLASSES)
    return f"spec.budget.byClass[{key.removeprefix(CLASSES)}]" if of_class else "spec.budget.gpuHours"


def resource_quota_findings(hard: ResourceList, resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield a warning for every key of `spec.hard` that names a GPU resource and has no effect.

    The key that has an effect gets an amount that its author wrote. Nothing writes 0 unasked, which would stop every pod. HAMi's
    scheduler reads keys of limits, of which one is then about a card's memory or compute.
    """
    of_limits = (
        resource_mapping.resource(key.removeprefix(LIMITS)) for key in hard if key.startswith(LIMITS)
    )
    is_for_hami = any(limit is not None and is_limit(limit) for limit in of_limits)
    for key in sorted(name for name in hard if not (is_for_hami and name.startswith(LIMITS))):
        resource = key.removeprefix(REQUESTS).removeprefix(LIMITS)
        if (name := resource_mapping.suggested_name(resource)) is not None:
            yield _misspelt_finding(key, resource, name, hard)
            continue
        if resource_mapping.resource(resource) is not None and key.startswith(REQUESTS):
            yield from _fraction_warning(key, hard[key])
        resource = key.removeprefix(LIMITS)
        if key.startswith(REQUESTS) or "/" not in resource or resource_mapping.resource(resource) is None:
            continue
        meant, removed = REQUESTS + resource, Edit(f"spec.hard[{key}]")
        same = (name for name in (key, resource, LIMITS + resource) if name in hard)
        amounts = {str(hard[name] or 0): hard[name] or 0 for name in same}
        is_set = meant in hard
        moved = tuple((removed, Edit(f"spec.hard[{meant}]", amount)) for amount in amounts.values())
        yield warning(
            rule=RESOURCE_QUOTA,
            reason=INEFFECTIVE_QUOTA,
            path=removed.path,
            message="has no effect: a ResourceQuota counts only requests of extended resources",
            choices=one_choice(removed) if is_set else moved,
            is_example=not is_set and "0" in amounts,
            remedy=f"remove it, {meant} is set as well" if is_set else "",
        )


def _misspelt_finding(key: str, resource: str, name: str, hard: ResourceList) -> Finding:
    """Return a warning of a misspelt resource, a denial where the API server rejects its name."""
    meant = REQUESTS + name
    edits = (
        Edit(f"spec.hard[{key}]"),
        *(() if meant in hard else (Edit(f"spec.hard[{meant}]", hard[key] or 0),)),
    )
    is_refused = not is_resource_name(resource)
    return Finding(
        rule=RESOURCE_QUOTA,
        reason=INEFFECTIVE_QUOTA,
        severity=Severity.DENIAL if is_refused else Severity.WARNING,
        path=f"spec.hard[{key}]",
        message=INVALID_NAME_MESSAGE
        if is_refused
        else "has no effect: no device plugin that is known has this resource",
        choices=one_choice(*edits),
        is_example=hard[key] is None,
        remedy=f"remove it, {meant} is set as well" if meant in hard else f"did you mean {meant}?",
    )


def _fraction_warning(key: str, amount: QuantityText) -> Iterator[Finding]:
    quantity = parse_or_none(amount)
    if quantity is not None and not quantity.is_whole and quantity.nano > 0:
        path, least = f"spec.hard[{key}]", quantity.value
        yield warning(
            rule=RESOURCE_QUOTA,
            reason=INEFFECTIVE_QUOTA,
            path=path,
            value=str(amount),
            message=f"allows {least - 1}: pods request whole GPUs",
            choices=separate_choices(*(Edit(path, whole) for whole in (least - 1, least) if whole)),
        )


def charged_waiting_findings(hard: Iterable[str], resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield a warning if keys of `spec.hard` also count the pods that wait in line."""
    charged = sorted(
        key
        for key in hard
        if key in CHARGED_AT_CREATION
        or (key.startswith(REQUESTS) and resource_mapping.resource(key.removeprefix(REQUESTS)) is not None)
    )
    if charged:
        yield warning(
            rule=RESOURCE_QUOTA,
            reason=CHARGED_WHILE_WAITING,
            path="spec.hard",
            message=f"{', '.join(charged)} also count pods that wait in line for quota: beyond them, a pod is denied instead",
            choices=one_choice(*(Edit(f"spec.hard[{key}]") for key in charged)),
            remedy="omit them, or leave room for the pods that wait",
        )
