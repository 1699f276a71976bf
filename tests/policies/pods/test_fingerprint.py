"""Fingerprints: pods that differ only in fields that no rule reads have the same."""

from typing import Any

from policies.registry import RULES, fingerprints
from tests.builders import JSON, RESOURCE_MAPPING, gpu_container, pod, view
from tests.cases import cases

TOKEN = "kube-api-access-"

fingerprint_of = fingerprints(RULES, RESOURCE_MAPPING).of


def pod_with(drawn: str = "x7x2k", metadata: JSON | None = None, **more: Any) -> JSON:
    """Return a pod as the API server shows it, with the volume of its token."""
    container = gpu_container(
        volumeMounts=[{"name": f"{TOKEN}{drawn}", "mountPath": "/var/run/secrets/token"}],
        **more.pop("container", {}),
    )
    volumes = [{"name": f"{TOKEN}{drawn}", "projected": {}}, *more.pop("volumes", [])]
    document = pod(container, volumes=volumes, **more)
    document["metadata"] = {"labels": {"app": "x"}, "annotations": {"team": "ml"}, **(metadata or {})}
    return document


@cases(
    "other",
    name=pod_with(metadata={"name": "train-9", "uid": "u", "namespace": "other"}),
    version=pod_with(metadata={"generateName": "train-", "resourceVersion": "7"}),
    owner=pod_with(metadata={"ownerReferences": [{"kind": "Job", "name": "x"}]}),
    not_read_by_any_rule=pod_with(metadata={"managedFields": [{"manager": "kubectl"}]}),
    volume_of_the_token=pod_with("abcde"),
    of_an_indexed_job=pod_with(
        metadata={
            "labels": {"batch.kubernetes.io/job-completion-index": "7", "job-name": "train"},
            "annotations": {"batch.kubernetes.io/job-completion-index": "7"},
        }
    ),
    of_a_stateful_set=pod_with(
        metadata={
            "labels": {"apps.kubernetes.io/pod-index": "7", "statefulset.kubernetes.io/pod-name": "s-7"}
        }
    ),
    of_a_key_as_long_as_is_compared=pod_with(metadata={"annotations": {"k" * 317: "x"}}),
    of_a_deployment_that_was_restarted=pod_with(
        metadata={
            "labels": {"pod-template-hash": "6f7d"},
            "annotations": {"kubectl.kubernetes.io/restartedAt": "2026-11-23T12:00:00Z"},
        }
    ),
    of_kueue=pod_with(
        metadata={
            "labels": {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/podset": "main"},
            "annotations": {"kueue.x-k8s.io/workload": "job-train-7"},
        }
    ),
    of_a_training_operator=pod_with(
        metadata={"labels": {"training.kubeflow.org/replica-index": "7", "app": "y"}}
    ),
)
def test_pods_of_one_controller_have_one_fingerprint(other: JSON) -> None:
    assert fingerprint_of(view(other)) == fingerprint_of(view(pod_with())) is not None


@cases(
    "other",
    label_of_ours=pod_with(metadata={"labels": {"gpu-admission.dev/gpu-class": "nvidia-t4"}}),
    annotation_of_ours=pod_with(metadata={"annotations": {"gpu-admission.dev/gpu-class": "nvidia-t4"}}),
    annotation_that_may_be_meant_as_ours=pod_with(metadata={"annotations": {"gpu-admission/gpu-class": "x"}}),
    annotation_of_the_resource_mapping=pod_with(metadata={"annotations": {"gpu-memory": "1"}}),
    annotation_that_names_devices=pod_with(metadata={"annotations": {"nvidia.cdi.k8s.io/x": "gpu=all"}}),
    empty_map_which_a_rule_may_take_for_an_untouched_pod=pod_with(metadata={"annotations": {}}),
    key_that_is_too_long_to_be_compared=pod_with(metadata={"annotations": {"k" * 318: "x"}}),
    missing_map_which_a_patch_adds=pod_with(metadata={"annotations": None}),
    no_metadata={**pod_with(), "metadata": None},
    image=pod_with(container={"image": "other"}),
    variable=pod_with(container={"env": [{"name": "A", "value": "1"}]}),
    node_selector=pod_with(nodeSelector={"accelerator": "nvidia-t4"}),
    a_name_that_no_token_has=pod_with("toolong"),
    nor_such_a_one=pod_with("A_B.C"),
    an_annotation_with_the_name_of_a_resource=pod_with(metadata={"annotations": {"nvidia.com/gpu": "0"}}),
)
def test_a_difference_that_a_rule_may_read(other: JSON) -> None:
    assert fingerprint_of(view(other)) != fingerprint_of(view(pod_with()))


@cases(
    "more",
    in_an_argument=lambda token: {"container": {"args": [f"--volume={TOKEN}{token}"]}},
    in_a_key=lambda token: {"nodeSelector": {f"{TOKEN}{token}": ""}},
    beside_a_second_one=lambda _: {"volumes": [{"name": f"{TOKEN}other"}]},
)
def test_a_name_that_stands_elsewhere_too_is_not_left_out(more: Any) -> None:
    one, other = (fingerprint_of(view(pod_with(token, **more(token)))) for token in ("aaaaa", "bbbbb"))
    assert one is not None
    assert one != other


@cases(
    ("document", "is_compared"),
    with_claims_which_are_looked_up=(pod_with(resourceClaims=[{"name": "gpu"}]), False),
    as_long_as_is_compared=(pod_with(container={"args": ["x" * 16_066]}), True),
    a_longer_one=(pod_with(container={"args": ["x" * 16_067]}), False),
)
def test_some_are_not_compared(document: JSON, is_compared: bool) -> None:
    assert (fingerprint_of(view(document)) is not None) is is_compared
