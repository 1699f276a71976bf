"""What a pod needs at one time, by the arithmetic of the API server."""

from typing import Any

import pytest

from policies.pods.quantity import QuantityError
from policies.pods.requests import pod_requests
from tests.builders import JSON, container, gpu_container, pod, view


def sidecar(quantity: Any, name: str) -> JSON:
    return gpu_container(quantity, name, restartPolicy="Always")


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(), {}, id="nothing-asked"),
        pytest.param(pod(gpu_container("2")), {"nvidia.com/gpu": "2"}, id="limit-is-the-request-too"),
        pytest.param(
            pod(container(resources={"requests": {"nvidia.com/gpu": "1"}})),
            {"nvidia.com/gpu": "1"},
            id="request-alone",
        ),
        pytest.param(
            pod(
                container(resources={"limits": {"nvidia.com/gpu": "4"}, "requests": {"nvidia.com/gpu": "1"}})
            ),
            {"nvidia.com/gpu": "1"},
            id="request-wins-over-limit",
        ),
        pytest.param(pod(gpu_container("0")), {"nvidia.com/gpu": "0"}, id="explicit-zero-stays"),
        pytest.param(pod(gpu_container(None)), {"nvidia.com/gpu": "0"}, id="null-is-zero"),
        pytest.param(
            pod(gpu_container("1m", resource="amd.com/gpu")), {"amd.com/gpu": "1m"}, id="milli-stays"
        ),
        pytest.param(pod(gpu_container("0.0001")), {"nvidia.com/gpu": "1m"}, id="rounded-up-to-milli"),
        pytest.param(pod(gpu_container("1k")), {"nvidia.com/gpu": "1000"}, id="suffix"),
        pytest.param(
            pod(gpu_container("1", "a"), gpu_container("2", "b")),
            {"nvidia.com/gpu": "3"},
            id="app-containers-add-up",
        ),
        pytest.param(
            pod(gpu_container("2"), initContainers=[gpu_container("3", "i"), gpu_container("1", "j")]),
            {"nvidia.com/gpu": "3"},
            id="largest-init-step",
        ),
        pytest.param(
            pod(gpu_container("2"), initContainers=[sidecar("1", "s"), gpu_container("4", "i")]),
            {"nvidia.com/gpu": "5"},
            id="init-step-runs-beside-earlier-sidecar",
        ),
        pytest.param(
            pod(gpu_container("2"), initContainers=[gpu_container("4", "i"), sidecar("1", "s")]),
            {"nvidia.com/gpu": "4"},
            id="later-sidecar-is-not-there-yet",
        ),
        pytest.param(
            pod(gpu_container("2"), initContainers=[sidecar("1", "s"), sidecar("3", "t")]),
            {"nvidia.com/gpu": "6"},
            id="sidecars-run-beside-the-app",
        ),
        pytest.param(
            pod(
                gpu_container("1"),
                initContainers=[gpu_container("2", "i", resource="amd.com/gpu"), gpu_container("3", "j")],
            ),
            {"nvidia.com/gpu": "3", "amd.com/gpu": "2"},
            id="maximum-is-per-resource",
        ),
        pytest.param(
            pod(gpu_container("1"), overhead={"nvidia.com/gpu": "1", "cpu": "250m"}),
            {"nvidia.com/gpu": "2"},
            id="overhead-comes-on-top",
        ),
        pytest.param(
            pod(container(resources={"limits": {"cpu": "1", "memory": "1Gi"}})),
            {},
            id="native-resources-are-left-out",
        ),
        pytest.param(
            pod(container(resources={"limits": {"example.com/dongle": "1"}})),
            {"example.com/dongle": "1"},
            id="any-named-resource",
        ),
        pytest.param(
            pod(gpu_container("1", resource="deviceclass.resource.kubernetes.io/big")),
            {"deviceclass.resource.kubernetes.io/big": "1"},
            id="implicit-device-class",
        ),
    ],
)
def test_pod_requests(document: JSON, want: dict[str, str]) -> None:
    assert {name: str(quantity) for name, quantity in pod_requests(view(document)).items()} == want


def test_what_is_no_quantity_is_never_counted_as_nothing() -> None:
    with pytest.raises(QuantityError, match='"many"'):
        pod_requests(view(pod(gpu_container("many"))))
