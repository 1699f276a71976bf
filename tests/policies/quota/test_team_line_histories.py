"""The lines of a team's namespaces, in random histories as in `test_line_histories`, with the quotas of both levels.

Two to four namespaces may have guarantees, GPUQuotas, and either order. `hard` of both levels and guarantees change. Ledgers move
into the team and out of it, step by step. After every step:

  - what is admitted fits the quota of its namespace and that of the team, beside what others hold or are guaranteed;
  - what is within the guarantee of its namespace is admitted, as far as the team has room;
  - nobody comes without the gate beyond a guarantee while somebody waits for the team;
  - quota is held for those pods for which the referee says so, which knows docs/tenants/queue.md only;
  - each of the laws of one namespace holds: gangs are held whole, and keep it once they have started.

At the end, whoever fits runs, and nothing else is reserved. Once what runs has ended, whoever waits can never start.
"""

from collections.abc import Mapping
from enum import Enum
from fractions import Fraction
from functools import cache

import pytest
from msgspec.structs import replace

from policies.quota.amounts import GPUS, ZERO, Amounts
from policies.quota.ledger.decide import Line
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.line import Turn
from policies.quota.queue_entries import InLine
from policies.quota.team_line import next_to_start_in_team
from policies.quota.waiting import QueueOrder, QueueSpec, Standing
from tests.policies.quota.line_histories import A100, HISTORIES, STEPS, Listed, Pod, World, check_held
from tests.policies.quota.team_line_referee import Referee

NAMES = ("cv", "nlp", "prod", "speech")
CAN_NEVER_START = {Standing.TOO_LARGE, Standing.INCOMPLETE}


class Place(Enum):
    """Where the ledger of a namespace is, in the order of the steps of a move."""

    TEAM = "in the object of the team"
    LEAVING = "frozen there"
    RETURNED = "in its own object, and frozen in the team's"
    OWN = "in its own object"
    SENT = "frozen in its own object"


@cache
def shared(gpus: int, is_a100: bool) -> Amounts:
    """Return the vector that equal pods share."""
    return {GPUS: Fraction(gpus), A100: Fraction(gpus)} if is_a100 else {GPUS: Fraction(gpus)}


class Namespace(World):
    """One namespace, whose ledger stands among those of its team, or by itself."""

    def __init__(self, seed: int, name: str, team: "TeamWorld") -> None:
        self.name, self.team, self.place = name, team, Place.TEAM
        super().__init__(seed)
        self.order = self.draw.choice(list(QueueOrder))

    @property
    def made(self) -> int:
        """One clock for all namespaces, so that their pods are older and younger than each other."""
        return self.team.made

    @made.setter
    def made(self, number: int) -> None:
        self.team.made = max(number, self.team.made)

    @property
    def hard(self) -> Amounts:
        return super().hard if self.draw.random() < 0.5 else {}

    @property
    def is_frozen(self) -> bool:
        return self.place in {Place.LEAVING, Place.SENT}

    @property
    def ledger(self) -> QuotaLedger:
        if self.place is Place.TEAM:
            found = self.team.ledgers.of(self.name)
            assert found is not None
            return found
        return self.team.ledgers.ledgers[self.name] if self.place is Place.LEAVING else self.own

    @ledger.setter
    def ledger(self, ledger: QuotaLedger) -> None:
        assert not self.is_frozen
        if self.place is Place.TEAM:
            self.team.ledgers = self.team.ledgers.with_ledger(self.name, ledger)
        else:
            self.own = ledger

    def change(self) -> None:
        if not self.is_frozen:
            super().change()

    def move(self) -> None:
        """Take the next step of a move."""
        after = list(Place)[(list(Place).index(self.place) + 1) % len(Place)]
        if after is Place.LEAVING:
            self.team.ledgers = self.team.ledgers.leave(self.name)
        elif after is Place.RETURNED:
            self.own = self.team.ledgers.ledgers[self.name]
        elif after is Place.OWN:
            self.team.ledgers = self.team.ledgers.without(self.name)
        elif after is Place.TEAM:
            self.team.ledgers = self.team.ledgers.with_ledger(self.name, self.own)
        self.place = after
        if after is Place.TEAM and (ledger := self.counted(self.list())):
            self.ledger = ledger

    def in_line(self, listed: Listed) -> InLine:
        found = super().in_line(listed)
        if self.place is not Place.TEAM or self.team.is_calm:
            return found
        pods, draw = listed.pods, self.draw
        waiters = [
            replace(
                each,
                demand=shared(pods[each.uid].gpus, pods[each.uid].is_a100),
                replaces=draw.random() < 0.1,
                obstacle=Standing.OTHER_GATE if draw.random() < 0.05 else None,
            )
            for each in found.waiters
        ]
        return InLine(waiters, found.gangs, QueueSpec(order=self.order, hold=draw.random() < 0.05))

    def admit(self, reservation: Reservation, line: Line, pod: Pod) -> bool:
        if self.is_frozen:
            return False
        before, demand = self.ledger, reservation.demand
        is_admitted = super().admit(reservation, line, pod)
        if self.place is not Place.TEAM or line is Line.LIFTS or pod.waits:
            assert not is_admitted or self.place is not Place.TEAM or self.team.fits(self.name, demand)
            return is_admitted
        held = {key: amount + amount_held(before, key) for key, amount in demand.items()}
        is_guaranteed = all(amount <= self.team.guaranteed(self.name, key) for key, amount in held.items())
        own = all(key not in before.hard or amount <= before.hard[key] for key, amount in held.items())
        team = all(
            amount + self.team.held_by_others(self.name, key) <= self.team.hard[key]
            for key, amount in held.items()
        )
        waits = self.team.waits_in_others(self.name) and not is_guaranteed
        assert is_admitted == (own and team and not waits and not before.all_waiting)
        assert not is_admitted or self.team.fits(self.name, demand), "what is admitted fits the team"
        return is_admitted


