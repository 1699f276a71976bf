"""A scan of a cluster of 2,000 pods in 100 namespaces: its processor time, and the memory that it takes."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.scan.population import PODS_OF_A_TEAM, Population
from tests.controlplane import ControlPlane

pytestmark = pytest.mark.slow

NAMESPACES = 100
SECONDS, MIB = 10, 200


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        population = Population(plane)
        population.nodes()
        population.teams(f"team-{number}" for number in range(NAMESPACES))
        yield plane


def test_it_is_scanned_within_bounds(cluster: ControlPlane) -> None:
    command = [
        sys.executable,
        "-m",
        "webhook",
        "scan",
        "--kubeconfig",
        str(cluster.kubeconfig()),
        "-o",
        "json",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)

    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(done.stdout)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert (report["pods"], len(report["namespaces"])) == (NAMESPACES * PODS_OF_A_TEAM, NAMESPACES)
    assert seconds < SECONDS
    # The largest child so far, in KiB: of this process it is the only large one.
    assert after.ru_maxrss < MIB * 1024
