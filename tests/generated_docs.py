"""The parts of the documentation that are written from the code: the API reference, and tables of metrics and modules."""

import ast
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from policies.registry import RULES, RULES_BY_REASON
from tests.metrics import metrics_defined
from webhook.commands.rules import default_mode

CRDS = Path(__file__).parents[1] / "deploy" / "chart" / "files" / "crds"
HEAD = """# API reference

Every field of every kind, as `kubectl explain gpupolicy.spec.rules` shows it. [Rules](../rules/README.md) says what the rules do;
[configuration](../../operate/configuration.md) and [quota](../../operate/quota.md) have examples.
All kinds are `gpu-admission.dev/v1alpha1`, and `kubectl get gpu-admission -A` lists the objects of all. Only gpu-admission
writes a further kind, GPUQuotaLedger ([ledgers](../../operate/operations.md#ledgers)).

In a path `[]` is each item of a list, and `NAME` each key of a map. A field with * is required. LabelSelector, Toleration and
Condition are types of Kubernetes.

| kind | says |
|---|---|
"""
Schema = dict[str, Any]

STANDARD = {
    frozenset({"matchLabels", "matchExpressions"}): "LabelSelector",
    frozenset({"key", "operator", "value", "effect", "tolerationSeconds"}): "Toleration",
    frozenset(
        {"type", "status", "reason", "message", "lastTransitionTime", "observedGeneration"}
    ): "Condition",
}
"""By the names of their fields: types that Kubernetes documents."""


def generated(text: str, mark: str, table: str) -> str:
    """Return the page with the table between `<!-- mark -->` and `<!-- end -->`."""
    written, times = re.subn(
        rf"(?<=<!-- {mark} -->\n).*?(?=<!-- end -->)", lambda _: table, text, flags=re.DOTALL
    )
    assert times == 1, mark
    return written


def check_or_write(page: Path, written: str) -> None:
    """Hold a page against what it must be; UPDATE_DOCS=1 writes it."""
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(written)
    assert page.read_text() == written


def reasons_table() -> str:
    """Return the table of reasons for docs/reference/rules/reasons.md."""
    rows = ""
    changing = {rule.id for rule in RULES if rule.mutate}
    for reason, rules in RULES_BY_REASON.items():
        named = "each rule that changes pods" if set(rules) == changing else ", ".join(rules)
        rows += f"| `{reason.name}` | {reason.meaning} | {named} |\n"
    return f"| reason | when | rules |\n|---|---|---|\n{rows}"


def not_fixable_list() -> str:
    """Return the rules without fixes for docs/reference/rules/reasons.md."""
    return "".join(f"- `{rule.id}`: {rule.not_fixable}\n" for rule in RULES if rule.not_fixable)


def rules_table() -> str:
    """Return the table of rules for docs/reference/rules/README.md."""
    rows = "".join(
        f"| [{rule.id}]({rule.id}.md) | {default_mode(rule)} | {rule.summary} |\n" for rule in RULES
    )
    return f"| rule | default mode | ensures |\n|---|---|---|\n{rows}"


def api_reference() -> dict[str, str]:
    """Return the pages of docs/reference/api by their names."""
    specs = [yaml.safe_load(path.read_text())["spec"] for path in sorted(CRDS.glob("*.yaml"))]
    shown = [spec for spec in specs if "categories" in spec["names"]]
    pages = {f"{spec['names']['kind'].lower()}.md": _kind(spec) for spec in shown}
    rows = (
        f"| [{spec['names']['kind']}]({name}) | {_schema(spec)['description'].split('. ')[0].removesuffix('.')} |\n"
        for name, spec in zip(pages, shown, strict=True)
    )
    return {"README.md": HEAD + "".join(rows), **pages}


def _schema(spec: Schema) -> Schema:
    (version,) = spec["versions"]
    return version["schema"]["openAPIV3Schema"]  # type: ignore[no-any-return]


