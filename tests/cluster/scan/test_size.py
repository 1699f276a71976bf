"""A scan of a cluster of 1,000 pods in 50 namespaces: its processor time, and the memory that it takes."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.scan.population import PODS_OF_A_TEAM, Population
from tests.controlplane import ControlPlane

pytestmark = pytest.mark.slow

NAMESPACES = 50
SECONDS, MIB = 15, 200
"""Ten times what a processor of today takes: work that grows with the square of the pods would take more."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        population = Population(plane)
        population.nodes()
        population.teams(f"team-{number}" for number in range(NAMESPACES))
        yield plane


PROGRAM = """
import resource, sys
from pathlib import Path
from webhook.commands.scan import scan
scan(standalone_mode=False)
used = resource.getrusage(resource.RUSAGE_SELF)
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(used.ru_utime + used.ru_stime, peak, file=sys.stderr)
"""
"""ru_maxrss would have the memory of the process that forked this one."""


def test_it_is_scanned_within_bounds(cluster: ControlPlane) -> None:
    command = [sys.executable, "-c", PROGRAM, "--kubeconfig", str(cluster.kubeconfig()), "-o", "json"]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)

    report = json.loads(done.stdout)
    seconds, kibibytes = map(float, done.stderr.split())
    assert (report["pods"], len(report["namespaces"])) == (NAMESPACES * PODS_OF_A_TEAM, NAMESPACES)
    assert seconds < SECONDS
    assert kibibytes < MIB * 1024
