"""The history of quotas: what it keeps, and what is drawn of it."""

import pytest

from webhook.tools.console.history import HEADROOM, SIDE, Drawing, History, Level, Step, draw

GPUS = ("team", "gpus")
ONE, TWO, THREE = (Level(float(used), 0.0, 8.0) for used in (1, 2, 3))


def test_only_changes_are_kept() -> None:
    history = History()
    for at, level in enumerate((ONE, ONE, TWO, TWO, ONE)):
        history.record(at, {GPUS: level})

    assert history.steps(GPUS) == (Step(0, ONE), Step(2, TWO), Step(4, ONE))


def test_a_quota_that_is_gone_has_no_history() -> None:
    history = History()
    history.record(0, {GPUS: ONE, ("other", "gpus"): TWO})
    history.record(1, {("other", "gpus"): TWO})

    assert history.steps(GPUS) == ()
    assert history.steps(("other", "gpus")) == (Step(0, TWO),)


def test_too_many_steps_are_thinned_out_between_the_first_and_the_last() -> None:
    history = History(most=10)
    for at in range(1000):
        history.record(at, {GPUS: Level(float(at % 7), 0.0, 8.0)})
    steps = history.steps(GPUS)

    assert len(steps) <= 10
    assert (steps[0].at, steps[-1].at) == (0, 999)
    assert [step.at for step in steps] == sorted(step.at for step in steps)


def drawn(*steps: Step, until: float) -> Drawing:
    return draw(steps, until)


def test_steps_are_drawn_as_steps() -> None:
    drawing = drawn(Step(10, Level(2.0, 1.0, 4.0)), Step(15, Level(4.0, 0.0, 4.0)), until=20)
    top = 4 * HEADROOM
    half, whole = (round(SIDE - amount / top * SIDE) for amount in (2, 4))

    assert drawing.top == top
    assert drawing.edge == f"M0 {half} L500 {half} L500 {whole} L1000 {whole}"
    assert drawing.used == f"M0 1000 L0 {half} L500 {half} L500 {whole} L1000 {whole} L1000 1000 Z"
    assert drawing.hard == f"M0 {whole} L500 {whole} L500 {whole} L1000 {whole}"
    assert (drawing.least, drawing.most) == (2, 4)


def test_what_is_reserved_stands_on_what_is_used() -> None:
    drawing = drawn(Step(0, Level(1.0, 2.0, 4.0)), until=5)

    assert drawing.held == f"M0 1000 L0 {round(SIDE - 3 / drawing.top * SIDE)} L1000 348 L1000 1000 Z"


@pytest.mark.parametrize(
    ("hard", "want"),
    [
        pytest.param(32, (0, 10, 20, 30), id="tens"),
        pytest.param(4, (0, 2, 4), id="twos"),
        pytest.param(1, (0, 0.5, 1), id="halves"),
        pytest.param(2000, (0, 1000, 2000), id="thousands"),
        pytest.param(0, (0, 0.5, 1), id="nothing-granted"),
    ],
)
def test_ticks_are_round(hard: int, want: tuple[float, ...]) -> None:
    assert drawn(Step(0, Level(0.0, 0.0, float(hard))), until=1).ticks == pytest.approx(want)


def test_a_first_moment_has_a_width() -> None:
    assert drawn(Step(7, ONE), until=7).edge.endswith("L1000 891")
