"""How templates are filled: placeholders, lists of containers, sentences, and the variables that a policy needs."""

import re

import pytest

from policies.pods import limits
from policies.registry import RULES
from tests.cases import cases
from webhook.tools.export.templates import SHARED, SentenceTemplate, _Filling, template_file

TEXTS = {"name": "'a'", "lines": "[\n  1\n]", "both": "$1 + $2", "outer": "f(${both: ${name}; $1})"}


@cases(
    ("template", "want"),
    a_fact=("x == ${name}", "x == 'a'"),
    arguments=("${both: x; y(z)}", "x + y(z)"),
    an_argument_that_is_filled_itself=("${both: ${name}; y}", "'a' + y"),
    an_argument_of_a_part_in_a_part=("${outer: q}", "f('a' + q)"),
    lines_keep_the_indentation=("a(\n  ${lines},\n  b)", "a(\n  [\n    1\n  ],\n  b)"),
    each_list=("c.${list}", "c.containers +\nc.initContainers"),
    no_list=("c", "c"),
    a_map_of_cel=("JSONPatch{op: 'add', value: {'a': ${name}}}", "JSONPatch{op: 'add', value: {'a': 'a'}}"),
)
def test_placeholders(template: str, want: str) -> None:
    assert _Filling(TEXTS, ("containers", "initContainers")).of_lists([template]) == want


def test_a_policy_gets_the_variables_that_it_mentions_after_those_that_they_need() -> None:
    variables = {"a": "1", "unused": "variables.a", "b": "variables.a + ${name}"}

    found = _Filling(TEXTS, ("containers",)).mentioned(variables, "variables.b.size() > 0")

    assert list(found.items()) == [("a", "1"), ("b", "variables.a + 'a'")]


def test_a_sentence_names_its_container_and_value() -> None:
    made = SentenceTemplate(path="'p'", message="'must'", container="c.name", value="v", remedy="'set'")

    sentence = (
        """'p' + ' (container "' + c.name + '")' + v + ': ' + 'set' + '; ' + 'must' + ' [gpu-requests]'"""
    )
    assert made.expression("gpu-requests") == f"(variables.isLarge ? '.' : {sentence})"


def test_a_toleration_without_an_operator_compares_values() -> None:
    parts = template_file("gpu-toleration").parts
    filled = _Filling({**parts, "EQUAL": "['', 'Equal']", "DECIMAL_INTEGER": "'x'"}, ("containers",))

    equals = "t.?operator.orValue('') in ['', 'Equal'] ? t.?value.orValue('') == v :"
    assert filled.of_lists(["${tolerates-value: t; v}"]).partition("\n")[0] == equals


FILES = (SHARED, limits.ID, *(rule.id for rule in RULES if not rule.not_exported))


def written(name: str) -> list[str]:
    file = template_file(name)
    own = [*file.parts.values(), *file.variables.values(), *file.conditions.values()]
    for policy in file.policies:
        own += [*policy.findings, policy.patch, *policy.variables.values(), *policy.conditions]
    return own + [sentence.expression(name) for sentence in file.sentences.values()]


@pytest.mark.parametrize("name", FILES)
def test_no_template_is_unused(name: str) -> None:
    own, everything = template_file(name), [each for file in FILES for each in written(file)]
    uses = [rf"\$\{{{re.escape(each)}[}}:]" for each in (*own.parts, *own.sentences)]
    uses += [rf"variables\.{each}\b" for each in own.variables]
    uses += [rf"^{each}$" for each in own.conditions]

    assert [each for each in uses if not any(re.search(each, text) for text in everything)] == []
