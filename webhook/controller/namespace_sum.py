"""The sum of one namespace in each dimension, with its largest holders, and a history where a quota has a budget.

The history is what was held over time: the integral of `used`, added up at every change. It is a curve of points: a moment, and
all that was held until then. So what was held between any two moments since its beginning is a difference. The ledger names the
first moment, and the controller that counts knows the second one.

It begins with a gap: the time from the last count in the ledger to the beginning, in which this process did not watch.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from fractions import Fraction
from heapq import nsmallest
from time import monotonic, time

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import ZERO, Amounts, key_order, positive_difference, total
from policies.quota.budget import PER_MS, HeldOverTime, milliseconds
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger

MAX_POINTS = 4096
"""Maximum of points of a curve: some 2 MB with four keys. Beyond it every second point is dropped. The average counts between two
points."""

HOLDERS_SHOWN = 5
"""Maximum of holders that the ledger names for one dimension: of idle ones, and of others."""
HOLDERS_LIMIT = 16 * 1024
"""Bytes of all holders as JSON at most; one takes some 55. The ledger is written often, so they must be few."""


def anchored_clock() -> Callable[[], int]:
    """Return a clock in ms since 1970 that reads the clock of the machine only now, and then counts monotonic time."""
    anchor = time() - monotonic()

    def clock() -> int:
        return int((anchor + monotonic()) * 1000)

    return clock


class Life(msgspec.Struct, frozen=True):
    """A stored object: its demand, creationTimestamp, and when it ended: None if it lives, "" if that is not known."""

    demand: Amounts
    created: str
    ended: str | None = None


class Gap(msgspec.Struct, frozen=True):
    """What was held between two moments, by the objects that are still stored."""

    since: int
    until: int
    held: HeldOverTime = HeldOverTime()

    @classmethod
    def of(cls, ledger: QuotaLedger, lives: Iterable[Life], now: int) -> "Gap":
        """Return what was held since the last count of the ledger, by the keys of its budget.

        What else was held then is in the `used` of that count, or has a reservation, because only a count removes one. What is
        reserved for a pod whose gate was not removed is not held.
        """
        keys = ledger.budget.granted if ledger.budget else {}
        since = min(now, ledger.spending.until) if ledger.spending else now
        known = dict.fromkeys(keys, 0)
        demands: list[Amounts] = []
        for life in lives:
            begun = max(since, _moment_or(life.created, since))
            ended = now if life.ended is None else min(now, _moment_or(life.ended, since))
            if ended > begun:
                demands.append(life.demand)
                for key in known.keys() & life.demand.keys():
                    known[key] += round(life.demand[key] * (ended - begun) * PER_MS)
        waiting = (reservation.id for reservation in ledger.reservations if reservation.is_lift)
        admitted = replace(ledger, reservations=ledger.reservations.without(waiting))
        missing = positive_difference(admitted.held, total(demands))
        unknown = {
            key: round(amount * (now - since) * PER_MS) for key, amount in missing.items() if key in keys
        }
        return cls(since, now, HeldOverTime(known, unknown))


class UsageHistory:
    """The caller holds a lock. `keys` are those of the budget."""

    def __init__(self, keys: Collection[str], gap: Gap) -> None:
        self.keys = frozenset(keys)
        self._gap = gap
        self._moments = [gap.since, gap.until]
        self._total = {key: gap.held.known.get(key, 0) for key in keys}
        self._totals: list[Mapping[str, int]] = [dict.fromkeys(keys, 0), dict(self._total)]

    def elapse(self, at: int, used: Amounts) -> None:
        """Add the time since the last call, in which `used` was held."""
        elapsed = at - self._moments[-1]
        if elapsed <= 0:
            return
        for key in self.keys:
            self._total[key] += round(used.get(key, ZERO) * elapsed * PER_MS)
        self._moments.append(at)
        self._totals.append(dict(self._total))
        if len(self._moments) > MAX_POINTS:
            del self._moments[1:-1:2], self._totals[1:-1:2]

    def held(self, since: int, until: int) -> HeldOverTime:
        """Return what was held between two moments, neither of them later than the last call of `elapse`."""
        before, after = self._held_until(since), self._held_until(until)
        gap = self._gap
        common = min(until, gap.until) - max(since, gap.since)
        unknown = {
            key: amount * common // (gap.until - gap.since)
            for key, amount in gap.held.unknown.items()
            if common > 0
        }
        return HeldOverTime({key: after[key] - before[key] for key in self.keys}, unknown)

    def forget(self, until: int) -> None:
        """Forget what was held before a moment from which a ledger was counted on."""
        first = max(0, bisect_right(self._moments, until) - 1)
        del self._moments[:first], self._totals[:first]

    def _held_until(self, at: int) -> Mapping[str, int]:
        """Return all that was held until a moment, between two points in proportion."""
        index = bisect_right(self._moments, at)
        if index == 0 or index == len(self._moments):
            return self._totals[min(index, len(self._moments) - 1)]
        begin, end = self._moments[index - 1], self._moments[index]
        low, high = self._totals[index - 1], self._totals[index]
        return {key: low[key] + (high[key] - low[key]) * (at - begin) // (end - begin) for key in self.keys}


def _moment_or(timestamp: str, otherwise: int) -> int:
    """Return a timestamp of the API server in ms since 1970."""
    try:
        return milliseconds(datetime.fromisoformat(timestamp))
    except ValueError:
        return otherwise


class NamespaceSum:
    """The sum of one namespace under one `unclassifiedPods`. `demands` has the holder and the demand of each object by uid."""

    def __init__(
        self,
        dimensions: Collection[str],
        demands: Mapping[str, tuple[str, Amounts]],
        clock: Callable[[], int],
    ) -> None:
        self.dimensions = dimensions
        self._clock = clock
        self.history: UsageHistory | None = None
        self.used: Amounts = dict.fromkeys(dimensions, ZERO)
        self._by_holder: dict[str, dict[str, Fraction]] = {key: {} for key in dimensions}
        """The amount of each holder by dimension."""
        self._demands = {uid: demand for uid, demand in demands.items() if demand[1]}
        vectors = {id(vector): vector for _, vector in self._demands.values()}
        equal = Counter((holder, id(vector)) for holder, vector in self._demands.values())
        for (holder, identity), times in equal.items():
            self._add(holder, vectors[identity], times=times)

    def replace(self, uid: str, holder: str, vector: Amounts) -> None:
        """Count this demand of an object instead of its former one."""
        before, after = self._demands.get(uid, ("", {})), (holder, vector)
        if before == after:
            return
        if vector:
            self._demands[uid] = after
        else:
            self._demands.pop(uid, None)
        self._add(*before, times=-1)
        self._add(*after)

    def equals_full_count(self, demands: Mapping[str, tuple[str, Amounts]]) -> bool:
        other = NamespaceSum(self.dimensions, demands, self._clock)
        return (other._demands, other.used, other._by_holder) == (self._demands, self.used, self._by_holder)

    def counted(self, uid: str) -> Amounts:
        return self._demands.get(uid, ("", {}))[1]

    def elapse(self) -> int:
        """Add the time until now to the history, and return now."""
        now = self._clock()
        if self.history is not None:
            self.history.elapse(now, self.used)
        return now

    def _add(self, holder: str, vector: Amounts, *, times: int = 1) -> None:
        if self.history is not None:
            self.elapse()
        for key, amount in vector.items():
            if key in self.used and amount:
                added = amount if times == 1 else amount * times
                self.used[key] += added
                held = self._by_holder[key]
                held[holder] = held.get(holder, ZERO) + added
                if not held[holder]:
                    del held[holder]

    def largest(self, key: str, idle: Mapping[str, str]) -> tuple[Holder, ...]:
        """Return the largest idle holders in a dimension and then the largest others, equal amounts by name.

        `idle` has since when holders are idle. It takes 2 ms among 10,000 holders.
        """
        held = self._by_holder[key]
        # Whole amounts as an int: these compare ten times as fast as a Fraction.
        ranked = (
            (-(amount.numerator if amount.denominator == 1 else amount), name)
            for name, amount in held.items()
            if name not in idle
        )
        idle_ones = nsmallest(HOLDERS_SHOWN, ((-held[name], name) for name in idle if name in held))
        return (
            *(Holder(name, str(-negative), idle[name]) for negative, name in idle_ones),
            *(Holder(name, str(-negative)) for negative, name in nsmallest(HOLDERS_SHOWN, ranked)),
        )


def largest_holders(
    namespace_sum: NamespaceSum, keys: Iterable[str], idle: Mapping[str, str]
) -> dict[str, tuple[Holder, ...]]:
    """Return the largest holders by dimension, `gpus` first, of as many dimensions as fit into HOLDERS_LIMIT."""
    largest, bytes_left = {}, HOLDERS_LIMIT
    for key in sorted(keys, key=key_order):
        if holders := namespace_sum.largest(key, idle):
            bytes_left -= len(msgspec.json.encode({key: holders}))
            if bytes_left < 0:
                break
            largest[key] = holders
    return largest
