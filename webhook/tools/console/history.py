"""What quotas held since the console began to look: steps of used, reserved and granted, bounded in number, as SVG paths."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import floor, log10
from time import monotonic
from typing import NamedTuple

from webhook.tools.status.summaries import QuotaRow

MAX_STEPS = 240
"""Maximum of steps of one dimension. A chart has too few pixels to show more."""

SIDE = 1000
"""Units of the square in which paths are drawn. The page stretches it."""

HEADROOM = 1.15
"""The top of a chart, as a multiple of the largest amount: room for a label above the line."""

QuotaDimension = tuple[str, str]
"""A namespace, and a key of its quota."""

Step = tuple[float, QuotaRow]
"""From this time (seconds of any clock) on, the quota held this."""


class History:
    """The steps of many dimensions. A row that did not change adds no step; of too many steps every other one goes."""

    def __init__(self, max_steps: int = MAX_STEPS) -> None:
        self._max_steps = max_steps
        self._steps: dict[QuotaDimension, list[Step]] = {}

    def record(self, at: float, rows: Mapping[QuotaDimension, QuotaRow]) -> None:
        """Add the rows that hold from `at` on, which never decreases; forget dimensions without a row."""
        for gone in self._steps.keys() - rows.keys():
            del self._steps[gone]
        for key, row in rows.items():
            steps = self._steps.setdefault(key, [])
            if steps and steps[-1][1] == row:
                continue
            if len(steps) >= self._max_steps:
                # The first one stays, where the line begins, and the last one, which still holds.
                steps[1:-1] = steps[2:-1:2]
            steps.append((at, row))

    def steps(self, key: QuotaDimension) -> tuple[Step, ...]:
        return tuple(self._steps.get(key, ()))

    def drawing(self, namespace: str, key: str) -> "Drawing | None":
        """Draw what the dimension held until now. None if unknown."""
        steps = self.steps((namespace, key))
        return draw(steps, monotonic()) if steps else None


class Drawing(NamedTuple):
    """Paths in a square of SIDE units with the origin at the top; `top` is the amount at its upper edge.

    used, held (used + reserved): areas. edge, hard: the lines of used and granted amounts. ticks: round amounts.
    """

    used: str
    edge: str
    held: str
    hard: str
    top: float
    ticks: tuple[float, ...]
    lowest: float
    highest: float


def draw(steps: Sequence[Step], until: float) -> Drawing:
    began = steps[0][0]
    span = max(until - began, 1e-9)
    used, held, hard = (
        [float(amount) for amount in amounts]
        for amounts in zip(*((row.used or 0, row.held, row.hard) for _, row in steps), strict=True)
    )
    top = max(*hard, *held) * HEADROOM or 1.0
    times = [(at - began) / span * SIDE for at, _ in steps] + [float(SIDE)]

    def line(values: Sequence[float]) -> str:
        heights = [SIDE - value / top * SIDE for value in values]
        return " ".join(
            f"L{left:.0f} {height:.0f} L{right:.0f} {height:.0f}"
            for (left, right), height in zip(pairwise(times), heights, strict=True)
        )

    def area(values: Sequence[float]) -> str:
        return f"M0 {SIDE} {line(values)} L{SIDE} {SIDE} Z"

    return Drawing(
        used=area(used),
        edge=f"M{line(used)[1:]}",
        held=area(held),
        hard=f"M{line(hard)[1:]}",
        top=top,
        ticks=_ticks(top),
        lowest=min(used),
        highest=max(used),
    )


def _ticks(top: float) -> tuple[float, ...]:
    """Return 0 and at most four round amounts below the top."""
    magnitude = 10.0 ** floor(log10(top / 4))
    step = next(size * magnitude for size in (1, 2, 5, 10) if size * magnitude >= top / 4)
    return tuple(step * number for number in range(int(top / step) + 1))
