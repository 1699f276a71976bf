"""Limits by class hold for pods that name their node, by whichever field: through API server, webhook and controller."""

from collections.abc import Iterator
from typing import Any

import pytest

from policies.quota.demand import UnclassifiedPods
from tests.builders import JSON
from tests.cluster.controllers import Running, eventually
from tests.cluster.quota.burst import PODS, gpu_pod
from tests.cluster.quota.referee import GPU
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.client import JSON_PATCH
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import Webhook

A100, T4 = "nvidia-a100-80gb", "nvidia-t4"
T4_NODE, OTHER_T4_NODE = "caps-t4", "caps-t4-by-product"
HOSTNAME = "kubernetes.io/hostname"
FAMILY = {"accelerator": "nvidia-a100"}
GATES = [{"name": "kueue.x-k8s.io/admission"}]


@pytest.fixture(scope="module")
def served(quotas: ControlPlane) -> Iterator[ControlPlane]:
    client = quotas.client()
    create_gpu_node(client, T4_NODE, labels={"accelerator": T4})
    create_gpu_node(client, OTHER_T4_NODE, labels={"nvidia.com/gpu.product": "Tesla-T4"})
    with Webhook(quotas, arguments=("--kubeconfig", quotas.kubeconfig())) as webhook:
        webhook.register()
        with Running(quotas):
            team = Namespace(quotas)
            in_force(team, {A100: "0"})
            # Until the webhook has listed the nodes, it charges every class.
            assert eventually(lambda: create(team, "probe", 1, nodeName=T4_NODE)[0] == 201)
            yield quotas
        webhook.unregister()


@pytest.fixture
def team(served: ControlPlane) -> Namespace:
    return Namespace(served)


def in_force(team: Namespace, classes: dict[str, str], **spec: Any) -> None:
    team.quota({"gpus": "100", "classes": classes}, **spec)
    assert eventually(lambda: team.used() is not None)


def create(team: Namespace, name: str, gpus: int, **spec: Any) -> tuple[int, Any]:
    return team.client.post(PODS.format(team.name), gpu_pod(name, GPU, gpus, **spec))


def affinity(kind: str, key: str, *values: str) -> JSON:
    term = {kind: [{"key": key, "operator": "In", "values": list(values)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize("unclassified_pods", list(UnclassifiedPods))
def test_a_node_name_counts_more_than_a_selector_that_contradicts_it(
    team: Namespace, unclassified_pods: UnclassifiedPods
) -> None:
    in_force(team, {T4: "20"}, unclassifiedPods=unclassified_pods.value)

    answers = [
        create(team, f"p{n}", 8, nodeName=T4_NODE, nodeSelector={"accelerator": A100}) for n in range(4)
    ]

    assert [status for status, _ in answers] == [201, 201, 403, 403]
    assert "requested: classes/nvidia-t4=8, used: classes/nvidia-t4=" in answers[-1][1]["message"]
    assert "counted for nvidia-t4: its node is nvidia-t4" in answers[-1][1]["message"]
    assert eventually(lambda: (team.used() or {}).get(f"classes/{T4}") == 16)
    assert eventually(lambda: not team.ledger_object().reservations)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"nodeSelector": {HOSTNAME: T4_NODE}}, id="selector"),
        pytest.param({"affinity": affinity("matchExpressions", HOSTNAME, T4_NODE)}, id="affinity"),
        pytest.param(
            {"affinity": affinity("matchExpressions", HOSTNAME, T4_NODE, OTHER_T4_NODE)},
            id="one-of-two-nodes-of-the-class",
        ),
        pytest.param({"affinity": affinity("matchFields", "metadata.name", T4_NODE)}, id="as-a-daemonset"),
    ],
)
def test_a_pod_that_selects_its_node_is_charged_to_the_class_of_it(team: Namespace, spec: JSON) -> None:
    in_force(team, {T4: "2", A100: "0"}, unclassifiedPods="TotalOnly")

    statuses = [create(team, f"p{n}", 1, **spec)[0] for n in range(8)]

    assert statuses == [201, 201, 403, 403, 403, 403, 403, 403]
    assert eventually(
        lambda: (team.used() or {}).get(f"classes/{T4}") == 2 and not team.ledger_object().reservations
    )


