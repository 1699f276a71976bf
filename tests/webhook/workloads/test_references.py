"""What an object gets of another one that it names: by its row in the table of kinds, and in the review of it."""

from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from policies.pods.field_paths import value_at
from tests.builders import JSON, manifest
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering, status
from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import EVERY_ITEM, EVERY_KEY, WorkloadKind, steps
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.evaluation.referenced_objects import MAX_FETCHED
from webhook.evaluation.workloads import evaluate_workload, with_referenced
from webhook.tools.scan.scanning import ClusterFacts
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.workloads.references import ObjectReference, find_references, read_object, referred_kinds

CACHE = DecisionCache(load_directory(None))
KINDS = CACHE.configuration.workload_kinds
KEY = ("inference.llmkube.dev", "InferenceService")
VERSION = "inference.llmkube.dev/v1alpha1"
MODEL = ObjectReference("inference.llmkube.dev", "v1alpha1", "Model", "models", "ml", "llama")
PATH = f"/apis/{VERSION}/namespaces/ml/models/llama"
REFERRING = [row for row in KINDS.values() if row.refers]
NAME = "other"


def service(**resources: Any) -> JSON:
    spec = {"modelRef": "llama", "replicas": 3, "resources": resources}
    return manifest(VERSION, "InferenceService", "chat", spec, namespace="ml")


def model(**gpu: Any) -> JSON:
    return manifest(VERSION, "Model", "llama", {"hardware": {"gpu": gpu}}, namespace="ml")


def evaluator_of(found: Any) -> Evaluator:
    def find_references(name: ObjectReference) -> Any:
        assert name == MODEL
        return found

    return with_objects(find_references)


def with_objects(find_references: Any) -> Evaluator:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    return Evaluator(cache=CACHE, now=now, facts=Facts(find_object=find_references))


def said(evaluator: Evaluator, key: tuple[str, str], data: JSON) -> list[str]:
    document = msgspec.Raw(msgspec.json.encode(data))
    _, advice = evaluate_workload(evaluator, evaluator.policy("ml"), key, document, is_update=False)
    findings = [each.finding for decision in advice for each in decision.violations]
    return [f"{each.path} {each.message}" for each in findings if each.rule == "workloads"]


@cases(
    ("own", "gpu", "want"),
    of_the_model=({}, {"count": 2}, {"gpu": 2}),
    the_model_precedes=({"gpu": 1}, {"count": 2}, {"gpu": 2}),
    none_of_the_model=({"gpu": 1}, {"count": 0}, {"gpu": 1}),
    a_resource_of_the_model=({"gpu": 1}, {"resourceName": "a.b/c"}, {"gpu": 1, "gpuResourceName": "a.b/c"}),
    its_resource_before_its_vendor=(
        {}, {"resourceName": "a.b/c", "vendor": "amd"}, {"gpuResourceName": "a.b/c"},
    ),
    its_vendor=({}, {"vendor": "intel"}, {"gpuResourceName": "gpu.intel.com/i915"}),
)  # fmt: skip
def test_what_a_service_gets_of_its_model(own: JSON, gpu: JSON, want: JSON) -> None:
    evaluator = evaluator_of(model(**gpu))

    whole = with_referenced(evaluator, evaluator.policy("ml"), KEY, service(**own), [])

    assert value_at(whole.data, ("spec", "resources")) == want
    assert whole.findings == ()


@cases(
    ("found", "want"),
    unknown=(
        None,
        ["spec.modelRef names a Model that is not known here, nor are its GPUs"],
    ),
    known=(model(count=2), []),
    unreadable=({"spec": []}, []),
)
def test_a_review_of_it(found: Any, want: list[str]) -> None:
    assert said(evaluator_of(found), KEY, service(gpu=1)) == want


GPU = {"resources": {"limits": {"nvidia.com/gpu": 2}}}


def data_with(path: str, value: Any) -> JSON:
    """Return an object with the value at the path, in the first item of lists."""
    first, *rest = steps(path)
    for step in reversed(rest):
        value = [value] if step == EVERY_ITEM else {"worker" if step == EVERY_KEY else step: value}
    return {first: value}


def object_of(row: WorkloadKind, gpus: JSON) -> JSON:
    """Return an object of the kind whose first pods have a container with `gpus`."""
    first = row.pods[0]
    container = {"name": "main", "image": "a", **gpus}
    leaf: Any = {"template": {"spec": {"containers": [container]}}, "podSpec": {"containers": [container]}}
    data = data_with(first.path, leaf.get(first.form.value, {}))
    for gpu in first.gpus[:1] if gpus else ():
        data = data_with(gpu.quantity or gpu.name, 2 if gpu.quantity else "nvidia.com/gpu")
    if row.kind in {"Task", "ClusterTask"}:
        data = {"spec": {"steps": [container]}}
    return {"apiVersion": f"{row.group}/v1".lstrip("/"), "kind": row.kind, **data}


NAMES = [
    pytest.param(row, field, kind, id=f"{row.kind}.{row.group}-{field}-{kind.rpartition('/')[2]}")
    for row in REFERRING
    for reference in row.refers
    for field in reference.fields
    for kind in reference.kinds
    if not reference.gives
]


