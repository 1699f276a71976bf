"""Checks the paths of workload kinds against the schemas of their CustomResourceDefinitions.

A path that leads nowhere would be silent: its objects would have no pods, or the default number. It is wrong if no version of the
CustomResourceDefinition has it. Where a schema leaves fields open (`x-kubernetes-preserve-unknown-fields`), any path is right.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from policies.pods.field_paths import field_path
from webhook.configuration.decoding import suggestion
from webhook.configuration.workload_kinds import EVERY_ITEM, EVERY_KEY, Factor, Steps, WorkloadKind, steps

CRD_TYPE = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
"""apiVersion and kind of the documents that have schemas."""

Schema = Mapping[str, Any]
Schemas = dict[tuple[str, str], tuple[Schema, ...]]
"""By (API group, kind): a schema for each version."""

_ROOT_FIELDS = ("apiVersion", "kind", "metadata")


def is_crd(data: Any) -> bool:
    return isinstance(data, dict) and (data.get("apiVersion"), data.get("kind")) == CRD_TYPE


def schemas_of(definition: Any) -> Schemas:
    """Return the schemas of a CustomResourceDefinition; nothing if it has none that can be read."""
    try:
        spec = definition["spec"]
        versions = tuple(version["schema"]["openAPIV3Schema"] for version in spec["versions"])
        return {(str(spec["group"]), str(spec["names"]["kind"])): versions}
    except (KeyError, TypeError):
        return {}


def kind_problems(kinds: Iterable[WorkloadKind], schemas: Schemas) -> Iterator[tuple[str, str]]:
    """Yield (path in their document, sentence) for every path that no version has, with the nearest field of the last one."""
    for index, workload_kind in enumerate(kinds):
        for field, path_steps in _paths(workload_kind):
            wrong = [_path_problem(version, path_steps) for version in schemas.get(workload_kind.key, ())]
            if wrong and all(wrong):
                sentence = f"must be a path of the CustomResourceDefinition: {wrong[-1]}"
                yield f"spec.workloadKinds[{index}].{field}", sentence


def _paths(workload_kind: WorkloadKind) -> Iterator[tuple[str, Steps]]:
    """Yield each field of the workload_kind that has a path into the object, and the steps of that path."""
    yield from ((field, steps(path)) for field, path in workload_kind.own_paths.items())
    for index, pods in enumerate(workload_kind.pods):
        for field, path in ("path", pods.path), *pods.other_paths.items():
            yield f"pods[{index}].{field}", steps(path, pods.path)
        for field, text in pods.factor_texts.items():
            factor = Factor.of(text)
            for path in factor.every_path() if factor else ():
                yield f"pods[{index}].{field}", steps(path, pods.path)


def _path_problem(schema: Schema, path_steps: Steps, at: Steps = ()) -> str:
    """Return what is wrong with the path from `at` on; "" if the schema has it, or does not say."""
    if not path_steps or _leaves_fields_open(schema) or (not at and path_steps[0] in _ROOT_FIELDS):
        return ""
    step, rest = path_steps[0], path_steps[1:]
    items, additional = schema.get("items"), schema.get("additionalProperties")
    if (step == EVERY_ITEM) != isinstance(items, Mapping):
        return f"{_path_text(at)} is {'no list' if step == EVERY_ITEM else 'a list: [] must follow'}"
    member = items or (additional if isinstance(additional, Mapping) else None)
    return _path_problem(member, rest, (*at, step)) if member else _field_problem(schema, step, rest, at)


def _field_problem(schema: Schema, step: str, rest: Steps, at: Steps) -> str:
    fields = schema.get("properties") or {}
    if step in fields:
        return _path_problem(fields[step], rest, (*at, step))
    if step != EVERY_KEY:
        return f"{_path_text(at)} has no field {step}{suggestion(step, list(fields)) if fields else ''}"
    wrong = [_path_problem(member, rest, (*at, name)) for name, member in fields.items()]
    return (wrong or [f"{_path_text(at)} is not a map"])[-1] if all(wrong) else ""


def _leaves_fields_open(schema: Schema) -> bool:
    """Whether the schema does not say what is below: such as that of an object without fields."""
    says = {"properties", "additionalProperties", "items"} & schema.keys()
    is_any = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("additionalProperties") is True
    return bool(is_any) or (not says and schema.get("type") in {None, "object", "array"})


def _path_text(at: Steps) -> str:
    return field_path(at).replace(".[]", "[]") if at else "the object"
