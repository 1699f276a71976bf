"""When controllers wrote the lines of an audit log, so that a part that is missing shows.

A line `counting` says that its controller has led, and written all lines, since the one before. Older versions wrote none: their
part of a log does not say whether it is whole.
"""

from typing import NamedTuple

CONTINUOUS_SECONDS = 1.0
"""A shorter time between two intervals is the rounding of their moments."""
OLDER_VERSION_SECONDS = 60.0
"""A controller whose lines begin this long before its first line `counting` was of a version that wrote none."""
NEVER = float("inf")


class Interval(NamedTuple):
    """Moments in seconds of the epoch."""

    since: float
    until: float


class Coverage(NamedTuple):
    """log: from the first to the last line. gaps: when no controller wrote. unknown: when perhaps none did."""

    log: Interval | None
    gaps: list[Interval]
    unknown: list[Interval]

    @property
    def gap_seconds(self) -> float:
        return sum(gap.until - gap.since for gap in self.gaps)


class Writers:
    """The controllers that wrote the lines of a log, in any order."""

    def __init__(self) -> None:
        self._counting: list[Interval] = []
        self._since: dict[str, float] = {}
        """By controller: since when it says that it counts."""
        self._lines: dict[str, Interval] = {}
        """By controller: its first and its last line about an object."""

    def counting(self, replica: str, since: float, until: float) -> None:
        self._since[replica] = min(since, self._since.get(replica, NEVER))
        last = self._counting.pop() if self._counting else Interval(since, until)
        self._counting += _merged([last, Interval(since, until)])

    def wrote(self, replica: str, at: float) -> None:
        first, last = self._lines.get(replica, (at, at))
        self._lines[replica] = Interval(min(first, at), max(last, at))

    def coverage(self, since: float, until: float, now: float) -> Coverage:
        """Return what is known between `since` and `until`, or `now` if that is earlier.

        -inf and inf stand for the first and the last line.
        """
        older = []
        for replica, (first, last) in self._lines.items():
            counting_since = self._since.get(replica, NEVER)
            if first < counting_since - OLDER_VERSION_SECONDS:
                older.append(Interval(first, min(last, counting_since)))
        if not (lines := [*self._counting, *older]):
            return Coverage(None, [], [])
        log = Interval(min(line.since for line in lines), max(line.until for line in lines))
        at = log.since if since == -NEVER else since
        end = log.until if until == NEVER else min(until, now)
        gaps: list[Interval] = []
        unknown: list[Interval] = []
        for each in _merged([*self._counting, Interval(end, NEVER)]):
            hole = Interval(at, min(each.since, end))
            if hole.until - at > CONTINUOUS_SECONDS:
                is_of_older = any(one.since <= hole.until and one.until >= at for one in older)
                (unknown if is_of_older else gaps).append(hole)
            at = max(at, each.until)
        return Coverage(log, gaps, unknown)


def _merged(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for interval in sorted(intervals):
        if merged and interval.since <= merged[-1].until + CONTINUOUS_SECONDS:
            merged[-1] = Interval(merged[-1].since, max(merged[-1].until, interval.until))
        else:
            merged.append(interval)
    return merged
