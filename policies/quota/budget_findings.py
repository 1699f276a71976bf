"""Messages about a budget of GPU-hours: that it is spent, or how long it will last."""

from collections.abc import Collection, Iterator
from datetime import datetime
from functools import partial

from policies.finding import ContactEdit, Finding, Reason, Severity, Wait, warning
from policies.pods.workload import Workload
from policies.quota.amounts import GPUS, Amounts, format_amount, key_order, total, unit_name
from policies.quota.budget import (
    Budget,
    Period,
    Spending,
    gpu_hours,
    keys_reached,
    milliseconds,
    moment,
    will_be_spent,
)
from policies.quota.demand import Catalogue
from policies.quota.fit import demands
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import ReservationOutcome
from policies.quota.spec import NAME, budget_field
from policies.times import utc

BUDGET_SPENT = Reason("BudgetSpent", "the GPU-hours that the namespace may use in this period are spent")
BUDGET_LOW = Reason("BudgetLow", "few of the GPU-hours that the namespace may use in this period are left")

MAX_KEYS = 2
"""Keys in one message; the line is short."""

THIS_PERIOD = {Period.DAY: "today (UTC)", Period.WEEK: "this week", Period.MONTH: "this month"}


def reservation_findings(namespace: str, outcome: ReservationOutcome, now: datetime) -> Iterator[Finding]:
    """Yield the denial of a request because its budget is spent, or the warning that it is spent soon."""
    ledger, request, verdict = outcome.ledger, outcome.request, outcome.verdict
    if not (ledger and ledger.budget and ledger.spending and request and verdict):
        return
    needed = {*request.demand, *request.will_need}
    if not verdict.allowed:
        yield _spent_finding(namespace, ledger.budget, ledger.spending, needed)
    elif milliseconds(now) < ledger.spending.end:
        used = total((ledger.used or {}, verdict.reserved))
        yield from _low_finding(namespace, ledger.budget, ledger.spending, needed, used)


def workload_findings(
    workload: Workload, ledger: QuotaLedger, catalogue: Catalogue, namespace: str
) -> Iterator[Finding]:
    """Yield the warning that the budget of the workload's pods is spent, or will be soon."""
    budget, spending = ledger.budget, ledger.spending
    if budget is None or spending is None or not keys_reached(budget, spending, budget.warn_at):
        return
    requested = demands(workload.target or workload, catalogue, ledger.unclassified_pods)
    needed = {key for demand in requested for key in demand.per_pod}
    path = requested[0].path if requested and workload.target is None else "spec"
    if keys_reached(budget, spending).intersection(needed):
        yield _spent_finding(namespace, budget, spending, needed, path)
    else:
        yield from _low_finding(namespace, budget, spending, needed, ledger.held, path)


def spending_text(budget: Budget, spending: Spending, keys: Collection[str]) -> str:
    """Return `4100 of 5000 GPU-hours used this month`, for a class `16 of 20 GPU-hours of nvidia-t4`."""
    facts = [
        f"{_hours_text(spending.spent.get(key, 0))} of {_hours_text(budget.granted[key])} GPU-hours"
        f"{'' if key == GPUS else f' of {unit_name(key)}'}"
        for key in sorted(keys, key=key_order)
    ]
    more = f" and {len(keys) - MAX_KEYS} more" if len(keys) > MAX_KEYS else ""
    return f"{' and '.join(facts[:MAX_KEYS])}{more} used {THIS_PERIOD[budget.period]}"


def outlook_text(budget: Budget, spending: Spending, keys: Collection[str], used: Amounts) -> str:
    """Return in words when usage as of now spends the budget of one of the keys, and what happens then."""
    if keys_reached(budget, spending).intersection(keys):
        return f"nothing is left until {time_of(spending.end)}"
    at = will_be_spent(budget, spending, used, keys)
    if at is None:
        return "enough for the rest if no more is used than now"
    return f"all of it at {time_of(at)} if as much is used as now; new pods are then denied until {time_of(spending.end)}"


def time_of(at: int) -> str:
    """Return a moment in words, to the minute: what is estimated must not change all the time."""
    return utc(moment(at).replace(second=0))


def _spent_finding(
    namespace: str, budget: Budget, spending: Spending, needed: Collection[str], path: str = ""
) -> Finding:
    """Return the denial of a request that needs spent keys of the budget; with the path of a pod template, a warning."""
    spent = sorted(keys_reached(budget, spending).intersection(needed), key=key_order)
    begins = f"the next {budget.period.value} begins at {time_of(spending.end)}"
    facts = f"{namespace}/{NAME}, {spending_text(budget, spending, spent)}; {begins}"
    other = ", or request a class that is not spent" if GPUS not in spent else ""
    field = budget_field(spent[0]) if len(spent) == 1 else "spec.budget"
    raised = (tuple(ContactEdit("GPUQuota", budget_field(key)) for key in spent),)
    finding = partial(Finding, reason=BUDGET_SPENT, ask_contact=f"to raise {field}", contact_choices=raised)
    if path:
        message = f"its pods will be denied, the budget is spent: {facts}"
        return finding(path=path, severity=Severity.WARNING, message=message)
    return finding(
        message=f"exceeded budget: {facts}",
        awaits=Wait(until=spending.end),
        remedy=f"wait until {time_of(spending.end)}{other}",
    )


def _low_finding(
    namespace: str, budget: Budget, spending: Spending, needed: Collection[str], used: Amounts, path: str = ""
) -> Iterator[Finding]:
    """Yield the warning that a budget is spent soon, if `used` stays as it is."""
    low = sorted(keys_reached(budget, spending, budget.warn_at).intersection(needed), key=key_order)
    if not low:
        return
    facts = f"{spending_text(budget, spending, low)}, {outlook_text(budget, spending, low, used)}"
    message = f"budget {namespace}/{NAME}: {facts}"
    yield warning(reason=BUDGET_LOW, path=path, message=message)


def _hours_text(amount: int) -> str:
    return format_amount(gpu_hours(amount))
