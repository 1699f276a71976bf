"""Limits by class hold for pods that name their node, through API server, webhook and controller.

By which fields they may name it: tests/policies/placement/test_candidates.py.
"""

from typing import Any

import pytest

from tests.cluster.controllers import Counting, eventually
from tests.cluster.quota.quotas import gpu_pod, in_force
from tests.controlplane import create_gpu_node
from tests.controlplane.gpuquota import Namespace

A100, T4 = "nvidia-a100-80gb", "nvidia-t4"
T4_NODE = "caps-t4"


@pytest.fixture(scope="module", autouse=True)
def nodes(counted: Counting) -> None:
    client, team = counted.plane.client(), Namespace(counted.plane)
    create_gpu_node(client, T4_NODE, labels={"accelerator": T4})
    limited(team, {A100: "0"})
    # Until the webhook knows the nodes, it charges every class.
    assert eventually(lambda: team.create(gpu_pod("probe", 1, nodeName=T4_NODE))[0] == 201)


def limited(team: Namespace, classes: dict[str, str], **spec: Any) -> None:
    in_force(team, {"gpus": "100", "classes": classes}, **spec)


def test_a_node_name_counts_more_than_a_selector_that_contradicts_it(team: Namespace) -> None:
    limited(team, {T4: "20"}, unclassifiedPods="Deny")

    answers = [
        team.create(gpu_pod(f"p{n}", 8, nodeName=T4_NODE, nodeSelector={"accelerator": A100}))
        for n in range(4)
    ]

    assert [status for status, _ in answers] == [201, 201, 403, 403]
    assert "requested 8 nvidia-t4, " in answers[-1][1]["message"]
    assert "counted for nvidia-t4: its node is nvidia-t4" in answers[-1][1]["message"]
    assert eventually(lambda: (team.used() or {}).get(f"classes/{T4}") == 16)
    assert eventually(lambda: not team.ledger_object().reservations)
