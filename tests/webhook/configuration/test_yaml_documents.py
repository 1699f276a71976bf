import json
import math
import string

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import cases
from webhook.configuration import yaml_documents
from webhook.configuration.yaml_documents import (
    ALIAS_LIMIT,
    DEPTH_LIMIT,
    YamlDocument,
    YamlError,
    dump_document,
    load_documents,
)


def documents(text: str) -> list[YamlDocument]:
    loaded = list(load_documents(text))
    assert all(isinstance(item, YamlDocument) for item in loaded), loaded
    return [item for item in loaded if isinstance(item, YamlDocument)]


def errors(text: str) -> list[tuple[int, str]]:
    return [(item.line, str(item)) for item in load_documents(text) if isinstance(item, YamlError)]


# What sigs.k8s.io/yaml v1.6.0 (kubectl's) answers to YAMLToJSON.
@cases(
    ("scalar", "want"),
    y_is_true=("y", True),
    capital_n_is_false=("N", False),
    off_is_false=("Off", False),
    odd_case_is_text=("tRUE", "tRUE"),
    tilde_is_null=("~", None),
    exponent_without_a_point_is_a_number=("1e3", 1000),
    half=("0.5", 0.5),
    whole_float_becomes_an_integer=("1.", 1),
    large_float_stays_a_float=("1e21", 1e21),
    no_octal_but_a_float=("08", 8),
    octal_of_yaml_1_1=("017", 15),
    octal_of_yaml_1_2=("0o17", 15),
    negative_binary=("-0b11", -3),
    hexadecimal=("0x1F", 31),
    underscores=("1_000", 1000),
    leading_underscore_is_text=("_1", "_1"),
    underscore_after_a_point=(".5_5", 0.55),
    stray_underscore_after_a_point=("._5", "._5"),
    no_sexagesimal=("12:30", "12:30"),
    dates_stay_text=("2024-01-01", "2024-01-01"),
    largest_uint64=("18446744073709551615", 18446744073709551615),
    larger_is_a_float=("123456789012345678901234", 1.2345678901234569e23),
    beyond_float64_is_text=("1e400", "1e400"),
    thousands_of_digits_are_text=("9" * 5000, "9" * 5000),
    digits_of_other_scripts_are_text=("\u0661", "\u0661"),
    quantity=("500m", "500m"),
    equals_sign=("=", "="),
    quoted_number_is_text=('"1"', "1"),
    explicit_tag=('!!int "5"', 5),
    explicit_text=("!!str 5", "5"),
    explicit_timestamp_is_text=("!!timestamp 2024-01-01", "2024-01-01"),
)
def test_scalars_are_what_kubectl_makes_of_them(scalar: str, want: object) -> None:
    (document,) = documents(f"v: {scalar}\n")

    assert document.data == {"v": want}
    assert type(document.data["v"]) is type(want)


@cases(
    ("text", "want"),
    infinity=("a: .inf\n", [(1, '".inf" must be a number that JSON can represent')]),
    end_missing=("a: 1\nb: [\n", [(2, "while parsing a flow node, did not find expected node content")]),
    self_reference=("a: &x [*x]\n", [(1, "must not contain itself through an alias")]),
    brackets_without_end=("[" * 100_000, [(1, "must not be nested deeper than 200 levels")]),
    dashes_without_end=("- " * 100_000, [(1, "must not be nested deeper than 200 levels")]),
    json_without_end=('{"a":' * 100_000, [(1, "must not be nested deeper than 200 levels")]),
    python_tag=(
        "a: !!python/name:os.system x\n",
        [(1, "could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system'")],
    ),
    each_broken_document=(
        "a: 1\n---\nb: [1\n---\nc: d: e\n",
        [
            (3, "while parsing a flow sequence, did not find expected ',' or ']'"),
            (5, "mapping values are not allowed in this context"),
        ],
    ),
)
def test_bad_documents_are_reported_with_their_line(text: str, want: list[tuple[int, str]]) -> None:
    assert errors(text) == want


def test_a_broken_document_hides_no_other() -> None:
    loaded = list(load_documents("a: 1\n---\nb: [1\n---\nc: 3\n"))
    assert [item.data for item in loaded if isinstance(item, YamlDocument)] == [{"a": 1}, {"c": 3}]


