"""What a pod needs at one time, by the arithmetic of the API server."""

from typing import Any

import pytest

from policies.gpus.cards import gpu_requests
from policies.pods.quantity import QuantityError
from tests.builders import JSON, RESOURCE_MAPPING, container, gpu_container, pod, view
from tests.cases import cases


def sidecar(quantity: Any, name: str) -> JSON:
    return gpu_container(quantity, name, restartPolicy="Always")


def requested(document: JSON) -> dict[str, str]:
    return {each.name: str(amount) for each, amount in gpu_requests(view(document), RESOURCE_MAPPING).items()}


def resources(**amounts: JSON) -> JSON:
    return container(resources=amounts)


GPU, AMD, IMPLICIT = "nvidia.com/gpu", "amd.com/gpu", "deviceclass.resource.kubernetes.io/big"


@cases(
    ("document", "want"),
    nothing_requested=(pod(), {}),
    limit_is_the_request_too=(pod(gpu_container("2")), {GPU: "2"}),
    request_alone=(pod(resources(requests={GPU: "1"})), {GPU: "1"}),
    request_wins_over_limit=(pod(resources(limits={GPU: "4"}, requests={GPU: "1"})), {GPU: "1"}),
    zero=(pod(gpu_container("0")), {}),
    null_is_zero=(pod(gpu_container(None)), {}),
    milli_stays=(pod(gpu_container("1m", resource=AMD)), {AMD: "1/1000"}),
    rounded_up_to_milli=(pod(gpu_container("0.0001")), {GPU: "1/1000"}),
    suffix=(pod(gpu_container("1k")), {GPU: "1000"}),
    app_containers_add_up=(pod(gpu_container("1"), gpu_container("2", "b")), {GPU: "3"}),
    overhead_comes_on_top=(pod(gpu_container("1"), overhead={GPU: "1", "cpu": "250m"}), {GPU: "2"}),
    native_resources_are_left_out=(pod(resources(limits={"cpu": "1", "memory": "1Gi"})), {}),
    other_resources_are_left_out=(pod(resources(limits={"example.com/dongle": "1"})), {}),
    implicit_device_class=(pod(gpu_container("1", resource=IMPLICIT)), {IMPLICIT: "1"}),
)
def test_gpu_requests(document: JSON, want: dict[str, str]) -> None:
    assert requested(document) == want


@cases(
    ("app", "init", "want"),
    largest_init_step=("2", [gpu_container("3", "i"), gpu_container("1", "j")], {GPU: "3"}),
    init_step_beside_earlier_sidecar=("2", [sidecar("1", "s"), gpu_container("4", "i")], {GPU: "5"}),
    later_sidecar_is_not_there_yet=("2", [gpu_container("4", "i"), sidecar("1", "s")], {GPU: "4"}),
    sidecars_run_beside_the_app=("2", [sidecar("1", "s"), sidecar("3", "t")], {GPU: "6"}),
    each=("1", [gpu_container("2", "i", resource=AMD), gpu_container("3", "j")], {GPU: "3", AMD: "2"}),
)
def test_init_containers(app: str, init: list[JSON], want: dict[str, str]) -> None:
    assert requested(pod(gpu_container(app), initContainers=init)) == want


def test_what_is_no_quantity_is_never_counted_as_nothing() -> None:
    with pytest.raises(QuantityError, match='"many"'):
        gpu_requests(view(pod(gpu_container("many"))), RESOURCE_MAPPING)
