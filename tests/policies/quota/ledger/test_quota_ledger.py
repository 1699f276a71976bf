"""What follows from a ledger alone."""

from fractions import Fraction

from msgspec.structs import replace

from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservation, Reservations
from tests.builders import JSON
from tests.cases import cases

LEDGER = QuotaLedger(
    quota_uid="quota",
    generation=1,
    hard={"gpus": Fraction(8), "classes/nvidia-t4": Fraction(0)},
    unclassified_pods=UnclassifiedPods.TOTAL_ONLY,
    class_catalogue="a/TotalOnly",
)


@cases(
    ("used", "reserved", "want"),
    never_counted=(None, 7, False),
    room=(6, 1, False),
    all_used=(8, 0, True),
    with_reservations=(7, 1, True),
)
def test_is_full(used: int | None, reserved: int, want: bool) -> None:
    held = Reservations.of(Reservation("pod", {"gpus": Fraction(reserved), "classes/nvidia-l4": Fraction(9)}))
    counted = None if used is None else {"gpus": Fraction(used)}
    ledger = replace(LEDGER, used=counted, reservations=held)

    assert ledger.is_full is want
    assert ledger.reserved_of_dimensions == ({"gpus": reserved} if reserved else {})


def test_no_list_is_older_than_a_ledger_that_was_never_counted() -> None:
    assert LEDGER.revisions == Revisions(0, 0, 0)
    assert not LEDGER.revisions.reaches(Revisions(0, 0, 1))


@cases(
    ("changes", "changes_key"),
    another_catalogue=({"class_catalogue": "b/TotalOnly"}, True),
    a_following_catalogue=({"next_catalogue": "b/TotalOnly"}, True),
    other_pods=({"unclassified_pods": UnclassifiedPods.DENY}, True),
    usage=({"used": {"gpus": Fraction(1)}}, False),
)
def test_demand_depends_on_the_catalogues(changes: JSON, changes_key: bool) -> None:
    assert (replace(LEDGER, **changes).demand_key != LEDGER.demand_key) is changes_key
