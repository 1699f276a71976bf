"""GPU-hours from audit logs, added up as a stream: each pod and claim from its creation to its end, less its wait for quota.

A line of the controller says since when its object exists. An object ends at its `released` line. Without one, it lasts until the
last line of its controller, or, if the next `held` lines of that controller omit it, until its own last line. Memory holds the
objects that were not released yet, and a bounded number of others.
"""

import gzip
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar, cast

import msgspec

from policies.quota.amounts import GPUS, ZERO, parse_amount

STDIN = "-"
GZIP = b"\x1f\x8b"
LONGEST_LINE = 1024 * 1024
"""Bytes; the webhook writes at most 64 KiB. A longer line counts as unreadable, and is skipped in parts."""


class LoggedFinding(msgspec.Struct, frozen=True):
    rule: str = ""
    reason: str = ""
    outcome: str = ""
    severity: str = ""
    message: str = ""
    remedy: str = ""

    @property
    def would_deny(self) -> bool:
        """Whether the finding would deny the object, were its rule enforced and not only audited."""
        return self.outcome == "audited" and self.severity != "warning"


class AuditLine(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a line that are read; docs/operate/audit-log.md describes them."""

    time: str
    phase: str
    kind: str
    verdict: str
    namespace: str = ""
    team: str = ""
    name: str = ""
    user: str = ""
    operation: str = ""
    dry_run: bool = False
    object_uid: str = ""
    owner: str = ""
    class_: str = msgspec.field(name="class", default="")
    demand: dict[str, str] | None = None
    since: str = ""
    replica: str = ""
    first: bool = False
    findings: tuple[LoggedFinding, ...] = ()


class Counts(msgspec.Struct):
    """The number of lines, how many of them were unreadable, and a sentence for each file without an audit line, or truncated."""

    lines: int = 0
    unreadable: int = 0
    problems: list[str] = []


_DECODE = msgspec.json.Decoder(AuditLine).decode


def audit_lines(
    files: Iterable[str], counts: Counts, wanted: Callable[[bytes], bool] = lambda _: True
) -> Iterator[AuditLine]:
    """Yield the lines of the files in order, if `wanted` accepts their bytes. Raises OSError, which names the file.

    Lines that are not JSON, such as the other log in `kubectl logs`, and truncated lines count as unreadable.
    """
    for name in files:
        before, is_ours = counts.lines, False
        for line in _lines(name, counts):
            counts.lines += 1
            is_ours = is_ours or b'"phase"' in line
            if wanted(line):
                try:
                    yield _DECODE(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    counts.unreadable += 1
            elif not line.startswith(b"{"):
                counts.unreadable += 1
        if not is_ours:
            counts.problems.append(f"{name}: {counts.lines - before:,} lines read, none is of an audit log")


def _lines(name: str, counts: Counts) -> Iterator[bytes]:
    try:
        with _opened(name) as stream:
            while line := stream.readline(LONGEST_LINE):
                if line.isspace():
                    continue
                yield line
                while not line.endswith(b"\n") and (line := stream.readline(LONGEST_LINE)):
                    pass
    except (EOFError, zlib.error, gzip.BadGzipFile):
        counts.problems.append(
            f"{name}: its gzip data is truncated or damaged: only what comes before that is read"
        )
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), name) from None


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    """Open a file; gzip is recognized by its content."""
    with nullcontext(sys.stdin.buffer) if name == STDIN else Path(name).open("rb") as file:
        stream = BufferedReader(cast("BufferedReader", file))
        is_gzip = stream.peek(len(GZIP)).startswith(GZIP)
        try:
            yield cast("BinaryIO", gzip.GzipFile(fileobj=stream) if is_gzip else stream)
        finally:
            stream.detach()


MAX_REMEMBERED = 200_000
"""Of authors of pods and of their owners, released objects, and pods that waited: some 50 MB in all. The oldest are forgotten."""
UNKNOWN_CLASS = "(class not known)"
NO_TEAM = "(no team)"
UNKNOWN_USER = "(not in the log)"
MS_PER_HOUR = 3_600_000

Group = tuple[str, ...]
"""Names, one for each `GroupBy`."""

SYSTEM_PREFIX = "system:"
"""Prefix of users that are components of Kubernetes: nobody's name for a bill where the author of the owner is known."""

amount_of = lru_cache(maxsize=4096)(parse_amount)

CONTINUOUS_SECONDS = 1.0
"""A shorter time between two intervals is the rounding of their moments."""


class Interval(NamedTuple):
    """Moments in seconds of the epoch."""

    since: float
    until: float


class Coverage(NamedTuple):
    """log: from the first to the last line. gaps: when no controller wrote that it counts."""

    log: Interval | None
    gaps: list[Interval]

    @property
    def gap_seconds(self) -> float:
        return sum(gap.until - gap.since for gap in self.gaps)


def coverage(
    counting: list[Interval], lines: Interval | None, since: float, until: float, now: float
) -> Coverage:
    """Return what is known between `since` and `until`, or `now` if that is earlier.

    counting: when controllers say that they counted. lines: from the first to the last line about an object. -inf and inf stand
    for the first and the last line.
    """
    merged = _merge(counting)
    log = Interval(merged[0].since, merged[-1].until) if merged else lines
    if log is None:
        return Coverage(None, [])
    covered_until = log.since if since == float("-inf") else since
    end = log.until if until == float("inf") else min(until, now)
    gaps: list[Interval] = []
    for interval in (*merged, Interval(end, float("inf"))):
        gap = Interval(covered_until, min(interval.since, end))
        if gap.until - covered_until > CONTINUOUS_SECONDS:
            gaps.append(gap)
        covered_until = max(covered_until, interval.until)
    return Coverage(log, gaps)


def _merge(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for interval in sorted(intervals):
        if merged and interval.since <= merged[-1].until + CONTINUOUS_SECONDS:
            merged[-1] = Interval(merged[-1].since, max(merged[-1].until, interval.until))
        else:
            merged.append(interval)
    return merged


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentDict(dict[K, V]):
    """Keeps the newest MAX_REMEMBERED entries only."""

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > MAX_REMEMBERED:
            del self[next(iter(self))]


class GroupBy(Enum):
    """How GPU-hours are grouped."""

    NAMESPACE = "namespace"
    TEAM = "team"
    OWNER = "owner"
    CLASS = "class"
    USER = "user"


SWEEP_SECONDS = 60.0
"""All `held` lines of one hour are written within this time: 1,000 each half second."""


class OpenHolding(msgspec.Struct):
    """A pod or claim that holds GPUs, by its last line; moments are in seconds of the epoch. use: 0 to 1, None: unknown."""

    since: float
    last: float
    replica: str
    gpus: Fraction
    group: Group
    gpu_class: str
    use: float | None


class GroupUsage(msgspec.Struct):
    """What the objects of one group held. `first` and `last` bound all of them, in seconds of the epoch."""

    group: Group
    objects: int = 0
    first: float = float("inf")
    last: float = float("-inf")
    held: Counter[tuple[str, int]] = msgspec.field(default_factory=Counter)
    """GPU-milliseconds by class and denominator of the amount, so that sums are exact."""
    measured: Counter[int] = msgspec.field(default_factory=Counter)
    """Those of pods whose use is known, by denominator."""
    worked: float = 0.0
    """GPU-milliseconds in which the GPUs of these pods worked."""

    def add(self, held: OpenHolding, first: float, last: float) -> None:
        milliseconds = held.gpus.numerator * round((last - first) * 1000)
        self.objects += 1
        self.first, self.last = min(self.first, first), max(self.last, last)
        self.held[held.gpu_class, held.gpus.denominator] += milliseconds
        if held.use is not None:
            self.measured[held.gpus.denominator] += milliseconds
            self.worked += milliseconds / held.gpus.denominator * held.use

    @property
    def by_class(self) -> dict[str, Fraction]:
        """GPU-hours by class, exact."""
        hours: dict[str, Fraction] = {}
        for (gpu_class, denominator), milliseconds in self.held.items():
            hours[gpu_class] = hours.get(gpu_class, ZERO) + _hours(milliseconds, denominator)
        return hours

    @property
    def hours(self) -> Fraction:
        return sum(
            (_hours(milliseconds, denominator) for (_, denominator), milliseconds in self.held.items()),
            ZERO,
        )

    @property
    def use(self) -> tuple[float, float, float]:
        """Return the GPU-hours that were used, idle, and not measured; their sum is `hours`."""
        measured = sum(
            (_hours(milliseconds, denominator) for denominator, milliseconds in self.measured.items()),
            ZERO,
        )
        used = self.worked / MS_PER_HOUR
        return used, max(float(measured) - used, 0.0), float(self.hours - measured)


class Usage:
    """Adds up lines by group. Only what lies between `since` and `until` counts.

    use: the part of its time in which the GPUs of an object worked, 0 to 1, None: unknown.
    """

    def __init__(
        self,
        by: Sequence[GroupBy],
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        use: Callable[[AuditLine], float | None] | None = None,
    ) -> None:
        self._by, self._use = tuple(by), use
        self._since = since.timestamp() if since else float("-inf")
        self._until = until.timestamp() if until else float("inf")
        self._held: dict[str, OpenHolding] = {}
        self._last_line: dict[str, float] = {}
        self._last_held: dict[str, float] = {}
        """By controller: its last line, and its last `held` of an object that was not new."""
        self._released = RecentDict[str, None]()
        self._started = RecentDict[str, float]()
        """When the scheduling gate of a pod was removed that waited for quota: it held nothing before."""
        self._authors = RecentDict[str, str]()
        self._owners = RecentDict[tuple[str, str], str]()
        self._admitted = RecentDict[str, None]()
        self._groups: dict[Group, GroupUsage] = {}
        self._counting: list[Interval] = []
        self._lines: Interval | None = None
        self.coverage = Coverage(None, [])
        self.unreadable = self.usage_lines = 0
        """Numbers of lines: with an invalid time or amount, or without one; of controllers, understood."""
        self.open_ended = 0
        """Objects without a line that says when they ended: they count as long as their controller knew of them."""

    @property
    def admitted_without_usage(self) -> int:
        """The number of objects that were admitted with a demand, but that no controller line names: perhaps never stored."""
        return len(self._admitted)

    def read(self, lines: Iterable[AuditLine]) -> None:
        """Add up the lines; call `finish` after the last."""
        for line in lines:
            try:
                if line.phase == "count":
                    self._read_count(line)
                elif line.phase == "validate" and not line.dry_run:
                    self._read_review(line)
            except (ValueError, OverflowError):  # an invalid time or amount
                self.unreadable += 1

    def groups(self) -> list[GroupUsage]:
        """Return each group, most GPU-hours first, then by name."""
        return sorted(self._groups.values(), key=lambda usage: (-usage.hours, usage.group))

    def finish(self, now: float) -> None:
        """Add the objects that were not released, and set `coverage` of the requested time, up to `now`."""
        self.coverage = coverage(self._counting, self._lines, self._since, self._until, now)
        for uid, held in self._held.items():
            held.since = max(held.since, self._started.get(uid, held.since))
            if held.last >= self._last_held.get(held.replica, held.last) - SWEEP_SECONDS:
                held.last = self._last_line[held.replica]
            self.open_ended += self._add(held)
        self._held.clear()

    def _read_review(self, line: AuditLine) -> None:
        if line.verdict not in {"allowed", "warned", "patched"}:
            return
        uid = line.object_uid
        if line.kind not in {"Pod", "ResourceClaim"}:
            if GroupBy.USER in self._by and not line.user.startswith(SYSTEM_PREFIX):
                self._owners[line.namespace, f"{line.kind}/{line.name}"] = line.user
        elif line.operation == "CREATE" and uid:
            if GroupBy.USER in self._by:
                self._authors[uid] = line.user
            if line.demand and uid not in self._held and uid not in self._released:
                self._admitted[uid] = None

    def _read_count(self, line: AuditLine) -> None:
        uid, at = line.object_uid, seconds_of(line.time)
        if line.verdict == "counting":
            # Lines of one controller follow each other, so that the list stays as short as its gaps are few.
            self._counting[-1:] = _merge([*self._counting[-1:], Interval(seconds_of(line.since), at)])
            _move_on(self._last_line, line.replica, at)
        elif line.verdict == "started":
            self._started[uid] = at
        elif not line.demand or not line.since:
            self.unreadable += 1
            return
        self.usage_lines += 1
        if not line.demand or uid in self._released:
            return
        gpus, group = (
            amount_of(line.demand.get(GPUS, "0")),
            tuple(self._group_name(by, line) for by in self._by),
        )
        since = max(seconds_of(line.since), self._started.get(uid, float("-inf")))
        gpu_class = line.class_ or UNKNOWN_CLASS
        held = OpenHolding(
            since, at, line.replica, gpus, group, gpu_class, self._use(line) if self._use else None
        )
        self._admitted.pop(uid, None)
        first, last = self._lines or (at, at)
        self._lines = Interval(min(first, at), max(last, at))
        _move_on(self._last_line, line.replica, at)
        if line.verdict != "released":
            if not line.first:
                _move_on(self._last_held, line.replica, at)
            before = self._held.get(uid)
            if before is None or before.last < held.last:
                self._held[uid] = held
            return
        self._held.pop(uid, None)
        self._released[uid] = None
        self._add(held)

    def _group_name(self, by: GroupBy, line: AuditLine) -> str:
        match by:
            case GroupBy.NAMESPACE:
                return line.namespace
            case GroupBy.TEAM:
                return line.team or NO_TEAM
            case GroupBy.CLASS:
                return line.class_ or UNKNOWN_CLASS
            case GroupBy.OWNER:
                return line.owner if GroupBy.NAMESPACE in self._by else f"{line.namespace}/{line.owner}"
            case GroupBy.USER:
                return self._user(line)

    def _user(self, line: AuditLine) -> str:
        """Return who wrote the owner if the log says so, else who created the pod."""
        kind, _, name = line.owner.partition("/")
        author = self._owners.get((line.namespace, line.owner))
        if author is None and kind == "ReplicaSet":  # named by its Deployment and a hash
            author = self._owners.get((line.namespace, f"Deployment/{name.rpartition('-')[0]}"))
        return author or self._authors.get(line.object_uid) or UNKNOWN_USER

    def _add(self, held: OpenHolding) -> bool:
        first, last = max(held.since, self._since), min(held.last, self._until)
        if last <= first:
            return False
        group = self._groups.get(held.group)
        if group is None:
            group = self._groups[held.group] = GroupUsage(held.group)
        group.add(held, first, last)
        return True


def _move_on(last: dict[str, float], replica: str, at: float) -> None:
    last[replica] = max(at, last.get(replica, at))


def _hours(milliseconds: int, denominator: int) -> Fraction:
    return Fraction(milliseconds, denominator * MS_PER_HOUR)


def seconds_of(text: str) -> float:
    """Return a moment in seconds of the epoch. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
