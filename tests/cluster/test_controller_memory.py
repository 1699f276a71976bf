"""Ten thousand pods: what the controller keeps of them, and how long it takes to notice one of them."""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.controllers import Command, uses
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace, install_quota_kind

PODS = 10_000
MOST_MIB = 256
ENVIRONMENT = [{"name": f"SETTING_{number}", "value": "x" * 60} for number in range(40)]
"""Pods as they are met carry some 6 kB of settings, mounts and probes; managedFields double that."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Serve an API of its own: ten thousand pods would weigh on every test after this one."""
    with ControlPlane() as own:
        install_quota_kind(own.client())
        yield own


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_pods_fit(plane: ControlPlane) -> None:
    team = Namespace(plane)
    client = plane.client()

    def create(number: int) -> None:
        container = {
            "name": "train",
            "image": "registry.example.com/team/trainer:1.2.3",
            "env": ENVIRONMENT,
            "resources": {"limits": {"nvidia.com/gpu": str(1 + number % 8)}},
        }
        pod = {"metadata": {"name": f"trainer-{number}"}, "spec": {"containers": [container]}}
        status, answer = client.post(team.path("pods"), pod)
        assert status == 201, answer

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(PODS)))
    total = sum(1 + number % 8 for number in range(PODS))
    team.quota({"gpus": "100000"})
    controller = Command(plane, "big", "--recount-seconds", "5")
    started = time.monotonic()
    controller.start()
    listed = time.monotonic() - started

    assert uses(team, total, seconds=180), controller.log()
    deleted = time.monotonic()
    team.delete_pod("trainer-0")
    assert uses(team, total - 1)
    noticed = time.monotonic() - deleted
    time.sleep(12)  # two turns of being compared with a list of everything

    status = Path(f"/proc/{controller.pid}/status").read_text()
    peak = next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmHWM:"))
    told = f"ready in {listed:.1f} s, release seen in {noticed:.2f} s, peak {peak} MiB"
    logging.getLogger("figures").info(told)  # pytest --log-cli-level=INFO shows it
    assert peak < MOST_MIB, told
