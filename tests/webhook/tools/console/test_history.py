"""The history of quotas: what it keeps, and what is drawn of it."""

from fractions import Fraction

import pytest

from tests.cases import cases
from webhook.tools.console.history import HEADROOM, SIDE, History, draw
from webhook.tools.status.summaries import QuotaRow

GPUS, OTHER = ("team", "gpus"), ("other", "gpus")


def row(used: int, reserved: int = 0, hard: int = 8) -> QuotaRow:
    return QuotaRow(key="gpus", hard=Fraction(hard), used=Fraction(used), reserved=Fraction(reserved))


def test_only_changes_are_kept_and_a_quota_that_is_gone_has_no_history() -> None:
    history = History()
    for at, used in enumerate((1, 1, 2, 2, 1)):
        history.record(at, {GPUS: row(used), OTHER: row(3)})

    assert history.steps(GPUS) == ((0, row(1)), (2, row(2)), (4, row(1)))
    history.record(5, {OTHER: row(3)})
    assert (history.steps(GPUS), history.steps(OTHER)) == ((), ((0, row(3)),))


def test_too_many_steps_are_thinned_out_between_the_first_and_the_last() -> None:
    history = History(max_steps=10)
    for at in range(1000):
        history.record(at, {GPUS: row(at % 7)})
    times = [at for at, _ in history.steps(GPUS)]

    assert len(times) <= 10
    assert (times[0], times[-1]) == (0, 999)
    assert times == sorted(times)


def test_steps_are_drawn_as_steps() -> None:
    drawing = draw([(10, row(2, 1, 4)), (15, row(4, 0, 4))], until=20)
    top = 4 * HEADROOM
    half, more, whole = (round(SIDE - amount / top * SIDE) for amount in (2, 3, 4))

    assert drawing.top == top
    assert drawing.edge == f"M0 {half} L500 {half} L500 {whole} L1000 {whole}"
    assert drawing.used == f"M0 1000 L0 {half} L500 {half} L500 {whole} L1000 {whole} L1000 1000 Z"
    assert drawing.held == f"M0 1000 L0 {more} L500 {more} L500 {whole} L1000 {whole} L1000 1000 Z"
    assert drawing.hard == f"M0 {whole} L500 {whole} L500 {whole} L1000 {whole}"
    assert (drawing.lowest, drawing.highest) == (2, 4)


@cases(
    ("hard", "want"),
    tens=(32, (0, 10, 20, 30)),
    twos=(4, (0, 2, 4)),
    halves=(1, (0, 0.5, 1)),
    thousands=(2000, (0, 1000, 2000)),
    nothing_granted=(0, (0, 0.5, 1)),
)
def test_ticks_are_round(hard: int, want: tuple[float, ...]) -> None:
    assert draw([(0, row(0, 0, hard))], until=1).ticks == pytest.approx(want)


def test_a_first_moment_has_a_width() -> None:
    assert draw([(7, row(1))], until=7).edge.endswith("L1000 891")
