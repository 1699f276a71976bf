"""Who may come in where a team has a quota over several namespaces."""

import random
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.quota.ledger.credits import Mark
from policies.quota.ledger.decide import VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, lift_id
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import quota_ledger
from tests.calls import calls
from tests.cases import cases
from tests.policies.quota.ledger.creations import AmountsByName, amounts, creation
from tests.policies.quota.ledger.teams import counted, team

OWN, OTHER = "vision-cv", "vision-prod"


def reason(found: TeamLedgers, namespace: str, **demand: int | str) -> VerdictReason:
    ledger = found.of(namespace)
    assert ledger is not None
    return decide(ledger, [creation("pod", **demand)]).verdicts[0].reason


@cases(
    ("hard", "guaranteed", "own", "other", "ask", "want"),
    the_last_one=(4, {}, 1, 2, 1, VerdictReason.RESERVED),
    one_too_many=(4, {}, 1, 3, 1, VerdictReason.EXCEEDED),
    guaranteed_to_another=(4, {OTHER: 3}, 1, 0, 1, VerdictReason.EXCEEDED),
    another_beyond_its_guarantee=(8, {OTHER: 3}, 1, 5, 2, VerdictReason.RESERVED),
    its_own_guarantee=(4, {OWN: 3}, 0, 1, 3, VerdictReason.RESERVED),
    beyond_its_own_guarantee=(4, {OWN: 1}, 1, 1, 2, VerdictReason.RESERVED),
    a_guarantee_above_what_is_free=(4, {OWN: 3}, 0, 3, 1, VerdictReason.RESERVED),
    but_only_what_is_free=(4, {OWN: 3}, 0, 3, 2, VerdictReason.EXCEEDED),
    guaranteed_to_a_namespace_that_is_not_there=(4, {"vision-new": 3}, 1, 0, 1, VerdictReason.EXCEEDED),
    a_dimension_that_the_team_lacks=(None, {}, 1, 9, 5, VerdictReason.RESERVED),
)
def test_one_request(
    hard: int | None, guaranteed: dict[str, int], own: int, other: int, ask: int, want: VerdictReason
) -> None:
    of_team = team(
        {} if hard is None else {"gpus": hard},
        {namespace: {"gpus": amount} for namespace, amount in guaranteed.items()},
    )
    found = TeamLedgers(of_team, {OWN: counted({"gpus": own}), OTHER: counted({"gpus": other})})
    assert reason(found, OWN, gpus=ask) is want


def test_both_levels_are_said() -> None:
    found = TeamLedgers(
        team({"gpus": 4}, {OTHER: {"gpus": 2}}),
        {OWN: counted({"gpus": 2}, {"gpus": 2}), OTHER: counted({"gpus": 1})},
    )
    ledger = found.of(OWN)
    assert ledger is not None
    (verdict,) = decide(ledger, [creation("pod", gpus=1)]).verdicts
    own, of_team = verdict.shortfalls
    two, four = Fraction(2), Fraction(4)
    assert (own.team, own.used, own.hard) == ("", two, two)
    assert (of_team.team, of_team.used, of_team.hard) == ("team-vision", four, four)
    assert of_team.guaranteed_to_others == two


@cases(
    ("ask", "want"),
    what_others_are_guaranteed=(3, True),
    what_it_can_have=(2, False),
)
def test_what_can_never_fit(ask: int, want: bool) -> None:
    of_team = team({"gpus": 4}, {OTHER: {"gpus": 2}})
    found = TeamLedgers(of_team, {OWN: counted({"gpus": 2}), OTHER: counted({"gpus": 0})})
    ledger = found.of(OWN)
    assert ledger is not None
    (verdict,) = decide(ledger, [creation("pod", gpus=ask)]).verdicts
    assert (verdict.reason, verdict.must_wait) == (VerdictReason.EXCEEDED, not want)


def test_the_five_namespaces_that_have_most_are_named_equal_ones_by_name() -> None:
    used = {"f": 1, "e": 1, "d": 1, "c": 1, "b": 1, "a": 1, "z": 2}
    found = TeamLedgers(team({"gpus": 9}), {name: counted({"gpus": each}) for name, each in used.items()})

    largest = found.team_state("a").largest("gpus")
    assert [(name, int(amount)) for name, amount, _ in largest] == [
        ("z", 2),
        *((name, 1) for name in "abcd"),
    ]


def test_what_is_reserved_counts_for_the_team() -> None:
    reserved = Reservation("a", amounts(gpus=2), name="pods/train-0")
    found = TeamLedgers(
        team({"gpus": 4}),
        {OWN: counted({"gpus": 1}), OTHER: counted({"gpus": 0}, None, reserved)},
    )
    assert reason(found, OWN, gpus=2) is VerdictReason.EXCEEDED
    assert reason(found, OWN, gpus=1) is VerdictReason.RESERVED