@pytest.mark.parametrize(("row", "field", "kind"), NAMES)
def test_gpus_of_an_object_that_a_row_says_to_name(row: WorkloadKind, field: str, kind: str) -> None:
    data = {"apiVersion": f"{row.group}/v1", "kind": row.kind, **data_with(field, NAME)}
    (name,) = find_references(KINDS, row.key, "ml", data)
    wanted = next(each for each in name.candidates if each.kind == kind.rpartition("/")[2])
    other = KINDS[wanted.group, wanted.kind]

    def with_other(gpus: JSON) -> Evaluator:
        return with_objects(lambda asked: object_of(other, gpus) if asked == wanted else None)

    in_pods = f"{name.path} the GPUs of other are read only in the pods that the controller creates"
    not_known = f"{name.path} names a {name.kind} that is not known here, nor are its GPUs"
    assert said(with_other(GPU), row.key, data) == [in_pods]
    assert said(with_other({}), row.key, data) == []
    assert said(with_objects(lambda _name: None), row.key, data) == [not_known]


def test_what_is_named_has_a_row() -> None:
    rows = {(row.group, row.plural) for row in KINDS.values()}

    assert referred_kinds(KINDS) <= rows


TASK = {"apiVersion": "tekton.dev/v1", "kind": "Task"}
RUN = ("tekton.dev", "PipelineRun")


def run(**spec: Any) -> JSON:
    return {"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "spec": spec}


def pipeline(*tasks: str) -> JSON:
    listed = [{"name": each, "taskRef": {"name": each}} for each in tasks]
    return {"apiVersion": "tekton.dev/v1", "kind": "Pipeline", "spec": {"tasks": listed}}


@cases(
    ("data", "objects", "want"),
    a_task_that_is_not_known_of_a_pipeline_that_is=(
        run(pipelineRef={"name": "all"}),
        {"all": pipeline("build", "train")},
        ["spec.pipelineRef.name leads to Task train, which is not known here, nor are its GPUs"],
    ),
    several_that_are_not_known=(
        run(pipelineSpec=pipeline("a", "b", "c")["spec"]),
        {},
        ["spec.pipelineSpec.tasks[0].taskRef.name names a Task that is not known here, nor are its GPUs; nor are 2 more"],
    ),
    a_pipeline_that_names_itself=(
        run(pipelineRef={"name": "all"}),
        {"all": {**pipeline(), "spec": {"tasks": [{"name": "a", "pipelineRef": {"name": "all"}}]}}},
        [],
    ),
    a_task_of_another_project=(
        run(pipelineSpec={"tasks": [{"taskRef": {"apiVersion": "example.com/v1", "kind": "Wait", "name": "a"}}]}),
        {"a": {**TASK, "spec": {"steps": []}}},
        ["spec.pipelineSpec.tasks[0].taskRef.name names a Wait that is not known here, nor are its GPUs"],
    ),
    what_a_resolver_reads=(
        run(pipelineRef={"resolver": "git", "params": []}),
        {},
        ["spec.pipelineRef.resolver the GPUs of git are read only in the pods that the controller creates"],
    ),
    a_pipeline_with_a_task_that_a_resolver_reads=(
        run(pipelineRef={"name": "all"}),
        {"all": {**pipeline(), "spec": {"tasks": [{"taskRef": {"resolver": "hub"}}]}}},
        ["spec.pipelineRef.name the GPUs of all are read only in the pods that the controller creates"],
    ),
)  # fmt: skip
def test_what_an_object_leads_to(data: JSON, objects: JSON, want: list[str]) -> None:
    assert said(with_objects(lambda name: objects.get(name.name)), RUN, data) == want


def test_an_object_that_names_many_is_answered_after_few_reads() -> None:
    asked: list[ObjectReference] = []

    said(with_objects(asked.append), RUN, run(pipelineSpec=pipeline(*map(str, range(1_000)))["spec"]))

    assert len(asked) == MAX_FETCHED


@cases(
    ("answer", "seconds", "want"),
    there=(model(count=2), 5, model(count=2)),
    forbidden=(status(403, "no", "Forbidden"), 5, None),
    too_late=(model(count=2), 0, None),
)
def test_reading_it_of_a_cluster(tmp_path: Path, answer: Any, seconds: float, want: Any) -> None:
    with ApiServer(tmp_path, answering({PATH: answer})) as server:
        read = read_object(server.client(), MODEL, monotonic() + seconds)

    assert read == want


@cases(
    ("name", "want"),
    of_a_namespace=(MODEL, PATH),
    of_the_cluster=(
        ObjectReference("a.b", "v1", "Model", "models", "", "llama"), "/apis/a.b/v1/models/llama",
    ),
    of_kubernetes=(
        ObjectReference("", "v1", "PodTemplate", "podtemplates", "ml", "a"), "/api/v1/namespaces/ml/podtemplates/a",
    ),
)  # fmt: skip
def test_the_path_of_an_object(name: ObjectReference, want: str) -> None:
    assert name.path == want


def test_a_scan_reads_it_once(tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering({PATH: model(count=2), "/api/v1/nodes": []})) as server:
        scanned = ClusterFacts(TolerantReader(server.client()), "ml")
        evaluator = scanned.evaluator(CACHE.configuration, datetime(2026, 11, 21, tzinfo=UTC))
        read = [evaluator.facts.find_object(MODEL) for _ in range(2)]

    assert read == [model(count=2)] * 2
    assert [each.path for each in server.requests].count(PATH) == 1
