"""What `make manifests` writes of a new rule into the files that list every rule: its schema, and its mode in both presets.

What a file says of a rule that it has already stays: descriptions and examples are written by hand.
"""

import re
import types
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import msgspec

from policies.registry import RULES
from policies.rule import Rule
from webhook.commands.output import as_yaml
from webhook.commands.rules import default_mode, options

ROOT = Path(__file__).parents[2]
CRD = ROOT / "deploy" / "chart" / "files" / "crds" / "gpupolicies.yaml"
FIRST_INSTALL = ROOT / "deploy" / "chart" / "values-first-install.yaml"
AUDIT = ROOT / "examples" / "policies-audit" / "policy.yaml"
PAGE = ROOT / "docs" / "reference" / "rules" / "README.md"

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def with_every_rule(path: Path) -> str:
    """Return the file with the rules that it lacks, each before the one that runs after it."""
    write, indent, begin = _WRITERS[path]
    text = path.read_text()
    start = re.search(rf"^{begin}", text, re.MULTILINE)
    assert start is not None
    head, rules = text[: start.end()], text[start.end() :]
    end = re.search(rf"^ {{0,{indent - 1}}}\S", rules, re.MULTILINE)
    at = end.start() if end else len(rules)
    for rule in reversed(RULES):
        found = re.search(rf"^ {{{indent}}}{rule.id}:", rules, re.MULTILINE)
        if found is None:
            rules = rules[:at] + write(rule) + rules[at:]
        else:
            at = found.start()
    return head + rules


def preset(indent: int) -> Callable[[Rule], str]:
    return lambda rule: f"{' ' * indent}{rule.id}: {{mode: audit}}\n"


def schema(rule: Rule) -> str:
    """Return the schema of a rule; what its options mean is in their rows of docs/reference/rules/README.md."""
    section = PAGE.read_text().partition(f"\n## {rule.id}\n")[2].partition("\n## ")[0]
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(rule.options)}
    lines = [
        f"{rule.id}:",
        f"  description: {_quoted(f'{rule.summary}; default mode {default_mode(rule)}')}",
        "  type: object",
        "  x-kubernetes-preserve-unknown-fields: true",
        "  properties:",
        "    mode: *mode",
    ]
    for option in options(rule):
        name = option["name"]
        if name != "mode":
            row = re.search(rf"^\| `{name}` \|[^|]*\| (.*) \|$", section, re.MULTILINE)
            if row is None:
                raise SystemExit(f"{PAGE.relative_to(ROOT)} must have a row for option {name} of {rule.id}")
            meaning = f"{row[1].replace('`', '')}; default {as_yaml(option['default'])}"
            words = {**_type(fields[name]), "description": _quoted(meaning)}
            lines += [f"    {name}:", *(f"      {word}: {value}" for word, value in words.items())]
    return "".join(f"{' ' * 18}{line}\n" for line in lines)


def _type(kind: Any) -> dict[str, str]:
    """Return the words of a schema for a type; the webhook validates what one type cannot say."""
    origin, arguments = get_origin(kind), set(get_args(kind))
    if origin in {Union, types.UnionType}:
        nullable = {"nullable": "true"} if type(None) in arguments else {}
        (first, *others) = arguments - {type(None)}
        if arguments >= {int, str}:
            return {"x-kubernetes-int-or-string": "true", **nullable}
        return {**({"x-kubernetes-preserve-unknown-fields": "true"} if others else _type(first)), **nullable}
    if origin is tuple:
        return {"type": "array", "items": f"{{{_flow(_type(get_args(kind)[0]))}}}"}
    if origin in {dict, Mapping}:
        return {"type": "object", "additionalProperties": f"{{{_flow(_type(get_args(kind)[1]))}}}"}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": f"[{', '.join(str(each.value) for each in kind)}]"}
    return {"type": _TYPES[kind]} if kind in _TYPES else {"x-kubernetes-preserve-unknown-fields": "true"}


def _flow(words: Mapping[str, str]) -> str:
    return ", ".join(f"{word}: {value}" for word, value in words.items())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_WRITERS: dict[Path, tuple[Callable[[Rule], str], int, str]] = {
    CRD: (schema, 18, " {16}properties:\n(?= {18}gpu-requests:)"),
    FIRST_INSTALL: (preset(6), 6, " {4}rules:\n"),
    AUDIT: (preset(4), 4, " {2}rules:\n"),
}
"""By the files: what writes a rule, how far it is indented there, and the line before the first."""
LISTINGS = tuple(_WRITERS)
