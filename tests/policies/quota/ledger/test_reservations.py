"""The text of reservations: compact, exact, and never read as less than it says."""

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.quota.amounts import Amounts, total
from policies.quota.ledger.decide import ReservationRequest
from policies.quota.ledger.reservations import LIMIT, Reservation, Reservations, _remembered, lift_id
from tests.cases import cases

ids = st.uuids().map(str)
keys = st.sampled_from(["gpus", "classes/nvidia-a100", "classes/nvidia-t4", "resources/nvidia.com/gpu"])
vectors = st.dictionaries(keys, st.fractions(min_value=Fraction(1, 99), max_value=999), min_size=1)


@st.composite
def reservations(draw: st.DrawFn) -> Reservation:
    demand, catalogue = draw(vectors), draw(st.sampled_from(["", "5e1f/TotalOnly"]))
    if draw(st.booleans()):
        waits = Reservation(draw(ids), {}, name="pods/train-0", catalogue=catalogue)
        return draw(st.sampled_from([waits, Reservation(lift_id(draw(ids)), demand, catalogue=catalogue)]))
    if draw(st.booleans()):
        name = draw(st.sampled_from(["", "pods/train-0", "resourceclaims/large.one"]))
        return Reservation(draw(ids), demand, name=name, catalogue=catalogue)
    version = draw(st.integers(0, 2**63))
    key = draw(st.sampled_from([f"{draw(ids)}/{draw(ids)}", lift_id(draw(ids), draw(ids))]))
    return Reservation(key, demand, version, catalogue=catalogue)


@given(st.lists(reservations(), unique_by=lambda reservation: reservation.id))
def test_what_is_written_is_read(some: list[Reservation]) -> None:
    written = Reservations.of(*some)
    read = Reservations.parse(written.text)
    assert read == written
    assert sorted(read, key=lambda each: each.id) == sorted(some, key=lambda each: each.id)
    assert written.size == len(written.text) + (1 if some else 0)
    unnamed = Reservations.of(*(msgspec.structs.replace(each, name="") for each in some))
    assert unnamed.held({}) == total(each.demand for each in some)


def test_equal_demands_share_a_line() -> None:
    demand = {"gpus": Fraction(1), "classes/nvidia-a100": Fraction(1)}
    written = Reservations.of(
        Reservation("a", demand, name="pods/train-0"),
        Reservation("b/r", {"gpus": Fraction(2, 7)}, 4711, catalogue="5e1f/TotalOnly"),
        Reservation("c", demand),
        Reservation("d", demand, catalogue="5e1f/TotalOnly"),
    )
    assert written.text == (
        "classes/nvidia-a100=1 gpus=1 | a:pods/train-0 c\n"
        "gpus=2/7 >4711 @5e1f/TotalOnly | b/r\n"
        "classes/nvidia-a100=1 gpus=1 @5e1f/TotalOnly | d"
    )


def test_pods_that_wait_have_lines_of_their_own() -> None:
    demand = {"gpus": Fraction(1)}
    written = Reservations.of(
        Reservation("a", {}, name="pods/train-0"),
        Reservation("b", {}, catalogue="5e1f/TotalOnly"),
        Reservation("c/lift", demand),
        Reservation("d/lift", demand),
        Reservation("e/lift/r", demand, 4711),
    )
    assert written.text == (
        "waiting | a:pods/train-0\nwaiting @5e1f/TotalOnly | b\ngpus=1 | c/lift d/lift\ngpus=1 >4711 | e/lift/r"
    )
    assert written.joining == {"a": "pods/train-0", "b": "b"}
    assert {uid: each.id for uid, each in written.lifts.items()} == {
        "c": "c/lift",
        "d": "d/lift",
        "e": "e/lift/r",
    }
    assert written.expiring_ids == ("a", "b", "e/lift/r")


def test_a_line_that_cannot_be_read_expires_whatever_it_is_about() -> None:
    damaged = Reservations.parse("gpus=x | a/keep/b\ngpus=y | c/lift")

    assert damaged.expiring_ids == damaged.ids
    assert len(damaged.ids) == 2


@cases(
    ("key", "want"),
    a_creation=("a", (False, False, "a")),
    an_update=("a/r", (False, False, "a")),
    held=("a/lift", (True, False, "a")),
    the_removal_of_a_gate=("a/lift/r", (False, True, "a")),
)
def test_an_id_says_what_is_reserved(key: str, want: tuple[bool, bool, str]) -> None:
    reservation = Reservation(key, {"gpus": Fraction(1)})

    assert (reservation.is_lift, reservation.is_begun_lift, reservation.object_uid) == want


