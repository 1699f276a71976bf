"""Multi-document YAML or JSON as plain data, with the line of every value.

Values are those of kubectl (sigs.k8s.io/yaml: YAML 1.1 as Go reads it, where `1e3` and `08` are numbers, `y` is true and
`12:30` is text). The last of duplicate keys counts, and the document lists them. Unlike kubectl, this limits aliases: they
cannot make gigabytes of a small file.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import yaml

from policies.pods.field_paths import Parts
from policies.printable import printable_lines, printable_yaml

ALIAS_LIMIT = 4 * 1024 * 1024
"""Characters and values that aliases may add to a document; the API server takes at most 3 MiB of an object."""

DEPTH_LIMIT = 200
"""Levels of nesting; no schema of the API comes near it."""

_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(?:0[bB][01]+|0[oO]?[0-7]+|0[xX][0-9a-fA-F]+|0|[1-9][0-9]*)")
_OCTAL = re.compile(r"[-+]?0[0-7]")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_STRAY_UNDERSCORE = re.compile(r"_|\..*(?:_(?![0-9])|(?<![0-9])_)", re.DOTALL)
"""After a leading point Go wants digits on both sides of an underscore."""
_BOOLEAN = re.compile(r"[yY]|yes|Yes|YES|true|True|TRUE|on|On|ON|[nN]|no|No|NO|false|False|FALSE|off|Off|OFF")
_INTEGRAL_FLOAT_LIMIT = 1e21
"""Up to here Go writes a whole float64 as an integer, so that is what the API server reads."""

_JSON_AHEAD = re.compile(r"[\ufeff\s]*(?=\{)")
_SEPARATOR = re.compile(r"---(\s|$)")
_JSON_ESCAPE = re.compile(r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|.)")

TAB = "must be indented with spaces: YAML takes no tab here"


class YamlError(Exception):
    """The text is not valid YAML, or exceeds a limit. `line` and `column` count from 1; column 0 is the whole line."""

    def __init__(self, line: int, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class YamlDocument(msgspec.Struct, frozen=True):
    """One document: its plain data, its node tree for line numbers, and the number of lines above it in the file.

    `duplicates` are errors for keys that a map has more than once: only the last one is in `data`.
    """

    data: Any
    node: yaml.Node
    lines_above: int = 0
    span: tuple[int, int] = (0, 0)
    """The characters of the file from which it was read, perhaps with the separator; the tree's marks count from the first."""
    duplicates: tuple[YamlError, ...] = ()

    def line_of(self, parts: Parts) -> int:
        """Return the line of the value at `parts`, or of the nearest existing value above it."""
        return self.position_of(parts)[0]

    def position_of(self, parts: Parts) -> tuple[int, int]:
        """Return line and column, both from 1, where the key or the list item starts."""
        mark, node = self.node.start_mark, self.node
        for part in parts:
            child = _child(node, part)
            if child is None:
                break
            mark, node = child
        return int(mark.line) + self.lines_above + 1, int(mark.column) + 1


# libyaml is some ten times faster; PyYAML is built without it where there was no compiler.
EventLoader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_BaseDumper: Any = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


