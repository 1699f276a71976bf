from datetime import UTC, datetime
from fractions import Fraction

import msgspec
import pytest

from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservations
from webhook.controller.conditions import conditions, unreadable

NOON, LATER = datetime(2027, 1, 1, 12, tzinfo=UTC), datetime(2027, 1, 1, 13, tzinfo=UTC)
HARD = {"gpus": Fraction(8), "classes/nvidia-t4": Fraction(1, 2)}
ROW = QuotaLedger(quota_uid="q", generation=3, hard=HARD, unclassified_pods=UnclassifiedPods.TOTAL_ONLY)


def counted(**used: Fraction) -> QuotaLedger:
    used = {**dict.fromkeys(HARD, Fraction(0)), **used}
    return msgspec.structs.replace(ROW, used=used, class_catalogue="c")


@pytest.mark.parametrize(
    ("ledger", "stale", "want", "shown"),
    [
        pytest.param(
            ROW,
            "",
            {"Ready": "False", "Exceeded": "False", "Stale": "False", "UnmappedResources": "False"},
            "NotCounted",
            id="not-counted",
        ),
        pytest.param(
            msgspec.structs.replace(counted(), class_catalogue=None),
            "",
            {"Ready": "False", "Exceeded": "False", "Stale": "False", "UnmappedResources": "False"},
            "InFlight",
            id="others-in-flight",
        ),
        pytest.param(
            msgspec.structs.replace(counted(), next_catalogue="other"),
            "",
            {"Ready": "True", "Exceeded": "False", "Stale": "False", "UnmappedResources": "False"},
            "Migrating",
            id="moving",
        ),
        pytest.param(
            msgspec.structs.replace(counted(), reservations=Reservations.parse("gpus=1 | x x")),
            "",
            {"Ready": "False", "Exceeded": "False", "Stale": "False", "UnmappedResources": "False"},
            "Unreadable",
            id="a-line-that-cannot-be-read",
        ),
        pytest.param(
            counted(gpus=Fraction(8)),
            "",
            {"Ready": "True", "Exceeded": "False", "Stale": "False", "UnmappedResources": "False"},
            "Ready",
            id="exactly-full",
        ),
        pytest.param(
            counted(gpus=Fraction(9)),
            "",
            {"Ready": "True", "Exceeded": "True", "Stale": "False", "UnmappedResources": "False"},
            "Exceeded",
            id="exceeded",
        ),
        pytest.param(
            counted(),
            "no message about pods for 200 s",
            {"Ready": "True", "Exceeded": "False", "Stale": "True", "UnmappedResources": "False"},
            "Stale",
            id="stale",
        ),
        pytest.param(
            counted(gpus=Fraction(9)),
            "no message about pods for 200 s",
            {"Ready": "True", "Exceeded": "True", "Stale": "True", "UnmappedResources": "False"},
            "Exceeded",
            id="exceeded-by-a-count-that-may-lag",
        ),
    ],
)
def test_statuses(ledger: QuotaLedger, stale: str, want: dict[str, str], shown: str) -> None:
    """`shown` is what kubectl has in the column STATUS."""
    found = conditions(ledger, (), stale=stale, unmapped_resources=(), now=NOON)

    assert {condition.type: condition.status for condition in found} == want
    assert {condition.observed_generation for condition in found} == {3}
    assert [condition.reason for condition in found if condition.type == "Ready"] == [shown]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("gpus=1 | x x", "1 line, the first 'gpus=1 | x x'", id="one"),
        pytest.param("gpus=1 | a\n\x1b[2J\nb", "2 lines, the first '\\x1b[2J'", id="what-a-terminal-obeys"),
        pytest.param("x" * 500, f"1 line, the first '{'x' * 80}'", id="a-long-one"),
    ],
)
def test_ready_says_what_cannot_be_read(text: str, want: str) -> None:
    damaged = msgspec.structs.replace(counted(), reservations=Reservations.parse(text))
    ready = {
        condition.type: condition
        for condition in conditions(damaged, (), stale="", unmapped_resources=(), now=NOON)
    }["Ready"]

    assert (ready.status, ready.reason) == ("False", "Unreadable")
    assert ready.message == (
        f"reservations of the ledger cannot be read: {want}: requests are denied until the controller has observed that for 40 s "
        "and drops it"
    )


def test_exceeded_says_by_how_much() -> None:
    ledger = counted(**{"gpus": Fraction(19, 2), "classes/nvidia-t4": Fraction(11, 14)})
    exceeded = {
        condition.type: condition
        for condition in conditions(ledger, (), stale="", unmapped_resources=(), now=NOON)
    }["Exceeded"]

    assert exceeded.message == (
        "classes/nvidia-t4: 11/14 used of 0.5, 2/7 too many; gpus: 9.5 used of 8, 1.5 too many"
    )


def test_ready_says_what_is_wrong_though_it_is_enforced() -> None:
    ready, *_ = conditions(counted(gpus=Fraction(9)), (), stale="", unmapped_resources=(), now=NOON)

    assert ready.message == (
        "every stored pod and claim of the namespace is counted; gpus: 9 used of 8, 1 too many"
    )


def test_the_time_is_that_of_the_last_change_of_status() -> None:
    first = conditions(counted(gpus=Fraction(9)), (), stale="", unmapped_resources=(), now=NOON)
    ledger = counted(gpus=Fraction(10))
    second = {
        each.type: each for each in conditions(ledger, first, stale="x", unmapped_resources=(), now=LATER)
    }

    assert second["Exceeded"].last_transition_time == "2027-01-01T12:00:00Z"
    assert "10 used" in second["Exceeded"].message
    assert second["Stale"].last_transition_time == "2027-01-01T13:00:00Z"


@pytest.mark.parametrize(
    ("names", "want"),
    [
        pytest.param(
            ["DeviceClass mine", "example.com/npu"],
            "not counted, because no GPUResourceMapping names them: DeviceClass mine, example.com/npu",
            id="few",
        ),
        pytest.param(
            [f"example.com/n{index}" for index in range(10)],
            "not counted, because no GPUResourceMapping names them: "
            + ", ".join(f"example.com/n{index}" for index in range(8))
            + " and 2 more",
            id="many",
        ),
    ],
)
def test_what_nothing_charges_is_named(names: list[str], want: str) -> None:
    found = {
        each.type: each for each in conditions(counted(), (), stale="", unmapped_resources=names, now=NOON)
    }

    assert (found["UnmappedResources"].status, found["UnmappedResources"].reason) == ("True", "Unknown")
    assert found["UnmappedResources"].message == want


def test_what_is_uncharged_stays_as_it_was_until_a_process_has_looked() -> None:
    first = conditions(counted(), (), stale="", unmapped_resources=["DeviceClass mine"], now=NOON)
    later = conditions(counted(), first, stale="", unmapped_resources=None, now=LATER)

    assert [each.type for each in conditions(counted(), (), stale="", unmapped_resources=None, now=NOON)] == [
        "Ready",
        "Exceeded",
        "Stale",
    ]
    assert later == first


def test_of_a_ledger_that_cannot_be_read_only_that_is_known() -> None:
    first = conditions(counted(gpus=Fraction(9)), (), stale="", unmapped_resources=(), now=NOON)
    ready, *others = unreadable("the GPUQuotaLedger cannot be read: used", first, 3, LATER)

    assert (ready.type, ready.status, ready.reason) == ("Ready", "False", "Unreadable")
    assert ready.message == "the GPUQuotaLedger cannot be read: used: requests are denied"
    assert ready.last_transition_time == "2027-01-01T13:00:00Z"
    assert others == list(first[1:])
