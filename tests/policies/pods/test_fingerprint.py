"""Fingerprints: pods that differ only in fields that no rule reads have the same."""

from typing import Any

import pytest

from policies.pods.fingerprint import LONGEST, fingerprint_of
from tests.builders import JSON, gpu_container, pod, view

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


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pod_with(metadata={"name": "train-9", "uid": "u", "namespace": "other"}), id="name"),
        pytest.param(pod_with(metadata={"generateName": "train-", "resourceVersion": "7"}), id="version"),
        pytest.param(pod_with(metadata={"ownerReferences": [{"kind": "Job", "name": "x"}]}), id="owner"),
        pytest.param(
            pod_with(metadata={"managedFields": [{"manager": "kubectl"}]}), id="not-read-by-any-rule"
        ),
        pytest.param(pod_with("abcde"), id="volume-of-the-token"),
    ],
)
def test_pods_of_one_controller_have_one_fingerprint(other: JSON) -> None:
    assert fingerprint_of(view(other)) == fingerprint_of(view(pod_with())) is not None


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pod_with(metadata={"labels": {"app": "y"}}), id="label"),
        pytest.param(pod_with(metadata={"annotations": {"gpu-memory": "1"}}), id="annotation"),
        pytest.param(pod_with(metadata={"annotations": {}}), id="empty-map-into-which-a-patch-adds"),
        pytest.param({**pod_with(), "metadata": None}, id="no-metadata"),
        pytest.param(pod_with(container={"image": "other"}), id="image"),
        pytest.param(pod_with(container={"env": [{"name": "A", "value": "1"}]}), id="variable"),
        pytest.param(pod_with(nodeSelector={"accelerator": "nvidia-t4"}), id="node-selector"),
        pytest.param(pod_with("toolong"), id="a-name-that-no-token-has"),
        pytest.param(pod_with("A_B.C"), id="nor-such-a-one"),
    ],
)
def test_a_difference_that_a_rule_may_read(other: JSON) -> None:
    assert fingerprint_of(view(other)) != fingerprint_of(view(pod_with()))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(
            lambda token: {"container": {"args": [f"--volume={TOKEN}{token}"]}}, id="in-an-argument"
        ),
        pytest.param(lambda token: {"nodeSelector": {f"{TOKEN}{token}": ""}}, id="in-a-key"),
        pytest.param(lambda _: {"volumes": [{"name": f"{TOKEN}other"}]}, id="beside-a-second-one"),
    ],
)
def test_a_name_that_stands_elsewhere_too_is_not_left_out(more: Any) -> None:
    one, other = (fingerprint_of(view(pod_with(token, **more(token)))) for token in ("aaaaa", "bbbbb"))
    assert one is not None
    assert one != other


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod_with(resourceClaims=[{"name": "gpu"}]), id="with-claims-which-are-looked-up"),
        pytest.param(pod_with(container={"args": ["x" * LONGEST]}), id="a-long-one"),
    ],
)
def test_some_are_not_compared(document: JSON) -> None:
    assert fingerprint_of(view(document)) is None
