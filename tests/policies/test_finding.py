"""The sentence of a finding, and the way to a pod template in it."""

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from policies.finding import (
    REASONS_OUTSIDE_RULES,
    TOO_LARGE,
    ContactEdit,
    Edit,
    Finding,
    Reason,
    one_choice,
    separate_choices,
    short_path,
    truncate,
)
from policies.pods.injected import INJECTION_REASONS
from policies.pods.pod import Toleration
from policies.policy import Policy, PolicySet, PolicySpec
from policies.registry import RULES, RULES_BY_REASON
from tests.cases import cases

ROOT = Path(__file__).parents[2]


@cases(
    ("path", "want"),
    of_a_pod=("spec.containers[0].env[1]", "spec.containers[0].env[1]"),
    of_a_deployment=("spec.template.spec.containers[0].env[1]", "containers[0].env[1]"),
    of_a_cronjob=("spec.jobTemplate.spec.template.spec.containers[0]", "containers[0]"),
    of_no_template=(
        "spec.jobTemplate.spec.initContainers",
        "spec.jobTemplate.spec.initContainers",
    ),
    metadata=("spec.template.metadata.annotations[a/b]", "template.metadata.annotations[a/b]"),
    several=(
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]",
        "Worker…containers[0]",
    ),
    whole_of_several=("spec.workerGroupSpecs[1].template.spec", "workerGroupSpecs[1]…spec"),
    whole=("spec.template.spec", "template.spec"),
    by_its_name=(
        "spec.leaderWorkerTemplate.workerTemplate.spec.volumes",
        "workerTemplate…volumes",
    ),
    metadata_of_a_template_by_its_name=(
        "spec.leaderWorkerTemplate.leaderTemplate.metadata.annotations[a/b]",
        "leaderTemplate…metadata.annotations[a/b]",
    ),
    metadata_of_several=(
        "spec.pytorchReplicaSpecs.Worker.template.metadata.annotations[a/b]",
        "Worker…template.metadata.annotations[a/b]",
    ),
    a_key=("metadata.annotations[template.spec.x]", "metadata.annotations[template.spec.x]"),
)
def test_the_way_to_a_template_is_short(path: str, want: str) -> None:
    assert short_path(path) == want


def test_a_long_value_is_cut() -> None:
    assert [truncate("x" * 120), truncate("x" * 121)] == ["x" * 120, "x" * 119 + "…"]


@cases(
    ("parts", "want"),
    why=({}, "must hold [r]"),
    what_to_write_first=({"remedy": "set a: 1"}, "set a: 1; must hold [r]"),
    the_fix_in_words=(
        {"choices": one_choice(Edit("spec.limits[a/b]", 1), Edit("spec.env[2]"))},
        "set a/b: 1 and remove env[2]; must hold [r]",
    ),
    a_label_that_becomes_an_annotation=(
        {"choices": one_choice(Edit("metadata.labels[a/b]"), Edit("metadata.annotations[a/b]", "c"))},
        "remove label a/b and set a/b: c; must hold [r]",
    ),
    a_fix_of_two_fields_said_once=(
        {"choices": one_choice(Edit("limits[a]", 1), Edit("requests[a]", 1))},
        "set a: 1; must hold [r]",
    ),
    a_remedy_that_says_more_than_the_fix=(
        {"choices": one_choice(Edit("a", 1)), "remedy": "set a: 1 or less"},
        "set a: 1 or less; must hold [r]",
    ),
    either_of_two_values=(
        {"choices": separate_choices(Edit("limits[a]", 1), Edit("limits[a]", 2), Edit("spec.b"))},
        "set a: 1 or 2, or remove b; must hold [r]",
    ),
    a_map_that_is_added_to_a_list=(
        {
            "choices": one_choice(
                Edit(
                    "spec.template.spec.tolerations[-]",
                    Toleration(key="a/b", value="true", effect="NoSchedule"),
                )
            )
        },
        'add {key: a/b, value: "true", effect: NoSchedule} to tolerations; must hold [r]',
    ),
    a_list=(
        {"choices": one_choice(Edit("spec.args", ("--tp", "8", "x y")))},
        'set args: ["--tp", "8", "x y"]; must hold [r]',
    ),
    a_question=({"remedy": "did you mean a?"}, "did you mean a? The value must hold [r]"),
    whom_to_ask=({"ask_contact": "for more"}, "must hold; ask the platform team for more [r]"),
    what_why_whom=(
        {"remedy": "set a: 1", "ask_contact": "for more"},
        "set a: 1; must hold; or ask the platform team for more [r]",
    ),
    whom_to_ask_and_what_to_write_then=(
        {
            "ask_contact": "for c or d",
            "contact_choices": tuple(
                (ContactEdit("Node", value=name), Edit("spec.a", name)) for name in ("c", "d")
            ),
        },
        "must hold; ask the platform team for c or d, then set a: c or d [r]",
    ),
    after_the_field=(
        {"path": "spec.x", "container": "main", "value": "500m", "decimal": "0.5", "remedy": "set a: 1"},
        'spec.x (container "main") = "500m" (0.5): set a: 1; must hold [r]',
    ),
)
def test_a_sentence_says_what_to_write_then_why_then_escalation(parts: dict[str, Any], want: str) -> None:
    assert Finding(rule="r", reason=TOO_LARGE, message="must hold", **parts).sentence() == want


