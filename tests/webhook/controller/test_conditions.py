from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction

from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservations
from tests.builders import quota_ledger
from tests.cases import cases
from webhook.cluster.objects import Condition
from webhook.controller.conditions import conditions, unreadable

NOON, LATER = datetime(2027, 1, 1, 12, tzinfo=UTC), datetime(2027, 1, 1, 13, tzinfo=UTC)
HARD = {"gpus": Fraction(8), "classes/nvidia-t4": Fraction(1, 2)}
LEDGER = quota_ledger(generation=3, hard=HARD)


def counted(**used: Fraction) -> QuotaLedger:
    used = {**dict.fromkeys(HARD, Fraction(0)), **used}
    return replace(LEDGER, used=used, class_catalogue="c")


def of(ledger: QuotaLedger, *, stale: str = "", names: Sequence[str] = ()) -> dict[str, Condition]:
    return {
        each.type: each for each in conditions(ledger, (), stale=stale, unmapped_resources=names, now=NOON)
    }


SILENT = "no message about pods for 200 s"
UNREADABLE = Reservations.parse("gpus=1 | x x")


@cases(
    ("ledger", "stale", "true", "shown"),
    {
        "not-counted": (LEDGER, "", set(), "NotCounted"),
        "others-in-flight": (replace(counted(), class_catalogue=None), "", set(), "InFlight"),
        "migrating": (replace(counted(), next_catalogue="other"), "", {"Ready"}, "Migrating"),
        "a-line-that-cannot-be-read": (replace(counted(), reservations=UNREADABLE), "", set(), "Unreadable"),
        "exactly-full": (counted(gpus=Fraction(8)), "", {"Ready"}, "Ready"),
        "exceeded": (counted(gpus=Fraction(9)), "", {"Ready", "Exceeded"}, "Exceeded"),
        "stale": (counted(), SILENT, {"Ready", "Stale"}, "Stale"),
        "exceeded-by-a-count-that-may-lag": (
            counted(gpus=Fraction(9)),
            SILENT,
            {"Ready", "Exceeded", "Stale"},
            "Exceeded",
        ),
    },
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
    ("text", "want"),
    {
        "one": ("gpus=1 | x x", "1 line, the first 'gpus=1 | x x'"),
        "what-a-terminal-obeys": ("gpus=1 | a\n\x1b[2J\nb", "2 lines, the first '\\x1b[2J'"),
        "a-long-one": ("x" * 500, f"1 line, the first '{'x' * 80}'"),
    },
)
def test_ready_says_what_cannot_be_read(text: str, want: str) -> None:
    ready = of(replace(counted(), reservations=Reservations.parse(text)))["Ready"]

    assert (ready.status, ready.reason) == ("False", "Unreadable")
    assert ready.message == (
        f"reservations of the ledger cannot be read: {want}: requests are denied until the controller has observed that for 40 s "
        "and drops it"
    )


def test_exceeded_says_by_how_much() -> None:
    ledger = counted(**{"gpus": Fraction(19, 2), "classes/nvidia-t4": Fraction(11, 14)})

    assert of(ledger)["Exceeded"].message == (
        "classes/nvidia-t4: 11/14 used of 0.5, 2/7 too many; gpus: 9.5 used of 8, 1.5 too many"
    )


def test_ready_says_what_is_wrong_though_it_is_enforced() -> None:
    assert of(counted(gpus=Fraction(9)))["Ready"].message == (
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


@cases(
    ("names", "want"),
    {
        "few": (
            ["DeviceClass mine", "example.com/npu"],
            "not counted, because no GPUResourceMapping names them: DeviceClass mine, example.com/npu",
        ),
        "many": (
            list("abcdefghij"),
            "not counted, because no GPUResourceMapping names them: a, b, c, d, e, f, g, h and 2 more",
        ),
    },
)
def test_what_no_quota_counts_is_named(names: list[str], want: str) -> None:
    found = of(counted(), names=names)["UnmappedResources"]

    assert (found.status, found.reason, found.message) == ("True", "Unknown", want)


def test_unmapped_resources_stay_unchanged_until_a_process_has_looked() -> None:
    first = conditions(counted(), (), stale="", unmapped_resources=["DeviceClass mine"], now=NOON)
    later = conditions(counted(), first, stale="", unmapped_resources=None, now=LATER)

    unknown = conditions(counted(), (), stale="", unmapped_resources=None, now=NOON)
    assert [each.type for each in unknown] == ["Ready", "Exceeded", "Stale"]
    assert later == first


def test_of_a_ledger_that_cannot_be_read_only_that_is_known() -> None:
    first = conditions(counted(gpus=Fraction(9)), (), stale="", unmapped_resources=(), now=NOON)
    ready, *others = unreadable("the GPUQuotaLedger cannot be read: used", first, 3, LATER)

    assert (ready.type, ready.status, ready.reason) == ("Ready", "False", "Unreadable")
    assert ready.message == "the GPUQuotaLedger cannot be read: used: requests are denied"
    assert ready.last_transition_time == "2027-01-01T13:00:00Z"
    assert others == list(first[1:])