def _kind(spec: Schema) -> str:
    """Return the page of a kind."""
    names, schema = spec["names"], _schema(spec)
    columns = spec["versions"][0]["additionalPrinterColumns"]
    usual, wide = (
        ", ".join(column["name"].upper() for column in columns if bool(column.get("priority")) is is_wide)
        for is_wide in (False, True)
    )
    columns_text = f"{usual}; with `-o wide` also: {wide}" if wide else usual
    fields = {name: schema["properties"][name] for name in ("spec", "status")}
    rows = "\n".join(_rows({"properties": fields, "required": schema["required"]}, "", {}))
    scope = "one of a namespace, named `default`" if spec["scope"] == "Namespaced" else "cluster-scoped"
    return (
        f"# {names['kind']}\n\n{schema['description']}\n\n"
        f"`{names['plural']}`, `{names['singular']}` or `{', '.join(names['shortNames'])}`; {scope}. "
        f"Columns: {columns_text}.\n\n"
        f"| field | type | meaning |\n|---|---|---|\n{rows}\n"
    )


def _rows(schema: Schema, at: str, shown: dict[str, str]) -> Iterator[str]:
    """Yield the rows of an object's fields; what was shown in full before is a reference to it."""
    for name, field in schema.get("properties", {}).items():
        path = f"{at}.{name}" if at else name
        inside, below = _inside(field, path)
        key = json.dumps(inside.get("properties"), sort_keys=True)
        repeated = shown.get(key) if "properties" in inside else None
        standard = STANDARD.get(frozenset(inside.get("properties", ())))
        elsewhere = f"fields as in `{repeated}`" if repeated and not standard else ""
        if at == "spec.rules":
            elsewhere = f"[options](../rules/{name}.md)"
        if path == "spec.workloadKinds":
            elsewhere = "[fields](../workloads.md#fields)"
        meaning = _sentence(field)
        if elsewhere:
            meaning += f"; {elsewhere}"
        kind = _type(field).replace("object", standard or "object")
        required = "*" if name in schema.get("required", ()) else ""
        yield f"| `{path}`{required} | {kind} | {meaning.replace('|', chr(92) + '|')} |"
        if not (elsewhere or standard):
            shown[key] = below
            yield from _rows(inside, below, shown)


def _inside(schema: Schema, path: str) -> tuple[Schema, str]:
    """Return the schema of what lists and maps hold in the end, and its path."""
    if "items" in schema:
        return _inside(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        return _inside(schema["additionalProperties"], f"{path}.NAME")
    return schema, path


def _type(schema: Schema) -> str:
    """Return the type as `kubectl explain` writes it, with its values and bounds."""
    if "items" in schema:
        return f"[]{_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map[string]{_type(schema['additionalProperties'])}"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    word = schema.get("format") if schema.get("format") == "date-time" else schema.get("type", "any")
    found = "IntOrString" if schema.get("x-kubernetes-int-or-string") else str(word)
    found += " or null" if schema.get("nullable") else ""
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None:
        found += f", {least} or more" if most is None else f", {least} to {most}"
    return found


def _sentence(schema: Schema) -> str:
    return " ".join(str(schema["description"]).split())


def metrics_table() -> str:
    found = metrics_defined()
    repeated = [name for name, times in Counter(name for name, *_ in found).items() if times > 1]
    assert repeated == [], "a metric has one definition"
    rows = [
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {meaning} |"
        for name, kind, meaning, labels in sorted(found)
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"


def modules_table(room: Path) -> str:
    """Return a row for each module of the room: its path, and the first sentence of its docstring."""
    rows = ["| module | holds |", "|---|---|"]
    for path in sorted(room.rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        if docstring is not None:
            paragraph = " ".join(docstring.partition("\n\n")[0].split())
            sentence = re.split(r"[.](?= |$)", paragraph, maxsplit=1)[0]
            rows.append(f"| `{path.relative_to(room)}` | {sentence} |")
        else:
            assert path.name == "__init__.py", path
    return "\n".join([*rows, ""])
