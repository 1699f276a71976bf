"""Budgets of GPU-hours: what a namespace may hold over a period, added up by the controller and written into the ledger.

What is spent is the integral of `used` over time. A count adds the time since `Spending.until` of the very ledger that its
swap replaces, so no interval is added twice, also by two controllers. `until` never goes back. All times are milliseconds
since 1970, UTC. All amounts are whole GPU-microseconds (GPU-us), so that sums of shares stay short; one rounding loses less
than 1e-12 GPU-hours.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from fractions import Fraction
from math import ceil

import msgspec

from policies.quota.amounts import CLASSES, GPUS, ZERO, Amounts, parse_amount

GPU_HOUR = 3_600_000_000
"""GPU-us."""
GPU_SECOND = 1_000_000
MAX_GPU_HOURS = 10**9
"""A million GPUs for a month are less. What is spent beyond that is cut: msgspec writes no whole number of more than 64 bits."""
_MAX_SPENT = 2 * MAX_GPU_HOURS * GPU_HOUR
PER_MS = 1000
"""GPU-us of one GPU in a millisecond."""


class Period(Enum):
    """Periods begin at midnight UTC, a week on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def bounds(self, at: int) -> tuple[int, int]:
        """Return the beginning of the period that has this moment, and the end, which is the beginning of the next one."""
        midnight = moment(at).replace(hour=0, minute=0, second=0, microsecond=0)
        match self:
            case Period.DAY:
                start, end = midnight, midnight + timedelta(days=1)
            case Period.WEEK:
                start = midnight - timedelta(days=midnight.weekday())
                end = start + timedelta(days=7)
            case _:
                start = midnight.replace(day=1)
                end = (start + timedelta(days=32)).replace(day=1)
        return milliseconds(start), milliseconds(end)


class Budget(msgspec.Struct, frozen=True, rename="camel"):
    """What a period grants, in GPU-us by `gpus` and `classes/NAME`. `warn_at`: spent share at which findings warn."""

    period: Period
    granted: Mapping[str, int]
    warn_at: float


class BudgetSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`spec.budget` of a GPUQuota. `by_class`: GPU-hours by class or family."""

    gpu_hours: int | str | None = None
    by_class: Mapping[str, int | str] = {}
    period: Period = Period.MONTH
    warn_at: float = 0.8

    @property
    def budget(self) -> Budget:
        """Raises ValueError if the spec has `problems`."""
        for path, message in self.problems():
            raise ValueError(f"budget.{path} {message}" if path else f"budget {message}")
        granted = {key: round(parse_amount(raw) * GPU_HOUR) for key, _, raw in self._granted()}
        return Budget(self.period, granted, self.warn_at)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the budget, message) for every invalid value; without a path if nothing is granted."""
        for _, path, raw in self._granted():
            try:
                if parse_amount(raw) > MAX_GPU_HOURS:
                    yield path, f"must be at most {MAX_GPU_HOURS} GPU-hours"
            except ValueError as error:
                yield path, str(error)
        if self.gpu_hours is None and not self.by_class:
            yield "", "must have gpuHours, byClass or both"
        if not 0 < self.warn_at <= 1:
            yield "warnAt", "must be more than 0 and at most 1, such as 0.8"

    def _granted(self) -> Iterator[tuple[str, str, int | str]]:
        if self.gpu_hours is not None:
            yield GPUS, "gpuHours", self.gpu_hours
        yield from ((CLASSES + name, f"byClass[{name}]", raw) for name, raw in self.by_class.items())


