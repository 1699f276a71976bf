"""What an object gets of another one that it names: by its row in the table of kinds, and in the review of it."""

from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from policies.pods.field_paths import value_at
from tests.builders import JSON, manifest
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering, status
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.evaluation.workloads import evaluate_workload, with_referred
from webhook.tools.scan.scanning import ClusterFacts
from webhook.tools.status.permitted import Permitted
from webhook.workloads.references import read_reference

CACHE = DecisionCache(load_directory(None))
KEY = ("inference.llmkube.dev", "InferenceService")
VERSION = "inference.llmkube.dev/v1alpha1"
PATH = f"/apis/{VERSION}/namespaces/ml/models/llama"


def service(**resources: Any) -> JSON:
    spec = {"modelRef": "llama", "replicas": 3, "resources": resources}
    return manifest(VERSION, "InferenceService", "chat", spec, namespace="ml")


def model(**gpu: Any) -> JSON:
    return manifest(VERSION, "Model", "llama", {"hardware": {"gpu": gpu}}, namespace="ml")


def evaluator(found: Any) -> Evaluator:
    def referred(*names: str) -> Any:
        assert names == ("ml", VERSION, "Model", "llama")
        return found

    now = datetime(2026, 11, 21, tzinfo=UTC)
    return Evaluator(cache=CACHE, now=now, facts=Facts(referred=referred))


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
    by = evaluator(model(**gpu))

    whole, _, unknown = with_referred(by, by.policy("ml"), KEY, service(**own), [])

    assert value_at(whole, ("spec", "resources")) == want
    assert unknown == []


@cases(
    ("found", "said"),
    unknown=(
        None,
        ["spec.modelRef names a Model that is not known here, nor are its GPUs"],
    ),
    known=(model(count=2), []),
    unreadable=({"spec": []}, []),
)
def test_a_review_of_it(found: Any, said: list[str]) -> None:
    by = evaluator(found)
    document = msgspec.Raw(msgspec.json.encode(service(gpu=1)))

    _, advice = evaluate_workload(by, by.policy("ml"), KEY, document, is_update=False)

    findings = [each.finding for decision in advice for each in decision.violations]
    assert [f"{each.path} {each.message}" for each in findings] == said


@cases(
    ("answer", "seconds", "want"),
    there=(model(count=2), 5, model(count=2)),
    forbidden=(status(403, "no", "Forbidden"), 5, None),
    too_late=(model(count=2), 0, None),
)
def test_reading_it_of_a_cluster(tmp_path: Path, answer: Any, seconds: float, want: Any) -> None:
    with ApiServer(tmp_path, answering({PATH: answer})) as server:
        read = read_reference(server.client(), "ml", VERSION, "Model", "llama", monotonic() + seconds)

    assert read == want


def test_a_scan_reads_it_once(tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering({PATH: model(count=2), "/api/v1/nodes": []})) as server:
        scanned = ClusterFacts(Permitted(server.client()), "ml")
        by = scanned.evaluator(CACHE.configuration, datetime(2026, 11, 21, tzinfo=UTC))
        read = [by.facts.referred("ml", VERSION, "Model", "llama") for _ in range(2)]

    assert read == [model(count=2)] * 2
    assert [each.path for each in server.requests].count(PATH) == 1
