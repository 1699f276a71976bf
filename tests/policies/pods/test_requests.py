"""What a pod needs at one time, by the arithmetic of the API server."""

from typing import Any

import pytest

from policies.pods.quantity import QuantityError
from policies.pods.requests import pod_requests
from tests.builders import JSON, container, gpu_container, pod, view


def sidecar(quantity: Any, name: str) -> JSON:
    return gpu_container(quantity, name, restartPolicy="Always")


def requested(document: JSON) -> dict[str, str]:
    return {name: str(quantity) for name, quantity in pod_requests(view(document)).items()}


def resources(**amounts: JSON) -> JSON:
    return container(resources=amounts)


GPU, AMD, IMPLICIT = "nvidia.com/gpu", "amd.com/gpu", "deviceclass.resource.kubernetes.io/big"


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(), {}, id="nothing-requested"),
        pytest.param(pod(gpu_container("2")), {GPU: "2"}, id="limit-is-the-request-too"),
        pytest.param(pod(resources(requests={GPU: "1"})), {GPU: "1"}, id="request-alone"),
        pytest.param(
            pod(resources(limits={GPU: "4"}, requests={GPU: "1"})), {GPU: "1"}, id="request-wins-over-limit"
        ),
        pytest.param(pod(gpu_container("0")), {GPU: "0"}, id="explicit-zero-stays"),
        pytest.param(pod(gpu_container(None)), {GPU: "0"}, id="null-is-zero"),
        pytest.param(pod(gpu_container("1m", resource=AMD)), {AMD: "1m"}, id="milli-stays"),
        pytest.param(pod(gpu_container("0.0001")), {GPU: "1m"}, id="rounded-up-to-milli"),
        pytest.param(pod(gpu_container("1k")), {GPU: "1000"}, id="suffix"),
        pytest.param(
            pod(gpu_container("1"), gpu_container("2", "b")), {GPU: "3"}, id="app-containers-add-up"
        ),
        pytest.param(
            pod(gpu_container("1"), overhead={GPU: "1", "cpu": "250m"}),
            {GPU: "2"},
            id="overhead-comes-on-top",
        ),
        pytest.param(
            pod(resources(limits={"cpu": "1", "memory": "1Gi"})), {}, id="native-resources-are-left-out"
        ),
        pytest.param(
            pod(resources(limits={"example.com/dongle": "1"})),
            {"example.com/dongle": "1"},
            id="any-named-resource",
        ),
        pytest.param(pod(gpu_container("1", resource=IMPLICIT)), {IMPLICIT: "1"}, id="implicit-device-class"),
    ],
)
def test_pod_requests(document: JSON, want: dict[str, str]) -> None:
    assert requested(document) == want


@pytest.mark.parametrize(
    ("app", "init", "want"),
    [
        pytest.param(
            "2", [gpu_container("3", "i"), gpu_container("1", "j")], {GPU: "3"}, id="largest-init-step"
        ),
        pytest.param(
            "2",
            [sidecar("1", "s"), gpu_container("4", "i")],
            {GPU: "5"},
            id="init-step-beside-earlier-sidecar",
        ),
        pytest.param(
            "2", [gpu_container("4", "i"), sidecar("1", "s")], {GPU: "4"}, id="later-sidecar-is-not-there-yet"
        ),
        pytest.param(
            "2", [sidecar("1", "s"), sidecar("3", "t")], {GPU: "6"}, id="sidecars-run-beside-the-app"
        ),
        pytest.param(
            "1",
            [gpu_container("2", "i", resource=AMD), gpu_container("3", "j")],
            {GPU: "3", AMD: "2"},
            id="maximum-is-per-resource",
        ),
    ],
)
def test_init_containers(app: str, init: list[JSON], want: dict[str, str]) -> None:
    assert requested(pod(gpu_container(app), initContainers=init)) == want


def test_what_is_no_quantity_is_never_counted_as_nothing() -> None:
    with pytest.raises(QuantityError, match='"many"'):
        pod_requests(view(pod(gpu_container("many"))))
