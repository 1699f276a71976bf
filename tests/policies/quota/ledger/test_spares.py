"""What may be reserved ahead in a ledger, and what a later swap makes of it."""

import pytest

from policies.quota.ledger.quota_ledger import (
    CREATION_SECONDS,
    EXPIRY_SECONDS,
    NO_QUOTA_SECONDS,
    SPARE_SECONDS,
)
from policies.quota.ledger.reservations import LIMIT, Reservation
from policies.quota.ledger.spares import SettledSpares, has_spares, is_spare, settled, with_spares
from tests.policies.quota.ledger.test_decide import amounts, ledger

IDS = tuple(f"+replica-{number}" for number in range(100))


@pytest.mark.parametrize(
    ("hard", "used", "demand", "want"),
    [
        pytest.param({"gpus": 1600}, {"gpus": 0}, {"gpus": 1}, 99, id="a-part-of-what-is-free"),
        pytest.param(
            {"gpus": 1600}, {"gpus": 1504}, {"gpus": 1}, 5, id="free-is-less-what-is-used-and-reserved"
        ),
        pytest.param({"gpus": 1600}, {"gpus": 0}, {"gpus": 8}, 12, id="by-what-each-costs"),
        pytest.param({"gpus": 64}, {"gpus": 0}, {"gpus": 1}, 0, id="none-in-a-small-quota"),
        pytest.param({"gpus": 16}, {"gpus": 90}, {"gpus": 1}, 0, id="none-beyond-the-limit"),
        pytest.param(
            {"gpus": 1600, "a": 64}, {"gpus": 0, "a": 0}, {"gpus": 1, "a": 1}, 4, id="the-scarcest-dimension"
        ),
        pytest.param({"a": 1}, {"a": 0}, {"gpus": 1}, 100, id="what-is-not-granted-is-unlimited"),
        pytest.param({"gpus": 1600}, None, {"gpus": 1}, 0, id="none-before-it-was-counted"),
        pytest.param({"gpus": 3200}, {"gpus": "1/2"}, {"gpus": "3/7"}, 100, id="fractions-are-exact"),
    ],
)
def test_spares_take_a_small_part_of_what_is_free(
    hard: dict[str, int | str], used: dict[str, int | str] | None, demand: dict[str, int | str], want: int
) -> None:
    before = ledger(
        amounts(**hard), None if used is None else amounts(**used), Reservation("other", amounts(gpus=1))
    )
    after = with_spares(
        before, Reservation("pod", amounts(**demand), name="pods/train-0"), IDS, coming=4, limit=LIMIT
    )
    spares = [each for each in after.reservations if is_spare(each.id)]
    assert [each.id for each in spares] == list(IDS[:want])
    assert all((each.demand, each.name) == (amounts(**demand), "") for each in spares)
    assert has_spares(after) == bool(want)


@pytest.mark.parametrize(
    ("coming", "others", "want"),
    [
        pytest.param(1600, 0, 100, id="all-that-come-fit"),
        pytest.param(1601, 0, 0, id="the-quota-may-be-full-before-all-is-counted-once"),
        pytest.param(533, 2, 100, id="with-those-of-two-other-replicas"),
        pytest.param(534, 2, 0, id="not-with-those-of-two-other-replicas"),
    ],
)
def test_spares_end_before_a_quota_is_full(coming: int, others: int, want: int) -> None:
    held = [Reservation(f"+other{number}-7", amounts(gpus=1)) for number in range(others)]
    before = ledger(amounts(gpus=1604), amounts(gpus=4 - others), *held)
    after = with_spares(before, Reservation("pod", amounts(gpus=1)), IDS, coming=coming, limit=LIMIT)
    assert len(after.reservations) == others + want


def test_spares_take_no_room_in_the_text_that_creations_need() -> None:
    before = ledger(amounts(gpus=16000), amounts(gpus=0))
    like = Reservation("pod", amounts(gpus=1))
    fitting = with_spares(before, like, IDS, coming=4, limit=LIMIT).reservations.size
    assert with_spares(before, like, IDS, coming=4, limit=fitting // 2) is before


def test_spares_bear_the_mark_of_a_move_like_all_that_is_charged_then() -> None:
    moving = ledger(amounts(gpus=3200), amounts(gpus=0))
    moving = type(moving)(
        **{**{key: getattr(moving, key) for key in moving.__struct_fields__}, "next_catalogue": "n"}
    )
    after = with_spares(moving, Reservation("pod", amounts(gpus=1)), IDS[:4], coming=4, limit=LIMIT)
    assert [each.catalogue for each in after.reservations] == ["n"] * 4


def test_an_assigned_spare_becomes_the_reservation_of_its_object_and_others_go() -> None:
    demand = amounts(gpus=1)
    own = [Reservation(each, demand) for each in IDS[:3]]
    before = ledger(amounts(gpus=1600), amounts(gpus=0), *own, Reservation("other", amounts(gpus=2)))
    pod = Reservation("pod", demand, name="pods/train-0")
    after = settled(before, SettledSpares({IDS[0]: pod}, frozenset({IDS[1]})))
    assert list(after.reservations) == [own[2], Reservation("other", amounts(gpus=2)), pod]
    assert after.reserved == amounts(gpus=4)


def test_a_spare_that_is_not_there_any_more_adds_nothing() -> None:
    before = ledger(amounts(gpus=1600), amounts(gpus=0), Reservation("other", amounts(gpus=2)))
    pod = Reservation("pod", amounts(gpus=1), name="pods/train-0")
    assert settled(before, SettledSpares({IDS[0]: pod}, frozenset({IDS[1]}))) is before


def test_what_is_admitted_by_a_spare_is_stored_before_any_controller_drops_it() -> None:
    assert SPARE_SECONDS + CREATION_SECONDS < EXPIRY_SECONDS
    assert SPARE_SECONDS < NO_QUOTA_SECONDS, "before a ledger that came again is counted"
