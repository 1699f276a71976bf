from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.quota.budget import Spending
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservations
from tests.budgets import budget, spending
from tests.builders import quota_ledger
from tests.cases import cases
from webhook.cluster.objects import Condition
from webhook.controller.quota_status import conditions

NOON, LATER = datetime(2027, 1, 1, 12, tzinfo=UTC), datetime(2027, 1, 1, 13, tzinfo=UTC)
HARD = {"gpus": Fraction(8), "classes/nvidia-t4": Fraction(1, 2)}
LEDGER = quota_ledger(generation=3, hard=HARD)


def counted(**used: Fraction) -> QuotaLedger:
    used = {**dict.fromkeys(HARD, Fraction(0)), **used}
    return replace(LEDGER, used=used, class_catalogue="c")


def of(ledger: QuotaLedger, *, stale: str = "", names: Sequence[str] = ()) -> dict[str, Condition]:
    found = conditions(ledger, (), stale=stale, unmapped_resources=names, now=NOON)
    return {each.type: each for each in found}


SILENT = "no message about pods for 200 s"
UNREADABLE = Reservations.parse("gpus=1 | x x")


@cases(
    ("ledger", "stale", "true", "shown"),
    not_counted=(LEDGER, "", set(), "NotCounted"),
    others_in_flight=(replace(counted(), class_catalogue=None), "", set(), "InFlight"),
    migrating=(replace(counted(), next_catalogue="other"), "", {"Ready"}, "Migrating"),
    a_line_that_cannot_be_read=(replace(counted(), reservations=UNREADABLE), "", set(), "Unreadable"),
    exactly_full=(counted(gpus=Fraction(8)), "", {"Ready"}, "Ready"),
    exceeded_verdict=(counted(gpus=Fraction(9)), "", {"Ready", "Exceeded"}, "Exceeded"),
    stale=(counted(), SILENT, {"Ready", "Stale"}, "Stale"),
    exceeded_by_a_late_count=(counted(gpus=Fraction(9)), SILENT, {"Ready", "Exceeded", "Stale"}, "Exceeded"),
)
def test_statuses(ledger: QuotaLedger, stale: str, true: set[str], shown: str) -> None:
    """`shown` is the column STATUS of kubectl."""
    found = of(ledger, stale=stale)

    assert found.keys() == {"Ready", "Exceeded", "Stale", "UnmappedResources"}
    assert {each.type for each in found.values() if each.status == "True"} == true
    assert {each.status for each in found.values()} <= {"True", "False"}
    assert {each.observed_generation for each in found.values()} == {3}
    assert found["Ready"].reason == shown


@cases(
    ("ledger", "kind", "want"),
    not_counted=(LEDGER, "Ready", "pods and claims are not counted yet: requests are denied"),
    migrating=(
        replace(counted(), next_catalogue="other"),
        "Ready",
        "every stored pod and claim of the namespace is counted; GPUClasses, resource names or spec.unclassifiedPods changed: "
        "until what is in flight is counted, requests count by both",
    ),
    within=(counted(), "Exceeded", "used is within spec.hard"),
    up_to_date=(counted(), "Stale", "the controller receives every change"),
    all_known=(
        counted(),
        "UnmappedResources",
        "a GPUResourceMapping knows the DeviceClasses and resource names of the cluster",
    ),
)
def test_a_condition_in_words(ledger: QuotaLedger, kind: str, want: str) -> None:
    assert of(ledger)[kind].message == want


def budgeted(found: Spending | None) -> QuotaLedger:
    return replace(counted(gpus=Fraction(2)), budget=budget(gpus=100, t4=10), spending=found)


@cases(
    ("ledger", "spent", "low", "shown"),
    not_counted_yet=(budgeted(None), None, None, "Ready"),
    much_is_left=(
        budgeted(spending(spent=50)),
        "50 of 100 GPU-hours and 0 of 10 GPU-hours of nvidia-t4 used this month",
        "50 of 100 GPU-hours and 0 of 10 GPU-hours of nvidia-t4 used this month",
        "Ready",
    ),
    little_is_left=(
        budgeted(spending(spent=90)),
        "90 of 100 GPU-hours and 0 of 10 GPU-hours of nvidia-t4 used this month",
        "90 of 100 GPU-hours used this month, all of it at 2026-11-26 17:00 UTC if as much is used as now; "
        "new pods are then denied until 2026-12-01 00:00 UTC",
        "BudgetLow",
    ),
    a_class_is_spent=(
        budgeted(spending(spent=50, t4=10.5)),
        "10.5 of 10 GPU-hours of nvidia-t4 used this month: requests for them are denied until 2026-12-01 00:00 UTC",
        "10.5 of 10 GPU-hours of nvidia-t4 used this month, nothing is left until 2026-12-01 00:00 UTC",
        "BudgetSpent",
    ),
)
def test_a_budget_has_two_conditions(
    ledger: QuotaLedger, spent: str | None, low: str | None, shown: str
) -> None:
    found = of(ledger)
    messages = [each and each.message for each in map(found.get, ("BudgetSpent", "BudgetLow"))]
    assert messages == [spent, low]
    assert found["Ready"].reason == shown
    assert found["Ready"].status == "True"


