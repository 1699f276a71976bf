"""What pages and schemas say of each rule: when it runs, its default mode, and its options with their defaults."""

from collections.abc import Iterator
from typing import Any

import msgspec

from policies.registry import RULES
from policies.rule import Rule


def default_mode(rule: Rule) -> str:
    return rule.options().mode.value


def options(rule: Rule) -> Iterator[dict[str, Any]]:
    defaults = msgspec.to_builtins(rule.options())
    for field in msgspec.structs.fields(rule.options):
        yield {"name": field.encode_name, "default": defaults[field.encode_name]}


def phases(rule: Rule) -> list[str]:
    """Return when the rule runs; a rule that only mutates also runs on /validate and templates, to report missing changes."""
    runs = {
        "mutate": rule.mutate is not None or rule.check_before_mutation,
        "validate": True,
        "templates": rule.mutate is not None or rule.check is not None,
        "update": rule.on_update,
    }
    return [phase for phase, does_run in runs.items() if does_run]


def catalogue_table() -> str:
    rows = (
        f"| `{rule.id}` | {default_mode(rule)} | {', '.join(phases(rule))} | {rule.summary} |\n"
        for rule in RULES
    )
    return "".join(("| rule | default mode | runs on | in short |\n|---|---|---|---|\n", *rows))
