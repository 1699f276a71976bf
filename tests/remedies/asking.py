"""Makes the changes of quotas that a finding asks the people who run the cluster for."""

from collections.abc import Iterable
from fractions import Fraction

from msgspec.structs import replace

from policies.finding import Asked
from policies.quota.amounts import GPUS
from tests.remedies.situations import Quota, Situation

KINDS = ("GPUQuota", "ClusterGPUQuota")


def granted(situation: Situation, asks: Iterable[Asked]) -> Situation | None:
    """Return the situation with all of the changes; None if nothing is asked of a quota that exists."""
    asked = [each for each in asks if each.kind in KINDS and each.path]
    quota = situation.quota
    if quota is None or not asked:
        return None
    for each in asked:
        quota = _raised(quota, each)
    return replace(situation, quota=quota)


def _raised(quota: Quota, asked: Asked) -> Quota:
    if asked.path.startswith("spec.budget."):
        return replace(quota, spent=0.1)
    if asked.path == "spec.queue.maxWaiting":
        return replace(quota, waiting=0)
    amount, field = Fraction(asked.value), asked.path.removeprefix("spec.hard.")
    if asked.kind == "ClusterGPUQuota":
        return replace(quota, team=max(amount, quota.team or amount))
    key = GPUS if field == GPUS else f"classes/{field.partition('[')[2].rstrip(']')}"
    return replace(quota, hard={**quota.hard, key: max(amount, quota.hard.get(key, amount))})
