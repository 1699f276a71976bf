"""The sum of one namespace in each dimension, with its largest holders, and a history where a quota has a budget."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction
from heapq import nsmallest

import msgspec

from policies.quota.amounts import NOTHING, Vector, key_order
from policies.quota.ledger.quota_ledger import Holder
from webhook.controller.usage_history import UsageHistory

HOLDERS_SHOWN = 5
"""Maximum of holders that the ledger names for one dimension: of idle ones, and of others."""
HOLDERS_LIMIT = 16 * 1024
"""Bytes of all holders as JSON at most; one takes some 55. The ledger is written often, so they must be few."""


class NamespaceSum:
    """The sum of one namespace under one `unclassifiedPods`. `demands` has the holder and the demand of each object by uid."""

    def __init__(
        self, dimensions: Collection[str], demands: Mapping[str, tuple[str, Vector]], clock: Callable[[], int]
    ) -> None:
        self.dimensions = dimensions
        self._clock = clock
        self.history: UsageHistory | None = None
        self.used: Vector = dict.fromkeys(dimensions, NOTHING)
        self._held: dict[str, dict[str, Fraction]] = {key: {} for key in dimensions}
        """The amount of each holder by dimension."""
        self._counted = {uid: demand for uid, demand in demands.items() if demand[1]}
        vectors = {id(vector): vector for _, vector in self._counted.values()}
        equal = Counter((holder, id(vector)) for holder, vector in self._counted.values())
        for (holder, identity), times in equal.items():
            self._add(holder, vectors[identity], times=times)

    def replace(self, uid: str, holder: str, vector: Vector) -> None:
        """Count this demand of an object instead of its former one."""
        before, after = self._counted.get(uid, ("", {})), (holder, vector)
        if before == after:
            return
        if vector:
            self._counted[uid] = after
        else:
            self._counted.pop(uid, None)
        self._add(*before, times=-1)
        self._add(*after)

    def equals_full_count(self, demands: Mapping[str, tuple[str, Vector]]) -> bool:
        other = NamespaceSum(self.dimensions, demands, self._clock)
        return (other._counted, other.used, other._held) == (self._counted, self.used, self._held)

    def counted(self, uid: str) -> Vector:
        return self._counted.get(uid, ("", {}))[1]

    def elapse(self) -> int:
        """Add the time until now to the history, and return now."""
        now = self._clock()
        if self.history is not None:
            self.history.elapse(now, self.used)
        return now

    def _add(self, holder: str, vector: Vector, *, times: int = 1) -> None:
        if self.history is not None:
            self.elapse()
        for key, amount in vector.items():
            if key in self.used and amount:
                added = amount if times == 1 else amount * times
                self.used[key] += added
                held = self._held[key]
                held[holder] = held.get(holder, NOTHING) + added
                if not held[holder]:
                    del held[holder]

    def largest(self, key: str, idle: Mapping[str, str]) -> tuple[Holder, ...]:
        """Return the largest idle holders in a dimension and then the largest others, equal amounts by name.

        `idle` has since when holders are idle. It takes 2 ms among 10,000 holders.
        """
        held = self._held[key]
        # Whole amounts as an int: these compare ten times as fast as a Fraction.
        ranked = (
            (-(each.numerator if each.denominator == 1 else each), name)
            for name, each in held.items()
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
