"""Edits of manifests in place: the text is changed at the marks of its nodes, and every line outside of an edit stays as it is.

An edit that YAML's own means put out of reach is not made: behind an alias or a merge, in an anchor that is used elsewhere, in a
placeholder. What was made is read again, and is right only if nothing but the edited values reads differently.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import yaml

from policies.finding import Value, as_plain_data, inline_yaml
from policies.pods.field_paths import APPENDED, OPTIONAL, Parts, edit_order, field_path, value_at, with_edit
from webhook.configuration.yaml_documents import EventLoader, YamlDocument, YamlError, is_text, load_documents
from webhook.tools.check.placeholders import is_placeholder

_BYTE_ORDER_MARK = "\ufeff"
_LINE_END = re.compile(r"\r\n|\n|\r")
_COLON = re.compile(r"\s*:")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*|[0-9]+[A-Za-z]+")
_ESCAPED_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_NULL_TEXTS = frozenset({"", "~", "null", "Null", "NULL"})


class TextEdit(NamedTuple):
    """A value for the field at `parts` of a document; None removes the field, or the item of a list."""

    parts: Parts
    value: Value


class NotEditableError(Exception):
    """An edit cannot be made in place; the message says why."""


def apply_edits(text: str, edits: Mapping[int, Iterable[TextEdit]]) -> str:
    """Return the text of a YAML or JSON file after edits. `edits` has them by the index of the document in `load_documents`.

    Positions are those before any edit. A number takes the quotes of the text that it replaces. Raises NotEditableError.
    """
    mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
    text = text.removeprefix(mark)
    documents = list(load_documents(text))
    for index, of_document in sorted(edits.items(), reverse=True):
        document = documents[index]
        if not isinstance(document, YamlDocument):
            raise NotEditableError("the document cannot be read")
        (start, end), piece = document.span, edited_document(text, document, of_document)
        text = text[:start] + piece + text[end:]
    return mark + text


def edited_document(text: str, document: YamlDocument, edits: Iterable[TextEdit]) -> str:
    """Return the span of a document in the text of its file, with the edits made. Raises NotEditableError."""
    start, end = document.span
    piece, mark = text[start:end], document.node.start_mark.index
    read = list(load_documents(piece))
    starts = [int(each.node.start_mark.index) if isinstance(each, YamlDocument) else -1 for each in read]
    index = starts.index(mark)
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: edit_order(*edit), reverse=True):
        piece = _apply_edit(piece, index, edit)
    return piece


def _apply_edit(text: str, index: int, edit: TextEdit) -> str:
    documents = list(load_documents(text))
    document = cast("YamlDocument", documents[index])  # what an edit leaves is read below
    place = _FieldEditor(text, document, edit.parts)
    if edit.value is not None:
        splices, value = place.set(as_plain_data(edit.value))
    elif place.missing:
        return text
    else:
        splices, value = place.remove(), None
    for start, end, inserted in sorted(splices, reverse=True):
        text = text[:start] + inserted + text[end:]
    wanted = [_data(document) for document in documents]
    wanted[index] = with_edit(document.data, edit.parts, value)
    if wanted != [_data(document) for document in load_documents(text)]:
        raise NotEditableError(f"{field_path(edit.parts)} cannot be edited in place")
    return text


def _data(document: YamlDocument | YamlError) -> Any:
    return document.data if isinstance(document, YamlDocument) else str(document)


class _Node(msgspec.Struct):
    """A node of the text, with the first character, and the one behind the last that is neither comment nor line end."""

    start: int
    end: int
    column: int
    anchor: str | None = None
    alias: str | None = None
    text: str | None = None
    """The value of a scalar, None for others."""
    style: str = ""
    """Of a scalar: its quote, `|` or `>`, "" for a plain one."""
    opening: int = 0
    """Of a flow collection: the character behind its bracket; 0 for a block."""
    members: list[tuple["_Node", "_Node"]] = []
    """Keys and values; of a list the items, twice."""
    is_map: bool = False

    @property
    def is_null(self) -> bool:
        return self.text in _NULL_TEXTS and not self.style


Splice = tuple[int, int, str]
"""Start and end of what is replaced, and the text in its place."""


class _FieldEditor:
    """The field at `parts` of a document, or the last node on the way to it and the parts that are `missing` there."""

    def __init__(self, text: str, document: YamlDocument, parts: Parts) -> None:
        """Go the way to the field. Raises NotEditableError if it is out of reach."""
        self._text, self._parts = text, parts
        tree = _Tree(text, document)
        self._ancestors: list[tuple[_Node, _Node, _Node]] = []
        """Of each step: the map or list, the key (of a list: the item), and the value."""
        node = tree.root
        for depth, part in enumerate((*parts, None)):
            path = field_path(parts[:depth])
            if node.alias is not None:
                raise NotEditableError(f"{path} stands behind the alias *{node.alias}")
            if node.anchor in tree.aliases:
                raise NotEditableError(f"{path} is used in other places, too, by its anchor &{node.anchor}")
            if node.text is not None and is_placeholder(node.text, path):
                raise NotEditableError(f"{path} is a placeholder; render the file first")
            if part is None:
                break
            child = _child(node, part)
            if child is None:
                break
            self._ancestors.append((node, *child))
            node = child[1]
        self._node, self.missing = node, parts[len(self._ancestors) :]
        if self.missing:
            self._check_missing(document.data)

    def _check_missing(self, data: Any) -> None:
        path = field_path(self._parts[: len(self._ancestors)]) or "the document"
        if self.missing == (APPENDED,) and not (self._node.is_map or self._node.text is not None):
            return
        if not (self._node.is_map or self._node.is_null):
            raise NotEditableError(f"{path} must be a map")
        if any(isinstance(part, int) for part in self.missing):
            raise NotEditableError(f"{field_path(self._parts)} is in no list that exists")
        if value_at(data, self._parts[: len(self._ancestors) + 1]) is not None:
            raise NotEditableError(f"{field_path(self._parts)} comes from a merge (<<)")

    def set(self, value: Any) -> tuple[list[Splice], Any]:
        """Return how the text becomes one with the value, and the value as it reads then."""
        node = self._node
        if self.missing[-1:] == (APPENDED,) and (node.is_null or self.missing[1:]):
            self.missing = self.missing[:-1]
            return self.set([value])[0], value
        if not self.missing:
            if node.text is None:
                raise NotEditableError(f"{field_path(self._parts)} must be a single value")
            written = str(value) if node.style in {"'", '"'} else value
            space = "" if node.start < node.end else " "
            text = space + _scalar(written, node.style, self._is_quoted)
            return [(node.start, node.end, text)], written
        if node.is_null:
            return self._fill_null(value), value
        added = self._add_to_flow(value) if node.opening else self._add_lines(self._column, node.end, value)
        return added, value

    @property
    def _column(self) -> int:
        """Where the keys of the block begin, or the dashes of a list."""
        node = self._node
        if node.is_map:
            return node.column
        dash = self._start(node, node.members[0][0])
        return dash - self._line_start(dash)

    def _fill_null(self, value: Any) -> list[Splice]:
        node = self._node
        above, key, _ = self._ancestors[-1]
        if node.start == node.end and not above.opening and above.is_map:
            return self._add_lines(key.column + self._indentation, node.end, value)
        space = "" if node.start < node.end else " "
        return [(node.start, node.end, f"{space}{{{self._flow_entry(value)}}}")]

    def _add_lines(self, column: int, offset: int, value: Any) -> list[Splice]:
        """Add a block below the line of the character before `offset`."""
        keys = [f"{_scalar(key, '', False)}:" for key in map(str, self.missing)]
        keys = [APPENDED] if self.missing == (APPENDED,) else keys
        lines = [f"{' ' * (column + depth * self._indentation)}{key}" for depth, key in enumerate(keys)]
        lines[-1] += f" {_scalar(value, '', False)}"
        if offset and self._text[offset - 1] in "\r\n":  # a block scalar that keeps its line ends
            return [(offset, offset, "".join(f"{line}{self._line_end}" for line in lines))]
        next_line, written = self._next_line(offset)
        line_end = written or self._line_end
        added = line_end.join(lines)
        added = f"{added}{line_end}" if written else f"{line_end}{added}"
        return [(next_line, next_line, added)]

    def _add_to_flow(self, value: Any) -> list[Splice]:
        node, text = self._node, self._text
        entry = self._flow_entry(value)
        if not node.members:
            return [(node.opening, node.opening, entry)]
        last_key, last = node.members[-1]
        gap = text[last.end : node.end - 1]
        if not (self._begins_line(last_key.start) and _LINE_END.search(gap)):
            return [(last.end, last.end, f", {entry}")]
        next_line, line_end = self._next_line(last.end)
        indentation = text[self._line_start(last_key.start) : last_key.start]
        is_ended = gap.lstrip().startswith(",")
        added = f"{indentation}{entry}{',' if is_ended else ''}{line_end}"
        comma = [] if is_ended else [(last.end, last.end, ",")]
        return [*comma, (next_line, next_line, added)]

    def _flow_entry(self, value: Any) -> str:
        quoted = self._is_quoted
        if self.missing == (APPENDED,):
            return _scalar(value, "", quoted)
        keys = [_scalar(key, "", quoted) for key in map(str, self.missing)]
        return f"{': {'.join(keys)}: {_scalar(value, '', quoted)}{'}' * (len(keys) - 1)}"

    @property
    def _is_quoted(self) -> bool:
        """Whether keys and text have double quotes here, as in JSON."""
        nodes = (self._node, *(node for node, _, _ in reversed(self._ancestors)))
        nearest = next((node for node in nodes if node.is_map and node.members), None)
        return nearest is not None and nearest.opening > 0 and nearest.members[0][0].style == '"'

    def remove(self) -> list[Splice]:
        """Return how the text becomes one without the field, or without what is empty then."""
        while True:
            above, _, value = self._ancestors.pop()
            part = self._parts[len(self._ancestors) - 1] if self._ancestors else None
            if len(above.members) > 1 or part not in OPTIONAL:
                break
        at = next(index for index, member in enumerate(above.members) if member[1] is value)
        spans = [(self._start(above, first), last.end) for first, last in above.members]
        start, end = spans[at]
        if len(spans) == 1:
            return self._empty(above, start, end)
        if above.opening:
            return self._remove_from_flow(spans, at)
        if self._begins_line(start):
            return self._remove_lines(start, end)
        following, (next_line, line_end) = spans[at + 1][0], self._next_line(end)
        if not self._text[next_line:following].strip():
            return [(start, following, "")]
        dash = len(self._text[:start].rstrip(" \t"))
        return [(dash, next_line - len(line_end), "")]

    def _start(self, above: _Node, first: _Node) -> int:
        """Return where a key, or an item with its dash, starts."""
        return first.start if above.is_map or above.opening else self._text.rindex("-", 0, first.start)

    def _remove_lines(self, start: int, end: int) -> list[Splice]:
        start = self._line_start(start)
        if end and self._text[end - 1] in "\r\n":
            return [(start, end, "")]
        next_line, line_end = self._next_line(end)
        if not line_end:  # the last line of the file has no end: its predecessor has none then
            start = len(self._text[:start].removesuffix("\n").removesuffix("\r"))
        return [(start, next_line, "")]

    def _remove_from_flow(self, spans: Sequence[tuple[int, int]], at: int) -> list[Splice]:
        (start, end), is_last = spans[at], at + 1 == len(spans)
        between = (spans[at - 1][1], start) if is_last else (end, spans[at + 1][0])
        if self._text[slice(*between)].strip().strip(","):
            raise NotEditableError(f"{field_path(self._parts)} has a comment beside it in brackets")
        return [(between[0], end, "")] if is_last else [(start, between[1], "")]

    def _empty(self, above: _Node, start: int, end: int) -> list[Splice]:
        """Leave `{}` of a map, or `[]` of a list, with one member."""
        if above.opening:
            return [(above.opening, above.end - 1, "")]
        empty = "{}" if above.is_map else "[]"
        if self._ancestors and self._begins_line(start) and self._ancestors[-1][0].is_map:
            colon = _COLON.match(self._text, self._ancestors[-1][1].end)
            if colon is not None and colon.end() < self._line_start(start):
                return [(colon.end(), colon.end(), f" {empty}"), *self._remove_lines(start, end)]
        return [(start, end, empty)]

    @property
    def _indentation(self) -> int:
        """The indentation of a map in a map, as near to the place as there is one."""
        rest = [self._node, *(node for node, _, _ in reversed(self._ancestors))]
        for node in rest:
            for _, value in node.members:
                if node.is_map and value.is_map and not (node.opening or value.opening):
                    return value.column - node.column
                rest.append(value)
        return 2

    @property
    def _line_end(self) -> str:
        match = _LINE_END.search(self._text)
        return match[0] if match else "\n"

    def _line_start(self, at: int) -> int:
        return max(self._text.rfind("\n", 0, at), self._text.rfind("\r", 0, at)) + 1

    def _next_line(self, at: int) -> tuple[int, str]:
        """Return where the next line begins, and the end of this one, which the last line may lack."""
        match = _LINE_END.search(self._text, at)
        return (match.end(), match[0]) if match else (len(self._text), "")

    def _begins_line(self, at: int) -> bool:
        return not self._text[self._line_start(at) : at].strip()


def _child(node: _Node, part: str | float) -> tuple[_Node, _Node] | None:
    """Return the key (of a list the item) and the value."""
    if isinstance(part, int):
        return node.members[part] if not node.is_map and part < len(node.members) else None
    members = [member for member in node.members if node.is_map and member[0].text == part]
    if len(members) > 1:
        raise NotEditableError(f'the key "{part}" stands twice in one map')
    return members[0] if members else None


def _scalar(value: Any, style: str, is_quoted: bool) -> str:
    """Return the value as it is written in place of a scalar of this style, or beside keys in double quotes."""
    if isinstance(value, dict | list) and not is_quoted:
        return inline_yaml(value)
    if not isinstance(value, str):
        return json.dumps(value)
    if style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    if style != '"' and not is_quoted and _PLAIN.fullmatch(value) and is_text(value):
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())


class _Tree:
    """The nodes of one document with their marks in the whole text, and the names of its aliases."""

    def __init__(self, text: str, document: YamlDocument) -> None:
        self.aliases: set[str] = set()
        self._text, self._offset = text, document.span[0]
        rest = text[document.span[0] :]
        if rest.lstrip().startswith("{"):  # what YAML does not take of JSON, in as many characters
            rest = _ESCAPED_PAIR.sub("x" * 12, rest.replace("\t", " "))
        self._events: Iterator[Any] = yaml.parse(rest, Loader=EventLoader)
        start = document.span[0] + int(document.node.start_mark.index)
        self.root = _Node(-1, -1, 0)
        while self.root.start != start:  # other documents stand before it
            if isinstance(next(self._events), yaml.DocumentStartEvent):
                self.aliases.clear()
                self.root = self._node(next(self._events))

    def _node(self, event: Any) -> _Node:
        node = _Node(*self._span(event), event.start_mark.column)
        if isinstance(event, yaml.AliasEvent):
            self.aliases.add(str(event.anchor))
            node.alias = event.anchor
            return node
        node.anchor = event.anchor
        if isinstance(event, yaml.ScalarEvent):
            node.text, node.style = event.value, event.style or ""
            written = self._text[node.start : node.end]
            if node.style in {"|", ">"} and "+" not in written.split("\n", 1)[0].split("#", 1)[0]:
                node.end = node.start + len(written.rstrip())
            return node
        node.opening = node.end if event.flow_style else 0
        node.is_map = isinstance(event, yaml.MappingStartEvent)
        inner: Any = next(self._events)
        while not isinstance(inner, yaml.CollectionEndEvent):
            first = self._node(inner)
            node.members.append((first, self._node(next(self._events)) if node.is_map else first))
            inner = next(self._events)
        node.end = self._span(inner)[1]
        if node.members:
            node.column = node.members[0][0].column
            node.end = node.end if node.opening else node.members[-1][1].end
        return node

    def _span(self, event: Any) -> tuple[int, int]:
        return event.start_mark.index + self._offset, event.end_mark.index + self._offset
