"""Durations as text, there and back."""

from policies.pods.duration import duration_seconds, duration_text
from tests.cases import cases


@cases(
    ("text", "want"),
    hours=("8h", 28_800),
    all_units=("1h30m5s", 5_405),
    ninety_minutes=("90m", 5_400),
    longest=("99999h99999m99999s", 366_096_339),
    nothing=("", None),
    zero=("0h0s", None),
    days=("3d", None),
    another_order=("5s1h", None),
    a_fraction=("1.5h", None),
    a_number=("3600", None),
    negative=("-8h", None),
    with_a_space=("8h ", None),
    too_many_digits=("100000h", None),
    other_digits=("٣h", None),
)
def test_seconds_of_a_text(text: str, want: int | None) -> None:
    assert duration_seconds(text) == want


@cases(
    ("seconds", "want"),
    days_are_hours=(259_200, "72h"),
    with_minutes=(5_400, "1h30m"),
    seconds=(45, "45s"),
    all_units=(5_405, "1h30m5s"),
    none=(0, "0s"),
)
def test_text_of_seconds(seconds: int, want: str) -> None:
    assert duration_text(seconds) == want
    assert duration_seconds(want) == (seconds or None)