def test_a_thousand_pods_of_a_job_take_37_characters_each_and_their_names() -> None:
    keys = ("gpus", "classes/nvidia-a100", "resources/nvidia.com/gpu")
    demand = dict.fromkeys(keys, Fraction(1))
    pods = [Reservation(f"{number:036d}", demand, name=f"pods/{number:063d}") for number in range(1000)]
    head = len("classes/nvidia-a100=1 gpus=1 resources/nvidia.com/gpu=1 | ")
    each = 37 + len(":pods/") + 63
    assert len(Reservations.of(*pods).text) == 1000 * each + head - 1
    assert (LIMIT // each, LIMIT // (37 + len(":pods/") + 253)) == (3709, 1328)


def test_an_id_that_is_there_stays_what_it_is() -> None:
    first = Reservations.of(Reservation("a", {"gpus": Fraction(1)}))
    assert first.plus([Reservation("a", {"gpus": Fraction(2)})]) == first


@cases(
    ("line", "others"),
    no_ids=("gpus=1", ""),
    nobody_who_waits=("waiting | ", ""),
    waiting_beside_an_amount=("waiting gpus=1 | a", ""),
    waiting_in_another_word=("waits | a", ""),
    a_uid_with_a_space=("gpus=1 | x x", ""),
    an_id_of_another_line=("gpus=2 | a", "gpus=1 | a"),
    an_empty_id=("gpus=1 | a  b", ""),
    only_an_empty_id=("gpus=1 | ", ""),
    an_empty_line=("", "gpus=1 | a"),
    what_followed_a_newline_in_a_uid=("77ab", "gpus=1 | a"),
    a_line_separator_that_is_not_a_newline=("gpus=1 | a\u2028b", ""),
    an_empty_name=("gpus=1 | a:", ""),
    a_negative_amount=("gpus=-1 | a", ""),
    a_word_for_an_amount=("gpus=one | a", ""),
    a_dimension_twice=("gpus=4 gpus=1 | a", ""),
    a_resource_version_that_is_none=("gpus=1 >x | a/b", ""),
    an_unknown_dimension=("cpu=1 | a", ""),
    no_demand=(" | a", ""),
    a_resource_name_with_a_space=("gpus=1 resources/x y=1 | a", ""),
)
def test_a_line_that_cannot_be_read_is_kept_as_it_is(line: str, others: str) -> None:
    text = f"{others}\n{line}" if others else line
    read = Reservations.parse(text)

    assert read.unreadable == (line,)
    assert (read.text, read.size) == (text, len(text) + 1)
    assert [each.id for each in read] == (["a"] if others else [])
    assert read.ids[-1] == f"unreadable {line}"
    assert read.plus([Reservation("new", {"gpus": Fraction(1)})]).unreadable == (line,)
    assert read.without(read.ids) == Reservations({})


def test_an_id_is_not_the_line_that_reads_like_it() -> None:
    read = Reservations.parse("gpus=1 | a\na")

    assert read.ids == ("a", "unreadable a")
    assert read.without(["a"]).text == "a"
    assert read.without(["unreadable a"]).text == "gpus=1 | a"


@cases(
    "reservation",
    a_uid_with_a_space=Reservation("x x", {"gpus": Fraction(1)}),
    no_uid=Reservation("", {"gpus": Fraction(1)}),
    a_uid_with_a_line=Reservation("a\ngpus=1 | b", {"gpus": Fraction(1)}),
    a_uid_with_a_name=Reservation("a:pods/b", {"gpus": Fraction(1)}),
    a_name_with_a_space=Reservation("a", {"gpus": Fraction(1)}, name="pods/b c"),
    a_resource_with_a_space=Reservation("a", {"resources/x y": Fraction(1)}),
    an_amount_without_end=Reservation("a", {"gpus": Fraction(10**500)}),
)
def test_what_could_not_be_read_again_is_not_asked_for(reservation: Reservation) -> None:
    with pytest.raises(ValueError, match="no reservation can be written as "):
        ReservationRequest(reservation=reservation, catalogue_versions=frozenset("c"))


GPU, TWO, CLASS = {"gpus": Fraction(1)}, {"gpus": Fraction(2)}, {"classes/a": Fraction(1)}


@cases(
    ("held", "stored", "want"),
    the_largest_of_a_name=([("a", TWO, "pods/x"), ("b", GPU, "pods/x")], {}, {"gpus": 2}),
    by_dimension=([("a", TWO, "pods/x"), ("b", CLASS, "pods/x")], {}, {"gpus": 2, "classes/a": 1}),
    two_names=([("a", GPU, "pods/x"), ("b", GPU, "pods/y")], {}, {"gpus": 2}),
    two_kinds_of_one_name=([("a", GPU, "pods/x"), ("b", GPU, "resourceclaims/x")], {}, {"gpus": 2}),
    names_that_are_not_known=([("a", GPU, ""), ("b", GPU, "")], {}, {"gpus": 2}),
    less_what_is_stored=([("a", TWO, "pods/x")], {"pods/x": GPU}, {"gpus": 1}),
    never_less_than_nothing=([("a", GPU, "pods/x")], {"pods/x": TWO}, {}),
    stored_under_another_name=([("a", GPU, "pods/x")], {"pods/y": TWO}, {"gpus": 1}),
    a_change_has_no_name=([("a/r", GPU, ""), ("b", GPU, "pods/x")], {}, {"gpus": 2}),
)
def test_creations_of_one_name_hold_what_one_of_them_can_take(
    held: list[tuple[str, Amounts, str]], stored: dict[str, Amounts], want: Amounts
) -> None:
    some = [Reservation(key, demand, name=name) for key, demand, name in held]

    assert Reservations.of(*some).held(stored) == want
    assert Reservations.parse(Reservations.of(*some).text).held(stored) == want


def test_what_is_remembered_of_heads_is_bounded_in_bytes() -> None:
    limit = _remembered.cache_parameters()["maxsize"]
    _remembered.cache_clear()
    for longest in (256, 257):
        Reservations.parse(f"resources/{'x' * (longest - 12)}=1 | a")

    assert limit * 256 == 512 * 1024
    assert _remembered.cache_info().currsize == 1
