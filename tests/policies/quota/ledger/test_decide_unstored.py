"""What creations that are not stored keep others from: nobody who waits, no place in line, and a part of the team at most."""

from fractions import Fraction

from msgspec.structs import replace

from policies.quota.ledger.decide import Line, ReservationRequest, VerdictReason, decide
from policies.quota.ledger.quota_ledger import AGAIN_MS, UNSTORED_MS, QuotaLedger
from policies.quota.ledger.reconcile import Reconciled, StoredObject, reconcile
from policies.quota.ledger.reservations import Reservation, lift_id
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import listing, quota_ledger
from tests.cases import cases
from tests.policies.quota.ledger.joining import behind, gpus, joins, ledger, request

R = VerdictReason
JOINING = Reservation("joining", {}, name="pods/taken")
NOW = 1_000_000


def again(uid: str) -> ReservationRequest:
    return request(Reservation(uid, {}, name=JOINING.name), Line.JOINS)


@cases(
    ("before", "requests", "want", "waiting"),
    one_that_is_in_creation=(ledger(JOINING, max_waiting=1), [again("a"), again("b")], [R.RESERVED] * 2, 1),
    in_one_batch=(ledger(max_waiting=1), [again("a"), again("b"), joins("c")], [R.RESERVED] * 2 + [R.QUEUE_FULL], 1),
    one_that_is_stored=(ledger(max_waiting=0, stored_names={JOINING.name: {}}), [again("a")], [R.RESERVED], 0),
    one_that_is_stored_keeps_nobody_out=(ledger(JOINING, stored_names={JOINING.name: {}}), [behind("a")], [R.RESERVED], 0),
)  # fmt: skip
def test_of_one_name_only_one_waits(
    before: QuotaLedger, requests: list[ReservationRequest], want: list[VerdictReason], waiting: int
) -> None:
    decided = decide(before, requests)

    assert [each.reason for each in decided.verdicts] == want
    assert decided.ledger.all_waiting == waiting


def in_team(own: QuotaLedger, other: QuotaLedger | None = None, guaranteed: int = 0) -> QuotaLedger:
    """Return the ledger in a team that has four GPUs."""
    guarantee = {"own": gpus(guaranteed)}
    team = Team(name="t", uid="t", generation=1, hard={"gpus": Fraction(4)}, guaranteed=guarantee)
    found = TeamLedgers(team, {"own": own, "other": other or ledger(hard=9)}).of("own")
    assert found is not None
    return found


def alone(uid: str) -> ReservationRequest:
    return replace(behind(uid), is_served=False)


@cases(
    ("other", "asked", "want"),
    in_creation=(ledger(JOINING), behind("a"), R.RESERVED),
    that_were_counted=(ledger(waiting=3), behind("a"), R.RESERVED),
    of_which_a_turn_found_that_they_wait_for_the_team=(ledger(waiting_for_team=1), behind("a"), R.OTHERS_WAIT),
    without_a_controller=(ledger(waiting_for_team=1), alone("a"), R.RESERVED),
)  # fmt: skip
def test_which_pods_of_other_namespaces_close_this_one(
    other: QuotaLedger, asked: ReservationRequest, want: VerdictReason
) -> None:
    assert decide(in_team(ledger(hard=9), other), [asked]).verdicts[0].reason is want


def test_without_a_controller_the_pods_of_the_own_namespace_close_it() -> None:
    assert decide(in_team(ledger(hard=9, waiting=1)), [alone("a")]).verdicts[0].reason is R.OTHERS_WAIT


def bound(*reservations: Reservation, used: int = 0) -> QuotaLedger:
    return ledger(*reservations, hard=9, used=used, unstored=(NOW - AGAIN_MS, NOW))


IN_CREATION = Reservation("b", gpus(1), name="pods/b")


