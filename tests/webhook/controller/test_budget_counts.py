"""What counts of a budget add up to: with changes, gaps, two controllers, and a month of 2,000 pods with outages."""

import random
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from math import inf
from operator import itemgetter

import pytest
from msgspec.structs import replace

from policies.quota.budget import GPU_HOUR, Budget
from policies.quota.ledger.reservations import Reservation, lift_id
from tests.budgets import HOUR, T4, at
from tests.cases import cases
from tests.webhook.controller.budgeted import MANY, TEAM, Namespace, Watching
from webhook.tools.gpu_hours import GroupBy, Usage

BEGIN = at("2026-11-02T00:00:00")


def counted_once(budget: Budget = MANY) -> tuple[Namespace, Watching]:
    """Return a namespace with one pod of 4 GPUs, counted for the first time."""
    team = Namespace(BEGIN, budget)
    controller = team.start()
    team.create("first", 4)
    team.count(controller)
    team.gpu_ms = 0
    return team, controller


def test_a_count_adds_what_was_held_since_the_last_one() -> None:
    team, controller = counted_once()
    team.pass_time(BEGIN + HOUR)
    team.create("second", 1)
    team.pass_time(BEGIN + 2 * HOUR)
    team.end("first")
    team.pass_time(BEGIN + 5 * HOUR)
    team.count(controller)
    assert (team.counted, team.hours, team.unknown) == (12, 12, 0)


def test_a_count_that_lost_its_swap_adds_nothing() -> None:
    team, one = counted_once()
    other = team.start()
    read = team.ledger
    team.pass_time(BEGIN + HOUR)
    assert team.count(other)
    assert not team.count(one, on=read)
    team.pass_time(BEGIN + 2 * HOUR)
    assert team.count(one)
    assert (team.counted, team.unknown) == (8, 0)


def test_followers_know_what_was_held_while_they_did_not_count() -> None:
    team, one = counted_once()
    other = team.start()
    other.sums.follow(TEAM, team.ledger.unclassified_pods, team.ledger)
    team.pass_time(BEGIN + HOUR)
    team.create("brief", 2)
    team.pass_time(BEGIN + 2 * HOUR)
    team.delete("brief")
    team.controllers.remove(one)
    assert team.count(other)
    assert (team.counted, team.unknown) == (10, 0)


@cases(
    ("what", "known", "unknown"),
    it_runs_on=("runs", 8, 0),
    it_ended_and_is_stored=("ended", 4, 0),
    it_ended_and_is_deleted=("deleted", 0, 8),
)
def test_a_gap_of_two_hours_in_which_a_pod(what: str, known: float, unknown: float) -> None:
    team, one = counted_once()
    team.controllers.remove(one)
    team.pass_time(BEGIN + HOUR)
    if what == "ended":
        team.end("first")
    if what == "deleted":
        team.delete("first")
    team.pass_time(BEGIN + 2 * HOUR)
    team.count(team.start())
    assert (team.counted, team.unknown) == (known, unknown)


def test_what_came_and_went_in_a_gap_is_bounded_by_its_reservation() -> None:
    team, one = counted_once()
    team.controllers.remove(one)
    team.create("brief", 3)
    team.create("later", 1)
    team.pass_time(BEGIN + HOUR)
    team.delete("brief")
    team.pass_time(BEGIN + 2 * HOUR)
    team.count(team.start())
    assert (team.counted, team.unknown) == (8 + 2, 6)
    assert team.counted <= team.hours <= team.counted + team.unknown


def test_what_is_held_for_a_pod_that_waits_is_not_unknown_in_a_gap() -> None:
    team, one = counted_once()
    team.controllers.remove(one)
    waits = Reservation(lift_id("waits"), {"gpus": Fraction(3)})
    begun = Reservation(lift_id("begun", "request"), {"gpus": Fraction(1)})
    team.ledger = replace(team.ledger, reservations=team.ledger.reservations.plus([waits, begun]))
    team.pass_time(BEGIN + 2 * HOUR)
    team.count(team.start())
    assert (team.counted, team.unknown) == (8, 2)


def test_what_ended_before_the_last_count_hides_nothing_in_a_gap() -> None:
    team, one = counted_once()
    team.create("early", 5)
    team.pass_time(BEGIN + HOUR)
    team.end("early")
    team.count(one)
    spent = team.counted
    team.controllers.remove(one)
    team.pass_time(BEGIN + 2 * HOUR)
    team.delete("first")
    team.count(team.start())
    assert (team.counted, team.unknown) == (spent, 4)


