"""Exported rules as CEL: literals and conditions, and templates with facts, which are CEL made of the tables of the rules.

`templates/` has a file per rule. `${name}` is a fact, a part or a sentence; `${name: a; b}` is one with `a` for `$1` and `b` for
`$2`. Lines after the first are indented like the line where it stands. What has `${list}` is repeated for each list of
containers. Of the variables a policy gets those that it mentions, in the order in which they are written.
"""

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import msgspec
import yaml
from msgspec.structs import replace

LIST_WIDTH = 110
MAX_ALTERNATIVES = 20
"""Globs in one regular expression."""
NAME_CHARACTERS = f"{string.ascii_letters}{string.digits}./_-"
"""Those of namespaces and resources. The - is last, where `[…]` takes it for itself."""
_META = re.compile(r"[*?\[]")
# In `r'…'`, which can hold neither a quote nor a line end.
_SPECIAL = str.maketrans({c: f"\\{c}" for c in r"\.^$*+?()[]{}|"} | {"'": r"\x27", "\n": r"\n", "\r": r"\r"})
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def text(value: str) -> str:
    """Return the string as a CEL literal."""
    characters = (_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in value)
    return f"'{''.join(characters)}'"


def literal(value: Any) -> str:
    """Return plain data as a CEL literal: maps with an entry a line, long lists on several lines."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        return str(value).lower()
    if isinstance(value, Mapping):
        entries = ",\n  ".join(f"{text(key)}: {literal(each)}" for key, each in value.items())
        return f"{{\n  {entries}}}"
    lines = [""]
    for item in map(literal, value):
        if lines[-1] and len(lines[-1]) + len(item) > LIST_WIDTH:
            lines.append("")
        lines[-1] += f", {item}" if lines[-1] else item
    joined = ",\n  ".join(lines)
    return f"[{joined}]"


def glob_regex(glob: str) -> str:
    """Return a shell glob (`fnmatch`: `*`, `?`, `[a-z]`, `[!a-z]`) as an RE2 expression without anchors."""
    regex, at = "", 0
    while at < len(glob):
        character, at = glob[at], at + 1
        end = glob.find("]", at + 1 + glob.startswith("!", at)) if character == "[" else -1
        if character == "*":
            regex += ".*"
        elif character == "?":
            regex += "."
        elif end > 0:
            # RE2 refuses some ranges that fnmatch accepts, such as z-a, so list the characters.
            fitting = "".join(c for c in NAME_CHARACTERS if fnmatchcase(c, glob[at - 1 : end + 1]))
            regex, at = f"{regex}[{fitting or f'^{NAME_CHARACTERS}'}]", end + 1
        else:
            regex += character.translate(_SPECIAL)
    return regex


def glob_cel(subject: str, globs: Iterable[str]) -> str:
    """Return the condition that one of the globs fits the text `subject`; `true` where `*` is among them."""
    globs = list(dict.fromkeys(globs))
    if "*" in globs:
        return "true"
    plain = [glob for glob in globs if not _META.search(glob)]
    regexes = [glob_regex(glob) for glob in globs if _META.search(glob)]
    # A literal cannot be folded: a long one becomes several.
    parts = (regexes[at : at + MAX_ALTERNATIVES] for at in range(0, len(regexes), MAX_ALTERNATIVES))
    ways = [f"{subject} in {literal(plain)}"] if plain else []
    ways += (f"{subject}.matches(r'^({'|'.join(part)})$')" for part in parts)
    return " || ".join(ways) or "false"


Facts = Mapping[str, str]

FOLDER = resources.files("webhook.tools.export") / "templates"
SHARED = "shared"
EPHEMERAL = "ephemeralContainers"

_PLACEHOLDER = re.compile(r"\$\{([\w.-]+)(?:: ((?:[^{}]|\$\{[^{}]*\})*))?\}")
_VARIABLE = re.compile(r"\bvariables\.(\w+)")


class Fragment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule in CEL, or a part of it: one API server policy, which has either findings or a patch.

    In a file it has placeholders, names of conditions, the cheapest first, and its own variables before those of the file.
    """

    part: str
    """Distinguishes the fragments of one rule in the names of the objects."""
    description: str
    reviews: str = "creations"
    conditions: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    findings: tuple[str, ...] = ()
    """Of a ValidatingAdmissionPolicy: lists of sentences. The request is in order where all are empty."""
    patch: str = ""
    """Of a MutatingAdmissionPolicy: a list of JSONPatch operations."""


class SentenceTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parts that `Finding.sentence` joins, in CEL; `value` with its ` = ` and quotes. Large pods get none."""

    path: str
    message: str
    container: str = ""
    value: str = ""
    remedy: str = ""

    def expression(self, rule: str) -> str:
        container = f"""' (container "' + {self.container} + '")'""" if self.container else ""
        remedy = f"{self.remedy} + '; '" if self.remedy else ""
        parts = (self.path, container, self.value, "': '", remedy, self.message, text(f" [{rule}]"))
        return f"(variables.isLarge ? '.' : {' + '.join(filter(None, parts))})"


class TemplateFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file in `templates/`: CEL by name."""

    policies: tuple[Fragment, ...] = ()
    conditions: dict[str, str] = {}
    variables: dict[str, str] = {}
    parts: dict[str, str] = {}
    sentences: dict[str, SentenceTemplate] = {}


@cache
def template_file(name: str) -> TemplateFile:
    return msgspec.convert(yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8")), TemplateFile)


def fragments(rule: str, facts: Facts) -> Iterator[Fragment]:
    """Yield the policies of the rule, filled with the facts."""
    shared, own = template_file(SHARED), template_file(rule)
    sentences = {name: sentence.expression(rule) for name, sentence in own.sentences.items()}
    conditions, variables = shared.conditions | own.conditions, shared.variables | own.variables
    texts = {**conditions, **shared.parts, **own.parts, **sentences, **facts}
    for policy in own.policies:
        lists = (EPHEMERAL,) if policy.reviews == EPHEMERAL else ("containers", "initContainers")
        filling = _Filling(texts, lists)
        findings = tuple(filling.of_lists([finding]) for finding in policy.findings)
        patch = filling.of_lists([policy.patch])
        own_variables = policy.variables | {k: v for k, v in variables.items() if k not in policy.variables}
        yield replace(
            policy,
            conditions=tuple(filling.of_lists([conditions[name]]) for name in policy.conditions),
            variables=filling.mentioned(own_variables, "\n".join([*findings, patch])),
            findings=findings,
            patch=patch,
        )


def fill(template: str, facts: Facts) -> str:
    return _Filling(facts, ("",)).of_lists([template])


class _Filling(NamedTuple):
    texts: Facts
    lists: tuple[str, ...]

    def of_lists(self, templates: Iterable[str]) -> str:
        """Return the sum of the templates, each filled for each list of containers that it names."""
        filled = (self._filled(template, at) for template in templates for at in self.lists)
        return " +\n".join(dict.fromkeys(filled))

    def mentioned(self, variables: Facts, expression: str) -> dict[str, str]:
        """Return the variables that the expression needs, each after those that it needs itself."""
        needed: dict[str, str] = {}
        for name, template in reversed(list(variables.items())):
            if name in _VARIABLE.findall("\n".join([expression, *needed.values()])):
                needed[name] = self.of_lists([template])
        return dict(reversed(needed.items()))

    def _filled(self, template: str, containers: str) -> str:
        def found(match: re.Match[str]) -> str:
            name, arguments = match[1], match[2]
            if name == "list":
                return containers
            inner = self.texts[name]
            for number, argument in enumerate(arguments.split("; ") if arguments else (), start=1):
                inner = inner.replace(f"${number}", argument)
            before = template[template.rfind("\n", 0, match.start()) + 1 : match.start()]
            indent = " " * (len(before) - len(before.lstrip(" ")))
            return self._filled(inner, containers).replace("\n", f"\n{indent}")

        return _PLACEHOLDER.sub(found, template)