def test_pods_of_one_name_in_two_namespaces_are_two() -> None:
    """In one namespace, only one of that name is stored."""
    reserved = Reservation("a", amounts(gpus=2), name="pods/train-0")
    found = TeamLedgers(
        team({"gpus": 2}), {OWN: counted({"gpus": 0}), OTHER: counted({"gpus": 0}, None, reserved)}
    )
    ledger = found.of(OWN)
    assert ledger is not None
    request = replace(creation("b", gpus=2), reservation=replace(reserved, id="b"))
    assert decide(ledger, [request]).verdicts[0].reason is VerdictReason.EXCEEDED


def test_a_namespace_that_was_never_counted_holds_nothing_and_gets_nothing() -> None:
    never = quota_ledger(class_catalogue="c")
    found = TeamLedgers(team({"gpus": 2}), {OWN: counted({"gpus": 0}), OTHER: never})
    assert reason(found, OWN, gpus=2) is VerdictReason.RESERVED
    assert reason(found, OTHER, gpus=1) is VerdictReason.UNCOUNTED


def test_a_dimension_that_the_team_gained_is_denied_until_every_ledger_has_it() -> None:
    both = counted({"gpus": 0, "a": 0})
    found = TeamLedgers(team({"gpus": 2, "a": 1}), {OWN: both, OTHER: counted({"gpus": 0})})
    assert reason(found, OWN, a=1, gpus=1) is VerdictReason.UNCOUNTED
    assert reason(found, OWN, gpus=1) is VerdictReason.RESERVED
    assert reason(found.with_ledger(OTHER, both), OWN, a=1, gpus=1) is VerdictReason.RESERVED


def test_while_pods_of_the_team_wait_for_it_nobody_else_gets_anything() -> None:
    waiting = replace(counted({"gpus": 0}), waiting=2, waiting_for_team=1)
    found = TeamLedgers(team({"gpus": 4}), {OWN: counted({"gpus": 0}), OTHER: waiting})
    assert reason(found, OWN, gpus=1) is VerdictReason.OTHERS_WAIT
    at_home = replace(waiting, waiting_for_team=0)
    assert reason(found.with_ledger(OTHER, at_home), OWN, gpus=1) is VerdictReason.RESERVED


