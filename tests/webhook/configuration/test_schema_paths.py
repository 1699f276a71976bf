"""Paths of workload kinds against the schema of their CustomResourceDefinition."""

import threading
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest
import yaml

from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, answering, status
from webhook.configuration.advice import CALL_SECONDS
from webhook.configuration.cluster_source import read_path_problems, read_schemas
from webhook.configuration.documents import RESOURCE_MAPPING, Document
from webhook.configuration.loader import ConfigurationError, load_directory, load_objects
from webhook.configuration.schema_paths import kind_problems, schemas_of
from webhook.configuration.workload_kinds import WorkloadKind

JSON = dict[str, Any]
OPEN: JSON = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
GROUP = {
    "type": "object",
    "properties": {"replicas": {"type": "integer"}, "template": OPEN, "labels": {"type": "object"}},
}
SPEC = {
    "suspend": {"type": "boolean"},
    "workers": {"type": "array", "items": GROUP},
    "roles": {"type": "object", "additionalProperties": GROUP},
    "fixed": {"type": "object", "properties": {"head": GROUP, "tail": GROUP}},
    "raw": OPEN,
}


def definition(*specs: JSON, kind: str = "TrainingJob") -> JSON:
    """Return a CustomResourceDefinition with a version for each spec."""
    schemas = [
        {"type": "object", "properties": {"spec": {"type": "object", "properties": each}}} for each in specs
    ]
    versions = [{"name": f"v{n}", "schema": {"openAPIV3Schema": each}} for n, each in enumerate(schemas)]
    names = {"kind": kind, "plural": f"{kind.lower()}s"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.example.com"},
        "spec": {"group": "example.com", "names": names, "versions": versions},
    }


def kind(path: str = "spec.workers[].template", **fields: Any) -> JSON:
    whole = {"group": "example.com", "kind": "TrainingJob"}
    of_pods = {
        name: fields.pop(name) for name in list(fields) if name in {"replicas", "gang", "most", "claims"}
    }
    return {**whole, **fields, "pods": [{"path": path, **of_pods}]}


NOT_THERE = "must be a path of the CustomResourceDefinition: "
OF_SPEC = "must be one of suspend, workers, roles, fixed, raw"


@cases(
    ("row", "want"),
    right=(kind(replicas=[".replicas else 0"], gang=["spec.workers[].replicas"]), []),
    every_key_of_a_map=(kind("spec.roles.*.template", replicas=[".replicas"]), []),
    one_key_of_a_map=(kind("spec.roles.head.template"), []),
    every_key_of_fields=(kind("spec.fixed.*.template"), []),
    anything_where_the_schema_is_open=(kind("spec.raw.any.template"), []),
    what_every_object_has=(kind(replicas=["metadata.annotations[example.com/size]"]), []),
    labels_that_no_schema_lists=(kind(replicas=[".labels.size"]), []),
    suggested_name=(
        kind(replicas=["spec.wokers"]),
        [f"pods[0].replicas[0]: {NOT_THERE}spec has no field wokers; did you mean workers?"],
    ),
    like_no_field=(
        kind("spec.podTemplate"),
        [f"pods[0].path: {NOT_THERE}spec has no field podTemplate: {OF_SPEC}"],
    ),
    beside_the_pods=(
        kind(replicas=["1", ".replica"]),
        [f"pods[0].replicas[1]: {NOT_THERE}spec.workers[] has no field replica; did you mean replicas?"],
    ),
    second_alternative_of_a_factor=(
        kind(replicas=[".replicas else .size at most .labls"]),
        [
            f"pods[0].replicas[0]: {NOT_THERE}spec.workers[] has no field size: must be one of replicas, template, labels",
            f"pods[0].replicas[0]: {NOT_THERE}spec.workers[] has no field labls; did you mean labels?",
        ],
    ),
    list_without_items=(
        kind("spec.workers.template"),
        [f"pods[0].path: {NOT_THERE}spec.workers is a list: [] must follow"],
    ),
    items_of_no_list=(
        kind("spec.roles[].template"),
        [f"pods[0].path: {NOT_THERE}spec.roles is no list"],
    ),
    keys_of_no_map=(
        kind("spec.suspend.*"),
        [f"pods[0].path: {NOT_THERE}spec.suspend is not a map"],
    ),
    below_what_has_no_fields=(
        kind("spec.suspend.template"),
        [f"pods[0].path: {NOT_THERE}spec.suspend has no field template"],
    ),
    top_level=(
        kind("template"),
        [f"pods[0].path: {NOT_THERE}the object has no field template: must be spec"],
    ),
    fields_of_the_whole_object=(
        kind(stopped={"spec.suspended": "true"}, deadline="spec.deadline", claims=".claim"),
        [
            f"deadline: {NOT_THERE}spec has no field deadline: {OF_SPEC}",
            f"stopped[spec.suspended]: {NOT_THERE}spec has no field suspended; did you mean suspend?",
            f"pods[0].claims: {NOT_THERE}spec.workers[] has no field claim: must be one of replicas, template, labels",
        ],
    ),
)
def test_paths(row: JSON, want: list[str]) -> None:
    read = msgspec.convert(row, WorkloadKind)
    found = kind_problems([read], schemas_of(definition(SPEC)))

    assert list(read.problems()) == []
    assert [f"{path}: {sentence}" for path, sentence in found] == [
        f"spec.workloadKinds[0].{each}" for each in want
    ]


