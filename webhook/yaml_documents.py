"""Read multi-document YAML (or JSON) and remember on which line everything stands.

Values are what kubectl makes of them: YAML 1.1, with dates left as text. Beyond PyYAML, duplicate keys are errors, and
aliases cannot blow a small file up to gigabytes.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

NODE_LIMIT = 500_000
"""Values of one document with its aliases written out; the API server takes at most 3 MiB of them."""

Parts = tuple[str | int, ...]


class YamlError(Exception):
    """The text is no YAML, or YAML that must not be used. `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class YamlDocument(msgspec.Struct, frozen=True):
    """One document: its plain data, and its node tree for line numbers."""

    data: Any
    node: yaml.Node

    @property
    def start_line(self) -> int:
        return int(self.node.start_mark.line) + 1

    def line_of(self, parts: Parts) -> int:
        """Return the line of the value at `parts`, or of the nearest thing above it that exists."""
        node = self.node
        line = self.start_line
        for part in parts:
            found = _child(node, part)
            if found is None:
                break
            line, node = found
        return line


class _Loader(yaml.SafeLoader):
    """SafeLoader without timestamps: kubectl turns them into text as well."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_documents(text: str) -> Iterator[YamlDocument]:
    """Yield the documents of `text` that are not empty; raise `YamlError` at the first that cannot be read."""
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                continue
            _refuse_bombs(node)
            _refuse_duplicates(node, set())
            data = loader.construct_document(node)
            if data is not None:
                yield YamlDocument(data, node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(mark.line + 1 if mark else 1, _told(error)) from None
    except yaml.YAMLError as error:
        raise YamlError(1, str(error).replace("\n", " ")) from None
    except (ValueError, OverflowError, RecursionError) as error:
        # Implicit numbers such as a 5000-digit integer, and nesting without end.
        raise YamlError(loader.line + 1, f"a value cannot be read: {error}") from None
    finally:
        loader.dispose()


def _told(error: yaml.MarkedYAMLError) -> str:
    return ", ".join(part for part in (error.context, error.problem) if part)


def _child(node: yaml.Node, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return int(key.start_mark.line) + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        value = node.value[part]
        return int(value.start_mark.line) + 1, value
    return None


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _refuse_bombs(root: yaml.Node) -> None:
    """Count every node as often as aliases make it appear, each distinct node being looked at once."""
    sizes: dict[int, int] = {}
    stack: list[tuple[yaml.Node, bool]] = [(root, False)]
    open_nodes: set[int] = set()
    while stack:
        node, leaving = stack.pop()
        if leaving:
            open_nodes.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(child)] for child in _children(node))
            if sizes[id(node)] > NODE_LIMIT:
                raise YamlError(root.start_mark.line + 1, f"has more than {NODE_LIMIT} values once aliases are written out")
        elif id(node) in open_nodes:
            raise YamlError(node.start_mark.line + 1, "contains itself through an alias")
        elif id(node) not in sizes:
            open_nodes.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in _children(node))


def _refuse_duplicates(node: yaml.Node, seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, _value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    raise YamlError(key.start_mark.line + 1, f'the key "{key.value}" is there twice')
                keys.add(key.value)
    for child in _children(node):
        _refuse_duplicates(child, seen)
