"""`apply_edits`: the text of a manifest with values set, added and removed, and every other line as it was."""

import json
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.finding import Value
from policies.pods.field_paths import OPTIONAL, path_parts
from policies.pods.pod import Toleration
from tests.cases import cases
from webhook.configuration.yaml_documents import YamlDocument, load_documents
from webhook.tools.check.edits import NotEditableError, TextEdit, apply_edits

T = TypeVar("T")
TAINT = Toleration(key="x/y", value="true")
LIMIT = "spec.containers[0].resources.limits[nvidia.com/gpu]"
NOTE = "metadata.annotations[gpu-admission.dev/gpu-class]"
POD = """\
kind: Pod  # a comment
metadata:
  name: 'train'

spec:
    containers:
    -   name: "main"   # the only one
        # before image
        image: pytorch
        resources:
            limits: {cpu: 8, nvidia.com/gpu: "2"}  # two
# at the end
"""


def changed(text: str, path: str, value: Value, document: int = 0) -> str:
    return apply_edits(text, {document: [TextEdit(path_parts(path), value)]})


def diff(before: str, after: str) -> tuple[str, str]:
    """Return the whole lines that differ, from the first to the last."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return "".join(old), "".join(new)


@cases(
    ("text", "path", "value", "gone", "come"),
    a_plain_value=("a: 1  # why\n", "a", 2, "a: 1  # why\n", "a: 2  # why\n"),
    a_number_keeps_the_quotes=("a: '0.5'\n", "a", 1, "a: '0.5'\n", "a: '1'\n"),
    text_that_reads_as_a_number=("a: x\n", "a", "1e3", "a: x\n", 'a: "1e3"\n'),
    text_that_reads_as_true=("a: x\n", "a", "y", "a: x\n", 'a: "y"\n'),
    text_that_reads_as_a_time_elsewhere=("a: x\n", "a", "12:30", "a: x\n", 'a: "12:30"\n'),
    plain_text_stays_plain=("a: x\n", "a", "nvidia-l4", "a: x\n", "a: nvidia-l4\n"),
    single_quotes_stay=("a: 'x'\n", "a", "it's", "a: 'x'\n", "a: 'it''s'\n"),
    a_tag_goes_with_its_value=("a: !!str 5\n", "a", 6, "a: !!str 5\n", "a: 6\n"),
    a_block_of_text=("a: |\n  x\n  y\nb: 1\n", "a", "z", "a: |\n  x\n  y\n", "a: z\n"),
    a_value_that_is_missing=("a:  # none\nb: 1\n", "a", 2, "a:  # none\n", "a: 2  # none\n"),
    in_a_flow=(POD, LIMIT, 1,
        '            limits: {cpu: 8, nvidia.com/gpu: "2"}  # two\n',
        '            limits: {cpu: 8, nvidia.com/gpu: "1"}  # two\n'),
    added_to_a_flow=(POD, "spec.containers[0].resources.limits.memory", "1Gi",
        '            limits: {cpu: 8, nvidia.com/gpu: "2"}  # two\n',
        '            limits: {cpu: 8, nvidia.com/gpu: "2", memory: 1Gi}  # two\n'),
    added_below_the_last_line=(POD, "spec.containers[0].resources.requests[nvidia.com/gpu]", 1,
        "",
        "            requests:\n                nvidia.com/gpu: 1\n"),
    maps_that_are_missing=(POD, NOTE, "nvidia-l4",
        "", "  annotations:\n    gpu-admission.dev/gpu-class: nvidia-l4\n"),
    a_map_that_is_null=("a:\n  b: # none\n  c: 1\n", "a.b.x", 1, "", "    x: 1\n"),
    a_map_that_is_written_as_null=("a: null\n", "a.x.z", 1, "a: null\n", "a: {x: {z: 1}}\n"),
    an_empty_map=("a: {}\n", "a.x", 1, "a: {}\n", "a: {x: 1}\n"),
    below_text_that_keeps_its_line_ends=("a:\n  b: |+\n    x\n\nc: 1\n", "a.d", 1, "", "  d: 1\n"),
    no_line_end_at_the_end=("a:\n  b: 1", "a.c", 2, "  b: 1", "  b: 1\n  c: 2"),
    line_ends_of_windows=("a:\r\n  b: 1\r\n", "a.c", 2, "", "  c: 2\r\n"),
    a_byte_order_mark=("\ufeffa: 1\n", "a", 2, "\ufeffa: 1\n", "\ufeffa: 2\n"),
    json=('{"a": {}, "b": "x"}', "a.c", "y", '{"a": {}, "b": "x"}', '{"a": {"c": "y"}, "b": "x"}'),
    json_in_lines=('{\n\t"a": 1\n}\n', "b.c", 2, '\t"a": 1\n', '\t"a": 1,\n\t"b": {"c": 2}\n'),
    json_behind_two_escapes=('{"a": "\\ud83d\\ude00", "b": 1}', "b", 2,
        '{"a": "\\ud83d\\ude00", "b": 1}', '{"a": "\\ud83d\\ude00", "b": 2}'),
    in_lines_with_a_comma_at_the_end=("{\n  a: 1, # x\n}\n", "b", 2, "", "  b: 2,\n"),
    the_first_item_of_a_list=("a:\n  b: 1\n", "a.c[-]", TAINT, "", '  c: [{key: x/y, value: "true"}]\n'),
    an_item_of_a_list_that_is_null=("a:\n  b:\n", "a.b[-]", TAINT, "  b:\n", '  b: [{key: x/y, value: "true"}]\n'),
    behind_the_last_item=("a:\n  - b: 1\n    c: 2 # x\nd: 3\n", "a[-]", TAINT, "", '  - {key: x/y, value: "true"}\n'),
    behind_an_item_of_a_flow=("a: [1]\n", "a[-]", TAINT, "a: [1]\n", 'a: [1, {key: x/y, value: "true"}]\n'),
    into_an_empty_list=("a: []\n", "a[-]", 1, "a: []\n", "a: [1]\n"),
    an_item_in_json=('{"a": [{}]}', "a[-]", TAINT, '{"a": [{}]}', '{"a": [{}, {"key": "x/y", "value": "true"}]}'),
    a_list_of_text=("a: 1\n", "b", ("x", "y z"), "", 'b: [x, "y z"]\n'),
    a_tab_behind_a_value=("a: 1\t# x\nb: 2\n", "a", 3, "a: 1\t# x\n", "a: 3\t# x\n"),
)  # fmt: skip
def test_a_value_is_set(text: str, path: str, value: Value, gone: str, come: str) -> None:
    assert diff(text, changed(text, path, value)) == (gone, come)


@cases(
    ("text", "path", "gone", "come"),
    its_line=("a:\n  b: 1 # x\n  c: 2\n", "a.b", "  b: 1 # x\n", ""),
    all_of_its_lines=("a:\n  b:\n  - 1\n\n  c: 2\n", "a.b", "  b:\n  - 1\n", ""),
    text_of_several_lines=("a:\n  b: |\n    x\n    y\n  c: 2\n", "a.b", "  b: |\n    x\n    y\n", ""),
    the_last_line_of_a_file=("a:\n  b: 1\n  c: 2", "a.c", "  b: 1\n  c: 2", "  b: 1"),
    the_first_field_of_an_item=("- a: 1 # x\n  b: 2\n", "[0].a", "- a: 1 # x\n  b: 2\n", "- b: 2\n"),
    with_a_comment_behind_it=("- a: 1\n  # b\n  b: 2\n", "[0].a", "- a: 1\n", "-\n"),
    first_in_a_flow=("a: {b: 1, c: 2}\n", "a.b", "a: {b: 1, c: 2}\n", "a: {c: 2}\n"),
    last_in_a_flow=("a: {b: 1, c: 2}\n", "a.c", "a: {b: 1, c: 2}\n", "a: {b: 1}\n"),
    last_in_json_lines=('{\n  "a": 1,\n  "b": 2\n}\n', "b", '  "a": 1,\n  "b": 2\n', '  "a": 1\n'),
    the_only_field=("v:\n  emptyDir:\n    medium: Memory\n  b: 1\n", "v.emptyDir.medium",
        "  emptyDir:\n    medium: Memory\n", "  emptyDir: {}\n"),
    the_only_field_of_a_flow=("v: {medium: Memory}\n", "v.medium", "v: {medium: Memory}\n", "v: {}\n"),
    the_only_field_of_an_item=("a:\n- b: 1\n- c: 2\n", "a[0].b", "- b: 1\n", "- {}\n"),
    the_only_limit_and_its_maps=("a: 1\nresources:\n  limits:\n    gpu: 1\n", "resources.limits.gpu",
        "resources:\n  limits:\n    gpu: 1\n", ""),
    the_only_limit_of_two_maps=("resources:\n  limits: {gpu: 1}\n  requests: {gpu: 1}\n",
        "resources.limits.gpu", "  limits: {gpu: 1}\n", ""),
    what_is_not_there=("a: 1\n", "b.c", "", ""),
    an_item=("a:\n- b: 1\n  c: 2 # x\n\n# y\n- d\n", "a[0]", "- b: 1\n  c: 2 # x\n", ""),
    an_item_below_its_dash=("a:\n  -\n    b: 1\n  - d\n", "a[0]", "  -\n    b: 1\n", ""),
    an_item_beside_a_dash=("- - a\n  - b\n", "[0][0]", "- - a\n  - b\n", "- - b\n"),
    an_item_of_a_flow=("a: [1, 2]\n", "a[1]", "a: [1, 2]\n", "a: [1]\n"),
    the_only_item=("args: # x\n- a-b\n", "args[0]", "args: # x\n- a-b\n", "args: [] # x\n"),
    the_only_variable=("env:\n- name: a\n  value: b\nc: 1\n", "env[0]",
        "env:\n- name: a\n  value: b\n", ""),
)  # fmt: skip
def test_a_field_is_removed(text: str, path: str, gone: str, come: str) -> None:
    assert diff(text, changed(text, path, None)) == (gone, come)


@cases(
    ("text", "path", "value", "why"),
    an_alias=("a: &a 1\nb: *a\n", "b", 2, "b stands behind the alias *a"),
    below_an_alias=("a: &a {c: 1}\nb: *a\n", "b.c", 2, "b stands behind the alias *a"),
    an_anchor_of_an_alias=("a: &a {c: 1}\nb: *a\n", "a.c", 2,
        "a is used in other places, too, by its anchor &a"),
    a_merge=("a: &a {c: 1}\nb:\n  <<: *a\n", "b.c", 2, "b.c comes from a merge (<<)"),
    removed_from_a_merge=("a: &a {c: 1}\nb:\n  <<: *a\n", "b.c", None, "b.c comes from a merge (<<)"),
    a_placeholder=("a: ${GPUS}\n", "a", 2, "a is a placeholder; render the file first"),
    a_placeholder_of_helm=('a: "{{ .Values.gpus }}"\n', "a", 2,
        "a is a placeholder; render the file first"),
    a_key_that_stands_twice=("a: 1\na: 2\n", "a", 3, 'the key "a" stands twice in one map'),
    a_map=("a: {b: 1}\n", "a", 1, "a must be a single value"),
    below_text=("a: x\n", "a.b", 1, "a must be a map"),
    an_item_that_is_missing=("a: {b: 1}\n", "a.c[0].d", 1, "a.c[0].d is in no list that exists"),
    a_comment_in_braces=("a: {b: 1, # x\n  c: 2}\n", "a.b", None,
        "a.b has a comment beside it in brackets"),
    a_value_without_a_colon=("{a, b: 1}\n", "a", 1, "a cannot be edited in place"),
    at_the_top_of_a_list=("- a\n", "b", 1, "the document must be a map"),
    a_document_that_cannot_be_read=("a: [\n", "a", 1, "the document cannot be read"),
    a_key_with_a_question_mark=("? a\n: 1\n", "b", 1, "b cannot be edited in place"),
)  # fmt: skip
def test_what_cannot_be_edited(text: str, path: str, value: Value, why: str) -> None:
    with pytest.raises(NotEditableError) as raised:
        changed(text, path, value)
    assert str(raised.value) == why


def test_a_key_beside_a_merge() -> None:
    text = "a: &a {c: 1}\nb:\n  <<: *a\n  d: 1\n"
    assert diff(text, changed(text, "b.e", 2)) == ("", "  e: 2\n")


def test_the_document_that_is_meant() -> None:
    text = "# one\na: 1\n---\n---\n# two\na: 1\n...\n---\na: 1\n"
    assert [changed(text, "a", 2, document).splitlines().index("a: 2") for document in range(3)] == [1, 5, 8]
    objects = '{"a": 1}\n{"a": 1} {"a": 1}'
    assert changed(objects, "a", 2, 2) == '{"a": 1}\n{"a": 1} {"a": 2}'


def test_edits_build_on_each_other() -> None:
    parts = path_parts("metadata.annotations.x"), path_parts("metadata.annotations.z")
    text = apply_edits("kind: Pod\n", {0: [TextEdit(parts[0], "1"), TextEdit(parts[1], "2")]})
    assert text == 'kind: Pod\nmetadata:\n  annotations:\n    x: "1"\n    z: "2"\n'
    assert apply_edits(text, {0: [TextEdit(each, None) for each in parts]}) == "kind: Pod\nmetadata: {}\n"


def test_items_are_removed_from_the_end() -> None:
    text = "a:\n- 0\n- b: 1\n  c: 2\n  d: 3\n- 2\nb: 1\n"
    edits = [
        TextEdit(("a", 0), None),
        TextEdit(("a", 2), None),
        TextEdit(("a", 1, "c"), None),
        TextEdit(("a", 1, "d"), 5),
    ]
    assert apply_edits(text, {0: edits}) == "a:\n- b: 1\n  d: 5\nb: 1\n"


KEYS = st.sampled_from(
    ["spec", "a", "nvidia.com/gpu", "limits", "annotations", "x-y", "on", "8", "a b", "env", "emptyDir"]
)
TEXTS = st.sampled_from(
    ["x", "1", "0.5", "true", "", "a: b", "it's", 'a "b"', "x # y", "- x", "é", "1e3", "null", "~"]
)
SCALARS = st.one_of(st.integers(-5, 99), TEXTS)
DATA = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3),
        max_leaves=12,
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


class Writer:
    """Writes plain data as people do: each value in one of many forms, with comments and blank lines between them."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def _one_of(self, *choices: T) -> T:
        drawn: T = self._draw(st.sampled_from(choices))
        return drawn

    def document(self, data: Any) -> str:
        end = self._one_of("\n", "\n", "\r\n")
        form = self._one_of("block", "block", "block", "flow", "json", "json in lines")
        if form.startswith("json"):
            return json.dumps(
                data, indent=self._one_of(" ", "\t", "    ") if form == "json in lines" else None
            )
        lines = [self.flow(data)] if form == "flow" else self.block(data, 0)
        last = self._one_of(end, end, "", f"{end}# the end{end}", f"{end}{end}")
        return self._one_of("", f"# top{end}", f"---{end}") + end.join(lines) + last

    def block(self, data: Any, indentation: int) -> list[str]:
        lines: list[str] = []
        pad, step = " " * indentation, self._one_of(2, 2, 4)
        for each in data:
            value = data[each] if isinstance(data, dict) else each
            lead = f"{pad}{self.text(each)}:" if isinstance(data, dict) else f"{pad}-"
            lines += self._one_of([], [], [f"{pad}# c"], [""])
            if not isinstance(value, dict | list) or not value or self._one_of(True, False, False):
                written = self.flow(value) if isinstance(value, dict | list) else self.scalar(value)
                lines.append(f"{lead} {written}" + self._one_of("", "", "  # why", "\t# why"))
            elif isinstance(data, list) and isinstance(value, dict):
                inner = self.block(value, indentation + 2)
                lines += [lead + self._one_of("", " # c"), *inner]
                if not inner[0].strip().startswith("#") and inner[0].strip():
                    lines[-len(inner) - 1 :] = [f"{lead} {inner[0].lstrip()}", *inner[1:]]
            else:
                deeper = indentation + step
                if isinstance(value, list) and isinstance(data, dict):
                    deeper = indentation + self._one_of(0, step)
                lines += [lead + self._one_of("", " # c"), *self.block(value, deeper)]
        return lines

    def flow(self, value: Any) -> str:
        comma = self._one_of(", ", ",")
        if isinstance(value, dict):
            entries = [f"{self.text(key, is_flow=True)}: {self.flow(inner)}" for key, inner in value.items()]
            return "{" + comma.join(entries) + "}"
        if isinstance(value, list):
            return "[" + comma.join(map(self.flow, value)) + "]"
        return self.text(value, is_flow=True) if isinstance(value, str) else str(value)

    def scalar(self, value: Any) -> str:
        return self.text(value) if isinstance(value, str) else str(value)

    def text(self, value: str, *, is_flow: bool = False) -> str:
        quoted = [json.dumps(value, ensure_ascii=False), "'" + value.replace("'", "''") + "'"]
        is_plain = value in {"x", "a", "spec", "nvidia.com/gpu", "limits", "annotations", "x-y", "a b", "é"}
        return str(
            self._one_of(*quoted, *([value] * 3 if is_plain and not (is_flow and " " in value) else ()))
        )


