"""What to write instead, of workloads as authors write them: found by trying what remedies name, never worse than before."""

from copy import deepcopy
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from policies.quota.amounts import GPUS
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import cluster
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision import Outcome
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.quota.enforcer import ReadOnlyQuota
from webhook.tools.console.proposals import DenialProposals, ProposalReader, correct_object, diff_lines
from webhook.tools.status.summaries import DeniedOwner
from webhook.tools.stored_objects import Evaluation, evaluate

CONFIGURATION = load_directory(None)
LEDGER = quota_ledger(hard={GPUS: Fraction(2)}, used=None)
BY = Evaluator(
    cache=DecisionCache(CONFIGURATION),
    now=datetime(2027, 1, 31, 18, tzinfo=UTC),
    quota_of=lambda _namespace: ReadOnlyQuota(LEDGER, CONFIGURATION, is_unused=True),
)
CLASS = "gpu-admission.dev/gpu-class"


def template(resources: dict[str, Any], gpu_class: str = "") -> dict[str, Any]:
    annotations = {"annotations": {CLASS: gpu_class}} if gpu_class else {}
    container = {"name": "main", "image": "trainer", "resources": resources}
    return {"metadata": annotations, "spec": {"containers": [container], "restartPolicy": "Never"}}


def job(resources: dict[str, Any], gpu_class: str = "") -> dict[str, Any]:
    spec = {"parallelism": 1, "completions": 1, "template": template(resources, gpu_class)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


def pytorch_job(resources: dict[str, Any], gpu_class: str = "") -> dict[str, Any]:
    worker = {"replicas": 1, "template": template(resources, gpu_class)}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train"},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


def evaluated(document: Any) -> Evaluation:
    group = document["apiVersion"].rpartition("/")[0]
    return evaluate(group, document["kind"], "team", msgspec.json.encode(document), BY)


def gpus(limit: str, request: str = "") -> dict[str, Any]:
    requests = {"requests": {"nvidia.com/gpu": request}} if request else {}
    return {"limits": {"nvidia.com/gpu": limit}, **requests}


def changes(before: Any, after: Any) -> list[str]:
    return [
        f"{line[0]} {line[1:].strip()}"
        for look, line in diff_lines(before, after)
        if look in {"plus", "minus"}
    ]


@cases(
    ("document", "want"),
    a_mistyped_class=(job(gpus("1"), "nvidia-a10O"), [f"- {CLASS}: nvidia-a10O", f"+ {CLASS}: nvidia-a10"]),
    more_than_the_quota_grants_in_all=(job(gpus("4")), ["- nvidia.com/gpu: '4'", "+ nvidia.com/gpu: 2"]),
    half_a_gpu=(pytorch_job(gpus("500m")), ["- nvidia.com/gpu: 500m", "+ nvidia.com/gpu: 1"]),
    a_request_below_its_limit=(
        pytorch_job(gpus("2", request="1")),
        ["- nvidia.com/gpu: '1'", "+ nvidia.com/gpu: '2'"],
    ),
    two_errors_at_once=(
        pytorch_job(gpus("2", request="1"), "nvidia-a10O"),
        [
            f"- {CLASS}: nvidia-a10O",
            f"+ {CLASS}: nvidia-a10",
            "- nvidia.com/gpu: '1'",
            "+ nvidia.com/gpu: '2'",
        ],
    ),
    nothing_wrong=(job(gpus("2")), []),
    no_gpus=(job({"limits": {"cpu": "1"}}), []),
)
def test_what_is_written_instead(document: dict[str, Any], want: list[str]) -> None:
    before = deepcopy(document)
    fixed, evaluation = correct_object(document, evaluated)

    assert changes(document, fixed) == want
    assert document == before, "the object itself is not changed"
    assert not [each for each in evaluation.findings() if each.outcome is Outcome.DENIED]


def test_another_slice_is_written_where_no_class_has_the_requested_one() -> None:
    document = pytorch_job({"limits": {"nvidia.com/mig-9g.99gb": "1"}}, "nvidia-h100")
    fixed, evaluation = correct_object(document, evaluated)

    assert changes(document, fixed) == ["- nvidia.com/mig-9g.99gb: '1'", "+ nvidia.com/mig-7g.94gb: '1'"]
    assert list(evaluation.findings()) == []


def test_where_no_fix_helps_nothing_is_written() -> None:
    document = job(gpus("1"))
    container = document["spec"]["template"]["spec"]["containers"][0]
    document["spec"]["template"]["spec"]["containers"] = [
        container,
        {**container, "name": "b"},
        {**container, "name": "c"},
    ]
    fixed, evaluation = correct_object(document, evaluated)

    assert [each.finding.reason for each in evaluation.findings()] == [QUOTA_CAN_NEVER_FIT]
    assert fixed == document


GIVING = {
    "metadata": {"name": "gpus", "namespace": "ml"},
    "spec": {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "1"}}]},
}
JOBS = {"resource": "jobs", "responseKind": {"kind": "Job"}, "scope": "Namespaced"}
SERVED = [{"metadata": {"name": "batch"}, "versions": [{"version": "v1", "resources": [JOBS]}]}]


@cases(
    ("resources", "limit_ranges"),
    that_the_author_wrote=(gpus("1"), []),
    that_a_limit_range_gives=({}, [GIVING]),
)
def test_what_the_webhook_adds_to_a_pod_with_gpus(
    tmp_path: Path, resources: dict[str, Any], limit_ranges: list[Any]
) -> None:
    stored = job(resources)
    stored["metadata"] |= {"namespace": "ml", "uid": "u", "resourceVersion": "1"}
    objects = {
        **cluster(),
        "/apis": {"items": SERVED},
        "/apis/batch/v1/namespaces/ml/jobs/train": stored,
        "/api/v1/namespaces/ml/limitranges": limit_ranges,
    }
    with ApiServer(tmp_path, answering(objects)) as server:
        proposal = ProposalReader(server.client(), BY.now).propose("Job", "train", "ml")

    assert proposal
    assert [line.strip("+ ") for look, line in proposal.injected if look in {"plus", "minus"}] == [
        "tolerations:",
        "- key: nvidia.com/gpu",
        "operator: Exists",
        "effect: NoSchedule",
    ]


def test_proposals_that_a_page_got_stay_as_they_are(tmp_path: Path) -> None:
    first, second = (
        DeniedOwner(namespace="ml", owner=f"Job/{name}", count=1, first=BY.now, last=BY.now, message="no")
        for name in ("first", "second")
    )
    with ApiServer(tmp_path, answering({**cluster(), "/apis": {"items": SERVED}})) as server:
        proposals = DenialProposals(server.client())
        shown = proposals.of([first], BY.now)
        later = proposals.of([first, second], BY.now)

    assert (dict(shown), dict(later)) == ({first: None}, {first: None, second: None})
