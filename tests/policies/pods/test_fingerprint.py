"""Fingerprints: pods that differ only in fields that no rule reads have the same."""

from typing import Any

from policies.pods.fingerprint import LONGEST, fingerprint_of
from tests.builders import JSON, gpu_container, pod, view
from tests.cases import cases

TOKEN = "kube-api-access-"


def pod_with(drawn: str = "x7x2k", metadata: JSON | None = None, **more: Any) -> JSON:
    """Return a pod as the API server shows it, with the volume of its token."""
    container = gpu_container(
        volumeMounts=[{"name": f"{TOKEN}{drawn}", "mountPath": "/var/run/secrets/token"}],
        **more.pop("container", {}),
    )
    volumes = [{"name": f"{TOKEN}{drawn}", "projected": {}}, *more.pop("volumes", [])]
    document = pod(container, volumes=volumes, **more)
    document["metadata"] = {"labels": {"app": "x"}, **(metadata or {})}
    return document


@cases(
    "other",
    {
        "name": pod_with(metadata={"name": "train-9", "uid": "u", "namespace": "other"}),
        "version": pod_with(metadata={"generateName": "train-", "resourceVersion": "7"}),
        "owner": pod_with(metadata={"ownerReferences": [{"kind": "Job", "name": "x"}]}),
        "not-read-by-any-rule": pod_with(metadata={"managedFields": [{"manager": "kubectl"}]}),
        "volume-of-the-token": pod_with("abcde"),
    },
)
def test_pods_of_one_controller_have_one_fingerprint(other: JSON) -> None:
    assert fingerprint_of(view(other)) == fingerprint_of(view(pod_with())) is not None


@cases(
    "other",
    {
        "label": pod_with(metadata={"labels": {"app": "y"}}),
        "annotation": pod_with(metadata={"annotations": {"gpu-memory": "1"}}),
        "empty-map-into-which-a-patch-adds": pod_with(metadata={"annotations": {}}),
        "no-metadata": {**pod_with(), "metadata": None},
        "image": pod_with(container={"image": "other"}),
        "variable": pod_with(container={"env": [{"name": "A", "value": "1"}]}),
        "node-selector": pod_with(nodeSelector={"accelerator": "nvidia-t4"}),
        "a-name-that-no-token-has": pod_with("toolong"),
        "nor-such-a-one": pod_with("A_B.C"),
    },
)
def test_a_difference_that_a_rule_may_read(other: JSON) -> None:
    assert fingerprint_of(view(other)) != fingerprint_of(view(pod_with()))


@cases(
    "more",
    {
        "in-an-argument": lambda token: {"container": {"args": [f"--volume={TOKEN}{token}"]}},
        "in-a-key": lambda token: {"nodeSelector": {f"{TOKEN}{token}": ""}},
        "beside-a-second-one": lambda _: {"volumes": [{"name": f"{TOKEN}other"}]},
    },
)
def test_a_name_that_stands_elsewhere_too_is_not_left_out(more: Any) -> None:
    one, other = (fingerprint_of(view(pod_with(token, **more(token)))) for token in ("aaaaa", "bbbbb"))
    assert one is not None
    assert one != other


@cases(
    "document",
    {
        "with-claims-which-are-looked-up": pod_with(resourceClaims=[{"name": "gpu"}]),
        "a-long-one": pod_with(container={"args": ["x" * LONGEST]}),
    },
)
def test_some_are_not_compared(document: JSON) -> None:
    assert fingerprint_of(view(document)) is None
