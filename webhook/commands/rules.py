"""`gpu-admission rules`: the rules with their contracts and options, and which rules give a reason."""

import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from inspect import cleandoc
from typing import Annotated, Any, Union, get_args, get_origin

import click
import msgspec

from policies.finding import Reason
from policies.gpus.limit_range_findings import ID as LIMIT_RANGE
from policies.pods.limits import ID as LIMITS
from policies.quota.spec import RESOURCE_QUOTA
from policies.registry import RULES, RULES_BY_ID, RULES_BY_REASON
from policies.rule import Rule
from webhook.commands.options import completed, output_option
from webhook.commands.output import Screen, as_yaml, print_as
from webhook.configuration.documents import CONFIGURATION
from webhook.workloads.references import ID as WORKLOADS

MAX_MATCHES = 3
"""Names that a misspelt one may mean."""
_LINE = re.compile(r"(\s*)((?:\S+\s{2,})?)(.*)")
"""Indentation, a label with the gap behind it, and the rest."""

TYPE_NAMES: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    type(None): "null",
}

NON_RULES = {
    LIMITS: "lists and texts of an object are no longer than a review can read; no policy changes that",
    LIMIT_RANGE: "a LimitRange of the namespace gives the pod GPUs, or rejects it; those who may write it can change that",
    RESOURCE_QUOTA: "a key of a ResourceQuota limits no GPU, or counts pods that wait in line",
    WORKLOADS: "an object names GPUs where gpu-admission finds no pods",
    CONFIGURATION: "an object of gpu-admission.dev is valid and in force",
}
"""What else stands in brackets behind a message, and what it is about."""
NAMES = (*RULES_BY_ID, *NON_RULES, *(reason.name for reason in RULES_BY_REASON))


@click.command()
@click.argument("name", metavar="[RULE | REASON]", required=False, shell_complete=completed(lambda _: NAMES))
@output_option()
def rules(name: str | None, output: str) -> None:
    """Show all rules, one with its options, or those of a reason.

    A RULE is shown with its contract and options; of a REASON, such as FractionalGPU, the rules that give it.

    Exit codes: 0, or 2 if there is no such RULE or REASON.
    """
    reason = next((rule for rule in RULES_BY_REASON if rule.name == name), None)
    if name in RULES_BY_ID:
        rule = RULES_BY_ID[name]
        print_as(output, document(rule), lambda screen: _print_rule(screen, rule))
        return
    if name in NON_RULES:
        text = f"{NON_RULES[name][0].upper()}{NON_RULES[name][1:]}. It belongs to no rule: it has no mode and no options."
        print_as(
            output,
            {"id": name, "summary": NON_RULES[name]},
            lambda screen: _print_bracket(screen, name, text),
        )
        return
    if name is not None and reason is None:
        raise click.UsageError(_unknown_message(name))
    chosen = tuple(RULES_BY_ID[rule] for rule in RULES_BY_REASON[reason]) if reason else RULES
    about = {"reason": reason.name, "meaning": reason.meaning} if reason else {}
    listed = {**about, "rules": [document(rule) for rule in chosen]}
    print_as(output, listed, lambda screen: _print_rules(screen, chosen, reason))


def _print_bracket(screen: Screen, name: str, text: str) -> None:
    screen.line(name, "bold")
    screen.paragraph(text, hanging=0)


def _unknown_message(name: str) -> str:
    """Return that there is no such rule or reason, and the names that are like it, in whatever case."""
    known = {name.lower(): name for name in NAMES}
    close = [known[match] for match in get_close_matches(name.lower(), known, n=MAX_MATCHES)]
    hint = f"did you mean {' or '.join(close)}?" if close else "`gpu-admission rules` lists the rules"
    return f'unknown rule or reason "{name}"; {hint}'


def _print_rules(screen: Screen, chosen: Sequence[Rule], reason: Reason | None) -> None:
    if reason:
        screen.line(reason.name, "bold")
        screen.paragraph(f"{reason.meaning[0].upper()}{reason.meaning[1:]}.", hanging=0)
        screen.line()
    column = max((len(rule.id) for rule in chosen), default=0) + 2
    for rule in chosen:
        screen.line(f"{rule.id:<{column}}{default_mode(rule)}; runs on {', '.join(phases(rule))}", "bold")
        screen.paragraph(rule.summary, indent=column, hanging=0)
    if not chosen:
        screen.paragraph("No rule gives this reason: gpu-admission as a whole does.", hanging=0)
        return
    screen.line()
    screen.paragraph(
        "Rules run in this order. gpu-admission rules RULE shows one with its options.", hanging=0
    )


def _print_rule(screen: Screen, rule: Rule) -> None:
    screen.line(rule.id, "bold")
    screen.paragraph(f"Runs on {', '.join(phases(rule))}; by default {default_mode(rule)}.", hanging=0)
    screen.line()
    for hanging, text in blocks(description(rule)):
        screen.paragraph(text, hanging=hanging)
    screen.heading("Options")
    rows = [(each["name"], f"{each['type']} (default {as_yaml(each['default'])})") for each in options(rule)]
    screen.table(rows)


def document(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "summary": rule.summary,
        "phases": phases(rule),
        "defaultMode": default_mode(rule),
        "description": description(rule),
        "options": list(options(rule)),
    }


def phases(rule: Rule) -> list[str]:
    """Return when the rule runs; a rule that only mutates also runs on /validate and templates, to report missing changes."""
    runs = {
        "mutate": rule.mutate is not None or rule.check_before_mutation,
        "validate": True,
        "templates": rule.mutate is not None or rule.check is not None,
        "update": rule.checks_updates,
    }
    return [phase for phase, does_run in runs.items() if does_run]


def default_mode(rule: Rule) -> str:
    return rule.options().mode.value


def description(rule: Rule) -> str:
    """Return the docstring of the rule's file, which is its contract."""
    home = rule.mutate or rule.check or rule.options
    return cleandoc(sys.modules[home.__module__].__doc__ or rule.summary)


def blocks(text: str) -> list[tuple[int, str]]:
    """Return the paragraphs of a contract with their hanging indent (`Reads:   …`), so that they can be wrapped again."""
    paragraphs: list[tuple[int, str]] = []
    for line in text.splitlines():
        start, label, content = _LINE.findall(line)[0]
        if paragraphs and paragraphs[-1][1] and content and not label and len(start) == paragraphs[-1][0]:
            paragraphs[-1] = (paragraphs[-1][0], f"{paragraphs[-1][1]} {content}")
        else:
            paragraphs.append((len(start + label), line))
    return paragraphs


def options(rule: Rule) -> Iterator[dict[str, Any]]:
    defaults = msgspec.to_builtins(rule.options())
    for field in msgspec.structs.fields(rule.options):
        name = field.encode_name
        yield {"name": name, "type": type_name(field.type), "default": defaults[name]}


def type_name(kind: Any) -> str:
    """Return a type in words: `list of text`, `enforce|warn|audit|disabled`, `whole number or null`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        return " or ".join(type_name(argument) for argument in arguments)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin in {tuple, dict, Mapping}:
        word, item = ("list", arguments[0]) if origin is tuple else ("map", arguments[1])
        return f"{word} of {type_name(item)}"
    if issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    if issubclass(kind, msgspec.Struct):
        return "{" + ", ".join(field.encode_name for field in msgspec.structs.fields(kind)) + "}"
    return TYPE_NAMES[kind]
