"""Who holds quota after one turn of a team: what docs/tenants/queue.md says, without the code of the line.

Everything is added up again at each question. The words in quotes are those of docs/tenants/queue.md.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from msgspec import Struct

from policies.quota.amounts import Amounts, total
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.queue_entries import InLine
from policies.quota.waiting import QueueOrder, Waiter

ZERO = Fraction(0)


class Entry(Struct, eq=False):
    """What has one place in line. `rest`: of a gang that has started. `extra`: pods of the gang beyond those that it needs."""

    pods: list[Waiter]
    rest: bool = False
    missing: int = 0
    extra: list[Waiter] = []

    @property
    def place(self) -> tuple[object, ...]:
        return not self.rest, not self.is_kept, *min(map(place, [*self.pods, *self.extra]))

    @property
    def is_kept(self) -> bool:
        """Whether its objects keep quota for all of its pods."""
        return not self.missing and all(pod.keep for pod in self.pods)

    @property
    def goes_first(self) -> bool:
        return self.rest or self.is_kept or any(pod.replaces for pod in self.pods)

    @property
    def since(self) -> str:
        return min(pod.since for pod in self.pods)


def place(pod: Waiter) -> tuple[bool, int, str, str]:
    """Return what orders the pods of a namespace: replacements, priority, age, uid."""
    return not pod.replaces, -pod.priority, pod.since, pod.uid


class Member:
    """One namespace of the team, and the line of its pods."""

    def __init__(self, ledger: QuotaLedger, line: InLine) -> None:
        self.hard, self.line = ledger.hard, line
        lifts = ledger.reservations.lifts
        self.begun = {uid for uid, each in lifts.items() if each.is_begun_lift}
        self.held = {uid: each.demand for uid, each in lifts.items() if uid not in self.begun}
        """By uid of a pod that waits."""
        self.rest = total((ledger.used or {}, ledger.reserved))
        for demand in self.held.values():
            self.rest = {key: amount - demand.get(key, ZERO) for key, amount in self.rest.items()}
        self.entries = sorted(self._entries(), key=lambda each: each.place)
        self.at, self.is_blocked = 0, False
        """Which entry competes, and whether only those do for which quota is kept."""

    def _entries(self) -> Iterator[Entry]:
        for pod in self.line.waiters:
            if not pod.gang:
                yield Entry([pod])
        for name, gang in self.line.gangs.items():
            pods = sorted((pod for pod in self.line.waiters if pod.gang == name), key=place)
            if gang.running or any(pod.uid in self.begun for pod in pods):
                yield from (Entry([pod], rest=pod.uid in {*self.held, *self.begun}) for pod in pods)
            elif pods:
                missing = max(0, gang.size - len(pods))
                yield Entry(pods[: gang.size], missing=missing, extra=pods[gang.size :])

    @property
    def amounts(self) -> Amounts:
        return total((self.rest, *self.held.values()))

    def lacks(self, entry: Entry) -> list[Waiter]:
        """Return the pods for which less is held than they need."""
        return [
            pod
            for pod in entry.pods
            if pod.uid not in self.begun
            and not (
                pod.uid in self.held
                and all(self.held[pod.uid].get(key, 0) >= amount for key, amount in pod.demand.items())
            )
        ]

    def start(self, entry: Entry) -> None:
        for pod in self.lacks(entry):
            self.held[pod.uid] = pod.demand
            if pod.keep:
                self.rest = {key: amount - pod.demand.get(key, ZERO) for key, amount in self.rest.items()}
        self.at += 1


class Referee:
    def __init__(
        self, team_ledgers: TeamLedgers, lines: Mapping[str, InLine], starved_before: str = ""
    ) -> None:
        self.team, self.starved_before = team_ledgers.team, starved_before
        self.members = {
            name: Member(ledger, lines.get(name, InLine((), {})))
            for name, ledger in team_ledgers.ledgers.items()
        }
        self.waits_for_team: set[str] = set()
        """Namespaces of which a pod waits for the team that nobody may pass: those keep the others out."""
        self._give_back(sorted(lines, key=lambda name: (-self._beyond(name), name)))
        self._start()

    def held(self, name: str) -> set[str]:
        """Return for which pods that wait quota is held."""
        return set(self.members[name].held)

    def free(self, name: str, key: str) -> Fraction:
        """Return what of the team is free for a namespace beyond what it holds: the formula of docs/operate/teams.md."""
        return (
            self.team.hard[key]
            - self.members[name].amounts.get(key, ZERO)
            - sum(
                max(
                    self._amount(other, key),
                    self._guaranteed(other, key),
                )
                for other in {*self.members, *self.team.guaranteed} - {name}
            )
        )

    def _amount(self, name: str, key: str) -> Fraction:
        return self.members[name].amounts.get(key, ZERO) if name in self.members else ZERO

    def _guaranteed(self, name: str, key: str) -> Fraction:
        return self.team.guaranteed.get(name, {}).get(key, ZERO)

    def _beyond(self, name: str) -> Fraction:
        """Return the part beyond the guarantee: 'the largest of these parts counts'."""
        return max(
            max(ZERO, self._amount(name, key) - self._guaranteed(name, key)) / hard
            for key, hard in self.team.hard.items()
        )

    # ---- quota 'that is held for pods that have not started is taken back first from the namespace that holds most'

    def _give_back(self, names: list[str]) -> None:
        for name in names:
            member = self.members[name]
            for entry in reversed(member.entries):
                for pod in entry.extra:
                    member.held.pop(pod.uid, None)
                held = [pod.uid for pod in entry.pods if pod.uid in member.held]
                if entry.rest or not held:
                    continue  # 'never after one of its pods has started'
                lacks = any(not pod.keep for pod in member.lacks(entry))
                blocked = entry.missing or any(pod.obstacle for pod in entry.pods) or lacks
                if blocked or any(self._is_exceeded(name, key) for uid in held for key in member.held[uid]):
                    for uid in held:
                        del member.held[uid]

    def _is_exceeded(self, name: str, key: str) -> bool:
        own = self.members[name].hard
        return (key in own and self._amount(name, key) > own[key]) or (
            key in self.team.hard and self.free(name, key) < 0
        )

    # ---- 'They start in this order'

    def _start(self) -> None:
        is_blocked = False
        while True:
            heads = [(name, entry) for name in self.members if (entry := self._head(name))]
            if not heads:
                return
            name, entry = min(heads, key=lambda head: self._order(*head))
            member = self.members[name]
            may_start = not is_blocked or self._is_guaranteed(name, entry)
            if may_start and self._fits_team(name, entry):
                member.start(entry)
                continue
            if self._blocks(name, entry):
                self.waits_for_team.add(name)
                is_blocked = member.is_blocked = True
            member.at += 1

    def _head(self, name: str) -> Entry | None:
        """Return the first pod or gang of a namespace that competes for the team."""
        member = self.members[name]
        if member.line.queue.hold:
            return None
        while member.at < len(member.entries):
            entry = member.entries[member.at]
            competes = entry.is_kept or not member.is_blocked
            if competes and self._may_ever_start(name, entry) and member.lacks(entry):
                if self._fits_own(name, entry):
                    return entry
                member.is_blocked |= self._blocks(name, entry)
            member.at += 1
        return None

    def _may_ever_start(self, name: str, entry: Entry) -> bool:
        """Whether it is none of 'some pods' that 'cannot start now, however much is free'."""
        needed, hard = total(pod.demand for pod in entry.pods), self.members[name].hard
        if entry.missing or any(pod.obstacle for pod in entry.pods):
            return False
        for key, amount in needed.items():
            if key in hard and amount > hard[key]:
                return False
            others = sum(self._guaranteed(other, key) for other in self.team.guaranteed if other != name)
            if key in self.team.hard and amount > self.team.hard[key] - others:
                return False
        return True

    def _needed(self, name: str, entry: Entry) -> Amounts:
        """Return what must be free: nothing for a pod for which quota is kept."""
        member, needed = self.members[name], dict[str, Fraction]()
        for pod in member.lacks(entry):
            for key, amount in ({} if pod.keep else pod.demand).items():
                if amount > (held := member.held.get(pod.uid, {}).get(key, ZERO)):
                    needed[key] = needed.get(key, ZERO) + amount - held
        return needed

    def _fits_own(self, name: str, entry: Entry) -> bool:
        hard = self.members[name].hard
        needed = self._needed(name, entry).items()
        return all(key not in hard or self._amount(name, key) + amount <= hard[key] for key, amount in needed)

    def _fits_team(self, name: str, entry: Entry) -> bool:
        needed = self._needed(name, entry).items()
        return all(key not in self.team.hard or amount <= self.free(name, key) for key, amount in needed)

    def _is_guaranteed(self, name: str, entry: Entry) -> bool:
        """Whether it 'is within the guarantee of its namespace'."""
        return all(
            self._amount(name, key) + amount <= self._guaranteed(name, key)
            for key, amount in self._needed(name, entry).items()
            if key in self.team.hard
        )

    def _order(self, name: str, entry: Entry) -> tuple[object, ...]:
        guaranteed = self._is_guaranteed(name, entry)
        beyond = ZERO if guaranteed else self._beyond(name)
        return not entry.goes_first, not guaranteed, beyond, entry.since, entry.pods[0].uid

    def _blocks(self, name: str, entry: Entry) -> bool:
        """Whether nobody may pass it: 'others pass it until it has waited for 10 minutes'."""
        strict = self.members[name].line.queue.order is QueueOrder.STRICT_FIFO
        return strict or entry.rest or entry.since < self.starved_before
