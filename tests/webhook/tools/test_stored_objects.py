"""Stored pods and workloads, evaluated as if they were created now."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec

from policies.pods.annotations import INJECTED
from policies.quota.amounts import GPUS
from tests.builders import JSON, container, gpu_container, pod, quota_ledger
from tests.cases import cases
from webhook.configuration.documents import Document
from webhook.configuration.loader import Configuration, load_objects
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.quota.enforcer import ReadOnlyQuota
from webhook.tools.stored_objects import Evaluation, StoredObjectVerdict, evaluate

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

BY_DEFAULT = "gpu-class: nodeSelector accelerator=nvidia-a100-80gb\ngpu-toleration: toleration nvidia.com/gpu:NoSchedule"
MIRROR = {"kubernetes.io/config.mirror": "3f"}

ONLY_L4 = {"rules": {"gpu-class": {"default": "nvidia-l4", "allowed": ["nvidia-l4"]}}}
RESTRICTED = load_objects([Document("GPUPolicy", "default", ONLY_L4)])
BUILT_IN = load_objects([])


def stored(*, manager: str = "", metadata: JSON | None = None, **tweaks: Any) -> JSON:
    """Return a pod of a GPU as the API server stores it once it runs on node gpu-1."""
    fields: JSON = {"f:spec": {"f:containers": {}, **({manager: {}} if manager else {})}}
    managed = [{"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}]
    document = pod(tweaks.pop("container", gpu_container()), nodeName="gpu-1", **tweaks)
    identity: JSON = {
        "uid": "2b8d2e4e-0000-4000-8000-000000000000",
        "resourceVersion": "12",
        "managedFields": managed,
    }
    document["metadata"] |= {**identity, **(metadata or {})}
    return {**document, "status": {"phase": "Running"}}


def owned_by(kind: str, name: str, api_version: str = "apps/v1") -> JSON:
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": "1", "controller": True}
    return {"ownerReferences": [owner]}


def evaluated(
    configuration: Configuration, document: JSON, kind: tuple[str, str] = ("", "Pod"), **by: Any
) -> Evaluation:
    manifest_context = Evaluator(cache=DecisionCache(configuration), now=NOW, **by)
    return evaluate(*kind, "ml-training", msgspec.json.encode(document), manifest_context)


NOT_ALLOWED = (
    "denied: must not pin the pod to nvidia-a100-80gb (nodeSelector accelerator=nvidia-a100-80gb): "
    "not allowed in namespace ml-training"
)
ISOLATED = "audited: would add main: env NVIDIA_VISIBLE_DEVICES=void"
UNPLACED = "denied: must pin the pod to a GPU class: namespace ml-training may not use every class"

A100: JSON = {"nodeSelector": {"accelerator": "nvidia-a100-80gb"}, "annotations": {INJECTED: BY_DEFAULT}}
TOLERATED: JSON = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}
STATIC = owned_by("Node", "gpu-1", "v1")
TOO_LONG = "denied: must have at most 256 items, not 257"


@cases(
    ("document", "verdict", "first"),
    its_author_pinned_it=(
        stored(nodeSelector=A100["nodeSelector"]),
        StoredObjectVerdict.DENIED,
        NOT_ALLOWED,
    ),
    a_default_that_was_another_then_pinned_it=(stored(**A100, **TOLERATED), StoredObjectVerdict.CHANGED, ""),
    the_scheduler_chose_its_node=(stored(), StoredObjectVerdict.CHANGED, ""),
    its_author_chose_its_node=(stored(manager="f:nodeName"), StoredObjectVerdict.DENIED, UNPLACED),
    a_daemonset_placed_it=(
        stored(metadata=owned_by("DaemonSet", "dcgm")),
        StoredObjectVerdict.DENIED,
        UNPLACED,
    ),
    a_static_pod_passes=(stored(metadata=STATIC, annotations=MIRROR), StoredObjectVerdict.ACCEPTED, ""),
    an_annotation_is_no_proof=(
        stored(annotations=MIRROR, manager="f:nodeName"),
        StoredObjectVerdict.DENIED,
        UNPLACED,
    ),
    no_gpu=(stored(container=container()), StoredObjectVerdict.ACCEPTED, ISOLATED),
    too_long_for_the_rules=(
        stored(nodeSelector=dict.fromkeys(map(str, range(257)), "")),
        StoredObjectVerdict.DENIED,
        TOO_LONG,
    ),
)
def test_a_stored_pod_is_judged_as_its_author_submitted_it(
    document: JSON, verdict: StoredObjectVerdict, first: str
) -> None:
    found = evaluated(RESTRICTED, document)

    assert found.verdict is verdict
    messages = [f"{each.outcome.value}: {each.finding.message}" for each in found.findings()]
    assert messages[:1] == ([first] if first else [])


def test_what_would_be_injected_is_by_the_configuration_of_now() -> None:
    (found,) = evaluated(RESTRICTED, stored(**A100)).pods

    assert found.submitted.spec.node_selector is None
    assert found.admitted.spec.node_selector == {"accelerator": "nvidia-l4"}
    assert [each.what for each in found.changes] == [
        "nodeSelector accelerator=nvidia-l4",
        "toleration nvidia.com/gpu:NoSchedule",
    ]


def test_a_workload_is_judged_by_its_templates() -> None:
    template = {"metadata": {}, "spec": {"containers": [gpu_container("500m")]}}
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", **owned_by("Service", "llm", "serving.example/v1")},
        "spec": {"replicas": 2, "template": template},
    }

    found = evaluated(BUILT_IN, document, ("apps", "Deployment"))

    assert (found.kind, found.name, found.owner) == ("Deployment", "chat", "Service/llm")
    assert found.verdict is StoredObjectVerdict.DENIED
    assert [each.finding.path for each in found.findings()] == [
        "spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]"
    ]


@cases(
    ("hard", "verdict"),
    fits_by_itself_whatever_runs=("1", StoredObjectVerdict.CHANGED),
    can_never_fit=("0", StoredObjectVerdict.DENIED),
    no_quota=(None, StoredObjectVerdict.CHANGED),
)
def test_of_a_quota_only_what_can_never_fit_counts(hard: str | None, verdict: StoredObjectVerdict) -> None:
    ledger = quota_ledger(hard={GPUS: Fraction(hard)}, used=None) if hard else None

    found = evaluated(BUILT_IN, stored(), quota_of=lambda _: ReadOnlyQuota(ledger, BUILT_IN, is_unused=True))

    assert found.verdict is verdict


def test_what_cannot_be_read_says_why() -> None:
    found = evaluated(BUILT_IN, {"metadata": {"name": "odd"}, "spec": {"containers": 1}})

    assert found.verdict is StoredObjectVerdict.UNREADABLE
    assert found.name == "odd"
    assert found.unreadable == "Expected `array | null`, got `int` - at `$.spec.containers`"


def test_a_denial_of_the_pinned_pod_is_not_hidden_by_the_warning_before_mutation() -> None:
    """Unpinned, 17 GPUs are more than any machine has; pinned to the default class, more than its nodes have."""
    rules = {"gpu-class": {"default": "nvidia-a100"}}
    cache = DecisionCache(load_objects([Document("GPUPolicy", "cluster-default", {"rules": rules})]))
    document = msgspec.json.encode(pod(gpu_container(17)))

    assert (
        evaluate("", "Pod", "team", document, Evaluator(cache=cache, now=NOW)).verdict
        is StoredObjectVerdict.DENIED
    )