class Spending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was spent in the period from `start` to `end`, counted up to `until`, in GPU-us by the keys of the budget.

    `unknown` is what may have been held in addition, by objects that were created and deleted while no controller watched.
    """

    start: int
    end: int
    until: int
    spent: Mapping[str, int] = {}
    unknown: Mapping[str, int] = {}


class HeldOverTime(msgspec.Struct, frozen=True):
    """What was held in an interval, and what may have been held in addition (`unknown`), in GPU-us."""

    known: Mapping[str, int] = {}
    unknown: Mapping[str, int] = {}


def advance(
    budget: Budget, spending: Spending | None, at: int, held: Callable[[int, int], HeldOverTime]
) -> Spending:
    """Return the spending at the moment `at`. `held` returns what was held between two moments.

    The first spending begins at zero, and so does every period, also after its length was changed. A moment that was already
    counted changes nothing.
    """
    start, end = budget.period.bounds(at)
    if spending is None:
        return Spending(start=start, end=end, until=at)
    if at <= spending.until:
        return spending
    if (spending.start, spending.end) == (start, end):
        since, spent, unknown = spending.until, spending.spent, spending.unknown
    else:
        since, spent, unknown = max(spending.until, start), {}, {}
    added = held(since, at)
    return Spending(
        start=start,
        end=end,
        until=at,
        spent=_capped_sum(spent, added.known),
        unknown=_capped_sum(unknown, added.unknown),
    )


def with_held(budget: Budget, spending: Spending, held: Amounts, ms: int) -> Spending:
    """Return the spending with what was held for this time in addition."""
    added = {key: round(held[key] * ms * PER_MS) for key in budget.granted if key in held}
    return (
        msgspec.structs.replace(spending, spent=_capped_sum(spending.spent, added))
        if added and ms
        else spending
    )


def keys_reached(budget: Budget, spending: Spending, share: float = 1.0) -> frozenset[str]:
    """Return the keys whose budget is spent to at least this share."""
    return frozenset(
        key
        for key, granted in budget.granted.items()
        if spending.spent.get(key, 0) >= _used_share(granted, share)
    )


def next_change(budget: Budget, spending: Spending, used: Amounts) -> int:
    """Return when usage as of now will reach a warning or the budget of a key; at the latest, the end of the period."""
    moments = (
        _moment_of_reaching(spending, key, _used_share(granted, share), used)
        for key, granted in budget.granted.items()
        for share in (budget.warn_at, 1.0)
    )
    return min([spending.end, *(each for each in moments if each is not None)])


def will_be_spent(budget: Budget, spending: Spending, used: Amounts, keys: Collection[str]) -> int | None:
    """Return when usage as of now will spend the budget of the first of these keys. None if not in this period."""
    moments = (_moment_of_reaching(spending, key, budget.granted[key], used) for key in keys)
    soonest = min((each for each in moments if each is not None), default=spending.end)
    return soonest if soonest < spending.end else None


def must_be_written(
    budget: Budget, before: Spending | None, after: Spending, every: int, used: Amounts
) -> bool:
    """Whether a count must be written: for a decision, a warning, or because the last one is older than `every` ms.

    Also if more or less was held since then than the written `used` says, because objects came and went: a process that starts
    later could not know it.
    """
    if before is None or before.start != after.start or before.end != after.end:
        return True
    changed = any(
        keys_reached(budget, before, part) != keys_reached(budget, after, part)
        for part in (budget.warn_at, 1.0)
    )
    elapsed = after.until - before.until
    held = {key: used.get(key, ZERO) * elapsed * PER_MS + before.spent.get(key, 0) for key in budget.granted}
    differs = any(abs(after.spent.get(key, 0) - amount) > GPU_SECOND for key, amount in held.items())
    return changed or elapsed >= every or differs


def moment(at: int) -> datetime:
    """Return the time of `at`, in milliseconds since 1970."""
    return datetime.fromtimestamp(at / 1000, UTC)


def milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def gpu_hours(amount: int) -> Fraction:
    return Fraction(amount, GPU_HOUR)


def _moment_of_reaching(spending: Spending, key: str, amount: int, used: Amounts) -> int | None:
    """Return when this amount will be spent. None if it is spent already, or nothing is used."""
    left, rate = amount - spending.spent.get(key, 0), used.get(key, ZERO) * PER_MS
    return spending.until + ceil(left / rate) if left > 0 and rate else None


def _used_share(granted: int, share: float) -> int:
    return ceil(granted * Fraction(share).limit_denominator(10**6))


def _capped_sum(before: Mapping[str, int], added: Mapping[str, int]) -> dict[str, int]:
    return {key: min(_MAX_SPENT, before.get(key, 0) + added.get(key, 0)) for key in sorted({*before, *added})}
