"""Which pods are alike: those that differ in nothing that a rule reads."""

from typing import Any

import pytest

from policies.pods.fingerprint import LONGEST, fingerprint_of
from tests.builders import JSON, gpu_container, pod, view

TOKEN = "kube-api-access-"


def sibling(drawn: str = "x7x2k", metadata: JSON | None = None, **more: Any) -> JSON:
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
        pytest.param(sibling(metadata={"name": "train-9", "uid": "u", "namespace": "other"}), id="name"),
        pytest.param(sibling(metadata={"generateName": "train-", "resourceVersion": "7"}), id="version"),
        pytest.param(sibling(metadata={"ownerReferences": [{"kind": "Job", "name": "x"}]}), id="owner"),
        pytest.param(
            sibling(metadata={"managedFields": [{"manager": "kubectl"}]}), id="not-read-by-any-rule"
        ),
        pytest.param(sibling("abcde"), id="volume-of-the-token"),
    ],
)
def test_siblings_are_alike(other: JSON) -> None:
    assert fingerprint_of(view(other)) == fingerprint_of(view(sibling())) is not None


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(sibling(metadata={"labels": {"app": "y"}}), id="label"),
        pytest.param(sibling(metadata={"annotations": {"gpu-memory": "1"}}), id="annotation"),
        pytest.param(sibling(metadata={"annotations": {}}), id="empty-map-into-which-a-patch-adds"),
        pytest.param({**sibling(), "metadata": None}, id="no-metadata"),
        pytest.param(sibling(container={"image": "other"}), id="image"),
        pytest.param(sibling(container={"env": [{"name": "A", "value": "1"}]}), id="variable"),
        pytest.param(sibling(nodeSelector={"accelerator": "nvidia-t4"}), id="node-selector"),
        pytest.param(sibling("toolong"), id="a-name-that-no-token-has"),
        pytest.param(sibling("A_B.C"), id="nor-such-a-one"),
    ],
)
def test_what_a_rule_may_read_tells_them_apart(other: JSON) -> None:
    assert fingerprint_of(view(other)) != fingerprint_of(view(sibling()))


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
    one, other = (fingerprint_of(view(sibling(token, **more(token)))) for token in ("aaaaa", "bbbbb"))
    assert one is not None
    assert one != other


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(sibling(resourceClaims=[{"name": "gpu"}]), id="with-claims-which-are-looked-up"),
        pytest.param(sibling(container={"args": ["x" * LONGEST]}), id="a-long-one"),
    ],
)
def test_some_are_not_compared(document: JSON) -> None:
    assert fingerprint_of(view(document)) is None
