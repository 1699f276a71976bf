"""No replica answers, and the exported policies are installed: what never needs the webhook still holds."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import container, gpu_container, pod
from tests.cluster.exported import ALL, create
from tests.cluster.outage import absence
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import apply_all, manifests, uninstall

HOST = 70


@pytest.fixture(scope="module")
def down(exported: ControlPlane, authority: Path) -> Iterator[ControlPlane]:
    client, address = exported.client(), exported.service_address(HOST)
    with absence.refusing(address):
        apply_all(exported, manifests(address, authority))
        while create(client, pod(gpu_container()))[0] == 201:
            time.sleep(0.05)  # the API server has not heard of the configurations yet
        yield exported
        uninstall(exported)


def test_gpu_pods_wait_for_the_webhook(down: ControlPlane) -> None:
    status, answer = create(down.client(), pod(gpu_container()))

    assert status == 500
    assert "gpu-pods-are-refused-while-this-webhook-is-away" in answer["message"]


def test_pods_without_gpus_may_not_look_at_them(down: ControlPlane) -> None:
    status, answer = create(down.client(), pod(container("main", env=[ALL])))

    assert status == 403
    assert (
        'env[0] (container "main") = "all": request nvidia.com/gpu: 1 in resources.limits or remove the variable'
        in answer["message"]
    )
