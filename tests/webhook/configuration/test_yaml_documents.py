import json
import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
@pytest.mark.parametrize(
    ("scalar", "want"),
    [
        pytest.param("y", True, id="y-is-true"),
        pytest.param("N", False, id="capital-n-is-false"),
        pytest.param("Off", False, id="off-is-false"),
        pytest.param("tRUE", "tRUE", id="odd-case-is-text"),
        pytest.param("~", None, id="tilde-is-null"),
        pytest.param("1e3", 1000, id="exponent-without-a-point-is-a-number"),
        pytest.param("0.5", 0.5, id="half"),
        pytest.param("1.", 1, id="whole-float-becomes-an-integer"),
        pytest.param("1e21", 1e21, id="large-float-stays-a-float"),
        pytest.param("08", 8, id="no-octal-but-a-float"),
        pytest.param("017", 15, id="octal-of-yaml-1.1"),
        pytest.param("0o17", 15, id="octal-of-yaml-1.2"),
        pytest.param("-0b11", -3, id="negative-binary"),
        pytest.param("0x1F", 31, id="hexadecimal"),
        pytest.param("1_000", 1000, id="underscores"),
        pytest.param("_1", "_1", id="leading-underscore-is-text"),
        pytest.param(".5_5", 0.55, id="underscore-after-a-point"),
        pytest.param("._5", "._5", id="stray-underscore-after-a-point"),
        pytest.param("12:30", "12:30", id="no-sexagesimal"),
        pytest.param("2024-01-01", "2024-01-01", id="dates-stay-text"),
        pytest.param("18446744073709551615", 18446744073709551615, id="largest-uint64"),
        pytest.param("123456789012345678901234", 1.2345678901234569e23, id="larger-is-a-float"),
        pytest.param("1e400", "1e400", id="beyond-float64-is-text"),
        pytest.param("9" * 5000, "9" * 5000, id="thousands-of-digits-are-text"),
        pytest.param("\u0661", "\u0661", id="digits-of-other-scripts-are-text"),
        pytest.param("500m", "500m", id="quantity"),
        pytest.param("=", "=", id="equals-sign"),
        pytest.param('"1"', "1", id="quoted-number-is-text"),
        pytest.param('!!int "5"', 5, id="explicit-tag"),
        pytest.param("!!str 5", "5", id="explicit-text"),
        pytest.param("!!timestamp 2024-01-01", "2024-01-01", id="explicit-timestamp-is-text"),
    ],
)
def test_scalars_are_what_kubectl_makes_of_them(scalar: str, want: object) -> None:
    (document,) = documents(f"v: {scalar}\n")

    assert document.data == {"v": want}
    assert type(document.data["v"]) is type(want)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("a: .inf\n", [(1, '".inf" must be a number that JSON can represent')], id="infinity"),
        pytest.param(
            "a: 1\nb: [\n",
            [(2, "while parsing a flow node, did not find expected node content")],
            id="end-missing",
        ),
        pytest.param("a: &x [*x]\n", [(1, "must not contain itself through an alias")], id="self-reference"),
        pytest.param(
            "[" * 100_000, [(1, "must not be nested deeper than 200 levels")], id="brackets-without-end"
        ),
        pytest.param(
            "- " * 100_000, [(1, "must not be nested deeper than 200 levels")], id="dashes-without-end"
        ),
        pytest.param(
            '{"a":' * 100_000, [(1, "must not be nested deeper than 200 levels")], id="json-without-end"
        ),
        pytest.param(
            "a: !!python/name:os.system x\n",
            [(1, "could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system'")],
            id="python-tag",
        ),
        pytest.param(
            "a: 1\n---\nb: [1\n---\nc: d: e\n",
            [
                (3, "while parsing a flow sequence, did not find expected ',' or ']'"),
                (5, "mapping values are not allowed in this context"),
            ],
            id="each-broken-document",
        ),
    ],
)
def test_bad_documents_are_reported_with_their_line(text: str, want: list[tuple[int, str]]) -> None:
    assert errors(text) == want


def test_a_broken_document_hides_no_other() -> None:
    loaded = list(load_documents("a: 1\n---\nb: [1\n---\nc: 3\n"))
    assert [item.data for item in loaded if isinstance(item, YamlDocument)] == [{"a": 1}, {"c": 3}]