def places(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all single values."""
    if isinstance(data, dict):
        return [found for key, value in data.items() for found in places(value, (*at, key))]
    if isinstance(data, list):
        return [found for index, value in enumerate(data) for found in places(value, (*at, index))]
    return [at]


def maps(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    members = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    below = [found for part, value in members for found in maps(value, (*at, part))]
    return [at, *below] if isinstance(data, dict) else below


def set_in(data: Any, parts: tuple[Any, ...], value: Any) -> None:
    for part in parts[:-1]:
        data = data.setdefault(part, {}) if isinstance(data, dict) else data[part]
    data[parts[-1]] = value


def removed_from(data: Any, parts: tuple[Any, ...]) -> None:
    above = data
    for part in parts[:-1]:
        above = above[part]
    del above[parts[-1]]
    if not above and len(parts) > 1 and parts[-2] in OPTIONAL:
        removed_from(data, parts[:-1])


@given(st.data())
def test_only_the_edited_values_read_differently_and_other_lines_stay(drawn: st.DataObject) -> None:
    documents = drawn.draw(st.lists(DATA, min_size=1, max_size=3))
    texts = [Writer(drawn.draw).document(each) for each in documents]
    texts[1:] = [each.removeprefix("---\r\n").removeprefix("---\n") for each in texts[1:]]
    text = drawn.draw(st.sampled_from(["", "\ufeff"])) + "\n---\n".join(texts)
    at = drawn.draw(st.integers(0, len(documents) - 1))
    new: tuple[Any, ...]
    match drawn.draw(st.sampled_from(["set", "add", "remove"])):
        case "add":
            below = drawn.draw(st.sampled_from([("new",), ("new", "deep"), ("new.dev/x",)]))
            new = (*drawn.draw(st.sampled_from(maps(documents[at]))), *below)
            value: Any = drawn.draw(SCALARS)
        case action:
            parts = places(documents[at])
            if not parts:
                return
            new = drawn.draw(st.sampled_from(parts))
            value = drawn.draw(SCALARS) if action == "set" else None
    read = [
        each.data for each in load_documents(text.removeprefix("\ufeff")) if isinstance(each, YamlDocument)
    ]
    assert read == documents, text

    if value is None and len(new) == 1 and len(documents[at]) == 1:
        return
    after = apply_edits(text, {at: [TextEdit(new, value)]})

    if value is None:
        removed_from(documents[at], new)
    else:
        set_in(documents[at], new, value)
    got = [
        each.data for each in load_documents(after.removeprefix("\ufeff")) if isinstance(each, YamlDocument)
    ]
    if got != documents:  # a number took the quotes of the text that it replaced
        assert isinstance(value, int)
        set_in(documents[at], new, str(value))
    assert got == documents
    gone, come = (lines.splitlines() for lines in diff(text, after))
    assert len(gone) <= 2 or value is None
    assert len(come) <= 3