@cases(
    ("text", "data", "duplicates"),
    the_last_one_counts=("a: 1\na: 2\n", {"a": 2}, ['2:1 "a"']),
    all_at_once=("x: {a: 1, a: 2}\nz:\n  b: [1]\n  b: [2]\n",
        {"x": {"a": 2}, "z": {"b": [2]}},
        ['1:11 "a"', '4:3 "b"']),
    maps_are_not_merged=("m: {a: 1}\nm: {b: 2}\n", {"m": {"b": 2}}, ['2:1 "m"']),
    json=('{"a": 1, "a": 2}', {"a": 2}, ['1:10 "a"']),
    second_document=("# note\n---\na: 1\n---\nb: 1\nb: 2\n", {"b": 2}, ['6:1 "b"']),
    overriding_a_merge=("x: &x {a: 1}\nz: {<<: *x, a: 2}\n", {"x": {"a": 1}, "z": {"a": 2}}, []),
)  # fmt: skip
def test_of_duplicate_keys_the_last_one_counts(text: str, data: object, duplicates: list[str]) -> None:
    document = documents(text)[-1]

    assert document.data == data
    found = [f"{each.line}:{each.column} {each}" for each in document.duplicates]
    assert found == [each.replace(" ", " Duplicate value: key ") for each in duplicates]


def test_lone_surrogate_is_refused() -> None:
    assert [line for line, _ in errors('a: 1\nb: "\\ud83d"\n')] == [2]

    # libyaml refuses it itself; PyYAML's own parser does not
    mark = yaml.Mark("", 0, 0, 0, None, 0)
    with pytest.raises(yaml.MarkedYAMLError) as refused:
        yaml_documents._Loader("").text(yaml.ScalarNode("tag:yaml.org,2002:str", "\ud83d", mark, mark))
    assert refused.value.problem == "text must not contain half of a surrogate pair"


def test_unprintable_text_is_refused() -> None:
    ((line, message),) = errors("a: 1\n---\nb: \x00\n")

    assert line == 2
    assert "control characters are not allowed" in message


@cases(
    ("text", "line"),
    before_a_key=("a: 1\nb:\n\tc: 1\n", 3),
    in_another_document=("a: 1\n---\nb:\n\t- c\n", 4),
)
def test_a_tab_as_indentation_is_named(text: str, line: int) -> None:
    assert errors(text) == [(line, "must be indented with spaces: YAML takes no tab here")]


def test_aliases_cannot_blow_up_values() -> None:
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)]
    text = "\n".join(["a0: &a0 [x]", *levels])

    assert errors(text) == [(1, "must not exceed the size limit once its aliases are expanded")]


