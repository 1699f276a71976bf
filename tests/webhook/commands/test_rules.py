import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from policies.registry import RULES, RULES_BY_ID
from policies.rule import Rule
from tests.cases import cases
from webhook.commands import main
from webhook.commands.rules import blocks, phases, type_name

ROOT = Path(__file__).parents[3]


def rules(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["rules", *arguments])


def test_the_catalogue_has_every_rule_in_order() -> None:
    shown = rules().stdout.splitlines()

    assert [line.split()[0] for line in shown if line.split()[:1] and line.split()[0] in RULES_BY_ID] == [
        rule.id for rule in RULES
    ]
    assert max(len(line) for line in shown) <= 80
    words = " ".join(" ".join(shown).split())
    for rule in RULES:
        assert rule.summary in words


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.id))
def test_one_rule_with_its_contract_and_options(rule: Rule) -> None:
    result = rules(rule.id)

    assert result.exit_code == 0
    shown = result.stdout.splitlines()
    assert shown[0] == rule.id
    assert shown[1] == f"Runs on {', '.join(phases(rule))}; by default {rule.options().mode.value}."
    for field in msgspec.structs.fields(rule.options):
        assert any(line.startswith(f"  {field.encode_name} ") for line in shown)
    assert max(len(line) for line in shown) <= 80


NO_RULE = "It belongs to no rule: it has no mode and no options."


@cases(
    ("name", "want"),
    limits=("limits", "Lists and texts of an object are no longer than a review can read; no policy changes that."),
    limit_range=("limit-range",
        "A LimitRange of the namespace gives the pod GPUs, or rejects it; those who may write it can change that."),
    resource_quota=("resource-quota", "A key of a ResourceQuota limits no GPU, or counts pods that wait in line."),
    workloads=("workloads", "An object names GPUs where gpu-admission finds no pods."),
    configuration=("configuration", "An object of gpu-admission.dev is valid and in force."),
)  # fmt: skip
def test_what_else_stands_in_brackets(name: str, want: str) -> None:
    result = rules(name)

    assert " ".join(result.stdout.split()) == f"{name} {want} {NO_RULE}"
    assert result.exit_code == 0
    assert json.loads(rules(name, "-o", "json").stdout) == {
        "id": name,
        "summary": want[0].lower() + want[1:-1],
    }
    assert f"`{name}` (" in (ROOT / "docs" / "reference" / "rules" / "README.md").read_text()


def test_options_of_a_rule_have_their_types_and_defaults() -> None:
    assert rules("disruption").stdout.splitlines()[-3:] == [
        "",
        "Options",
        "  mode  enforce|warn|audit|disabled (default disabled)",
    ]


def test_json_of_one() -> None:
    shown = json.loads(rules("gpu-toleration", "-o", "json").stdout)

    assert shown["phases"] == ["mutate", "validate", "templates"]
    assert shown["description"].startswith(
        "Let GPU pods, and only GPU pods, onto tainted GPU nodes.\n\nReads: "
    )
    options = {option["name"]: option for option in shown["options"]}
    toleration = "list of {key, operator, value, effect, tolerationSeconds}"
    assert options["tolerations"] == {"name": "tolerations", "type": toleration, "default": []}
    modes = "enforce|warn|audit|disabled"
    assert options["mode"] == {"name": "mode", "type": modes, "default": shown["defaultMode"]}
    assert shown["defaultMode"] == "enforce"


def test_json_of_all_has_the_phases_that_follow_from_what_a_rule_does() -> None:
    listed = json.loads(rules("-o", "json").stdout)["rules"]
    shown = {each["id"]: each["phases"] for each in listed}

    assert list(shown) == [rule.id for rule in RULES]
    for each in listed:
        assert set(each) == {"id", "summary", "phases", "defaultMode", "description", "options"}
    for rule in RULES:
        assert ("mutate" in shown[rule.id]) is (rule.mutate is not None or rule.check_before_mutation)
        assert ("update" in shown[rule.id]) is (rule.checks_updates or rule.id == "gpu-quota")
        assert ("templates" in shown[rule.id]) is (rule.id != "gpu-quota")
    assert shown["gpu-quota"] == ["validate", "update"]


@cases(
    ("name", "want"),
    of_a_rule=("gpu-tolerations", "; did you mean gpu-toleration or "),
    of_a_reason=("fractionalgpu", "; did you mean FractionalGPU or "),
    of_several=("ExceedsMaxPer", "; did you mean ExceedsMaxPerPod or ExceedsMaxPerContainer or "),
    of_none=("x", "; `gpu-admission rules` lists the rules"),
)
def test_an_unknown_name(name: str, want: str) -> None:
    result = rules(name)

    assert result.exit_code == 2
    error = " ".join(result.stderr.split())
    assert f'Error: unknown rule or reason "{name}"{want}' in error


def test_a_reason_leads_to_its_rules() -> None:
    shown = rules("FractionalGPU").stdout

    assert shown == (
        "FractionalGPU\nAn amount of GPUs is not a whole number.\n\n"
        "gpu-requests  enforce; runs on mutate, validate, templates\n"
        "              GPU requests are whole, equal their limits, and can be met\n\n"
        "Rules run in this order. gpu-admission rules RULE shows one with its options.\n"
    )
    found = json.loads(rules("NoNode", "-o", "json").stdout)
    assert (found["reason"], [each["id"] for each in found["rules"]]) == (
        "NoNode",
        ["gpu-requests", "gpu-class", "gpu-toleration"],
    )
    assert rules("InvalidDocument").stdout == (
        "InvalidDocument\nA document of gpu-admission.dev is invalid, or not in force.\n\n"
        "No rule gives this reason: gpu-admission as a whole does.\n"
    )


class Way(Enum):
    HERE = "here"
    THERE = "there"


class Source(msgspec.Struct, rename="camel"):
    image: str
    credentials_secret: str | None = None


@cases(
    ("kind", "want"),
    text=(str, "text"),
    optional=(int | None, "whole number or null"),
    annotated=(Annotated[int, msgspec.Meta(ge=1)], "whole number"),
    list=(tuple[str, ...], "list of text"),
    map=(dict[str, float], "map of number"),
    map_of_structs=(Mapping[str, Source], "map of {image, credentialsSecret}"),
    choice=(Way, "here|there"),
    boolean=(bool, "true or false"),
)
def test_types_in_words(kind: Any, want: str) -> None:
    assert type_name(kind) == want


def test_contracts_are_wrapped_again() -> None:
    text = "One sentence\nthat goes on.\n\nReads:  this and\n        that\nAdds:   more"

    assert blocks(text) == [
        (0, "One sentence that goes on."),
        (0, ""),
        (8, "Reads:  this and that"),
        (8, "Adds:   more"),
    ]
