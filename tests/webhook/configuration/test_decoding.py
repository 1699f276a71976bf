from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any

import msgspec
import pytest

from tests.cases import cases
from webhook.configuration.decoding import Problem, decode, suggestion, unsupported


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Mode(Enum):
    ON = "enforce"
    OFF = "disabled"


class Inner(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    max_count: int | None = None


class Outer(msgspec.Struct, frozen=True, rename="camel"):
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    labels: dict[str, str] = {}
    colour: Colour = Colour.RED
    mode: Mode = Mode.ON
    share: float = 0.2
    text: str = ""
    flag: bool = False
    positive: Annotated[int, msgspec.Meta(ge=1)] = 1
    until: date | None = None
    at: datetime | None = None
    amount: str | int | float | None = None
    limits: int | dict[str, int] | None = None
    raw: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def problems_of(data: Any, *, strict: bool = True) -> list[str]:
    found: list[Problem] = []
    assert (decode(Outer, data, (), found, strict=strict) is None) is bool(found)
    return [f"{problem.path}: {problem.message}" for problem in found]


def test_everything_right() -> None:
    data = {
        "inner": {"name": "a", "maxCount": None},
        "items": [{"name": "b", "maxCount": 2}],
        "labels": {"x": "y"},
        "colour": "blue",
        "share": 1,
        "until": "2027-01-31",
        "amount": 0.5,
    }
    found: list[Problem] = []

    want = Outer(
        inner=Inner(name="a"),
        items=(Inner(name="b", max_count=2),),
        labels={"x": "y"},
        colour=Colour.BLUE,
        share=1.0,
        until=date(2027, 1, 31),
        amount=0.5,
    )
    assert decode(Outer, data, (), found) == want
    assert found == []


BOOLEANS = "YAML reads off, no and n as false, and on, yes and y as true"


@cases(
    ("data", "want"),
    no_map=([], [": must be a map, not a list"]),
    null_where_it_may_be=({"inner": None}, []),
    null_where_it_may_not=({"items": None}, ["items: must be a list, not nothing"]),
    map_for_list=({"items": {}}, ["items: must be a list, not a map"]),
    each_item=(
        {"items": [{"name": "a"}, {}, 3]},
        ["items[1].name: Required value", "items[2]: must be a map, not a whole number 3"],
    ),
    unknown_keys_with_the_nearest=(
        {"inner": {"name": "a", "maxcount": 1}, "colr": "red"},
        [
            "colr: unknown field; did you mean colour?",
            "inner.maxcount: unknown field; did you mean maxCount?",
        ],
    ),
    labels_that_yaml_turned_into_numbers=(
        {"labels": {1: "a", "b": 2}},
        [
            "labels.1: YAML reads this key as a whole number 1; quote it",
            "labels.b: must be text; YAML reads 2 as a number: quote it",
        ],
    ),
    true_for_text=({"text": True}, [f"text: must be text; {BOOLEANS}: quote it"]),
    off_for_a_mode=({"mode": False}, [f"mode: must be one of enforce, disabled; {BOOLEANS}: write disabled"]),
    true_for_a_choice=({"colour": True}, [f"colour: must be one of red, blue; {BOOLEANS}"]),
    near=(
        {"colour": "blu"},
        ['colour: Unsupported value: "blu": must be one of red, blue; did you mean blue?'],
    ),
    number_for_choice=({"colour": 5}, ['colour: Unsupported value: "5": must be one of red, blue']),
    text_for_number=({"share": "20%"}, ['share: must be a number, not text "20%"']),
    quoted_yes=({"flag": "yes"}, ['flag: must be true or false, not text "yes"']),
    too_small=({"positive": 0}, ["positive: expected `int` >= 1"]),
    no_date=({"until": "soon"}, ["until: must be a date, such as 2027-01-31"]),
    no_moment=({"at": "soon"}, ["at: must be a time with its zone, such as 2027-01-31T18:00:00Z"]),
    number_for_a_moment=({"at": 5}, ["at: must be a time with its zone, such as 2027-01-31T18:00:00Z"]),
    map_for_amount=({"amount": {"a": 1}}, ["amount: must be text or a whole number or a number, not a map"]),
    text_in_a_map_of_numbers=({"limits": {"x": "8"}}, ['limits.x: must be a whole number, not text "8"']),
    list_for_a_number_or_a_map=({"limits": [8]}, ["limits: must be a whole number or a map, not a list"]),
    text_for_a_number_or_a_map=({"limits": "8"}, ['limits: must be a whole number or a map, not text "8"']),
    raw_takes_anything=({"raw": {"any": ["thing"]}}, []),
)
def test_every_problem_has_its_path(data: Any, want: list[str]) -> None:
    assert problems_of(data) == want


def test_unknown_keys_may_be_ignored() -> None:
    assert problems_of({"new": 1, "inner": {"name": "a", "other": 2}}, strict=False) == []


def test_problems_start_at_the_given_path() -> None:
    found: list[Problem] = []

    decode(Outer, {"share": "x"}, ("spec", "rules", "gpu-class"), found)

    assert [problem.path for problem in found] == ["spec.rules.gpu-class.share"]


@pytest.mark.parametrize(
    ("said", "want"),
    [
        (suggestion("gpu-clas", ["gpu-class", "gpu-quota"]), "; did you mean gpu-class?"),
        (suggestion("zzz", ["a", "b"]), ": must be one of a, b"),
        (unsupported("off", ["on"]), 'Unsupported value: "off": must be on'),
        (unsupported("x", ["on", "a"]), 'Unsupported value: "x": must be one of on, a'),
        (unsupported("a" * 99, ["on"]), f'Unsupported value: "{"a" * 63}": must be on'),
    ],
    ids=["a-near-name", "no-near-name", "only-one-is-supported", "nothing-is-like-it", "long-values-are-cut"],
)
def test_values_that_are_not_known(said: str, want: str) -> None:
    assert said == want