def test_aliases_cannot_blow_up_text() -> None:
    long = "x" * (ALIAS_LIMIT // 50)
    text = f"a: &a {long}\nb: [{', '.join(['*a'] * 60)}]\n"

    assert errors(text) == [(1, "must not exceed the size limit once its aliases are expanded")]


def test_a_large_document_without_aliases_is_read() -> None:
    text = "a:\n" + "- some value\n" * 20_000

    assert len(documents(text)[0].data["a"]) == 20_000


def test_nesting_up_to_the_limit_is_read() -> None:
    text = "[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT

    assert documents(text)[0].data != []


@cases(
    ("text", "want"),
    nothing=("", []),
    empty_documents=("# only a comment\n---\n---\n", []),
    directive=("%YAML 1.1\n---\na: 1\n", [(3, {"a": 1})]),
    comments=("# head\n---\na: 1\n--- # next\nb: 2\n", [(3, {"a": 1}), (5, {"b": 2})]),
    on_the_separator=("--- {a: 1}\n--- {b: 2}\n", [(1, {"a": 1}), (2, {"b": 2})]),
    windows_line_ends=("a: 1\r\n---\r\nb: 2\r\n", [(1, {"a": 1}), (3, {"b": 2})]),
    dashes_inside_text=("a: |\n  x\n  ---\n  y\n", [(1, {"a": "x\n---\ny\n"})]),
    byte_order_mark=("\ufeffa: 1\n", [(1, {"a": 1})]),
    stream_of_json=('{"a": 1}\n\n{"b": 2}\n', [(1, {"a": 1}), (3, {"b": 2})]),
    json_with_tabs=('{\n\t"a":\t1\n}\n', [(1, {"a": 1})]),
    json_escapes=('{"a": "\\ud83d\\ude00 \\\\ud83d \\/"}', [(1, {"a": "😀 \\ud83d /"})]),
    json_then_yaml=('{"a": 1}\n---\nb: 2\n', [(1, {"a": 1}), (3, {"b": 2})]),
    yaml_in_braces=("{a: 1}\n---\nb: 2\n", [(1, {"a": 1}), (3, {"b": 2})]),
)
def test_documents_and_their_lines(text: str, want: list[tuple[int, object]]) -> None:
    assert [(document.line_of(()), document.data) for document in documents(text)] == want


@cases(
    ("parts", "want"),
    the_document=((), (2, 1)),
    key=(("spec", "list"), (4, 3)),
    list_item=(("spec", "list", 1), (6, 5)),
    item_in_one_line=(("spec", "flow", 1), (8, 13)),
    member_of_list_item=(("spec", "list", 1, "b"), (7, 5)),
    key_with_dots_and_slash=(("spec", "nvidia.com/gpu"), (9, 3)),
    missing_item_is_its_list=(("spec", "list", 5, "x"), (4, 3)),
    missing_member_is_the_document=(("status", "x"), (2, 1)),
)
def test_position(parts: tuple[str | int, ...], want: tuple[int, int]) -> None:
    text = "---\nkind: X\nspec:\n  list:\n  - a: 1\n  - a: 2\n    b: 3\n  flow: [1, 2]\n  nvidia.com/gpu: 1\n"
    (document,) = documents(text)

    assert document.position_of(parts) == want
    assert document.line_of(parts) == want[0]


def test_line_of_what_overrides_a_merge() -> None:
    (document,) = documents("base: &base {a: 1, b: 2}\nuse:\n  <<: *base\n  b: 3\n")

    assert document.data["use"] == {"a": 1, "b": 3}
    assert document.line_of(("use", "b")) == 4
    assert document.line_of(("use", "a")) == 1


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False, width=32).filter(
        lambda number: not number.is_integer()
    )
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.text("0123456789_.eE+-xobynYNOofF:~ \n\t#'\"{}[]*&!%@`|>=<?,", max_size=8),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(st.text(string.printable, min_size=1, max_size=8), children, max_size=4)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=8), JSON_VALUES, min_size=1))
def test_what_is_dumped_reads_back_the_same(data: dict[str, object]) -> None:
    (document,) = documents(dump_document(data))

    assert document.data == data


@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(str.isprintable), JSON_VALUES, min_size=1))
def test_json_is_read_as_json(data: dict[str, object]) -> None:
    (document,) = documents(json.dumps(data, indent="\t"))

    assert document.data == data


@given(st.text("0123456789_.eE+-xob", min_size=1, max_size=12))
def test_any_number_that_is_read_can_be_sent(text: str) -> None:
    for document in load_documents(f"v: {text}\n"):
        value = (
            document.data["v"]
            if isinstance(document, YamlDocument) and isinstance(document.data, dict)
            else 0
        )
        assert not isinstance(value, float) or math.isfinite(value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for item in load_documents(text):
        assert isinstance(item, YamlDocument | YamlError)
        assert (item.line_of(()) if isinstance(item, YamlDocument) else item.line) >= 1


def test_dump_quotes_what_would_not_read_back_as_text() -> None:
    data = {"a": "1e3", "b": "y", "c": "12:30", "d": "08", "e": "plain", "f": "two\nlines\n"}

    assert dump_document(data) == "a: '1e3'\nb: 'y'\nc: '12:30'\nd: '08'\ne: plain\nf: |\n  two\n  lines\n"


def test_dump_keeps_the_order_of_keys_and_writes_no_aliases() -> None:
    shared = {"x": 1}

    assert dump_document({"b": shared, "a": [shared]}) == "b:\n  x: 1\na:\n- x: 1\n"
