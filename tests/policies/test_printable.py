"""Text that a terminal or a browser may get: a parser reads the same values of every format, and nothing in it is obeyed."""

import json
from xml.etree import ElementTree as ET

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from policies.printable import first_names, printable, printable_json, printable_lines, printable_xml
from tests.cases import cases
from webhook.configuration.yaml_documents import YamlDocument, dump_document, load_documents

HOSTILE = "\x1b]0;t\x07 \x9b2J \u202e\u2066 \u2028 \x7f \x85 \U000e0041 \xa0 \ufeff é 漢 \N{BUG}"
texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    [HOSTILE, f"a: {HOSTILE}\n", "\tb\n"]
)
values = st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8)


def is_obeyed(text: str) -> bool:
    return not text.replace("\n", "").replace("\t", "").isprintable()


@given(values)
def test_json_reads_back(value: object) -> None:
    for text in (json.dumps(value, ensure_ascii=False), msgspec.json.encode(value).decode()):
        made = printable_json(text)
        assert json.loads(made) == value
        assert msgspec.json.decode(made) == value
        assert not is_obeyed(made)


@given(values)
def test_yaml_reads_back(value: object) -> None:
    made = dump_document({"value": value})
    (read,) = load_documents(made)
    assert isinstance(read, YamlDocument)
    assert read.data == {"value": value}
    assert not is_obeyed(made)


@given(st.text(st.characters(codec="utf-8", min_codepoint=32, exclude_characters="\ufffe\uffff")))
def test_xml_reads_back(text: str) -> None:
    element = ET.Element("testcase", name=text)
    element.text = text
    made = printable_xml(ET.tostring(element, encoding="unicode"))
    read = ET.fromstring(made)  # noqa: S314 - of our own making
    assert (read.get("name"), read.text or "") == (text, text)
    assert not is_obeyed(made)


@cases(
    ("text", "lines", "line"),
    printable=("a é 漢", "a é 漢", "a é 漢"),
    lines=("a\n\tb", "a\n\tb", "a��b"),
    commands_to_a_terminal=("\x1b[2J\x9b2J\x7f\r", "�[2J�2J��", "�[2J�2J��"),
    marks_of_direction=("\u202eevil\u2066\u2028", "�evil��", "�evil��"),
)
def test_text(text: str, lines: str, line: str) -> None:
    assert (printable_lines(text), printable(text)) == (lines, line)


@cases(
    ("names", "want"),
    none=([], ""),
    as_many_as_are_named=(["a", "b"], "a, b"),
    more=(["a", "b", "c", "d", "e"], "a, b and 3 more"),
)
def test_first_names(names: list[str], want: str) -> None:
    assert first_names(names, 2) == want