def test_a_path_of_one_version_is_right() -> None:
    read = msgspec.convert(kind(), WorkloadKind)

    assert list(kind_problems([read], schemas_of(definition(SPEC, {"other": OPEN})))) == []
    assert list(kind_problems([read], schemas_of(definition(SPEC, kind="Other")))) == []


@pytest.mark.parametrize("broken", [None, {}, {"spec": None}, {"spec": {"versions": [{}]}}])
def test_a_definition_without_schema_says_nothing(broken: Any) -> None:
    assert schemas_of(broken) == {}


MAPPING: JSON = {
    "apiVersion": "gpu-admission.dev/v1alpha1",
    "kind": "GPUResourceMapping",
    "metadata": {"name": "ours"},
    "spec": {"workloadKinds": [kind("spec.wokers[].template")]},
}
WRONG = (
    "GPUResourceMapping/ours spec.workloadKinds[0].pods[0].path: must be a path of the CustomResourceDefinition: spec has no "
    "field wokers; did you mean workers?"
)


def test_the_definition_stands_beside_the_documents(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([MAPPING]))
    assert ("example.com", "TrainingJob") in load_directory(tmp_path).workload_kinds

    (tmp_path / "crd.yaml").write_text(yaml.safe_dump_all([definition(SPEC)]))
    with pytest.raises(ConfigurationError) as refused:
        load_directory(tmp_path)
    assert str(refused.value) == f"a.yaml:10: {WRONG}"


DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.example.com"


def test_a_cluster_shows_the_definition(tmp_path: Path) -> None:
    configuration = load_objects([Document(RESOURCE_MAPPING, "ours", MAPPING["spec"])])

    for objects, want in (({}, []), ({DEFINITION: definition(SPEC)}, [WRONG])):
        with ApiServer(tmp_path, answering(objects)) as server:
            assert [str(each) for each in read_path_problems(server.client(), configuration)] == want


FORBIDDEN = 'customresourcedefinitions "trainingjobs.example.com" is forbidden'
UNREAD = "failed to check all paths of workload kinds: "


@cases(
    ("answer", "is_read", "logged"),
    there=(definition(SPEC), True, ""),
    not_there=(None, False, f"paths of TrainingJob are not checked: no {DEFINITION}"),
    missing_right=(status(403, FORBIDDEN, "Forbidden"), False, f"paths of TrainingJob are not checked: {FORBIDDEN}"),
    broken=(status(500, "etcd is away"), False, f"{UNREAD}etcd is away"),
    not_json=(Answer(b"<html>"), False, UNREAD),
    slow=(Answer(stream=[], wait=threading.Event()), False, UNREAD),
)  # fmt: skip
def test_a_review_gets_what_can_be_read_in_time(
    answer: Any, is_read: bool, logged: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = msgspec.convert(kind(), WorkloadKind)
    caplog.set_level("INFO", logger="gpu_admission.configuration")

    with ApiServer(tmp_path, answering({DEFINITION: answer})) as server:
        began = monotonic()
        schemas = read_schemas(server.client(), [row] * 3, CALL_SECONDS)
        took = monotonic() - began

    assert list(schemas) == [row.key] * is_read
    assert logged in caplog.text
    assert took < 2 * CALL_SECONDS
