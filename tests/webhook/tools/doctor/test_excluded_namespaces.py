"""Namespaces that the webhooks do not choose."""

from pathlib import Path

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.doctor.objects import (
    ENTRY,
    GPU,
    NAMESPACES,
    OURS,
    QUOTAS,
    excluding,
    namespace,
    quota,
)
from tests.webhook.tools.installed_clusters import assert_found, checked
from webhook.tools.doctor.checks.configurations import excluded_by_name


def test_a_gpu_operator_that_depends_on_the_webhook_is_noted(tmp_path: Path) -> None:
    objects = {OURS: excluding("kube-system"), NAMESPACES: [namespace("gpu-operator")]}
    result = checked("excluded-namespaces", objects, tmp_path)

    assert result.findings == ()
    assert list(result.notes) == [
        "pods of gpu-operator that request GPUs are reviewed, and start only while the webhook answers: "
        "name it in webhooks.excludedNamespaces of the chart where only administrators create pods in it"
    ]


MISSING = (
    f"excluded-namespace-missing: Namespace/gpu-operator does not exist and is excluded by {ENTRY}: a user who creates it "
    "runs GPU pods without any review\n"
    "remove gpu-operator from webhooks.excludedNamespaces of the chart until it exists, or create it"
)


@cases(("there", "want"), it_exists=("gpu-operator", []), it_does_not_exist=("team", [MISSING]))
def test_an_excluded_namespace(there: str, want: list[str], tmp_path: Path) -> None:
    objects = {OURS: excluding("kube-system", "gpu-operator"), NAMESPACES: [namespace(there)]}
    assert_found("excluded-namespaces", objects, want, tmp_path)


UNSEEN = (
    f"unseen-quota: GPUQuota/default in team does not hold: {ENTRY} does not choose the namespace, so its pods are not "
    "reviewed\n"
    "give the namespace the labels of webhooks.namespaceSelector of the chart, or take it from excludedNamespaces"
)


@cases(("excluded", "want"), in_an_excluded_namespace=("team", [UNSEEN]), in_a_chosen_namespace=("other", []))
def test_quotas_of_unseen_namespaces(excluded: str, want: list[str], tmp_path: Path) -> None:
    objects = {OURS: excluding(excluded), NAMESPACES: [namespace("team")], QUOTAS: [quota()]}
    assert_found("unseen-quotas", objects, want, tmp_path)


def test_a_quota_in_a_namespace_that_is_never_reviewed(tmp_path: Path) -> None:
    system = quota()
    system["metadata"]["namespace"] = "kube-system"
    objects = {OURS: excluding("kube-system"), NAMESPACES: [namespace("kube-system")], QUOTAS: [system]}
    want = [
        f"unseen-quota: GPUQuota/default in kube-system does not hold: {ENTRY} does not choose the namespace, so its pods are "
        "not reviewed\n"
        "kubectl -n kube-system delete gpuquota default: pods of this namespace are never reviewed"
    ]
    assert_found("unseen-quotas", objects, want, tmp_path)


def test_namespaces_that_labels_do_not_choose_are_noted(tmp_path: Path) -> None:
    entries = excluding("kube-system")
    entries["webhooks"][0]["namespaceSelector"]["matchLabels"] = {"gpus": "reviewed"}
    metadata = {"name": "train", "namespace": "team", "uid": "u"}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "a", "resources": {"limits": GPU}}]}}
    objects = {OURS: entries, NAMESPACES: [namespace("team")], "/api/v1/namespaces/team/pods": [pod]}

    assert list(checked("excluded-namespaces", objects, tmp_path).notes) == [
        "webhooks.namespaceSelector of the chart does not choose all namespaces with GPU pods (1, such as team)"
    ]


NAME = "kubernetes.io/metadata.name"


@cases(
    ("expressions", "want"),
    by_name=([{"key": NAME, "operator": "NotIn", "values": ["a", "b"]}], {"a", "b"}),
    chosen_by_name=([{"key": NAME, "operator": "In", "values": ["a"]}], set()),
    by_another_label=([{"key": "gpu", "operator": "NotIn", "values": ["a"]}], set()),
    everything=([], set()),
)
def test_namespaces_that_a_selector_excludes_by_name(expressions: list[JSON], want: set[str]) -> None:
    assert excluded_by_name({"matchExpressions": expressions}) == want
