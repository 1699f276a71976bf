"""What changes a pod and never reaches the webhook, as docs/operate/security.md lists it: a new subresource fails here."""

from collections.abc import Iterator

import pytest

from tests.builders import JSON, container, pod
from tests.cases import cases
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.client import STRATEGIC_PATCH

NAMESPACE = "subresources"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEVICES = {"cdi.k8s.io/gpus": "nvidia.com/gpu=all"}
CHANGING = {"binding", "ephemeralcontainers", "resize", "status"}
OTHERS = {"attach", "eviction", "exec", "log", "portforward", "proxy"}


@pytest.fixture(scope="module", autouse=True)
def namespace(plane: ControlPlane) -> Iterator[None]:
    accepted(plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}))
    yield
    plane.client().delete(f"/api/v1/namespaces/{NAMESPACE}")


def stored(plane: ControlPlane, name: str) -> str:
    made = {**pod(container("c", resources={"requests": {"cpu": "1"}})), "metadata": {"name": name}}
    accepted(plane.client().post(PODS, made))
    return f"{PODS}/{name}"


def test_every_subresource_of_pods_is_known(plane: ControlPlane) -> None:
    listed = accepted(plane.client().get("/api/v1"))["resources"]

    found = {each["name"].partition("/")[2] for each in listed if each["name"].startswith("pods/")}

    assert found <= CHANGING | OTHERS


@cases(
    ("subresource", "change", "changed"),
    ephemeral_containers=("ephemeralcontainers", {"ephemeralContainers": [container("e")]}, False),
    resize=("resize", {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}, False),
    status=("status", {}, True),
)
def test_annotations_that_name_devices(
    plane: ControlPlane, subresource: str, change: JSON, changed: bool
) -> None:
    path = stored(plane, subresource)
    body = {"metadata": {"annotations": DEVICES}, "spec": change}

    accepted(plane.client().patch(f"{path}/{subresource}", body, content_type=STRATEGIC_PATCH))

    annotations = accepted(plane.client().get(path))["metadata"].get("annotations")
    assert annotations == (DEVICES if changed else None)


def test_a_binding_sets_annotations(plane: ControlPlane) -> None:
    path = stored(plane, "binding")
    metadata = {"name": "binding", "annotations": DEVICES}

    accepted(
        plane.client().post(
            f"{path}/binding", {"metadata": metadata, "target": {"kind": "Node", "name": "n"}}
        )
    )

    bound = accepted(plane.client().get(path))
    assert (bound["metadata"]["annotations"], bound["spec"]["nodeName"]) == (DEVICES, "n")


def test_a_resize_changes_no_gpus(plane: ControlPlane) -> None:
    path = stored(plane, "gpus")
    amounts = {"nvidia.com/gpu": "1"}
    resized = [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]

    status, answer = plane.client().patch(
        f"{path}/resize", {"spec": {"containers": resized}}, content_type=STRATEGIC_PATCH
    )

    assert (status, "only cpu and memory resources are mutable" in answer["message"]) == (422, True)
