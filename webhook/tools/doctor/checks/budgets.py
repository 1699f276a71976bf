"""Budgets of GPU-hours: whether somebody counts them. A spent one is not a finding."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from policies.quota.amounts import GPUS
from webhook.cluster.objects import CONTROLLER
from webhook.quota.documents import QuotaRecord
from webhook.tools.doctor.check import Observation, doctor_check, failure
from webhook.tools.doctor.checks.control_plane import OURS, controller_age
from webhook.tools.installed_cluster import InstalledCluster, Permission

COUNTED_WITHIN = timedelta(minutes=15)
"""A controller counts a budget every 5 minutes while GPUs are used."""


@doctor_check("budgets", "Budgets of GPU-hours are counted", Permission("list", "gpuquotas", OURS))
def _budgets(cluster: InstalledCluster) -> Iterator[Observation]:
    with_budget = [
        quota for quota in cluster.quotas if quota.spec is not None and quota.spec.budget is not None
    ]
    if not with_budget:
        return
    age = controller_age(cluster)
    leads = age is not None and age <= COUNTED_WITHIN
    for quota in with_budget:
        if (problem := _problem(cluster, quota, leads=leads)) is not None:
            message = f"has a budget of GPU-hours, and {problem}"
            remedy = f"start the controller ({CONTROLLER}) of this version, and see its log"
            yield failure("budget-not-counted", f"GPUQuota in {quota.namespace}", message, remedy)


def _problem(cluster: InstalledCluster, quota: QuotaRecord, *, leads: bool) -> str | None:
    """Return why the budget is not counted, None if it is."""
    budget, used = quota.status.budget, (quota.status.used or {}).get(GPUS)
    if not leads:
        return "no controller leads that counts them: a spent budget denies until the end of its period, and no other one does"
    if budget is None:
        return "the controller that leads has not counted them"
    late = cluster.now - datetime.fromisoformat(budget.until)
    return f"the last count is of {budget.until}" if used and late > COUNTED_WITHIN else None


CHECKS = (_budgets,)
