"""What objects keep in the ledger while their pods are replaced: how much, for how long, and what a budget says of it."""

from fractions import Fraction

from msgspec.structs import replace

from policies.quota.budget import GPU_HOUR, Budget, Period, Spending
from policies.quota.ledger.keeping_objects import KEPT_MS, WITHIN_MS, Keeper
from policies.quota.ledger.keeps import DemandOfObject, Ended, Rooms, with_keeps
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reconcile import must_be_written
from policies.quota.ledger.reservations import Reservation, Reservations, keep_id
from tests.builders import quota_ledger
from tests.cases import cases

NOW = 1_790_000_000_000
TRAIN = Keeper("kubeflow.org/v1", "PyTorchJob", "train", "train-uid", "PyTorchJob")
TWO = {"gpus": Fraction(2)}


def room(pods: int, gpus: int) -> Rooms:
    return {TRAIN.uid: DemandOfObject(pods, Fraction(gpus))}


def ended(*uids: str) -> list[Ended]:
    return [Ended(uid, TWO, TRAIN) for uid in uids]


def kept(ledger: QuotaLedger) -> set[str]:
    return {each.id.removesuffix(f"/keep/{TRAIN.uid}") for each in ledger.reservations.keeps}


ANY = room(9, 99)


@cases(
    ("rooms", "want"),
    as_many_as_ended=(room(9, 99), {"a", "b"}),
    no_more_pods_than_it_asks_for=(room(1, 99), {"a"}),
    no_more_gpus_than_it_asks_for=(room(9, 3), {"a"}),
    it_has_as_many_as_it_asks_for=(room(0, 0), set()),
    it_was_made_smaller=(room(-1, -2), set()),
    it_is_gone_or_has_ended=({TRAIN.uid: None}, set()),
    it_could_not_be_read=({}, set()),
)
def test_an_object_keeps_what_ended_and_what_it_asks_for(rooms: Rooms, want: set[str]) -> None:
    found = with_keeps(quota_ledger(), ended("a", "b"), rooms, NOW)

    assert kept(found) == want
    assert found.reserved.get("gpus", 0) == 2 * len(want)
    assert must_be_written(quota_ledger(), found) is bool(want)


@cases(
    ("rooms", "want"),
    while_it_asks_for_it=(room(2, 4), {"a", "b"}),
    less_if_it_asks_for_less=(room(1, 2), {"a"}),
    nothing_if_it_is_gone=({TRAIN.uid: None}, set()),
    the_same_if_it_could_not_be_read=({}, {"a", "b"}),
)
def test_it_keeps_it(rooms: Rooms, want: set[str]) -> None:
    before = with_keeps(quota_ledger(), ended("a", "b"), ANY, NOW)

    assert kept(with_keeps(before, (), rooms, NOW + 1000)) == want


def test_it_keeps_it_for_a_minute_after_the_last_of_its_pods_ended() -> None:
    ledger = with_keeps(quota_ledger(), ended("a"), ANY, NOW)

    ledger = with_keeps(ledger, (), ANY, NOW + KEPT_MS - 1)
    assert kept(ledger) == {"a"}
    assert not kept(with_keeps(ledger, (), ANY, NOW + KEPT_MS))


def test_an_object_whose_pods_end_again_and_again_keeps_quota_for_a_minute_in_ten() -> None:
    """A crash loop: each pod runs for a second, and the next one comes 9 seconds later."""
    ledger, spans, now = quota_ledger(), list[int](), NOW
    for number in range(200):
        ledger = with_keeps(ledger, ended(f"pod-{number}"), ANY, now)
        spans += [now + ms for ms in range(0, 9000, 1000) if kept(ledger)]
        now += 9000
        ledger = with_keeps(ledger, (), ANY, now)
        started = ledger.reservations.without(each.id for each in ledger.reservations.keeps)
        ledger = replace(ledger, reservations=started)
        now += 1000
    for begin in range(NOW, now - WITHIN_MS, 1000):
        assert sum(begin <= at < begin + WITHIN_MS for at in spans) <= 60 + 9
    assert len(spans) >= 3 * 50
    assert max(len(each.spent) for each in ledger.keepers) <= 12


