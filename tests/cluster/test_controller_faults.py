"""The controller when its leader is stopped, and with ten thousand pods."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from policies.quota.amounts import GPUS
from tests.bench.seeding import random_uid, seed
from tests.builders import gpu_container, manifest
from tests.cluster.controllers import Command, Running, eventually, uses
from tests.cluster.proxy import Proxy, address, through
from tests.cluster.quota import history
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace, install_quota_kind
from tests.reservation_requests import creation_request

pytestmark = pytest.mark.slow  # 5 s until a Lease has run out

PODS = 10_000
MAX_MIB = 256
ENVIRONMENT = [{"name": f"SETTING_{number}", "value": "x" * 60} for number in range(40)]
"""Pods as they are met carry some 6 kB of settings, mounts and probes; managedFields double that."""
A_WRITE = 2000
"""Bytes: with reservations in it a ledger is larger than this on the wire, and every other request is smaller."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Serve the API of a plane of its own."""
    with ControlPlane(apiserver_args=history.READABLE) as own:
        install_quota_kind(own.client())
        yield own


def used_since(plane: ControlPlane, team: Namespace, revision: int) -> list[int]:
    """Return what was used in every revision of the ledger after that one."""
    stored = history.events(plane, revision)
    ledgers = [each.value for each in stored if each.key.endswith(f"/{team.name}") and "ledgers" in each.key]
    return [int(json.loads(each["ledger"])["used"][GPUS]) for each in ledgers]


def test_the_leader_stopped_between_read_and_swap_changes_nothing(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """C0 lists; a pod is stored; C1 counts it and takes its entry out; C0 goes on with its old list."""
    team = Namespace(plane)
    stopped, released = threading.Event(), threading.Event()
    armed = threading.Event()
    first = Command(plane, f"first-{team.name}", "--lease", "first")

    def hold(chunk: bytes) -> None:
        if len(chunk) > A_WRITE and armed.is_set() and not stopped.is_set():
            os.kill(first.pid, signal.SIGSTOP)
            stopped.set()
        if stopped.is_set():
            released.wait(120)

    with Proxy(address(plane), hold) as proxy:
        first.kubeconfig = through(plane, proxy, tmp_path)
        first.start()
        team.quota({"gpus": "100"})
        team.pod("early", 1)
        assert uses(team, 1)
        catalogue = str(team.ledger_object().class_catalogue)
        team.reserve(
            *(
                creation_request(f"{index:08}-in-flight-and-never-stored", {GPUS: Fraction(1)}, catalogue)
                for index in range(60)
            )
        )

        armed.set()
        team.pod("noticed", 1)  # counting it, the first one comes to its swap
        assert stopped.wait(30)
        uid = team.pod("late", 1)
        team.reserve(creation_request(uid, {GPUS: Fraction(1)}, catalogue))
        with Running(plane, lease="second"):
            assert uses(team, 3)
            assert uid not in team.ledger_object().reservations
        since = history.revision(plane)
        os.kill(first.pid, signal.SIGCONT)
        released.set()
        assert eventually(lambda: first.metric('gpu_admission_quota_counts_refused_total{reason="older"}'))
        team.pod("last", 1)
        assert uses(team, 4)
        assert (
            min(used_since(plane, team, since)) >= 3
        )  # never less than what is stored, not for one revision
    plane.processes.kill(first.name)


@pytest.mark.timeout(600)
def test_ten_thousand_pods_fit(plane: ControlPlane) -> None:
    """Last in this file: ten thousand pods weigh on every test after this one."""
    team = Namespace(plane)

    container = gpu_container("1", env=ENVIRONMENT)
    uid = accepted(team.create(manifest("v1", "Pod", "trainer-0000", {"containers": [container]})))[
        "metadata"
    ]["uid"]

    def renamed(number: int) -> dict[str, str]:
        gpus = '"nvidia.com/gpu":"{}"'
        return {
            "trainer-0000": f"trainer-{number:04}",
            uid: random_uid(number),
            gpus.format(1): gpus.format(1 + number % 8),
        }

    seed(plane, f"/registry/pods/{team.name}/trainer-0000", range(1, PODS), renamed)
    total = sum(1 + number % 8 for number in range(PODS))
    team.quota({"gpus": "100000"})
    controller = Command(plane, "big", "--recount-seconds", "5")
    controller.start()

    assert uses(team, total, seconds=180), controller.log()
    team.delete_pod("trainer-0000")
    assert uses(team, total - 1)
    time.sleep(12)  # two turns of being compared with a list of everything

    status = Path(f"/proc/{controller.pid}/status").read_text()
    peak = next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmHWM:"))
    assert peak < MAX_MIB
