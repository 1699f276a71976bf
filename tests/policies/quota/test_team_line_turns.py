"""One turn of a team in any state: quota is held for those pods for which the referee says so."""

import random
from fractions import Fraction

import pytest
from hypothesis import settings

from policies.quota.amounts import GPUS, Amounts
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, keep_id, lift_id
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.queue_entries import Gang, InLine
from policies.quota.team_line import next_to_start_in_team
from policies.quota.waiting import QueueOrder, QueueSpec, Standing, Waiter
from tests.builders import quota_ledger
from tests.policies.quota.team_line_referee import Referee

TURNS = settings().max_examples * 20
A100 = "classes/nvidia-a100"
NAMES = ("cv", "nlp", "prod", "speech")


def line_of(draw: random.Random, name: str) -> InLine:
    sizes: list[Amounts] = [{GPUS: Fraction(size)} for size in (1, 2, 3)]
    sizes.append({GPUS: Fraction(1), A100: Fraction(1)})  # equal pods share their demand
    waiters = [
        Waiter(
            uid=f"{name}-{number}",
            demand=draw.choice(sizes),
            since=str(draw.randrange(1, 9)),
            priority=draw.choice([0, 0, 9]),
            gang=draw.choice(["", "", "", "gang"]),
            obstacle=draw.choice([None] * 9 + [Standing.OTHER_GATE]),
            replaces=draw.random() < 0.1,
            keep=keep_id(f"{name}-{number}", "web") if draw.random() < 0.1 else "",
        )
        for number in range(draw.randrange(6))
    ]
    queue = QueueSpec(order=draw.choice(list(QueueOrder)), hold=draw.random() < 0.05)
    return InLine(waiters, {"gang": Gang(2, draw.choice([0, 0, 1]))}, queue)


def ledger_of(draw: random.Random, line: InLine) -> QuotaLedger:
    held = [each for each in line.waiters if draw.random() < 0.2 and not each.keep]
    keeps = [Reservation(each.keep, each.demand) for each in line.waiters if each.keep]
    lifts = [Reservation(lift_id(each.uid, draw.choice(["", "request"])), each.demand, 1) for each in held]
    hards: list[Amounts] = [{}, {GPUS: Fraction(draw.randrange(6))}, {A100: Fraction(1)}]
    used = {GPUS: Fraction(draw.randrange(4)), A100: Fraction(draw.randrange(2))}
    return quota_ledger(*lifts, *keeps, hard=draw.choice(hards), used=used, class_catalogue="c")


@pytest.mark.parametrize("part", range(4))
def test_whose_turn_it_is(part: int) -> None:
    newly_held = waits = 0
    for seed in range(part, TURNS, 4):
        draw = random.Random(seed)  # noqa: S311 - the same in every run
        names = NAMES[: draw.randrange(2, 5)]
        guaranteed = {
            name: {GPUS: Fraction(draw.randrange(4)), A100: Fraction(draw.randrange(2))}
            for name in draw.sample(NAMES, draw.choice([0, 0, 1, 2]))
        }
        hard = {GPUS: Fraction(draw.randrange(6, 12)), A100: Fraction(draw.randrange(2, 4))}
        lines = {name: line_of(draw, name) for name in names}
        team = Team(name="t", uid="t", generation=1, hard=hard, guaranteed=guaranteed)
        before = TeamLedgers(team, {name: ledger_of(draw, line) for name, line in lines.items()})
        starved_before = draw.choice(["", "3", "6"])

        found = next_to_start_in_team(before, lines, starved_before)
        referee = Referee(before, lines, starved_before)

        for name, turn in found.turns.items():
            held = {uid for uid, each in turn.ledger.reservations.lifts.items() if not each.is_begun_lift}
            assert held == referee.held(name), f"seed {seed}"
            assert bool(turn.ledger.waiting_for_team) == (name in referee.waits_for_team), f"seed {seed}"
            newly_held += len(held - before.ledgers[name].reservations.lifts.keys())
            waits += turn.ledger.waiting_for_team
    assert newly_held > TURNS / 8
    assert waits > TURNS / 8
