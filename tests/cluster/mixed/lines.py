"""Whether pods start in the order of docs/tenants/queue.md, gangs whole, and at once when quota is free.

Each write of a controller that holds quota for pods is judged by the pods that were stored at the revision which its row names.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from tests.cluster.mixed.facts import Facts, Namespace, Pod, Pods, Row, TeamRow, Write
from tests.cluster.pulse import Writes, delay

CREDIT_SECONDS = 60.0
WRITES = 4
"""From one count to the start of the next pod: the count, what is held for the pod, the removal of its gate, and its review."""


class Unit(NamedTuple):
    """What has one place in line. `continues`: the rest of a gang of which some pods have started."""

    pods: tuple[Pod, ...]
    size: int
    continues: bool

    @property
    def place(self) -> tuple[object, ...]:
        return not self.continues, min(pod.place for pod in self.pods)

    @property
    def since(self) -> str:
        return min(pod.place[1] for pod in self.pods)

    @property
    def gpus(self) -> int:
        return sum(pod.gpus for pod in self.pods)

    def lacks(self, held: Iterable[str]) -> int:
        known = set(held)
        return sum(pod.gpus for pod in self.pods if pod.uid not in known)

    def __str__(self) -> str:
        return (
            f"{self.pods[0].name}{f' and {len(self.pods) - 1} more' if self.pods[1:] else ''} ({self.gpus})"
        )


def units(facts: Facts, pods: Pods, lifts: Mapping[str, str], revision: int) -> list[Unit]:
    """Return who waits, in line: each pod by itself, or the pods of a gang of which none has started."""
    singles, gangs = list[Unit](), dict[str, list[Pod]]()
    for pod in sorted((pod for pod in pods.values() if pod.is_in_line), key=lambda pod: pod.place):
        if pod.owner in facts.gangs and not facts.is_orphan(pod.owner, revision):
            gangs.setdefault(pod.owner, []).append(pod)
        else:
            singles.append(Unit((pod,), 1, continues=False))
    for owner, members in gangs.items():
        has_started = any(lifts.get(pod.uid) == "begun" for pod in members) or any(
            (pod.holds and not pod.is_deleted) or pod.has_succeeded
            for pod in pods.values()
            if pod.owner == owner
        )
        if has_started:
            singles += [Unit((pod,), 1, continues=pod.uid in lifts) for pod in members]
        else:
            size = facts.gangs[owner]
            singles.append(Unit(tuple(members[:size]), size, continues=False))
    return sorted(singles, key=lambda unit: unit.place)


@dataclass
class Place:
    """The line of one namespace while quota is held for one unit after another. `held`: uids for which it is held already."""

    units: list[Unit]
    held: set[str]
    hard: int | None
    most: int | None
    together: int
    is_strict: bool
    aside: set[str]
    """Pods that may start or not: the removal of their gate was denied at some time, or they, or their Job, were just deleted."""
    passes_aside: bool
    """Whether others pass those. If not, nobody is the head after one of them that may start: then a head is certain."""

    def head(self) -> Unit | None:
        """Return the first unit that its own quota lets start, None if there is none or nobody may pass the first one."""
        while self.units:
            unit = self.units[0]
            needed = unit.lacks(self.held)
            if not needed or not self.can_start(unit):
                self.units.pop(0)
            elif self.hard is None or self.together + needed <= self.hard:
                return None if self.is_aside(unit) else unit
            elif self.is_strict or unit.continues:
                return None
            else:
                self.units.pop(0)
        return None

    def can_start(self, unit: Unit) -> bool:
        is_passed = (self.passes_aside and self.is_aside(unit)) or any(
            pod.has_other_gate for pod in unit.pods
        )
        is_complete = len(unit.pods) == unit.size
        return not is_passed and is_complete and (self.most is None or unit.gpus <= self.most)

    def is_aside(self, unit: Unit) -> bool:
        return any(pod.uid in self.aside for pod in unit.pods)

    def hold(self, unit: Unit) -> None:
        self.together += unit.lacks(self.held)
        self.held |= {pod.uid for pod in unit.pods}
        self.units.pop(0)


def places(
    facts: Facts, write: Write, new: Mapping[str, set[str]], *, passes_aside: bool = True
) -> dict[str, Place]:
    """Return the lines of the namespaces of a write, as they were before the `new` pods were held for."""
    found = {}
    for name, row in write.rows.items():
        if not row.is_counted or name not in facts.namespaces:
            continue
        unheld = new.get(name, set())
        limits = [row.hard]
        if (team := write.team) is not None and team.hard is not None:
            limits.append(team.hard - sum(gpus for other, gpus in team.guaranteed.items() if other != name))
        lifts = {uid: lift for uid, lift in row.lifts.items() if uid not in unheld}
        pods, now = facts.namespaces[name].at(row.revision), facts.namespaces[name].at(write.revision)
        leaving = {
            uid
            for uid, pod in pods.items()
            if facts.is_orphan(pod.owner, write.revision) or not (uid in now and now[uid].is_in_line)
        }
        found[name] = Place(
            units(facts, pods, lifts, row.revision),  # a gang stays one if its Job goes after the count
            set(lifts),
            row.hard,
            min((limit for limit in limits if limit is not None), default=None),
            row.used + row.reserved(unheld),
            facts.queue(name, write.revision)["order"] == "StrictFIFO",
            (facts.denied | leaving) - unheld,
            passes_aside,
        )
    return found


@dataclass
class Order:
    """`held`: for how many pods quota was held. `passed`: (write, namespace, pods that started too early, who was before)."""

    held: int = 0
    passed: list["Passed"] = field(default_factory=list)


class Passed(NamedTuple):
    write: Write
    namespace: str
    early: tuple[Pod, ...]
    before: str

    def __str__(self) -> str:
        names = [pod.name for pod in self.early]
        return f"revision {self.write.revision}: {self.namespace}: {names} before {self.before}"


def order(facts: Facts) -> Order:
    """Judge every write that holds quota for pods."""
    seen, before = Order(), dict[str, Row]()
    for write in facts.writes:
        held = {
            name: {uid for uid, lift in row.lifts.items() if lift == "held"} - before[name].lifts.keys()
            for name, row in write.rows.items()
            if name in before and before[name].is_counted and row.is_counted
        }
        new = {
            name: uids - _replacing(facts, name, before[name], write.rows[name], uids)
            for name, uids in held.items()
        }
        before |= write.rows
        seen.held += sum(map(len, held.values()))
        if any(new.values()):
            lines = places(facts, write, new)
            first = {name: str(line.units[0]) if line.units else "nobody" for name, line in lines.items()}
            wanted = _turn(write.team, lines)
            lacking = {
                name: [_name(facts, write, name, uid) for uid in uids - new.get(name, set())]
                for name, uids in wanted.items()
            }
            words = f"{ {name: names for name, names in lacking.items() if names} } (first {first})"
            for name, uids in new.items():
                pods = facts.namespaces[name].at(write.rows[name].revision)
                early = tuple(
                    pods[uid]
                    for uid in uids - wanted.get(name, set())
                    if uid in pods and not facts.is_orphan(pods[uid].owner, write.revision)
                )
                if early:
                    seen.passed.append(Passed(write, name, early, words))
    return seen


def _replacing(facts: Facts, namespace: str, before: Row, row: Row, held: set[str]) -> set[str]:
    """Return the pods for which quota is held that their own object kept for them until this write."""
    kept = [keep for uid, keep in before.keeps.items() if uid not in row.keeps]
    pods = facts.namespaces[namespace].at(row.revision) if kept else {}
    found = set[str]()
    for pod in sorted((pods[uid] for uid in held if uid in pods), key=lambda pod: pod.place):
        own = next((keep for keep in kept if keep.keeper == pod.owner and keep.gpus >= pod.gpus), None)
        if own is not None:
            kept.remove(own)
            found.add(pod.uid)
    return found


def _name(facts: Facts, write: Write, namespace: str, uid: str) -> str:
    pod = facts.namespaces[namespace].at(write.rows[namespace].revision).get(uid)
    return f"{pod.name}({pod.gpus})" if pod else uid


def _turn(team: TeamRow | None, lines: Mapping[str, Place]) -> dict[str, set[str]]:
    """Hold quota for one head after the other. Return the uids of their pods that lacked it, by namespace."""
    wanted: dict[str, set[str]] = {name: set() for name in lines}
    is_blocked, closed = False, set[str]()
    while True:
        heads = {name: head for name, line in lines.items() if name not in closed and (head := line.head())}
        if not heads:
            return wanted
        taken = team.taken({**dict.fromkeys(team.guaranteed, 0), **together(lines)}) if team else {}
        name = min(heads, key=lambda each: _rank(team, lines, taken, each, heads[each]))
        line, unit = lines[name], heads[name]
        after = line.together + unit.lacks(line.held)
        is_guaranteed = team is not None and after <= team.guaranteed.get(name, 0)
        has_room = team is None or team.has_room(sum(taken.values()) - taken[name] + after)
        if has_room and (is_guaranteed or not is_blocked):
            wanted[name] |= {pod.uid for pod in unit.pods if pod.uid not in line.held}
            line.hold(unit)
        elif line.is_strict or unit.continues:
            is_blocked = True
            closed.add(name)
        else:
            line.units.pop(0)


def together(lines: Mapping[str, Place]) -> dict[str, int]:
    return {name: line.together for name, line in lines.items()}


def _rank(
    team: TeamRow | None, lines: Mapping[str, Place], taken: Mapping[str, int], name: str, unit: Unit
) -> tuple[object, ...]:
    if team is None:
        return ()
    after, guaranteed = lines[name].together + unit.lacks(lines[name].held), team.guaranteed.get(name, 0)
    is_guaranteed = after <= guaranteed
    share = Fraction(0) if is_guaranteed else Fraction(taken[name] - guaranteed, team.hard or 1)
    return not unit.continues, not is_guaranteed, share, unit.since, unit.pods[0].uid


def unearned(facts: Facts, passed: Sequence[Passed]) -> list[Passed]:
    """Return who passed others without a pod of the same owner, as large, that ended within 60 s before; each one serves once."""
    ends = {name: list(_ends(space)) for name, space in facts.namespaces.items()}
    found = []
    for each in passed:
        for pod in each.early:
            earlier = [
                end
                for end in ends[each.namespace]
                if end.owner == pod.owner != "" and end.gpus >= pod.gpus
                if each.write.at - CREDIT_SECONDS - 1 <= end.at <= each.write.at
            ]
            if earlier:
                ends[each.namespace].remove(min(earlier, key=lambda end: end.at))
            else:
                found.append(each._replace(early=(pod,)))
    return found


class End(NamedTuple):
    owner: str
    gpus: int
    at: float


def _ends(space: Namespace) -> Iterator[End]:
    """Yield when pods that held quota ended, or began to be deleted."""
    for before, after, at in zip(space.states, space.states[1:], space.times[1:], strict=False):
        for uid, pod in before.items():
            if pod.holds and (uid not in after or not after[uid].holds):
                yield End(pod.owner, pod.gpus, at)


class Spell(NamedTuple):
    """From when on, and for how many seconds, something was so in a namespace that is to last for a moment only."""

    namespace: str
    began: float
    seconds: float
    what: str


def halves(facts: Facts) -> Iterator[Spell]:
    """Yield for each gang how long some of its pods waited while others had started. All of its pods waited once."""
    for name, space in facts.namespaces.items():
        waited = {uid for state in space.states for uid, pod in state.items() if pod.waits}
        began: dict[str, float] = {}
        for state, at in zip(space.states, space.times, strict=True):
            half = set(_half_gangs(facts, state, waited))
            for job in began.keys() - half:
                yield Spell(name, began[job], at - began.pop(job), f"a part of gang {job} started")
            for job in half:
                began.setdefault(job, at)


def _half_gangs(facts: Facts, pods: Pods, waited: set[str]) -> Iterator[str]:
    by_job: dict[str, list[Pod]] = {}
    for pod in pods.values():
        if pod.owner in facts.gangs:
            by_job.setdefault(pod.owner, []).append(pod)
    for job, members in by_job.items():
        is_half = any(pod.is_in_line for pod in members) and not all(pod.waits for pod in members)
        if is_half and waited.issuperset(pod.uid for pod in members):
            yield job


def idle(facts: Facts) -> Iterator[Spell]:
    """Yield how long quota was free for a pod whose turn it certainly was, by what controllers wrote.

    Nothing is free by a ledger that is gone: without a quota, all pods start, and no write shows when. The next ledger of the
    namespace may come much later, with the next quota.
    """
    began: dict[str, float] = {}
    for write in facts.writes:
        wanted = _turn(write.team, places(facts, write, {}, passes_aside=False))
        for name in (*write.rows, write.gone):
            if wanted.get(name) and facts.has_turns(name, write):
                began.setdefault(name, write.at)
            elif name in began:
                yield Spell(
                    name, began[name], write.at - began.pop(name), "quota is free for the first in line"
                )


def late(
    facts: Facts,
    spells: Iterable[Spell],
    faults: Sequence[tuple[float, float]],
    seconds: float,
    writes: Writes = (),
) -> list[Spell]:
    """Return what lasted for longer than that, from the first count of its namespace on that came after a fault.

    What the machine added to it, by `writes` of the same time, is not counted.
    """
    found = []
    for spell in spells:
        limit = spell.began
        for begin, end in sorted(faults):
            if begin <= limit + seconds and end > limit:
                counts = (
                    write.at
                    for write in facts.writes
                    if write.at >= end
                    if (row := write.rows.get(spell.namespace)) is not None and row.is_counted
                )
                limit = next(counts, end)
        ended = spell.began + spell.seconds
        if ended - delay(WRITES, writes, limit, ended) > limit + seconds:
            found.append(spell)
    return found