class _Loader(EventLoader):  # type: ignore[misc]  # one of two classes
    """SafeLoader that resolves plain scalars as kubectl does, and knows only what JSON has."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        if kind is yaml.ScalarNode and value is not None and implicit[0]:
            return _scalar_tag(value)
        return str(super().resolve(kind, value, implicit))

    def number(self, node: yaml.ScalarNode) -> int | float:
        value = _number(node.value)
        if value is None or not math.isfinite(value):
            raise _at(node, f'"{node.value[:40]}" must be a number that JSON can represent')
        return value

    def boolean(self, node: yaml.ScalarNode) -> bool:
        return node.value[0] in "yYtT" or node.value in {"on", "On", "ON"}

    def text(self, node: yaml.ScalarNode) -> str:
        value = str(self.construct_scalar(node))
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise _at(node, "text must not contain half of a surrogate pair")
        return value


_Loader.yaml_constructors = {
    f"{_TAG}null": yaml.SafeLoader.construct_yaml_null,
    f"{_TAG}bool": _Loader.boolean,
    f"{_TAG}int": _Loader.number,
    f"{_TAG}float": _Loader.number,
    f"{_TAG}str": _Loader.text,
    f"{_TAG}timestamp": _Loader.text,
    f"{_TAG}merge": _Loader.text,  # as a key it never gets here
    f"{_TAG}seq": yaml.SafeLoader.construct_yaml_seq,
    f"{_TAG}map": yaml.SafeLoader.construct_yaml_map,
    None: yaml.SafeLoader.construct_undefined,
}


class _Dumper(_BaseDumper):  # type: ignore[misc]  # one of two classes
    """SafeDumper that quotes text which kubectl or another YAML 1.1 parser would not read as text."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        if kind is yaml.ScalarNode and value is not None and implicit[0]:
            tag = _scalar_tag(value)
            if tag != f"{_TAG}str":
                return tag
        return str(super().resolve(kind, value, implicit))

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True

    def text(self, value: str) -> Any:
        # A block keeps a script readable; PyYAML falls back to quotes where a block cannot hold the text.
        style = "|" if "\n" in value else None
        return self.represent_scalar(
            f"{_TAG}str", value, style=style if printable_lines(value) == value else '"'
        )


_Dumper.yaml_representers = {**yaml.SafeDumper.yaml_representers, str: _Dumper.text}


def dump_document(data: Any) -> str:
    """Return plain data as one YAML document, in the order of its keys, that reads back as the same data."""
    return printable_yaml(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4096))


def load_documents(
    text: str, shortened: Callable[[str], str] = str, *, aliases: int = ALIAS_LIMIT
) -> Iterator[YamlDocument | YamlError]:
    """Yield the documents of `text` that are not empty, and the errors of invalid documents.

    `shortened` may cut parts of the text of each document, but no line ends. `aliases` may add so many characters and values.
    """
    for span, lines_above, segment_text in _segments(text):
        segment = shortened(segment_text)
        try:
            _check_depth(segment)
            yield from _load(segment, lines_above, span, aliases)
        except yaml.MarkedYAMLError as error:
            located = _located(error, lines_above)
            mark = error.problem_mark
            # The mark may be behind the end of a line or of the text.
            if mark and "".join(segment.split("\n")[mark.line : mark.line + 1])[mark.column :].startswith(
                "\t"
            ):
                located = YamlError(located.line, TAB, located.column)
            last = lines_above + segment.rstrip().count("\n") + 1
            if located.line > last:  # an end is missing: on the last line, not below it
                located.line, located.column = last, 0
            yield located
        except yaml.YAMLError as error:
            yield YamlError(lines_above + 1, str(error).replace("\n", " "))


Segment = tuple[tuple[int, int], int, str]
"""The span of a part of the text, with its last line end, the number of lines above, and the part."""


def _segments(text: str) -> Iterator[Segment]:
    """Cut the text where kubectl does, so that an error in one document does not hide the others."""
    position, line = 0, 0
    decoder = json.JSONDecoder()
    while match := _JSON_AHEAD.match(text, position):
        start = match.end()
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            break  # YAML may start with a brace, too
        line += text.count("\n", position, start)
        yield (start, end), line, _json_as_yaml(text[start:end])
        line += text.count("\n", start, end)
        position = end
    yield from _yaml_segments(text[position:], position, line)


def _yaml_segments(text: str, offset: int, line: int) -> Iterator[Segment]:
    start = line
    lines: list[str] = []
    content = False
    for number, content_line in enumerate(text.split("\n"), start=line):
        if _SEPARATOR.match(content_line) and content:
            segment = "\n".join(lines)
            end = offset + len(segment) + 1
            yield (offset, end), start, segment
            offset, start, lines, content = end, number, [], False
        lines.append(content_line)
        # Comments and directives (%YAML) stay with the document below them.
        content = content or (bool(content_line.strip()) and content_line[0] not in "#%")
    segment = "\n".join(lines)
    yield (offset, offset + len(segment)), start, segment


def _json_as_yaml(text: str) -> str:
    # YAML parsers reject two things that JSON allows: tabs between values, and characters written as two escapes.
    def joined(match: re.Match[str]) -> str:
        high, low = match.groups()
        if high is None:
            return match[0]
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)

    return _JSON_ESCAPE.sub(joined, text.replace("\t", " "))