def test_the_conditions_of_a_budget_go_with_it() -> None:
    before = conditions(budgeted(spending(spent=100)), (), stale="", unmapped_resources=None, now=NOON)
    assert {each.type for each in before} == {"Ready", "Exceeded", "Stale", "BudgetSpent", "BudgetLow"}
    after = conditions(counted(), before, stale="", unmapped_resources=None, now=LATER)
    assert {each.type for each in after} == {"Ready", "Exceeded", "Stale"}


@cases(
    ("text", "want"),
    one=("gpus=1 | x x", "1 line, the first 'gpus=1 | x x'"),
    what_a_terminal_obeys=("gpus=1 | a\n\x1b[2J\nb", "2 lines, the first '\\x1b[2J'"),
    a_long_one=("x" * 500, f"1 line, the first '{'x' * 80}'"),
)
def test_ready_says_what_cannot_be_read(text: str, want: str) -> None:
    ready = of(replace(counted(), reservations=Reservations.parse(text)))["Ready"]

    assert (ready.status, ready.reason) == ("False", "Unreadable")
    assert ready.message == (
        f"reservations of the ledger cannot be read: {want}: requests are denied until the controller has observed that for 40 s "
        "and drops it"
    )


def test_ready_says_for_what_it_waits_while_others_are_in_flight() -> None:
    assert of(replace(counted(), class_catalogue=None))["Ready"].message == (
        "reservations were counted by a class catalogue that is not published in ConfigMap gpu-admission-catalogues: "
        "until these are gone, requests are denied"
    )


def test_exceeded_says_by_how_much() -> None:
    ledger = counted(**{"gpus": Fraction(19, 2), "classes/nvidia-t4": Fraction(11, 14)})

    assert of(ledger)["Exceeded"].message == (
        "classes/nvidia-t4: 0.79 used of 0.5, 0.29 too many; gpus: 9.5 used of 8, 1.5 too many"
    )


@cases(
    ("grown", "want"),
    one=(
        1,
        "gpus: 9 used of 8, 1 too many; ResourceSlices changed: 1 ResourceClaim has larger devices than admitted",
    ),
    two=(
        2,
        "gpus: 9 used of 8, 1 too many; ResourceSlices changed: 2 ResourceClaims have larger devices than admitted",
    ),
)
def test_exceeded_names_a_change_of_devices(grown: int, want: str) -> None:
    ledger = counted(gpus=Fraction(9))
    found = conditions(ledger, (), stale="", unmapped_resources=(), grown_claims=grown, now=NOON)

    assert next(each.message for each in found if each.type == "Exceeded") == want


@pytest.mark.parametrize(("keys", "more"), [(8, ""), (9, "; and 1 more")])
def test_exceeded_names_eight(keys: int, more: str) -> None:
    amounts = {f"classes/c{number}": Fraction(1) for number in range(keys)}
    ledger = replace(counted(), hard=dict.fromkeys(amounts, Fraction(0)), used=amounts)

    named = [f"classes/c{number}: 1 used of 0, 1 too many" for number in range(8)]
    assert of(ledger)["Exceeded"].message == "; ".join(named) + more


def test_ready_says_what_is_wrong_though_it_is_enforced() -> None:
    assert of(counted(gpus=Fraction(9)))["Ready"].message == (
        "every stored pod and claim of the namespace is counted; gpus: 9 used of 8, 1 too many"
    )


def test_the_time_is_that_of_the_last_change_of_status() -> None:
    first = conditions(counted(gpus=Fraction(9)), (), stale="", unmapped_resources=(), now=NOON)
    ledger = counted(gpus=Fraction(10))
    later = conditions(ledger, first, stale="x", unmapped_resources=(), now=LATER)
    second = {each.type: each for each in later}

    assert second["Exceeded"].last_transition_time == "2027-01-01T12:00:00Z"
    assert "10 used" in second["Exceeded"].message
    assert second["Stale"].last_transition_time == "2027-01-01T13:00:00Z"


@cases(
    ("names", "want"),
    few=(["DeviceClass mine", "example.com/npu"], "DeviceClass mine, example.com/npu"),
    many=(list("abcdefghij"), "a, b, c, d, e, f, g, h and 2 more"),
)
def test_what_no_quota_counts_is_named(names: list[str], want: str) -> None:
    found = of(counted(), names=names)["UnmappedResources"]

    assert (found.status, found.reason) == ("True", "Unknown")
    assert found.message == f"not counted, because no GPUResourceMapping names them: {want}"


def test_unmapped_resources_stay_unchanged_until_a_process_has_looked() -> None:
    first = conditions(counted(), (), stale="", unmapped_resources=["DeviceClass mine"], now=NOON)
    later = conditions(counted(), first, stale="", unmapped_resources=None, now=LATER)

    unknown = conditions(counted(), (), stale="", unmapped_resources=None, now=NOON)
    assert [each.type for each in unknown] == ["Ready", "Exceeded", "Stale"]
    assert later == first
