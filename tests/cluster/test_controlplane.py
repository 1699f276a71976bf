"""The test control plane itself: a real API server that behaves like one, and that leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, ControlPlaneFailed

ROOT = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_nothing_listens_beyond_loopback(full_plane: ControlPlane) -> None:
    processes = [psutil.Process(pid) for pid in full_plane.pids.values()]
    listening = [
        connection.laddr
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]

    assert {address.ip for address in listening} == {"127.0.0.1"}


def test_component_that_does_not_start_is_explained() -> None:
    plane = ControlPlane(apiserver_args=["--no-such-flag"])

    with pytest.raises(
        ControlPlaneFailed, match=r"kube-apiserver ended with status 1; [\s\S]*unknown flag: --no-such-flag"
    ):
        plane.start()
    assert not plane.pids
    assert not plane.processes.folder.exists()


def test_everything_dies_with_a_killed_parent() -> None:
    script = (
        "import json, time\n"
        "from tests.controlplane import ControlPlane\n"
        "with ControlPlane() as plane:\n"
        "    print(json.dumps([str(plane.processes.folder), *plane.pids.values()]), flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "."},
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        folder, *pids = json.loads(parent.stdout.readline())
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        parent.kill()

    assert eventually(lambda: not any(alive(pid) for pid in pids))
    assert eventually(lambda: not Path(folder).exists())


@pytest.mark.parametrize("ending", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_run_ends_in_order(ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.controlplane", "run", "--no-controllers", "--no-scheduler"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        printed = [parent.stdout.readline() for _ in range(4)]
        kubeconfig = Path(printed[1].removeprefix("kubeconfig: ").strip())
        pids = [child.pid for child in psutil.Process(parent.pid).children()]
        tried = subprocess.run(
            printed[2].removeprefix("try: ").split(), capture_output=True, text=True, check=True
        )
        parent.send_signal(ending)
        assert parent.wait(timeout=60) == 0

    assert "kube-system" in tried.stdout
    assert len(pids) == 3  # etcd, kube-apiserver, guardian
    assert not any(alive(pid) for pid in pids)
    assert not kubeconfig.parent.exists()