def _load(
    text: str, lines_above: int, span: tuple[int, int], aliases: int
) -> Iterator[YamlDocument | YamlError]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if "*" in text:  # a tree without aliases is at most as large as its text
                _check_size(node, aliases + 2 * len(text))
            # Before construction, which adds the keys of a merge (`<<`) beside the keys that override them.
            duplicates = tuple(_located(error, lines_above) for error in _duplicates(node))
            data = loader.construct_document(node)
            if data is not None:
                yield YamlDocument(data, node, lines_above, span, duplicates)
    finally:
        loader.dispose()


def _located(error: yaml.MarkedYAMLError, lines_above: int) -> YamlError:
    mark = error.problem_mark or error.context_mark
    message = ", ".join(part for part in (error.context, error.problem) if part)
    if mark is None:
        return YamlError(lines_above + 1, message)
    return YamlError(lines_above + mark.line + 1, message, mark.column + 1)


def is_text(plain: str) -> bool:
    """Whether kubectl reads a plain scalar as text."""
    return _scalar_tag(plain) == f"{_TAG}str"


def _scalar_tag(value: str) -> str:
    if value[:1] in "+-.0123456789" and value:
        number = _number(value)
        if number is not None:
            return f"{_TAG}int" if isinstance(number, int) else f"{_TAG}float"
        return f"{_TAG}str"
    if value in {"", "~", "null", "Null", "NULL"}:
        return f"{_TAG}null"
    if _BOOLEAN.fullmatch(value):
        return f"{_TAG}bool"
    return f"{_TAG}merge" if value == "<<" else f"{_TAG}str"


def _number(text: str) -> int | float | None:
    """Return the number that Go's YAML reads in `text`, None where it sees text."""
    if _NOT_FINITE.fullmatch(text):
        return math.nan
    plain = text.replace("_", "")
    if not plain.isascii() or _STRAY_UNDERSCORE.match(text):
        return None
    if _INTEGER.fullmatch(plain) and len(plain) <= 64 + 3:
        # int(…, 0) refuses the octal of YAML 1.1 and Go, 017.
        value = int(plain, 8 if _OCTAL.match(plain) else 0)
        if -(2**63) <= value < 2**64:
            return value
    if not _FLOAT.fullmatch(plain):
        return None
    number = float(plain)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < _INTEGRAL_FLOAT_LIMIT else number


def _child(node: yaml.Node, part: str | int) -> tuple[Any, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        # From the end: the keys of a merge (`<<`) are in front of the keys that override them.
        for key, value in reversed(node.value):
            if key.value == str(part):
                return key.start_mark, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        value = node.value[part]
        return value.start_mark, value
    return None


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _check_size(root: yaml.Node, limit: int) -> None:
    """Raise if the tree, with aliases expanded, is over `limit`; each distinct node is visited once."""
    sizes: dict[int, int] = {}
    stack: list[tuple[yaml.Node, bool]] = [(root, False)]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
            sizes[id(node)] = 1 + own + sum(sizes[id(child)] for child in _children(node))
            if sizes[id(node)] > limit:
                raise _at(root, "must not exceed the size limit once its aliases are expanded")
        elif sizes.get(id(node)) == 0:
            raise _at(node, "must not contain itself through an alias")
        elif id(node) not in sizes:
            sizes[id(node)] = 0  # until all below it is known
            stack.append((node, True))
            stack.extend((child, False) for child in _children(node))


def _check_depth(text: str) -> None:
    """Composing is recursive: in libyaml's binding it would end the process instead of raising RecursionError."""
    depth = 0
    for event in yaml.parse(text, Loader=EventLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_LIMIT:
                raise _at(event, f"must not be nested deeper than {DEPTH_LIMIT} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _duplicates(root: yaml.Node) -> Iterator[yaml.MarkedYAMLError]:
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        keys: set[str] = set()
        for key, _value in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                if key.value in keys:
                    yield _at(key, f'Duplicate value: key "{key.value}"')
                keys.add(key.value)
        stack.extend(reversed(_children(node)))


def _at(where: Any, message: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=where.start_mark)
