"""What it takes to read the ResourceSlices of 500 nodes from a real API server."""

import json
import subprocess
import sys

import pytest

from tests.controlplane import CLAIMS_API, ControlPlane, accepted
from tests.webhook.controller.many_slices import MODULE, slices_of

NODES = 500


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_reading_the_slices_of_many_nodes_takes_little(own_plane: ControlPlane) -> None:
    client = own_plane.client()
    for node in range(NODES):
        for each in slices_of(node):
            accepted(client.post(f"{CLAIMS_API}/resourceslices", each))
    command = [sys.executable, *MODULE, "read", str(own_plane.kubeconfig()), str(NODES)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    sys.stdout.write(f"{NODES} nodes, real: {found}\n")
    assert (found["kinds"], found["knowsTheLast"]) == (8, True)
    assert found["megabytes"] - found["megabytesBefore"] < 250
    assert found["cpuSeconds"] < 15
    assert found["cpuSecondsOfAPool"] < 0.1
