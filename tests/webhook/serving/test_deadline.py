"""How long the API server waits, as Go writes it."""

from time import monotonic

import pytest

from webhook.serving.deadline import DEFAULT_SECONDS, deadline_of, seconds_of


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("5s", 5.0, id="seconds"),
        pytest.param("1m0s", 60.0, id="minutes"),
        pytest.param("1.5s", 1.5, id="fraction"),
        pytest.param("300ms", 0.3, id="milliseconds"),
        pytest.param("1h2m3s", 3723.0, id="hours"),
        pytest.param("250µs", 0.00025, id="microseconds"),
        pytest.param(None, DEFAULT_SECONDS, id="missing"),
        pytest.param("", DEFAULT_SECONDS, id="empty"),
        pytest.param("5", DEFAULT_SECONDS, id="no-unit"),
        pytest.param("-5s", DEFAULT_SECONDS, id="negative"),
        pytest.param("5s; rm", DEFAULT_SECONDS, id="garbage"),
        pytest.param("\N{ARABIC-INDIC DIGIT FIVE}s", DEFAULT_SECONDS, id="other-digits"),
        pytest.param("0s", DEFAULT_SECONDS, id="zero"),
    ],
)
def test_durations(text: str | None, want: float) -> None:
    assert seconds_of(text) == pytest.approx(want)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("5s", 4.5, id="a-tenth-is-left"),
        pytest.param("500ms", 0.4, id="at-least-a-tenth-of-a-second"),
        pytest.param("100ms", 0.05, id="of-almost-nothing-half"),
        pytest.param("9999h", 27.0, id="no-webhook-has-more-than-thirty-seconds"),
    ],
)
def test_a_deadline_leaves_time_to_answer(text: str, want: float) -> None:
    before = monotonic()
    deadline = deadline_of(text)
    assert before + want <= deadline + 1e-6
    assert deadline <= monotonic() + want + 1e-6
