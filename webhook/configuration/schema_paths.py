"""Checks the paths of workload kinds against the schemas of their CustomResourceDefinitions.

A path that leads nowhere would be silent: its objects would have no pods, or the default number. It is wrong if no version of the
CustomResourceDefinition has it. Where a schema leaves fields open (`x-kubernetes-preserve-unknown-fields`), any path is right.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from policies.pods.field_paths import field_path
from webhook.configuration.decoding import suggestion
from webhook.configuration.workload_kinds import EVERY_ITEM, EVERY_KEY, Factor, Steps, WorkloadKind, steps

CUSTOM_RESOURCE = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
"""apiVersion and kind of the documents that have schemas."""

Schema = Mapping[str, Any]
Schemas = Mapping[tuple[str, str], tuple[Schema, ...]]
"""By (API group, kind): a schema for each version."""

_OF_EVERY_OBJECT = ("apiVersion", "kind", "metadata")


def is_definition(data: Any) -> bool:
    return isinstance(data, dict) and (data.get("apiVersion"), data.get("kind")) == CUSTOM_RESOURCE


def schemas_of(definition: Any) -> dict[tuple[str, str], tuple[Schema, ...]]:
    """Return the schemas of a CustomResourceDefinition; nothing if it has none that can be read."""
    try:
        spec = definition["spec"]
        versions = tuple(version["schema"]["openAPIV3Schema"] for version in spec["versions"])
        return {(str(spec["group"]), str(spec["names"]["kind"])): versions}
    except (KeyError, TypeError):
        return {}


def path_problems(row: WorkloadKind, versions: Sequence[Schema]) -> Iterator[tuple[str, str]]:
    """Yield (path below the row, sentence) for every path that no version has, with the nearest field of the last one."""
    for field, way in _paths(row):
        wrong = [_wrong(version, way) for version in versions]
        if versions and all(wrong):
            yield field, f"must be a path of the CustomResourceDefinition: {wrong[-1]}"


def _paths(row: WorkloadKind) -> Iterator[tuple[str, Steps]]:
    """Yield each field of the row that has a path into the object, and the steps of that path."""
    whole = {"deadline": row.deadline, "together": row.together}
    whole |= {f"{name}[{path}]": path for name in ("stopped", "staged") for path in getattr(row, name)}
    yield from ((field, steps(path)) for field, path in whole.items() if path)
    for index, pods in enumerate(row.pods):
        named = {"path": pods.path, "claims": pods.claims, "elastic": pods.elastic}
        named |= {f"defaults[{number}]": path for number, path in enumerate(pods.defaults)}
        for number, gpu in enumerate(pods.gpus):
            named |= {f"gpus[{number}].quantity": gpu.quantity, f"gpus[{number}].name": gpu.name}
        yield from (
            (f"pods[{index}].{field}", steps(path, pods.path)) for field, path in named.items() if path
        )
        for name in ("replicas", "most", "gang"):
            for number, text in enumerate(getattr(pods, name)):
                factor = Factor.of(text)
                for path in factor.every_path() if factor else ():
                    yield f"pods[{index}].{name}[{number}]", steps(path, pods.path)


def _wrong(schema: Schema, way: Steps, at: Steps = ()) -> str:
    """Return what is wrong with the path from `at` on; "" if the schema has it, or does not say."""
    if not way or _is_open(schema) or (not at and way[0] in _OF_EVERY_OBJECT):
        return ""
    step, rest = way[0], way[1:]
    items, additional = schema.get("items"), schema.get("additionalProperties")
    if (step == EVERY_ITEM) != isinstance(items, Mapping):
        return f"{_shown(at)} is {'no list' if step == EVERY_ITEM else 'a list: [] must follow'}"
    member = items or (additional if isinstance(additional, Mapping) else None)
    return _wrong(member, rest, (*at, step)) if member else _wrong_field(schema, step, rest, at)


def _wrong_field(schema: Schema, step: str, rest: Steps, at: Steps) -> str:
    fields = schema.get("properties") or {}
    if step in fields:
        return _wrong(fields[step], rest, (*at, step))
    if step != EVERY_KEY:
        return f"{_shown(at)} has no field {step}{suggestion(step, list(fields)) if fields else ''}"
    wrong = [_wrong(member, rest, (*at, name)) for name, member in fields.items()]
    return (wrong or [f"{_shown(at)} is not a map"])[-1] if all(wrong) else ""


def _is_open(schema: Schema) -> bool:
    """Whether the schema does not say what is below: such as that of an object without fields."""
    says = {"properties", "additionalProperties", "items"} & schema.keys()
    is_any = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("additionalProperties") is True
    return bool(is_any) or (not says and schema.get("type") in {None, "object", "array"})


def _shown(at: Steps) -> str:
    return field_path(at).replace(".[]", "[]") if at else "the object"


def kind_problems(kinds: Iterable[WorkloadKind], schemas: Schemas) -> Iterator[tuple[str, str]]:
    """Yield (path below the spec of their document, sentence) for every wrong path of kinds whose schema is known."""
    for index, row in enumerate(kinds):
        for field, sentence in path_problems(row, schemas.get(row.key, ())):
            yield f"workloadKinds[{index}].{field}", sentence
