"""Whether nobody is denied for somebody who does not wait, and nobody within the guarantee of the namespace."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.cluster.mixed.facts import Facts, Namespace, Write
from tests.cluster.mixed.lines import WRITES, places, together
from tests.cluster.pulse import Writes, delay


class Denial(NamedTuple):
    """The creation of a pod that was denied between these times: on account of pods that wait for `team`, if it has one."""

    namespace: str
    team: str
    gpus: int
    began: float
    ended: float


def unfounded(facts: Facts, denials: Iterable[Denial], lookback: "Lookback") -> list[Denial]:
    """Return the denials in whose time no pod of another namespace waited for the team, though its own quota had room."""
    found = []
    for denial in denials:
        writes = [
            write for write in facts.writes if write.team is not None and write.team.name == denial.team
        ]
        since = lookback(denial.began)
        last = [write for write in writes if write.at < since][-1:]
        inside = [write for write in writes if since <= write.at <= denial.ended + 0.2]
        if denial.team and not any(
            _waits_for_team(facts, write, denial.namespace) for write in [*last, *inside]
        ):
            found.append(denial)
    return found


def broken_guarantees(facts: Facts, denials: Iterable[Denial], lookback: "Lookback") -> list[Denial]:
    """Return the denials of pods that fitted the guarantee of their namespace beside all that it held at some time before."""
    found = []
    for denial in denials:
        space = facts.namespaces.get(denial.namespace, Namespace())
        counted = [at for at in _counts(facts, denial.namespace) if at < denial.began]
        since, until = lookback(denial.began, counted[-1] if counted else 0.0), denial.ended
        rows = [
            (write.rows[denial.namespace], write.team.guaranteed.get(denial.namespace, 0))
            for write in facts.writes
            if write.team is not None and denial.namespace in write.rows and since <= write.at <= until
        ]
        if not rows:
            continue
        stored = {uid for state in space.states for uid in state}
        in_flight = max(
            sum(entry.gpus for entry in row.entries if entry.uid not in stored) for row, _ in rows
        )
        ends = [*space.times[1:], until]
        states = [
            state
            for state, began, end in zip(space.states, space.times, ends, strict=True)
            if end >= since and began <= until
        ]
        held = {uid: pod.gpus for state in states for uid, pod in state.items() if pod.holds}
        if sum(held.values()) + in_flight + denial.gpus <= min(guaranteed for _, guaranteed in rows):
            found.append(denial)
    return found


def _counts(facts: Facts, namespace: str) -> Iterator[float]:
    """Yield when the pods of a namespace were counted again."""
    revision = 0
    for write in facts.writes:
        row = write.rows.get(namespace)
        if row is not None and row.revision != revision:
            revision = row.revision
            yield write.at


class Lookback:
    """Returns how old what a ledger says may be at a time: two seconds, or since before a fault during which nobody counts.

    What the machine added to two seconds, by `writes` of the same time, is added.
    """

    def __init__(
        self, faults: Sequence[tuple[float, float]], writes: Writes = (), seconds: float = 2.5
    ) -> None:
        self._faults, self._writes, self._seconds = faults, writes, seconds

    def __call__(self, at: float, counted: float | None = None) -> float:
        """Return the time. `counted`: that of the last count, if it is known: after a fault, it takes some time."""
        since = at - self._seconds - delay(WRITES, self._writes, at - self._seconds, at)
        for begin, end in sorted(self._faults, reverse=True):
            if begin <= at and since <= end:
                since = min(since, begin - self._seconds)
        if counted is not None and any(begin <= at and counted <= end for begin, end in self._faults):
            since = min(since, counted - self._seconds)
        return since


def _waits_for_team(facts: Facts, write: Write, besides: str) -> bool:
    """Whether a pod of another namespace waits that its own quota lets start, or nobody was counted."""
    team, lines = write.team, places(facts, write, {})
    if team is None or team.hard is None:
        return False
    for name, line in lines.items():
        while name != besides and (head := line.head()) is not None:
            held = {**dict.fromkeys(team.guaranteed, 0), **together(lines)}
            taken = team.taken(held)
            if not team.has_room(sum(taken.values()) - taken[name] + line.together + head.lacks(line.held)):
                return True
            line.units.pop(0)
    return False
