"""The text of reservations: compact, exact, and never read as less than it says."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.quota.ledger.reservations import LIMIT, Reservation, Reservations, ReservationsError

ids = st.uuids().map(str)
keys = st.sampled_from(
    ["gpus", "classes/nvidia-a100", "classes/nvidia-t4", "resources/nvidia.com/mig-1g.10gb"]
)
vectors = st.dictionaries(keys, st.fractions(min_value=Fraction(1, 99), max_value=999), min_size=1)


@st.composite
def reservations(draw: st.DrawFn) -> Reservation:
    demand, catalogue = draw(vectors), draw(st.sampled_from(["", "5e1f/TotalOnly"]))
    if draw(st.booleans()):
        name = draw(st.sampled_from(["", "pods/train-0", "resourceclaims/large.one"]))
        return Reservation(draw(ids), demand, name=name, catalogue=catalogue)
    version = draw(st.integers(0, 2**63))
    return Reservation(f"{draw(ids)}/{draw(ids)}", demand, version, catalogue=catalogue)


@given(st.lists(reservations(), unique_by=lambda reservation: reservation.id))
def test_what_is_written_is_read(some: list[Reservation]) -> None:
    written = Reservations.of(*some)
    read = Reservations.parse(written.text)
    assert read == written
    assert sorted(read, key=lambda reservation: reservation.id) == sorted(
        some, key=lambda reservation: reservation.id
    )
    assert written.size == len(written.text) + (1 if some else 0)
    assert all(
        sum(reservation.demand.get(key, 0) for reservation in some) == amount
        for key, amount in written.demand.items()
    )


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


def test_a_thousand_pods_of_a_job_take_37_characters_each_and_their_names() -> None:
    demand = {
        "gpus": Fraction(1),
        "classes/nvidia-a100": Fraction(1),
        "resources/nvidia.com/gpu": Fraction(1),
    }
    pods = [Reservation(f"{number:036d}", demand, name=f"pods/{number:063d}") for number in range(1000)]
    head = len("classes/nvidia-a100=1 gpus=1 resources/nvidia.com/gpu=1 | ")
    each = 37 + len(":pods/") + 63
    assert len(Reservations.of(*pods).text) == 1000 * each + head - 1
    assert (LIMIT // each, LIMIT // (37 + len(":pods/") + 253)) == (3709, 1328)


def test_an_id_that_is_there_stays_what_it_is() -> None:
    first = Reservations.of(Reservation("a", {"gpus": Fraction(1)}))
    assert first.plus([Reservation("a", {"gpus": Fraction(2)})]) == first


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("gpus=1", "line 1 of the reservations has no ids", id="no-ids"),
        pytest.param(
            "gpus=1 | a\ngpus=2 | a",
            "line 2 of the reservations has an id that is empty or a duplicate",
            id="twice",
        ),
        pytest.param("gpus=1 | a  b", "line 1 of the reservations has an id that is empty", id="empty-id"),
        pytest.param("gpus=-1 | a", "the reservations hold 'gpus=-1': ", id="negative"),
        pytest.param(
            "gpus=1 >x | a/b", "the reservations hold 'gpus=1 >x': 'x' is not a resourceVersion", id="version"
        ),
        pytest.param("cpu=1 | a", "must be gpus, classes/<name> or resources/<name>, not", id="key"),
        pytest.param(" | a", "the reservations hold '': ", id="no-demand"),
    ],
)
def test_a_damaged_text_is_an_error(text: str, want: str) -> None:
    with pytest.raises(ReservationsError) as error:
        Reservations.parse(text)
    assert want in str(error.value)
