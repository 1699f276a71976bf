"""Whether ledgers say what is stored, and admit no more than fits, by their own words: the second judge of amounts.

The first one (`tests.cluster.quota.team_referee`) counts what is stored and promised again. This one compares each row with the
history at the revision that the row names, and then takes rows at their word.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.cluster.mixed.facts import Facts, Row, TeamRow, Write, used, waiting

PER_HOUR = 3_600_000_000
"""A budget's amounts are GPU-microseconds."""


@dataclass
class Amounts:
    """`compared`: how often a row was compared with the history. `over`: writes that reserved more than was left."""

    compared: int = 0
    differ: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)


def judge(facts: Facts) -> Amounts:
    seen, before = Amounts(), dict[str, Row]()
    for write in facts.writes:
        for name, row in write.rows.items():
            if row.is_counted:
                last = before.get(name)
                _compare(facts, write, name, row, seen)
                if last is not None and last.is_counted:
                    seen.over += _over(write, name, last, row)
        before |= write.rows
    return seen


def _compare(facts: Facts, write: Write, name: str, row: Row, seen: Amounts) -> None:
    """Compare a row with the pods that were stored at its revision."""
    space = facts.namespaces.get(name)
    if space is None or not row.revision:
        return
    seen.compared += 1
    stored = space.at(row.revision)
    says, truth = (row.used, row.waiting), (used(stored), waiting(stored))
    if says != truth:
        seen.differ.append(
            f"revision {write.revision}: {name} says {says} at {row.revision}, stored are {truth}"
        )


def _over(write: Write, name: str, before: Row, row: Row) -> Iterator[str]:
    """Yield what this write reserves for the first time, beyond what is left."""
    known = {(entry.uid, entry.lift != "") for entry in before.entries}
    grown = (entry for entry in row.entries if entry.gpus and entry.lift != "kept")  # that was used before
    new = [entry for entry in grown if (entry.uid, entry.lift != "") not in known]
    if not new:
        return
    held = row.used + row.reserved()
    if row.hard is not None and held > row.hard:
        yield f"revision {write.revision}: {name} reserves {new}: {held} of {row.hard}"
    team = write.team
    if team is not None and team.hard is not None:
        both = team.held()
        together = sum(team.taken({**both, name: 0}).values()) - team.guaranteed.get(name, 0) + both[name]
        if together > team.hard and both[name] > before.used + before.reserved():
            yield f"revision {write.revision}: {name} reserves {new}: {together} of {team.hard} of {team.name}"


def unreserved(facts: Facts) -> Iterator[str]:
    """Yield the pods that began to hold quota under a counted ledger in which they never were.

    Apart are those of a time in which the rule did not deny.
    """
    rows = {name: list(_rows(facts, name)) for name in facts.namespaces}
    for name, space in facts.namespaces.items():
        known, position, row = dict[str, int](), 0, Row({})
        for before, after, revision, at in zip(
            space.states, space.states[1:], space.revisions[1:], space.times[1:], strict=False
        ):
            while position < len(rows[name]) and rows[name][position][0] < revision:
                row = rows[name][position][1]
                known |= {entry.uid: entry.gpus for entry in row.entries if entry.gpus}
                position += 1
            if row.is_counted and not facts.is_warned(name, at):
                yield from (
                    f"revision {revision}: {name}/{pod.name} ({pod.gpus})"
                    for uid, pod in after.items()
                    if pod.holds and not (uid in before and before[uid].holds)
                    if known.get(uid, 0) < pod.gpus
                )


def _rows(facts: Facts, name: str) -> Iterator[tuple[int, Row]]:
    """Yield what decides for a namespace, from which revision on. Nothing decides once its ledger is gone."""
    for write in facts.writes:
        if name in write.rows:
            yield write.revision, write.rows[name]
        elif write.gone == name:
            yield write.revision, Row({})


def largest_excess(facts: Facts) -> dict[str, int]:
    """Return by how much what a counted row says was above its limits at most; for the report."""
    most: dict[str, int] = {}
    for write in facts.writes:
        for name, row in write.rows.items():
            if row.is_counted and row.hard is not None:
                most[name] = max(most.get(name, 0), row.used + row.reserved() - row.hard)
        if write.team is not None and write.team.hard is not None:
            excess = _sum(write.team) - write.team.hard
            most[write.team.name] = max(most.get(write.team.name, 0), excess)
    return {name: excess for name, excess in most.items() if excess}