def test_what_a_controller_does_not_write_is_counted_by_the_next_one() -> None:
    written = with_keeps(quota_ledger(), ended("a"), ANY, NOW)
    lost = with_keeps(written, (), ANY, NOW + 30_000)

    assert not must_be_written(written, lost)
    assert with_keeps(written, (), ANY, NOW + 40_000).keepers[0].left_ms == 20_000
    assert with_keeps(lost, (), ANY, NOW + 40_000).keepers[0].left_ms == 20_000


def test_a_clock_that_is_behind_adds_nothing() -> None:
    ledger = with_keeps(quota_ledger(), ended("a"), ANY, NOW)

    assert with_keeps(ledger, (), ANY, NOW - 5000).keepers[0].left_ms == KEPT_MS


def test_an_object_is_forgotten_ten_minutes_later() -> None:
    ledger = with_keeps(quota_ledger(), ended("a"), ANY, NOW)
    ledger = with_keeps(ledger, (), room(0, 0), NOW + 1000)

    assert with_keeps(ledger, (), {}, NOW + WITHIN_MS // 2).keepers
    later = with_keeps(ledger, (), {}, NOW + WITHIN_MS + 120_000)
    assert not later.keepers
    assert must_be_written(ledger, later), "it leaves space for others"


def test_an_object_that_is_gone_is_forgotten_at_once() -> None:
    ledger = with_keeps(quota_ledger(), ended("a"), ANY, NOW)

    assert not with_keeps(ledger, (), {TRAIN.uid: None}, NOW + 1000).keepers


def test_many_objects_one_after_the_other_take_no_space_of_others() -> None:
    ledger = quota_ledger()
    for number in range(600):
        keeper = replace(TRAIN, uid=f"uid-{number}")
        rooms = {
            keeper.uid: DemandOfObject(9, Fraction(99)),
            f"uid-{number - 1}": DemandOfObject(0, Fraction(0)),
        }
        ledger = with_keeps(ledger, [Ended(f"pod-{number}", TWO, keeper)], rooms, NOW + number * 500)

    assert 20 < len(ledger.keepers) < 60
    assert ledger.size <= 2 * 16 * 1024


def test_what_is_kept_has_a_part_of_the_space() -> None:
    uids = [f"5f0c7a3e-1111-2222-3333-{number:012}" for number in range(500)]

    found = with_keeps(quota_ledger(), ended(*uids), room(500, 1000), NOW)
    assert 150 < len(found.reservations.keeps) < 500
    assert found.reservations.size <= 16 * 1024


def test_it_is_read_as_it_was_written_and_does_not_expire() -> None:
    keep = Reservation(keep_id("a", TRAIN.uid), TWO, catalogue="next")
    keep.check()

    (found,) = Reservations.parse(Reservations.of(keep).text)
    assert (found.is_keep, found.object_uid, found.keeper_uid) == (True, "a", TRAIN.uid)
    assert not any((found.is_lift, found.is_begun_lift))
    assert not Reservations.of(keep).expiring_ids


def test_a_budget_is_charged_for_what_is_kept() -> None:
    budget = Budget(Period.MONTH, {"gpus": 100 * GPU_HOUR}, 0.8)
    spending = Spending(start=0, end=2 * NOW, until=NOW, spent={"gpus": 7})
    ledger = with_keeps(quota_ledger(budget=budget, spending=spending), ended("a"), ANY, NOW)

    later = with_keeps(ledger, (), ANY, NOW + 36_000)
    assert later.spending is not None
    assert later.spending.spent == {"gpus": 7 + 2 * GPU_HOUR // 100}
