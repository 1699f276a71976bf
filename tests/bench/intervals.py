"""The median of paired ratios, and the interval that has it with 95 % certainty."""

from collections.abc import Sequence
from math import comb, inf
from statistics import median
from typing import NamedTuple

ERROR = 0.025
"""At each end of the interval."""
EXACT = 0.05
"""An interval that reaches further from its median than this share of it is wide."""


class Interval(NamedTuple):
    median: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Return how far the further end is from the median, as a share of it."""
        return max(self.high - self.median, self.median - self.low) / abs(self.median) if self.median else inf

    @property
    def is_wide(self) -> bool:
        return self.error > EXACT


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median, and the order statistics between which that of the distribution is with 95 % certainty.

    Each value is below it with probability 1/2, whatever the distribution: so the number below it is binomial, and
    the k-th smallest is above it with probability P(fewer than k are below). Fewer than six values bound nothing.
    """
    ordered, count = sorted(values), len(values)
    rank, certain = 0, 0.0
    while rank < count and certain + comb(count, rank) / 2**count <= ERROR:
        certain += comb(count, rank) / 2**count
        rank += 1
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (-inf, inf)
    return Interval(median(ordered), low, high)


def paired(values: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Return each value as a share of its neighbour in time."""
    return [value / other for value, other in zip(values, reference, strict=True)]
