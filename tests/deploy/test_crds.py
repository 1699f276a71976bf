"""The kinds that people write and read as `kubectl explain` and `kubectl get` show them, held against the code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.registry import RULES
from policies.rule import Rule
from tests.yaml_files import load_yaml
from webhook.commands.output import as_yaml
from webhook.commands.rules import default_mode, options

FOLDER = Path(__file__).parents[2] / "deploy" / "chart" / "files" / "crds"
LEDGERS = "gpuquotaledgers"
"""What only we write, and nobody reads with kubectl: not a kind that people are shown."""
CRDS = {path.stem: load_yaml(path) for path in sorted(FOLDER.glob("*.yaml")) if path.stem != LEDGERS}
Schema = dict[str, Any]

each_kind = pytest.mark.parametrize("crd", [pytest.param(crd, id=name) for name, crd in CRDS.items()])


def version(crd: Schema) -> Schema:
    (found,) = crd["spec"]["versions"]
    return dict(found)


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every part of a schema by its path; `[]` is an item of a list, `*` a value of a map."""
    yield path, schema
    children = {f"{path}.{name}": child for name, child in schema.get("properties", {}).items()}
    children |= {
        path + step: schema[word]
        for word, step in (("items", "[]"), ("additionalProperties", ".*"))
        if word in schema
    }
    for at, child in children.items():
        yield from nodes(child, at)


def schema_of(crd: Schema) -> Schema:
    return dict(version(crd)["schema"]["openAPIV3Schema"])


@each_kind
def test_every_field_is_described(crd: Schema) -> None:
    """The API server describes metadata itself, and takes no description of it."""
    fields = [(path, node) for path, node in nodes(schema_of(crd)) if not path.endswith(("[]", ".*"))]

    assert len(fields) > 15
    assert [path for path, node in fields if not node.get("description")] == [".metadata"]


@each_kind
def test_what_stands_in_a_schema_is_a_word_of_it(crd: Schema) -> None:
    """In `{description: one, two}` YAML makes a key of what follows the comma, and the API server drops it."""
    words = {
        *("additionalProperties", "default", "description", "enum", "format", "items", "maxItems", "maxLength"),
        *("maxProperties", "maximum", "minItems", "minLength", "minimum", "nullable", "pattern", "properties"),
        *("required", "type"),
    }  # fmt: skip
    unknown = {
        f"{path}: {word}"
        for path, node in nodes(schema_of(crd))
        for word in node
        if word not in words and not word.startswith("x-kubernetes-")
    }

    assert unknown == set()


def test_short_names_and_columns_are_unlike() -> None:
    short = [name for crd in CRDS.values() for name in crd["spec"]["names"]["shortNames"]]

    assert sorted(short) == ["cgpuq", "gpuc", "gpum", "gpup", "gpuq"]
    for crd in CRDS.values():
        columns = [column["name"] for column in version(crd)["additionalPrinterColumns"]]
        assert len(set(columns)) == len(columns)


def test_the_ledger_is_shown_among_no_others() -> None:
    """`kubectl get gpu-admission` and `kubectl get all` list kinds by category; short names of quotas are for people."""
    names = load_yaml(FOLDER / f"{LEDGERS}.yaml")["spec"]["names"]

    assert not names.keys() & {"categories", "shortNames"}


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.id) for rule in RULES])
def test_kubectl_explains_a_rule_with_its_defaults(rule: Rule) -> None:
    schema = schema_of(CRDS["gpupolicies"])["properties"]["spec"]["properties"]["rules"]["properties"]
    described = {name: node["description"] for name, node in schema[rule.id]["properties"].items()}
    defaults = {option["name"]: option["default"] for option in options(rule) if option["name"] != "mode"}

    assert schema[rule.id]["description"] == f"{rule.summary}; default mode {default_mode(rule)}"
    assert described.keys() == {"mode", *defaults}
    for name, default in defaults.items():
        if not (isinstance(default, dict) and default):  # its parts say theirs
            assert f"; default {as_yaml(default)}" in described[name]


@each_kind
def test_a_mistyped_field_reaches_our_review(crd: Schema) -> None:
    """A schema that knew no such field would refuse it first, in kubectl with the whole patch, or drop it."""
    spec = schema_of(crd)["properties"]["spec"]
    strict = [
        path
        for path, node in nodes(spec, "spec")
        if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields")
    ]

    assert strict == []
