"""Stored pods and workloads, evaluated as if they were created now."""

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from policies.pods.annotations import INJECTED
from policies.quota.amounts import GPUS
from policies.quota.demand import UnclassifiedPods
from policies.quota.quota_request import QuotaGrant
from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from webhook.configuration.loader import Configuration, load_directory
from webhook.serving.engine import Engine
from webhook.serving.evaluation import Evaluation, UnusedQuota, Verdict, evaluate
from webhook.serving.evaluator import Evaluator

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

RESTRICTED = "rules: {gpu-class: {default: nvidia-l4, allowed: [nvidia-l4]}}"
BY_DEFAULT = "gpu-class: nodeSelector accelerator=nvidia-a100-80gb\ngpu-toleration: toleration nvidia.com/gpu:NoSchedule"
MIRROR = {"kubernetes.io/config.mirror": "3f"}


def policy(tmp_path: Path, spec: str) -> Configuration:
    (tmp_path / "policy.yaml").write_text(
        "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: default}\n"
        f"spec: {{{spec}}}\n"
    )
    return load_directory(tmp_path)


def stored(document: JSON, *, manager: str = "", **metadata: Any) -> JSON:
    """Return a pod as the API server stores it once it runs on node gpu-1."""
    fields: JSON = {"f:spec": {"f:containers": {}, **({manager: {}} if manager else {})}}
    managed = [{"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}]
    document["metadata"] |= {
        "uid": "2b8d2e4e-0000-4000-8000-000000000000",
        "resourceVersion": "12",
        "managedFields": managed,
        **metadata,
    }
    document["spec"]["nodeName"] = "gpu-1"
    return {**document, "status": {"phase": "Running"}}


def owned_by(kind: str, name: str, api_version: str = "apps/v1") -> JSON:
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": "1", "controller": True}
    return {"ownerReferences": [owner]}


def evaluated(
    configuration: Configuration, document: JSON, kind: tuple[str, str] = ("", "Pod"), **by: Any
) -> Evaluation:
    manifest_context = Evaluator(engine=Engine(configuration), now=NOW, **by)
    return evaluate(*kind, "ml-training", msgspec.json.encode(document), manifest_context)


NOT_ALLOWED = (
    "denied: must not pin the pod to nvidia-a100-80gb (nodeSelector accelerator=nvidia-a100-80gb): "
    "not allowed in namespace ml-training"
)
ISOLATED = "audited: would add main: env NVIDIA_VISIBLE_DEVICES=void"
UNPLACED = "denied: must pin the pod to a GPU class: namespace ml-training may not use every class"


@cases(
    ("document", "verdict", "first"),
    {
        "its-author-pinned-it": (
            stored(pod(gpu_container(), nodeSelector={"accelerator": "nvidia-a100-80gb"})),
            Verdict.REFUSED,
            NOT_ALLOWED,
        ),
        "a-default-that-was-another-then-pinned-it": (
            stored(
                pod(
                    gpu_container(),
                    nodeSelector={"accelerator": "nvidia-a100-80gb"},
                    tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                    annotations={INJECTED: BY_DEFAULT},
                )
            ),
            Verdict.CHANGED,
            "",
        ),
        "the-scheduler-chose-its-node": (stored(pod(gpu_container())), Verdict.CHANGED, ""),
        "its-author-chose-its-node": (
            stored(pod(gpu_container()), manager="f:nodeName"),
            Verdict.REFUSED,
            UNPLACED,
        ),
        "a-daemonset-placed-it": (
            stored(pod(gpu_container()), **owned_by("DaemonSet", "dcgm")),
            Verdict.REFUSED,
            UNPLACED,
        ),
        "a-static-pod-passes": (
            stored(pod(gpu_container(), annotations=MIRROR), **owned_by("Node", "gpu-1", "v1")),
            Verdict.ACCEPTED,
            "",
        ),
        "the-annotation-alone-makes-no-static-pod": (
            stored(pod(gpu_container(), annotations=MIRROR), manager="f:nodeName"),
            Verdict.REFUSED,
            UNPLACED,
        ),
        "no-gpu": (stored(pod()), Verdict.ACCEPTED, ISOLATED),
    },
)
def test_a_stored_pod_is_judged_as_its_author_submitted_it(
    tmp_path: Path, document: JSON, verdict: Verdict, first: str
) -> None:
    found = evaluated(policy(tmp_path, RESTRICTED), document)

    assert found.verdict is verdict
    messages = [f"{each.outcome.value}: {each.finding.message}" for each in found.findings()]
    assert messages[:1] == ([first] if first else [])


def test_what_would_be_injected_is_by_the_configuration_of_now(tmp_path: Path) -> None:
    document = stored(
        pod(
            gpu_container(),
            nodeSelector={"accelerator": "nvidia-a100-80gb"},
            annotations={INJECTED: BY_DEFAULT},
        )
    )

    (found,) = evaluated(policy(tmp_path, RESTRICTED), document).pods

    assert found.submitted.spec.node_selector is None
    assert found.admitted.spec.node_selector == {"accelerator": "nvidia-l4"}
    assert [each.what for each in found.changes] == [
        "nodeSelector accelerator=nvidia-l4",
        "toleration nvidia.com/gpu:NoSchedule",
    ]


def test_a_workload_is_judged_by_its_templates(tmp_path: Path) -> None:
    template = {"metadata": {}, "spec": {"containers": [gpu_container("500m")]}}
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", **owned_by("Service", "llm", "serving.example/v1")},
        "spec": {"replicas": 2, "template": template},
    }

    found = evaluated(policy(tmp_path, ""), document, ("apps", "Deployment"))

    assert (found.kind, found.name, found.owner, found.verdict) == (
        "Deployment",
        "chat",
        "Service/llm",
        Verdict.REFUSED,
    )
    assert [each.finding.path for each in found.findings()] == [
        "spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]"
    ]


@cases(
    ("hard", "verdict"),
    {
        "fits-by-itself-whatever-runs": ("1", Verdict.CHANGED),
        "can-never-fit": ("0", Verdict.REFUSED),
        "no-quota": (None, Verdict.CHANGED),
    },
)
def test_of_a_quota_only_what_can_never_fit_counts(
    tmp_path: Path, hard: str | None, verdict: Verdict
) -> None:
    configuration = policy(tmp_path, "")
    granted = QuotaGrant({GPUS: Fraction(hard)}, UnclassifiedPods.TOTAL_ONLY) if hard else None
    document = stored(pod(gpu_container("1")))

    found = evaluated(configuration, document, quota_of=lambda _: UnusedQuota(granted, configuration))

    assert found.verdict is verdict


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    found = evaluated(policy(tmp_path, ""), {"metadata": {"name": "odd"}, "spec": {"containers": 1}})

    assert found.verdict is Verdict.UNREADABLE
    assert (found.name, found.unreadable) == (
        "odd",
        "Expected `array | null`, got `int` - at `$.spec.containers`",
    )