def _sum(team: TeamRow) -> int:
    return sum(team.held().values())


@dataclass(frozen=True)
class Spent:
    """GPU-seconds of a namespace while its budget was counted: by the ledger, unknown to it, and by the history (used or kept).

    `unexplained`: what is unknown beyond what docs/operate/budget.md allows. `waited`: for how long those had waited whose gate
    was removed when perhaps no controller watched. They count from their creation (docs/operate/budget.md).
    """

    seconds: float = 0.0
    spent: float = 0.0
    unknown: float = 0.0
    unexplained: float = 0.0
    truth: float = 0.0
    waited: float = 0.0


def gpu_seconds(
    facts: Facts,
    namespace: str,
    away: Sequence[tuple[float, float]] = (),
    unwatched: Sequence[tuple[float, float]] = (),
) -> Spent | None:
    """Return what the budget of a namespace came to, from its first row with one to the last.

    Apart are counts of a time in which the API server was `away`: what changes then counts from when it is seen. In times that
    are `unwatched`, controllers were killed or had not begun to write.
    """
    found = [
        row
        for write in facts.writes
        if (row := write.rows.get(namespace)) is not None and "spending" in row.text
    ]
    if not found or namespace not in facts.namespaces:
        return None
    sums = Spent()
    used, kept = [*facts.namespaces[namespace].used_over_time], [*_kept_over_time(facts, namespace)]
    for before, row in pairwise(found):
        first, last = before.text["spending"], row.text["spending"]
        begin, end = first["until"] / 1000, last["until"] / 1000
        if end > begin and not _overlaps(begin, end, away):
            spent, unknown = (
                (last.get(key, {}).get("gpus", 0) - first.get(key, {}).get("gpus", 0)) * 3600 / PER_HOUR
                for key in ("spent", "unknown")
            )
            waited = allowed = 0.0
            if _overlaps(begin, end, unwatched):
                waited = _waited(facts, namespace, begin, end)
                allowed = (_gone(facts, namespace, begin, end) + before.reserved()) * (end - begin)
            sums = Spent(
                sums.seconds + end - begin,
                sums.spent + spent,
                sums.unknown + unknown,
                sums.unexplained + max(0.0, unknown - allowed),
                sums.truth + _integral(used, begin, end) + _integral(kept, begin, end),
                sums.waited + waited,
            )
    return sums


def _gone(facts: Facts, namespace: str, begin: float, end: float) -> int:
    """Return the GPUs of the pods that were deleted in this time, or in the second before it, which a count may not have seen."""
    space = facts.namespaces[namespace]
    return sum(
        pod.gpus
        for at, before, after in zip(space.times[1:], space.states, space.states[1:], strict=False)
        if begin - 1 < at <= end
        for uid, pod in before.items()
        if uid not in after
    )


def _overlaps(begin: float, end: float, times: Sequence[tuple[float, float]]) -> bool:
    return any(since <= end and begin <= until for since, until in times)


def _waited(facts: Facts, namespace: str, begin: float, end: float) -> float:
    """Return for how many GPU-seconds those had waited, after `begin`, whose gate was removed in this time."""
    space, created, waited = facts.namespaces[namespace], dict[str, float](), 0.0
    for at, before, after in zip(space.times[1:], space.states, space.states[1:], strict=False):
        for uid, pod in after.items():
            created.setdefault(uid, at)
            if begin < at <= end and pod.holds and uid in before and before[uid].waits:
                waited += pod.gpus * (at - max(begin, created[uid]))
    return waited


def _kept_over_time(facts: Facts, namespace: str) -> Iterator[tuple[float, int]]:
    """Yield from when on its objects kept how many GPUs for pods that replace ended ones."""
    for write in facts.writes:
        if (row := write.rows.get(namespace)) is not None:
            yield write.at, sum(entry.gpus for entry in row.entries if entry.lift == "kept")


def _integral(steps: Sequence[tuple[float, int]], begin: float, end: float) -> float:
    ends = [at for at, _ in steps[1:]] + [end]
    return sum(
        gpus * max(0.0, min(until, end) - max(since, begin))
        for (since, gpus), until in zip(steps, ends, strict=True)
    )