def test_a_ledger_that_is_leaving_decides_nothing_and_still_counts() -> None:
    found = TeamLedgers(team({"gpus": 4}), {OWN: counted({"gpus": 1}), OTHER: counted({"gpus": 3})})
    leaving = found.leave(OTHER)
    assert leaving.of(OTHER) is None
    assert reason(leaving, OWN, gpus=1) is VerdictReason.EXCEEDED
    gone = leaving.without(OTHER)
    assert (set(gone.ledgers), gone.leaving) == ({OWN}, frozenset())
    assert reason(gone, OWN, gpus=3) is VerdictReason.RESERVED


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes_the_sum_is_never_above_what_is_granted(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    names = ("a", "b", "c")
    hard = chance.randrange(4, 12)
    guaranteed: dict[str, AmountsByName] = {
        name: {"gpus": chance.randrange(hard // 3 + 1)} for name in names if chance.random() < 0.6
    }
    found = TeamLedgers(
        team({"gpus": hard}, guaranteed),
        {name: counted({"gpus": 0}, {"gpus": chance.randrange(2, 9)}) for name in names},
    )
    held = dict.fromkeys(names, 0)
    for number in range(60):
        name, ask = chance.choice(names), chance.randrange(1, 4)
        ledger = found.of(name)
        assert ledger is not None
        decided = decide(ledger, [creation(f"{number}", gpus=ask)])
        others = sum(
            max(held[each], int(guaranteed.get(each, {}).get("gpus", 0))) for each in names if each != name
        )
        fits = held[name] + ask <= ledger.hard["gpus"] and others + held[name] + ask <= hard
        assert decided.verdicts[0].allowed is fits
        if fits:
            held[name] += ask
            found = found.with_ledger(name, decided.ledger)
        elif chance.random() < 0.4:
            held[name] = 0
            found = found.with_ledger(name, counted({"gpus": 0}, {"gpus": int(ledger.hard["gpus"])}))
        assert sum(held.values()) <= hard
        for each in names:
            own = found.of(each)
            assert own is not None
            assert own.team_state is not None
            total = sum(
                max(held[one], int(guaranteed.get(one, {}).get("gpus", 0))) for one in names if one != each
            )
            assert own.team_state.taken_by_others["gpus"] == Fraction(total)


@pytest.mark.parametrize("seed", range(20))
def test_what_follows_by_difference_is_what_adding_up_again_finds(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    names = ("a", "b", "c", "d")
    found = TeamLedgers(team({"gpus": 9, "a": 4}, {"a": {"gpus": 2}, "new": {"a": 1}}), {})
    for number in range(40):
        name = chance.choice(names)
        used: dict[str, int | str] = {
            key: chance.randrange(4) for key in ("gpus", "a") if chance.random() < 0.8
        }
        held = [Reservation(f"{number}", amounts(gpus=2), name="pods/x")] * chance.randrange(2)
        held += [Reservation(lift_id(f"lift-{number}"), amounts(gpus=1))] * chance.randrange(2)
        ledger = replace(
            counted(used, None, *held),
            waiting_for_team=chance.randrange(3),
            scarce={"gpus": True} if chance.random() < 0.3 else {},
            marks={"mark": Mark(amounts(gpus=1), 1, 1)} if chance.random() < 0.3 else {},
        )
        match chance.choice(("with", "with", "leave", "without", "later")):
            case "with":
                found = found.with_ledger(name, ledger)
            case "leave" if name in found.ledgers:
                found = found.leave(name)
            case "without" if name in found.leaving:
                found = found.without(name)
            case "later":
                kept = {each: found.ledgers[each] for each in found.ledgers if chance.random() < 0.8}
                found = found.later({**kept, name: ledger}, frozenset())
            case _:
                pass
        fresh = TeamLedgers(found.team, found.ledgers, found.leaving)
        for each in (*names, "new", "other"):
            assert found.team_state(each) == fresh.team_state(each)
            assert found.reservation_limit(each, 500) == fresh.reservation_limit(each, 500)


def test_a_decision_costs_as_much_in_a_large_team_as_in_a_small_one() -> None:
    def of(number: int) -> TeamLedgers:
        found = TeamLedgers(team({"gpus": 900}), {f"n{each}": counted({"gpus": 1}) for each in range(number)})
        return found.with_ledger("n0", counted({"gpus": 2}))  # its sums were added up once

    def decision(found: TeamLedgers) -> None:
        ledger = found.of("n1")
        assert ledger is not None
        decided = decide(ledger, [creation("pod", gpus=1)], limit=found.reservation_limit("n1", 10_000))
        assert decided.verdicts[0].allowed
        assert found.with_ledger("n1", decided.ledger).of("n1")

    small, large = of(4), of(400)
    assert calls(lambda: decision(large)) == calls(lambda: decision(small))


def taking(characters: int, lifts: int = 0) -> QuotaLedger:
    """Return a ledger with creations in flight that take 37 characters each, and with lifts."""
    creations = [Reservation(f"{number:036}", amounts(gpus=1)) for number in range(characters // 37)]
    held = [Reservation(lift_id(f"{number:036}"), amounts(gpus=1)) for number in range(lifts)]
    return counted({"gpus": 0}, None, *creations, *held)


@cases(
    ("others", "own", "want"),
    nobody_else=({"a": 0, "b": 0, "c": 0}, 0, 2000),
    no_more_than_a_quarter=({"a": 0, "b": 0, "c": 0}, 1990, 2000),
    the_first_half_is_nearly_taken=({"a": 2000, "b": 1200, "c": 0}, 0, 1000),
    and_taken=({"a": 2000, "b": 1960, "c": 0}, 0, 1000),
    an_equal_part_is_left_though_others_take_more=({"a": 2000, "b": 2000, "c": 1000}, 800, 1000),
    what_is_not_there_is_not_given=({"a": 3600, "b": 3600, "c": 400}, 0, 400),
)
def test_reservations_of_others_leave_a_namespace_its_part(
    others: dict[str, int], own: int, want: int
) -> None:
    ledgers = {name: taking(characters) for name, characters in others.items()}
    found = TeamLedgers(team({"gpus": 900}), {**ledgers, OWN: taking(own)})
    assert want - 100 < found.reservation_limit(OWN, 8000) < want + 100


def test_what_is_held_for_pods_that_wait_takes_nothing_from_creations() -> None:
    without, found = (
        TeamLedgers(team({"gpus": 900}), {OWN: taking(200, lifts), OTHER: taking(400)}) for lifts in (0, 20)
    )
    lifts_size = found.ledgers[OWN].reservations.size - without.ledgers[OWN].reservations.size
    assert (
        found.reservation_limit(OWN, 8000 + lifts_size) == without.reservation_limit(OWN, 8000) + lifts_size
    )


@pytest.mark.parametrize("seed", range(10))
def test_a_namespace_that_fills_the_object_keeps_no_other_out(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    names, limit = [f"n{number}" for number in range(12)], 24_000
    found = TeamLedgers(team({"gpus": 10_000}), {name: counted({"gpus": 0}) for name in names})
    for number in range(600):
        name = chance.choice(names[:-1])
        ledger = found.of(name)
        assert ledger is not None
        decided = decide(
            ledger, [creation(f"{number:036}", gpus=1)], limit=found.reservation_limit(name, limit)
        )
        found = found.with_ledger(name, decided.ledger)
    reserved = sum(each.reservations.size for each in found.ledgers.values())
    assert limit // 2 < reserved <= limit
    victim = found.of(names[-1])
    assert victim is not None
    requests = [creation(f"late-{number:036}", gpus=1) for number in range(15)]
    verdicts = decide(victim, requests, limit=found.reservation_limit(names[-1], limit)).verdicts
    assert [each.reason for each in verdicts] == [VerdictReason.RESERVED] * 15
