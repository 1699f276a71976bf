"""What the ResourceSlices of many nodes take: time and memory of a start, and CPU of one pool that changes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases import cases
from tests.webhook.controller.many_slices import MODULE


def figures(nodes: int, folder: Path) -> dict[str, Any]:
    with subprocess.Popen(
        [sys.executable, *MODULE, "serve", str(folder), str(nodes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        kubeconfig = server.stdout.readline().strip()
        command = [sys.executable, *MODULE, "read", kubeconfig, str(nodes)]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        server.kill()
    read: dict[str, Any] = json.loads(found.stdout)
    sys.stdout.write(f"{nodes} nodes: {read}\n")
    return read


@pytest.mark.slow
@cases(
    ("nodes", "megabytes", "seconds"),
    some=(500, 100, 10),
    many=pytest.param(5000, 200, 60, marks=pytest.mark.long),
)
def test_reading_takes_little(nodes: int, megabytes: float, seconds: float, tmp_path: Path) -> None:
    found = figures(nodes, tmp_path)
    assert (found["kinds"], found["knowsTheLast"]) == (8, True)
    assert found["megabytes"] - found["megabytesBefore"] < megabytes
    assert found["cpuSeconds"] < seconds
    assert found["cpuSecondsOfAPool"] < 0.1