@pytest.mark.parametrize(
    ("text", "data", "duplicates"),
    [
        pytest.param("a: 1\na: 2\n", {"a": 2}, ['2:1 "a"'], id="the-last-one-counts"),
        pytest.param(
            "x: {a: 1, a: 2}\nz:\n  b: [1]\n  b: [2]\n",
            {"x": {"a": 2}, "z": {"b": [2]}},
            ['1:11 "a"', '4:3 "b"'],
            id="all-at-once",
        ),
        pytest.param("m: {a: 1}\nm: {b: 2}\n", {"m": {"b": 2}}, ['2:1 "m"'], id="maps-are-not-merged"),
        pytest.param('{"a": 1, "a": 2}', {"a": 2}, ['1:10 "a"'], id="json"),
        pytest.param("# note\n---\na: 1\n---\nb: 1\nb: 2\n", {"b": 2}, ['6:1 "b"'], id="second-document"),
        pytest.param("x: &x {a: 1}\nz: {<<: *x, a: 2}\n", {"x": {"a": 1}, "z": {"a": 2}}, [], id="overriding-a-merge"),
    ],
)  # fmt: skip
def test_of_duplicate_keys_the_last_one_counts(text: str, data: object, duplicates: list[str]) -> None:
    document = documents(text)[-1]

    assert document.data == data
    found = [f"{each.line}:{each.column} {each}" for each in document.duplicates]
    assert found == [each.replace(" ", " Duplicate value: key ") for each in duplicates]


def test_lone_surrogate_is_refused() -> None:
    assert [line for line, _ in errors('a: 1\nb: "\\ud83d"\n')] == [2]


def test_unprintable_text_is_refused() -> None:
    ((line, message),) = errors("a: 1\n---\nb: \x00\n")

    assert line == 2
    assert "control characters are not allowed" in message


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


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param("# only a comment\n---\n---\n", [], id="empty-documents"),
        pytest.param("%YAML 1.1\n---\na: 1\n", [(3, {"a": 1})], id="directive"),
        pytest.param("# head\n---\na: 1\n--- # next\nb: 2\n", [(3, {"a": 1}), (5, {"b": 2})], id="comments"),
        pytest.param("--- {a: 1}\n--- {b: 2}\n", [(1, {"a": 1}), (2, {"b": 2})], id="on-the-separator"),
        pytest.param("a: 1\r\n---\r\nb: 2\r\n", [(1, {"a": 1}), (3, {"b": 2})], id="windows-line-ends"),
        pytest.param("a: |\n  x\n  ---\n  y\n", [(1, {"a": "x\n---\ny\n"})], id="dashes-inside-text"),
        pytest.param("\ufeffa: 1\n", [(1, {"a": 1})], id="byte-order-mark"),
        pytest.param('{"a": 1}\n\n{"b": 2}\n', [(1, {"a": 1}), (3, {"b": 2})], id="stream-of-json"),
        pytest.param('{\n\t"a":\t1\n}\n', [(1, {"a": 1})], id="json-with-tabs"),
        pytest.param(
            '{"a": "\\ud83d\\ude00 \\\\ud83d \\/"}', [(1, {"a": "😀 \\ud83d /"})], id="json-escapes"
        ),
        pytest.param('{"a": 1}\n---\nb: 2\n', [(1, {"a": 1}), (3, {"b": 2})], id="json-then-yaml"),
        pytest.param("{a: 1}\n---\nb: 2\n", [(1, {"a": 1}), (3, {"b": 2})], id="yaml-in-braces"),
    ],
)
def test_documents_and_their_lines(text: str, want: list[tuple[int, object]]) -> None:
    assert [(document.start_line, document.data) for document in documents(text)] == want


@pytest.mark.parametrize(
    ("parts", "want"),
    [
        pytest.param((), (2, 1), id="the-document"),
        pytest.param(("spec", "list"), (4, 3), id="key"),
        pytest.param(("spec", "list", 1), (6, 5), id="list-item"),
        pytest.param(("spec", "flow", 1), (8, 13), id="item-in-one-line"),
        pytest.param(("spec", "list", 1, "b"), (7, 5), id="member-of-list-item"),
        pytest.param(("spec", "nvidia.com/gpu"), (9, 3), id="key-with-dots-and-slash"),
        pytest.param(("spec", "list", 5, "x"), (4, 3), id="missing-item-is-its-list"),
        pytest.param(("status", "x"), (2, 1), id="missing-member-is-the-document"),
    ],
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
        assert (item.start_line if isinstance(item, YamlDocument) else item.line) >= 1


def test_dump_quotes_what_would_not_read_back_as_text() -> None:
    data = {"a": "1e3", "b": "y", "c": "12:30", "d": "08", "e": "plain", "f": "two\nlines\n"}

    assert dump_document(data) == "a: '1e3'\nb: 'y'\nc: '12:30'\nd: '08'\ne: plain\nf: |\n  two\n  lines\n"


def test_dump_keeps_the_order_of_keys_and_writes_no_aliases() -> None:
    shared = {"x": 1}

    assert dump_document({"b": shared, "a": [shared]}) == "b:\n  x: 1\na:\n- x: 1\n"
