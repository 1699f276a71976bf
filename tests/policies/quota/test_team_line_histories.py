"""The lines of three namespaces of a team, in random histories as in `test_line_histories`, with the quotas of both levels.

One namespace may have a guarantee, and each a GPUQuota. `hard` of both and guarantees change. After every step:

  - what is admitted fits the quota of its namespace and that of the team, beside what others hold or are guaranteed;
  - nobody comes without the gate beyond a guarantee while somebody waits for the team;
  - each of the laws of one namespace holds: gangs are held whole, and keep it once they have started.

At the end, whoever fits runs, and nothing else is reserved.
"""

from collections.abc import Mapping
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.quota.amounts import GPUS, NOTHING, Vector
from policies.quota.ledger.decide import Line
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.line import Standing, Turn
from policies.quota.team_line import take_team_turn
from tests.policies.quota.test_line_histories import A100, HISTORIES, STEPS, Listed, Pod, World, check_held

NAMES = ("cv", "nlp", "prod")


class Namespace(World):
    """One namespace, whose ledger stands among those of its team."""

    def __init__(self, seed: int, name: str, team: "TeamWorld") -> None:
        self.name, self.team = name, team
        super().__init__(seed)
        self.made = 1000 * NAMES.index(name)

    @property
    def hard(self) -> Vector:
        return super().hard if self.draw.random() < 0.5 else {}

    @property
    def ledger(self) -> QuotaLedger:
        found = self.team.ledgers.of(self.name)
        assert found is not None
        return found

    @ledger.setter
    def ledger(self, ledger: QuotaLedger) -> None:
        self.team.ledgers = self.team.ledgers.with_ledger(self.name, ledger)

    def come(self) -> None:
        self.team.made += 1
        self.made = 1000 * NAMES.index(self.name) + self.team.made
        super().come()

    def admit(self, reservation: Reservation, line: Line, pod: Pod) -> bool:
        share = self.ledger.team
        assert share is not None
        is_admitted = super().admit(reservation, line, pod)
        if is_admitted:
            self.team.check_fits(self.name, reservation.demand)
        if is_admitted and not pod.waits and line is Line.BEHIND and share.waiting:
            guaranteed = self.team.ledgers.team.guaranteed.get(self.name, {})
            assert all(self.committed()[key] <= guaranteed.get(key, NOTHING) for key in pod.demand)
        return is_admitted


class TeamWorld:
    def __init__(self, seed: int) -> None:
        self.made = 0
        self.ledgers = TeamLedgers(Team(name="t", uid="t", generation=1, hard={}))
        self.namespaces = {name: Namespace(3 * seed + at, name, self) for at, name in enumerate(NAMES)}
        self.draw = self.namespaces["cv"].draw
        self.change()

    def change(self, gpus: tuple[int, ...] = (2, 4, 8)) -> None:
        hard = {GPUS: Fraction(self.draw.choice(gpus)), A100: Fraction(self.draw.choice([2, 4]))}
        guaranteed = {"prod": {GPUS: Fraction(self.draw.choice([0, 2, 4]))}}
        team = replace(self.ledgers.team, hard=hard, guaranteed=guaranteed)
        self.ledgers = self.ledgers.with_team(team)

    def step(self) -> None:
        if self.draw.random() < 0.1:
            self.change()
        namespace = self.draw.choice(list(self.namespaces.values()))
        namespace.act()
        listed = {}
        number = self.draw.randrange(2)
        for each in self.namespaces.values():
            if self.draw.random() < 0.7:
                each.lists[number] = each.list()
            listed[each.name] = each.lists[number]
        for name, turn in self.count_and_turn(listed).items():
            each = self.namespaces[name]
            for uid in turn.lifts:
                if self.draw.random() < 0.8:
                    each.lift(listed[name].pods[uid])
        for each in self.namespaces.values():
            if self.draw.random() < 0.8:
                each.store()
            each.check_known()

    def count_and_turn(self, listed: Mapping[str, Listed]) -> Mapping[str, Turn]:
        """Count what is not older, and take the turns of those namespaces."""
        before, lines = self.ledgers, {}
        counted = before
        for name, each in self.namespaces.items():
            ledger = each.counted(listed[name])
            if ledger is not None:
                counted = counted.with_ledger(name, ledger)
                lines[name] = each.in_line(listed[name])
        found = take_team_turn(counted, lines)
        for name, turn in found.turns.items():
            pods = listed[name].pods
            check_held(turn, lines[name].gangs, pods)
            self.namespaces[name].check_started(listed[name], turn.ledger)
            was, now = counted.of(name), turn.ledger
            assert was is not None
            new = [
                now.reservations.lifts[uid] for uid in now.reservations.lifts.keys() - was.reservations.lifts
            ]
            held = {
                key: (now.used or {}).get(key, NOTHING) + now.reserved.get(key, NOTHING)
                for key in (GPUS, A100)
            }
            over = now.exceeded(held)
            assert not any(key in each.demand for key in over for each in new), (
                "nothing is held that does not fit"
            )
        assert take_team_turn(found.team_ledgers, lines).team_ledgers == found.team_ledgers
        self.ledgers = found.team_ledgers
        return found.turns

    def check_fits(self, name: str, demand: Vector) -> None:
        team = self.ledgers.team
        taken = {each.name: each.committed() for each in self.namespaces.values()}
        for key in demand:
            others = sum(
                (
                    max(vector.get(key, NOTHING), team.guaranteed.get(other, {}).get(key, NOTHING))
                    for other, vector in taken.items()
                    if other != name
                ),
                NOTHING,
            )
            assert others + taken[name].get(key, NOTHING) <= team.hard[key], "what is admitted fits the team"

    def come_to_rest(self) -> Mapping[str, Turn]:
        for each in self.namespaces.values():
            each.store()
        turns = self.turn_now()
        for _ in range(STEPS):
            for name, turn in turns.items():
                for uid in turn.lifts:
                    self.namespaces[name].lift(self.namespaces[name].pods[uid])
            for each in self.namespaces.values():
                each.store(failures=0)
            turns = self.turn_now()
        return turns

    def turn_now(self) -> Mapping[str, Turn]:
        return self.count_and_turn({name: each.list() for name, each in self.namespaces.items()})

    def check_rest(self, turns: Mapping[str, Turn]) -> None:
        places = [(name, place) for name, turn in turns.items() for place in turn.places.values()]
        for name, turn in turns.items():
            self.namespaces[name].check_rest(turn)
        for name, place in places:
            if place.standing is Standing.NEXT and place.for_team:
                ledger = self.namespaces[name].ledger
                held = {
                    key: (ledger.used or {}).get(key, NOTHING) + ledger.reserved.get(key, NOTHING) + amount
                    for key, amount in place.needed.items()
                }
                assert set(ledger.exceeded(held)) & held.keys(), "whoever fits runs"
        behind = [place for _, place in places if place.standing is Standing.BEHIND and place.for_team]
        assert not behind or any(place.standing is Standing.NEXT and place.for_team for _, place in places)


@pytest.mark.parametrize("part", range(5))
def test_the_lines_of_a_team_in_random_histories(part: int) -> None:
    started = waited = 0
    for seed in range(part, HISTORIES // 4, 5):
        world = TeamWorld(seed)
        for _ in range(STEPS):
            world.step()
        turns = world.come_to_rest()
        world.check_rest(turns)
        started += sum(not pod.waits for each in world.namespaces.values() for pod in each.pods.values())
        waited += sum(place.for_team for turn in turns.values() for place in turn.places.values())
    assert started > HISTORIES / 40
    assert waited