def test_a_finding_of_a_template_is_fixed_in_the_template() -> None:
    nodes = ContactEdit("Node", "metadata.labels[a]", 1)
    found = Finding(
        rule="r",
        reason=TOO_LARGE,
        message="m",
        path="spec",
        choices=one_choice(Edit("spec.a", 1)),
        contact_choices=((nodes, Edit("spec.b", 2)),),
    )

    located = found.located("spec.template.{}".format)

    assert (located.path, located.choices, located.contact_choices) == (
        "spec.template.spec",
        one_choice(Edit("spec.template.spec.a", 1)),
        ((nodes, Edit("spec.template.spec.b", 2)),),
    )


def test_only_a_choice_without_another_is_a_fix() -> None:
    found = Finding(
        rule="r", reason=TOO_LARGE, message="m", choices=separate_choices(Edit("a", 1), Edit("a", 2))
    )
    example = Finding(
        rule="r", reason=TOO_LARGE, message="m", choices=one_choice(Edit("a", 1)), is_example=True
    )

    assert (found.fix, example.fix) == ((), ())
    assert replace(example, is_example=False).fix == (Edit("a", 1),)


MODULES = [
    import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted((ROOT / "policies").rglob("*.py"))
]


def reasons_in(module: ModuleType) -> set[Reason]:
    return {value for value in vars(module).values() if isinstance(value, Reason)}


def test_every_reason_has_a_name_of_its_own_and_belongs_to_a_rule_or_none() -> None:
    every = set[Reason]().union(*map(reasons_in, MODULES))

    assert every == set(RULES_BY_REASON)
    assert len({reason.name for reason in every}) == len(every)
    assert not [reason for reason in every if not re.fullmatch("([A-Z][a-z]*)+", reason.name)]


def test_a_rule_gives_the_reasons_in_its_file() -> None:
    for rule in RULES:
        module = import_module(f"policies.rules.{rule.id.replace('-', '_')}")
        assert reasons_in(module) == set(rule.reasons), rule.id


def test_rules_that_mutate_give_the_reasons_of_injection() -> None:
    mutating = tuple(rule.id for rule in RULES if rule.mutate)
    for reason in INJECTION_REASONS:
        assert RULES_BY_REASON[reason] == mutating


def test_few_reasons_are_of_no_rule() -> None:
    assert {reason for reason, rules in RULES_BY_REASON.items() if not rules} == set(REASONS_OUTSIDE_RULES)


@cases(
    ("contact", "want"),
    nobody_is_named=("", "ask the platform team for more"),
    a_contact=("#gpu-support", "ask #gpu-support for more"),
    a_url=(
        "https://wiki.example.com/gpu",
        "ask the platform team (https://wiki.example.com/gpu) for more",
    ),
)
def test_a_policy_says_escalation(contact: str, want: str) -> None:
    policy = PolicySet([Policy(name="default", version="1", spec=PolicySpec(help=contact))]).for_namespace(
        "ml"
    )

    finding = Finding(rule="r", reason=TOO_LARGE, message="must hold", ask_contact="for more")
    assert finding.with_origin("r", policy.contact).escalation == want
