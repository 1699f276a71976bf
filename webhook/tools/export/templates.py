"""Exported rules as CEL: templates in `templates/`, a file per rule, and facts, which are CEL made of the tables of the rules.

`${name}` is a fact, a part or a sentence; `${name: a; b}` is one with `a` for `$1` and `b` for `$2`. Lines after the first are
indented like the line where it stands. What has `${list}` is repeated for each list of containers. Of the variables a policy gets
those that it mentions, in the order in which they are written.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

import msgspec
import yaml
from msgspec.structs import replace

from webhook.tools.export.cel import text

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
        findings = tuple(filling.of_lists([each]) for each in policy.findings)
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
