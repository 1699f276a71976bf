"""Budgets and what is spent of them, in GPU-hours, of November 2026."""

from datetime import UTC, datetime

from policies.quota.amounts import GPUS
from policies.quota.budget import GPU_HOUR, Budget, Period, Spending, milliseconds

T4 = "classes/nvidia-t4"
HOUR = 3_600_000
"""In ms."""


def at(time: str) -> int:
    """Return a time in UTC in ms since 1970."""
    return milliseconds(datetime.fromisoformat(time).replace(tzinfo=UTC))


MONTH = at("2026-11-01"), at("2026-12-01")


def budget(
    period: Period = Period.MONTH, warn_at: float = 0.8, t4: float | None = None, gpus: float | None = None
) -> Budget:
    granted = {key: round(hours * GPU_HOUR) for key, hours in ((GPUS, gpus), (T4, t4)) if hours is not None}
    return Budget(period, granted, warn_at)


def spending(
    *,
    until: int = at("2026-11-26T12:00:00"),
    start: int = MONTH[0],
    end: int = MONTH[1],
    spent: float = 0.0,
    unknown: float = 0.0,
    t4: float = 0.0,
) -> Spending:
    amounts = {GPUS: round(spent * GPU_HOUR), T4: round(t4 * GPU_HOUR)}
    return Spending(
        start=start,
        end=end,
        until=until,
        spent={key: amount for key, amount in amounts.items() if amount},
        unknown={GPUS: round(unknown * GPU_HOUR)} if unknown else {},
    )
