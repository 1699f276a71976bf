"""The demo as people run it: a process of its own that ends by itself and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cases import cases
from tests.controlplane.webhook import ROOT

pytestmark = pytest.mark.slow  # planes of its own, at the pace of somebody who reads

INTERRUPTED = 130
COMMAND = (sys.executable, "-m", "examples.demo")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield the directory below which the demo makes its temporary files. A short name: etcd's socket is in there."""
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        yield Path(name)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "80", "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}


def left_running(folder: Path) -> list[str]:
    """Return the processes that work in the folder, once those that are ending have had some time."""
    deadline = time.monotonic() + 30
    while True:
        found = [
            " ".join(process.info["cmdline"] or ())
            for process in psutil.process_iter(["cmdline", "cwd"])
            if str(folder) in f"{process.info['cwd']} {process.info['cmdline']}"
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_the_demo_shows_who_was_bound_where(folder: Path) -> None:
    done = subprocess.run(
        COMMAND,
        env=environment(folder),
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert "\x1b" not in done.stdout
    last = done.stdout[done.stdout.index("get pods -A -o wide") :]
    for name, node in (
        ("finetune-0", "a100-0"),
        ("finetune-1", "a100-0"),
        ("chat", "t4-0"),
        ("needs-h100", "<none>"),
    ):
        assert re.search(rf"{name}[\w-]* .* {node}", last), name
    assert "+ - name: gpu-admission-fetch-model" in done.stdout
    assert "+   startupProbe:\n" in done.stdout
    assert "must be a whole number of GPUs" in " ".join(done.stdout.split())
    assert "must equal limits[nvidia.com/gpu]" in " ".join(done.stdout.split())
    assert "0/4 nodes are available" in done.stdout
    said = " ".join(done.stdout.split())
    gated = [line for line in done.stdout.splitlines() if "SchedulingGated" in line]
    assert len(gated) == 4
    assert len({line.split("-")[0] for line in gated}) == 1, "the pods of one Job"
    assert "exceeded quota: research/default, requested 1 GPU, 1 of 1 used" in said
    assert "a pod needs 8 GPUs, which can never fit: the GPUQuota of research grants 1 in all" in said
    assert "Warning: policy default is paused until " in said
    assert "pod/needs-a1000 created" in said
    assert list(folder.iterdir()) == []
    assert left_running(folder) == []


@cases("number", ctrl_c=signal.SIGINT, sigterm=signal.SIGTERM)
def test_the_demo_cleans_up_when_interrupted(folder: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        COMMAND,
        env=environment(folder),
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        assert any("all ready" in line for line in demo.stdout)
        demo.send_signal(number)
        rest, errors = demo.communicate(timeout=60)

    assert (demo.returncode, errors) == (INTERRUPTED, "")
    assert "interrupted" in rest
    assert list(folder.iterdir()) == []
    assert left_running(folder) == []
