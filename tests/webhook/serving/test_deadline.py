"""How long the API server waits, as Go writes it."""

from time import monotonic

import pytest

from tests.cases import cases
from webhook.serving.deadline import DEFAULT_SECONDS, deadline_of, seconds_of


@cases(
    ("text", "want"),
    seconds=("5s", 5.0),
    minutes=("1m0s", 60.0),
    fraction=("1.5s", 1.5),
    milliseconds=("300ms", 0.3),
    hours=("1h2m3s", 3723.0),
    microseconds=("250µs", 0.00025),
    missing=(None, DEFAULT_SECONDS),
    empty=("", DEFAULT_SECONDS),
    no_unit=("5", DEFAULT_SECONDS),
    negative=("-5s", DEFAULT_SECONDS),
    garbage=("5s; rm", DEFAULT_SECONDS),
    other_digits=("\N{ARABIC-INDIC DIGIT FIVE}s", DEFAULT_SECONDS),
    zero=("0s", DEFAULT_SECONDS),
)
def test_durations(text: str | None, want: float) -> None:
    assert seconds_of(text) == pytest.approx(want)


@cases(
    ("text", "want"),
    a_tenth_is_left=("5s", 4.5),
    at_least_a_tenth_of_a_second=("500ms", 0.4),
    of_almost_nothing_half=("100ms", 0.05),
    no_webhook_has_more_than_thirty_seconds=("9999h", 27.0),
)
def test_a_deadline_leaves_time_to_answer(text: str, want: float) -> None:
    before = monotonic()
    deadline = deadline_of(text)
    assert before + want <= deadline + 1e-6
    assert deadline <= monotonic() + want + 1e-6