@cases(
    ("before", "asked", "now", "want"),
    as_much_as_it_leaves=(in_team(bound()), 2, NOW, R.RESERVED),
    more_than_it_leaves=(in_team(bound()), 3, NOW, R.NOT_STORED),
    beside_what_is_in_creation=(in_team(bound(IN_CREATION)), 2, NOW, R.NOT_STORED),
    what_is_held_for_the_line_is_stored=(in_team(bound(Reservation(lift_id("b"), gpus(2)))), 1, NOW, R.RESERVED),
    what_it_uses_is_stored=(in_team(bound(used=2)), 1, NOW, R.RESERVED),
    if_it_was_only_once=(in_team(ledger(hard=9, unstored=(NOW, NOW))), 3, NOW, R.RESERVED),
    once_it_is_over=(in_team(bound()), 3, NOW + UNSTORED_MS, R.RESERVED),
    within_its_guarantee=(in_team(bound(), guaranteed=3), 3, NOW, R.RESERVED),
    partly_beyond_it=(in_team(bound(), guaranteed=2), 3, NOW, R.NOT_STORED),
    more_than_the_team_has=(in_team(bound()), 5, NOW, R.EXCEEDED),
    without_a_team=(bound(), 9, NOW, R.RESERVED),
)  # fmt: skip
def test_what_a_namespace_may_have_in_creation_while_its_pods_are_not_stored(
    before: QuotaLedger, asked: int, now: int, want: VerdictReason
) -> None:
    (verdict,) = decide(before, [behind("a", asked)], now=now).verdicts

    assert verdict.reason is want
    assert verdict.must_wait == (want is R.NOT_STORED)


NEVER = (0, 0)
GONE = Reservation("gone", gpus(2), name="pods/train")
LATE = {"gone"}


@cases(
    ("before", "objects", "expired", "want"),
    never_stored=(GONE, {}, LATE, (NOW, NOW)),
    not_yet=(GONE, {}, set(), NEVER),
    stored=(GONE, {"gone": StoredObject(gpus(2), name="pods/train")}, LATE, NEVER),
    another_of_its_name_needs_as_much=(GONE, {"new": StoredObject(gpus(2), name="pods/train")}, LATE, NEVER),
    another_of_its_name_needs_less=(GONE, {"new": StoredObject({}, name="pods/train")}, LATE, (NOW, NOW)),
    a_change=(Reservation("gone/r", gpus(1), 7), {}, {"gone/r"}, (NOW, NOW)),
    a_pod_that_would_have_waited=(Reservation("gone", {}, name="pods/train"), {}, LATE, NEVER),
    a_gate_whose_removal_failed=(Reservation(lift_id("gone", "r"), gpus(1), 7), {}, {lift_id("gone", "r")}, NEVER),
)  # fmt: skip
def test_a_count_says_whether_something_was_never_stored(
    before: Reservation, objects: dict[str, StoredObject], expired: set[str], want: tuple[int, int]
) -> None:
    spec = quota_ledger(before, hard=gpus(9), used=gpus(9), class_catalogue="c")
    counted = reconcile(spec, listing(objects, catalogue="c", at=NOW), frozenset(expired))

    assert isinstance(counted, Reconciled)
    assert counted.ledger.unstored == want


@cases(
    ("before", "want"),
    the_first=(NEVER, (NOW, NOW)),
    another=((NOW - 30_000, NOW - 20_000), (NOW - 30_000, NOW)),
    long_after_the_last=((NOW - UNSTORED_MS - 9, NOW - UNSTORED_MS), (NOW, NOW)),
)
def test_since_when_creations_are_not_stored(before: tuple[int, int], want: tuple[int, int]) -> None:
    spec = quota_ledger(GONE, hard=gpus(9), used=gpus(9), class_catalogue="c", unstored=before)
    counted = reconcile(spec, listing({}, catalogue="c", at=NOW), frozenset(LATE))

    assert isinstance(counted, Reconciled)
    assert counted.ledger.unstored == want


def test_a_count_closes_nobody_before_a_turn() -> None:
    before = in_team(ledger(hard=9, waiting=2, waiting_for_team=2))
    counted = reconcile(before, listing({}, waiting=2, catalogue="now"), frozenset())

    assert isinstance(counted, Reconciled)
    assert (counted.ledger.waiting, counted.ledger.waiting_for_team) == (2, 0)
