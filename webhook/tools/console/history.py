"""What quotas held since the console began to look: steps of used, reserved and granted, bounded in number, as SVG paths."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import floor, log10
from typing import NamedTuple

MOST_STEPS = 240
"""Of one dimension; a chart is about so many pixels wide that more would not show."""

SIDE = 1000
"""Paths are drawn in a square of so many units, which the page stretches."""

HEADROOM = 1.15
"""The top of a chart, as a multiple of the largest amount: room for a label above the line."""


QuotaDimension = tuple[str, str]
"""A namespace, and a key of its quota."""


class Level(NamedTuple):
    """One dimension of a quota, in GPUs or units of its resource; `reserved` is of pods being created."""

    used: float
    reserved: float
    hard: float

    @property
    def held(self) -> float:
        return self.used + self.reserved


class Step(NamedTuple):
    """From the time `at` (seconds of any clock) on, the level was this."""

    at: float
    level: Level


class History:
    """The steps of many dimensions. What does not change costs nothing; where steps are too many, every other one goes."""

    def __init__(self, most: int = MOST_STEPS) -> None:
        self._most = most
        self._steps: dict[QuotaDimension, list[Step]] = {}

    def record(self, at: float, levels: Mapping[QuotaDimension, Level]) -> None:
        """Add what holds at a time not before the last one; dimensions that are not named are gone."""
        for gone in self._steps.keys() - levels.keys():
            del self._steps[gone]
        for key, level in levels.items():
            steps = self._steps.setdefault(key, [])
            if steps and steps[-1].level == level:
                continue
            if len(steps) >= self._most:
                # The first one stays, where the line begins, and the last one, which still holds.
                steps[1:-1] = steps[2:-1:2]
            steps.append(Step(at, level))

    def steps(self, key: QuotaDimension) -> tuple[Step, ...]:
        return tuple(self._steps.get(key, ()))


class Drawing(NamedTuple):
    """Paths in a square of SIDE units with the origin at the top; `top` is the amount at its upper edge.

    used, held (used + reserved): areas. edge: the line of what is used. hard: that of what is granted. ticks: round amounts.
    """

    used: str
    edge: str
    held: str
    hard: str
    top: float
    ticks: tuple[float, ...]
    least: float
    most: float


def draw(steps: Sequence[Step], until: float) -> Drawing:
    """Draw the steps from the first one to `until`."""
    began = steps[0].at
    span = max(until - began, 1e-9)
    top = max(max(level.hard, level.held) for _, level in steps) * HEADROOM or 1.0
    edges = [(step.at - began) / span * SIDE for step in steps] + [float(SIDE)]

    def line(values: Sequence[float]) -> str:
        heights = [SIDE - value / top * SIDE for value in values]
        return " ".join(
            f"L{left:.0f} {height:.0f} L{right:.0f} {height:.0f}"
            for (left, right), height in zip(pairwise(edges), heights, strict=True)
        )

    def area(values: Sequence[float]) -> str:
        return f"M0 {SIDE} {line(values)} L{SIDE} {SIDE} Z"

    used = [level.used for _, level in steps]
    return Drawing(
        used=area(used),
        edge=f"M{line(used)[1:]}",
        held=area([level.held for _, level in steps]),
        hard=f"M{line([level.hard for _, level in steps])[1:]}",
        top=top,
        ticks=_ticks(top),
        least=min(used),
        most=max(used),
    )


def _ticks(top: float) -> tuple[float, ...]:
    """Return 0 and at most four round amounts below the top."""
    magnitude = 10.0 ** floor(log10(top / 4))
    step = next(size * magnitude for size in (1, 2, 5, 10) if size * magnitude >= top / 4)
    return tuple(step * number for number in range(int(top / step) + 1))