def test_no_part_of_a_gpu_is_charged_where_no_scheduler_shares_it(team: Namespace) -> None:
    """Post the whole cards of a node, beside a limit that its kubelet drops, since no device plugin knows it."""
    team.quota({"gpus": "4"})
    assert eventually(lambda: team.used() is not None)
    document = gpu_pod("all-of-a-node", GPU, 8, nodeName=T4_NODE)
    document["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem-percentage"] = "1"

    status, answer = team.client.post(PODS.format(team.name), document)

    assert status == 403, "8 GPUs of a node for 8/100 of one"
    assert "must be omitted beside a limit of GPU memory" in answer["message"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"nodeName": "caps-nowhere"}, id="node-name"),
        pytest.param({"nodeSelector": {HOSTNAME: "caps-nowhere"}}, id="hostname"),
    ],
)
def test_a_node_that_nobody_knows_may_be_of_any_class(team: Namespace, spec: JSON) -> None:
    in_force(team, {T4: "2", A100: "5"}, unclassifiedPods="TotalOnly")

    answers = [create(team, f"p{n}", 1, **spec) for n in range(3)]

    assert [status for status, _ in answers] == [201, 201, 403]
    assert "node caps-nowhere is not known" in answers[-1][1]["message"]
    assert eventually(lambda: (team.used() or {}).get(f"classes/{A100}") == 2)


def test_a_gated_pod_that_gets_a_hostname_is_charged_to_the_class_of_it(team: Namespace) -> None:
    in_force(team, {T4: "2", A100: "0"}, unclassifiedPods="TotalOnly")
    assert create(team, "gated", 3, schedulingGates=GATES)[0] == 201
    operations = [
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/spec/nodeSelector", "value": {HOSTNAME: T4_NODE}},
    ]

    status, answer = team.client.patch(f"{PODS.format(team.name)}/gated", operations, content_type=JSON_PATCH)

    assert status == 403
    assert "request 2 nvidia-t4 or fewer; exceeded quota: " in answer["message"]


def test_a_node_that_comes_later_is_charged_by_its_class_then(team: Namespace, served: ControlPlane) -> None:
    node = f"later-of-{team.name}"
    in_force(team, {T4: "4", A100: "4"})
    assert create(team, "waits", 3, nodeSelector={HOSTNAME: node})[0] == 201
    assert eventually(lambda: (team.used() or {}).get(f"classes/{A100}") == 3)

    create_gpu_node(served.client(), node, labels={"accelerator": T4})

    assert eventually(lambda: (team.used() or {}).get(f"classes/{A100}") == 0)
    assert (team.used() or {}).get(f"classes/{T4}") == 3


def test_a_pod_keeps_its_class_while_its_node_is_deleted_before_it(
    team: Namespace, served: ControlPlane
) -> None:
    node = f"goes-of-{team.name}"
    create_gpu_node(served.client(), node, labels={"accelerator": T4})
    in_force(team, {T4: "4", A100: "4"})
    assert create(team, "stays", 3)[0] == 201
    team.bind("stays", node)
    assert eventually(lambda: (team.used() or {}).get(f"classes/{A100}") == 0)

    assert served.client().delete(f"/api/v1/nodes/{node}")[0] == 200
    assert create(team, "next", 1, nodeSelector={"accelerator": A100})[0] == 201

    assert eventually(lambda: (team.used() or {}).get(f"classes/{A100}") == 1)
    assert (team.used() or {}).get(f"classes/{T4}") == 3


@pytest.mark.parametrize(
    ("quota", "pod", "want"),
    [
        pytest.param({}, {}, [201, 201, 403], id="limits-by-class-hold-where-nothing-is-said"),
        pytest.param({"unclassifiedPods": "TotalOnly"}, {}, [201, 201, 201], id="but-not-under-total-only"),
        pytest.param(
            {}, {"nodeSelector": FAMILY}, [201, 201, 403], id="they-hold-for-pods-that-pin-a-family"
        ),
        pytest.param(
            {"unclassifiedPods": "Deny"},
            {"nodeSelector": FAMILY},
            [201, 201, 403],
            id="and-where-others-are-denied",
        ),
    ],
)
def test_pods_of_which_the_class_is_open(team: Namespace, quota: JSON, pod: JSON, want: list[int]) -> None:
    in_force(team, {A100: "2"}, **quota)

    assert [create(team, f"p{n}", 1, **pod)[0] for n in range(3)] == want