def test_a_period_ends_in_a_gap() -> None:
    team, one = counted_once()
    team.controllers.remove(one)
    team.pass_time(at("2026-12-01T03:00:00"))
    team.count(team.start())
    assert (team.counted, team.unknown) == (12, 0)
    assert team.ledger.spending
    assert team.ledger.spending.start == at("2026-12-01")


def test_a_key_that_is_added_begins_with_its_first_count() -> None:
    team, one = counted_once(replace(MANY, granted={T4: GPU_HOUR}))
    team.pass_time(BEGIN + HOUR)
    team.count(one)
    team.ledger = replace(team.ledger, budget=MANY)
    team.count(one)
    team.pass_time(BEGIN + 2 * HOUR)
    team.count(one)
    assert team.counted == 4


def test_without_a_budget_nothing_is_kept() -> None:
    team, one = counted_once()
    kept = team.ledger.spending
    team.ledger = replace(team.ledger, budget=None)
    team.pass_time(BEGIN + HOUR)
    team.count(one)
    (found,) = one.sums._namespaces[TEAM].sums.values()
    assert found.history is None
    assert team.ledger.spending == kept


def test_late_changes_are_taken_from_what_is_stored() -> None:
    team, one = counted_once()
    team.controllers.remove(one)  # its watch is silent
    team.pass_time(BEGIN + HOUR)
    team.create("late", 2)
    team.pass_time(BEGIN + 3 * HOUR)
    one.see(team.pods["late"])
    one.sums.forget_histories()
    team.count(one)
    assert (team.counted, team.hours) == (16, 16)


class Month:
    """November: 2,000 pods of some hours each, two controllers that count every five minutes, and outages in which none runs."""

    def __init__(self, outages: list[tuple[int, int]], seed: int) -> None:
        self.team = Namespace(at("2026-11-01"))
        self.chance = random.Random(seed)  # noqa: S311 - the same month every time
        begin, end = self.team.now, at("2026-12-01") - 1
        events: list[tuple[int, int, Callable[[], object]]] = []
        for number in range(2000):
            created = self.chance.randrange(begin, end - HOUR)
            ended = created + int(self.chance.expovariate(1 / (6 * HOUR))) + 1000
            create = partial(self.team.create, f"pod{number}", self.chance.choice([1, 1, 2, 4, 8]))
            events += [(created, 1, create)]
            # The owner of one in four deletes it while it runs; a Job keeps its pods for two hours.
            is_kept = number % 4 != 0
            if is_kept:
                events.append((ended, 2, partial(self.team.end, f"pod{number}")))
            events.append((ended + 2 * HOUR * is_kept, 3, partial(self.team.delete, f"pod{number}")))
        events += [(moment, 4, self.count) for moment in (*range(begin, end, 300_000), end)]
        for since, until in outages:
            events += [(since, 0, self.team.controllers.clear), (until, 0, self.start)]
        self.start()
        for moment, _, happens in sorted(events, key=itemgetter(0, 1)):
            if moment <= end:
                self.team.pass_time(moment)
                happens()

    def start(self) -> None:
        self.team.start()
        self.team.start()

    def count(self) -> None:
        """Let one controller count, and both forget what they need no longer."""
        if self.team.controllers:
            self.team.count(self.chance.choice(self.team.controllers))
        for each in self.team.controllers:
            each.sums.follow(TEAM, self.team.ledger.unclassified_pods, self.team.ledger)


SECONDS = 2000 * 8 / 3600
"""GPU-hours of the second to which the API server rounds each of two times of a pod, if all were in a gap."""
OUTAGES = [
    (at("2026-11-05T03:00:00"), at("2026-11-05T09:17:00")),
    (at("2026-11-12T22:00:00"), at("2026-11-13T01:00:00")),
    (at("2026-11-20T12:00:00"), at("2026-11-20T12:02:00")),
]


@pytest.mark.parametrize("seed", range(3))
def test_a_month_without_outages_is_exact(seed: int) -> None:
    team = Month([], seed).team
    assert team.counted == pytest.approx(team.hours, rel=1e-6)
    assert team.unknown == 0
    assert team.hours > 20_000


def test_usage_and_budget_agree() -> None:
    team = Month([], seed=1).team
    for each in team.pods.values():
        if not each.ended:
            team.write_line(each, "held")
    usage = Usage([GroupBy.NAMESPACE])
    usage.read(team.lines)
    usage.finish(inf)
    (found,) = usage.groups()
    assert found.objects > 1900
    assert team.counted == pytest.approx(float(found.hours), rel=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_a_month_with_outages_is_as_exact_as_it_says(seed: int) -> None:
    team = Month(OUTAGES, seed).team
    assert team.counted <= team.hours + SECONDS
    assert team.hours <= team.counted + team.unknown + SECONDS
    assert 0 < team.unknown < team.hours / 20