class TeamWorld:
    def __init__(self, seed: int) -> None:
        self.made, self.is_calm = 0, False
        self.turns_that_wait = 0
        self.ledgers = TeamLedgers(Team(name="t", uid="t", generation=1, hard={}))
        names = NAMES[: 2 + seed % 3]
        self.namespaces = {name: Namespace(4 * seed + at, name, self) for at, name in enumerate(names)}
        self.draw = self.namespaces["cv"].draw
        self.change()

    @property
    def hard(self) -> Amounts:
        return self.ledgers.team.hard

    def change(self) -> None:
        gpus, draw = self.draw.choice([2, 4, 8]), self.draw
        hard = {GPUS: Fraction(gpus), A100: Fraction(draw.choice([2, 4]))}
        names = draw.sample(NAMES, draw.choice([0, 1, 2]))  # also of one that does not exist
        guaranteed = {
            name: {GPUS: Fraction(draw.choice([0, 1, gpus // 2])), A100: Fraction(draw.choice([0, 1]))}
            for name in names
        }
        team = replace(self.ledgers.team, hard=hard, guaranteed=guaranteed)
        self.ledgers = self.ledgers.with_team(team)

    def guaranteed(self, name: str, key: str) -> Fraction:
        return self.ledgers.team.guaranteed.get(name, {}).get(key, ZERO)

    def held_by_others(self, name: str, key: str) -> Fraction:
        """Return what other namespaces hold in the team's object, or are guaranteed, as the ledgers say."""
        ledgers = self.ledgers.ledgers
        return sum(
            (
                max(
                    amount_held(ledgers[each], key) if each in ledgers else ZERO,
                    self.guaranteed(each, key),
                )
                for each in NAMES
                if each != name
            ),
            ZERO,
        )

    def waits_in_others(self, name: str) -> bool:
        others = [ledger for each, ledger in self.ledgers.ledgers.items() if each != name]
        return any(each.waiting_for_team for each in others)

    def fits(self, name: str, demand: Amounts) -> bool:
        """Whether what runs, and what will, fits the team."""
        inside = {
            each.name: each.committed() for each in self.namespaces.values() if each.place is Place.TEAM
        }
        for key in demand:
            others = sum(
                max(inside.get(each, {}).get(key, ZERO), self.guaranteed(each, key))
                for each in NAMES
                if each != name
            )
            if others + inside[name].get(key, ZERO) > self.hard[key]:
                return False
        return True

    def step(self) -> None:
        if self.draw.random() < 0.1:
            self.change()
        namespace = self.draw.choice(list(self.namespaces.values()))
        namespace.act()
        mover = list(self.namespaces.values())[-1]
        if mover.place is not Place.TEAM or self.draw.random() < 0.05:
            mover.move()
        listed = {}
        number = self.draw.randrange(2)
        for each in self.namespaces.values():
            if self.draw.random() < 0.7 or each.ledger.uncounted:
                each.lists[number] = each.list()
            listed[each.name] = each.lists[number]
        for name, turn in self.count_and_turn(listed).items():
            each = self.namespaces[name]
            for uid in turn.ungate_uids:
                if self.draw.random() < 0.8:
                    each.lift(listed[name].pods[uid])
        for each in self.namespaces.values():
            if self.draw.random() < 0.8:
                each.store()
            each.check_known()

    def count_and_turn(self, listed: Mapping[str, Listed]) -> Mapping[str, Turn]:
        """Count what is not older, and take the turns of those namespaces."""
        turns, lines = {}, {}
        counted = self.ledgers
        for name, each in self.namespaces.items():
            if each.place is Place.TEAM:
                ledger = each.counted(listed[name])
                if ledger is not None:
                    counted = counted.with_ledger(name, ledger)
                    lines[name] = each.in_line(listed[name])
            elif not each.is_frozen:
                turns[name] = each.count_and_turn(listed[name])
        ages = sorted({each.since for line in lines.values() for each in line.waiters})
        starved_before = "" if self.is_calm else self.draw.choice(["", *ages])
        found = next_to_start_in_team(counted, lines, starved_before)
        self.check_turn(counted, lines, starved_before, found.turns)
        for name, turn in found.turns.items():
            check_held(turn, lines[name].gangs, listed[name].pods)
            self.namespaces[name].check_started(listed[name], turn.ledger)
        again = next_to_start_in_team(found.team_ledgers, lines, starved_before)
        assert {name: set(turn.ungate_uids) for name, turn in again.turns.items()} == {
            name: set(turn.ungate_uids) for name, turn in found.turns.items()
        }, "nothing more happens until something changes"
        self.ledgers = found.team_ledgers
        return {**turns, **found.turns}

    def check_turn(
        self,
        counted: TeamLedgers,
        lines: Mapping[str, InLine],
        starved_before: str,
        turns: Mapping[str, Turn],
    ) -> None:
        referee = Referee(counted, lines, starved_before)
        for name, turn in turns.items():
            held = {uid for uid, each in turn.ledger.reservations.lifts.items() if not each.is_begun_lift}
            assert held == referee.held(name), "quota is held for those whose turn it is"
            assert bool(turn.ledger.waiting_for_team) == (name in referee.waits_for_team)
            assert set(turn.ungate_uids) <= turn.ledger.reservations.lifts.keys(), (
                "gates go only on what is held or begun"
            )
        self.turns_that_wait += bool(referee.waits_for_team)

    # ---- the end

    def come_to_rest(self) -> Mapping[str, Turn]:
        """Let moves end, and controllers go on until nothing happens any more."""
        self.is_calm = True
        for each in self.namespaces.values():
            while each.place not in {Place.TEAM, Place.OWN}:
                each.move()
            each.store()
        for _ in range(STEPS):
            turns = self.count_and_turn({name: each.list() for name, each in self.namespaces.items()})
            for name, turn in turns.items():
                for uid in turn.ungate_uids:
                    self.namespaces[name].lift(self.namespaces[name].pods[uid])
            if not any(each.in_flight for each in self.namespaces.values()):
                return turns
            for each in self.namespaces.values():
                each.store(failures=0)
        raise AssertionError("it does not come to rest")

    def check_rest(self, turns: Mapping[str, Turn]) -> None:
        places = [(name, place) for name, turn in turns.items() for place in turn.places.values()]
        for name, turn in turns.items():
            self.namespaces[name].check_rest(turn)
        for name, place in places:
            if place.standing is Standing.NEXT and place.for_team:
                ledger = self.namespaces[name].ledger
                held = {key: amount + amount_held(ledger, key) for key, amount in place.needed.items()}
                assert set(ledger.exceeded(held)) & held.keys(), "a pod that fits runs"
        behind = [place for _, place in places if place.standing is Standing.BEHIND and place.for_team]
        assert not behind or any(place.standing is Standing.NEXT and place.for_team for _, place in places)

    def let_all_end(self) -> None:
        """Let what runs end, one after the other: nobody starves."""
        while running := [
            (each, uid)
            for each in self.namespaces.values()
            for uid, pod in sorted(each.pods.items())
            if not pod.waits
        ]:
            each, uid = self.draw.choice(running)
            each.gone.add(each.pods.pop(uid).uid)
            each.revision += 1
            turns = self.come_to_rest()
        turns = self.come_to_rest()
        standings = {place.standing for turn in turns.values() for place in turn.places.values()}
        assert standings <= CAN_NEVER_START, "nobody starves"


def amount_held(ledger: QuotaLedger, key: str) -> Fraction:
    return (ledger.used or {}).get(key, ZERO) + ledger.reserved.get(key, ZERO)


@pytest.mark.parametrize("part", range(5))
def test_the_lines_of_a_team_in_random_histories(part: int) -> None:
    started = waited = 0
    for seed in range(part, HISTORIES // 2, 5):
        world = TeamWorld(seed)
        for _ in range(STEPS):
            world.step()
        turns = world.come_to_rest()
        world.check_rest(turns)
        started += sum(not pod.waits for each in world.namespaces.values() for pod in each.pods.values())
        world.let_all_end()
        waited += world.turns_that_wait
    assert started > HISTORIES / 20
    assert waited
