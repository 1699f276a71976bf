"""`gpu-admission why` on a real API server with scheduler and controllers: refused, over quota, pending, gated, and fine."""

import json
import re
from typing import Any

from click.testing import CliRunner, Result

from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.status.conftest import SERVING, TENANT, TRAINING
from tests.controlplane import ControlPlane
from webhook.commands import main

NO_SLICE = "no 1g.5gb"
EXCEEDED = (
    "exceeded quota: ml-training/default, requested 4 nvidia-a100, 6 of 8 used; requested 4 GPUs, 6 of 9 used"
)


def why(plane: ControlPlane, *arguments: str, user: str = "admin") -> Result:
    return CliRunner().invoke(main, ["why", *arguments, "--kubeconfig", str(plane.kubeconfig(user))])


def explained(plane: ControlPlane, name: str, namespace: str, user: str = "admin") -> Any:
    return json.loads(why(plane, name, "-n", namespace, "-o", "json", user=user).stdout)


def reasons(found: Any) -> list[tuple[str, str, str]]:
    """Return the reasons without what differs from run to run, nor the rest of what a scheduler says."""
    return [(each["source"], _stable(each["message"]), each["remedy"]) for each in found["reasons"]]


def _stable(message: str) -> str:
    message = re.sub(
        r"denied pods (once|\d+ times), last at [\d: -]+ UTC", "denied pods N times, last at T", message
    )
    return re.sub(r"(0/3 nodes are available).*", r"\1", message)


def _denied(name: str) -> tuple[str, str, str]:
    return "event", f"StatefulSet/{name} was denied pods N times, last at T", ""


@cases(
    ("name", "namespace", "answer", "want"),
    over_quota_for_now=(
        "statefulsets.apps/over",
        TRAINING,
        "denied",
        [
            (
                "quota",
                f"{EXCEEDED} [gpu-quota]",
                "set nvidia.com/gpu: 2, or wait until others release 2 nvidia-a100, or ask the platform team "
                "to raise spec.hard",
            ),
            _denied("over"),
        ],
    ),
    the_nodes_have_a_taint=(
        "sts/tainted",
        SERVING,
        "pending",
        [
            ("scheduler", "Pod tainted-0 finds no node: 0/3 nodes are available", ""),
            (
                "nodes",
                "tolerations: each node with nvidia.com/gpu that the pod selects has a taint that it does not tolerate, such as "
                "dedicated=video:NoSchedule, so the pod stays pending [gpu-toleration]",
                "add {key: dedicated, operator: Equal, value: video, effect: NoSchedule} if the pod may run there",
            ),
        ],
    ),
    scaled_to_zero=("sts/none", SERVING, "stopped", []),
)
def test_the_answer(
    cluster: ControlPlane, name: str, namespace: str, answer: str, want: list[tuple[str, str, str]]
) -> None:
    def found() -> bool:
        found = explained(cluster, name, namespace)
        return (found["answer"], reasons(found)) == (answer, want)

    eventually(found, seconds=30)
    last = explained(cluster, name, namespace)
    assert (last["answer"], reasons(last)) == (answer, want)
    assert last["omitted"] == []


def test_what_is_said_of_the_quota_is_what_the_pods_were_denied_with(cluster: ControlPlane) -> None:
    def denial() -> str:
        events = explained(cluster, "sts/over", TRAINING)["events"]
        return next((each["message"] for each in events if EXCEEDED in each["message"]), "")

    assert eventually(denial, seconds=30)
    cause = explained(cluster, "sts/over", TRAINING)["reasons"][0]
    assert all(part in denial() for part in cause["remedy"].split(", or "))


def test_a_workload_is_refused_by_the_policy(cluster: ControlPlane) -> None:
    """The denied pods are those of a ReplicaSet, which nobody wrote."""

    def denied() -> bool:
        return [each[0] for each in reasons(explained(cluster, "deploy/sliced", TRAINING))] == [
            "policy",
            "event",
        ]

    assert eventually(denied, seconds=30)
    found = explained(cluster, "deploy/sliced", TRAINING)
    policy, event = reasons(found)
    assert (found["answer"], found["policy"], found["podsWanted"]) == ("denied", "built-in", 2)
    assert NO_SLICE in policy[1]
    assert policy[2] == "request whole GPUs (nvidia.com/gpu)"
    assert event[1] == "Deployment/sliced was denied pods N times, last at T"
    assert [each["outcome"] for each in found["verdicts"]] == ["denied"]


def test_a_pod_on_its_node_and_then_running(cluster: ControlPlane) -> None:
    path = f"/api/v1/namespaces/{SERVING}/pods/chat-0"
    client = cluster.client()
    assert eventually(lambda: client.get(path)[1].get("spec", {}).get("nodeName"), seconds=30) == "a100-0"
    found = explained(cluster, "sts/chat", SERVING)
    assert reasons(found) == [
        ("pod", "Pod chat-0 is on Node a100-0, whose kubelet has not started it yet", "")
    ]

    started = {"name": "main", "state": {"running": {"startedAt": "2026-11-22T08:00:00Z"}}}
    status = {"phase": "Running", "containerStatuses": [started]}
    assert client.patch(f"{path}/status", {"status": status})[0] == 200
    result = why(cluster, "sts", "chat", "-n", SERVING)
    assert (result.exit_code, result.output) == (
        0,
        "StatefulSet/chat in serving: running\n"
        "  1 of 1 pods run\n"
        "\n"
        "what is known\n"
        "  requests   1 nvidia.com/gpu, on nvidia-a100-80gb\n"
        "  policy     built-in: no rule denies the pod\n"
        "  nodes      a100-0 (nvidia-a100-80gb) 1 of 8 nvidia.com/gpu free\n"
        "  pods       chat-0 Running on a100-0\n",
    )


def test_a_tenant_gets_the_same_less_what_he_may_not_read(cluster: ControlPlane) -> None:
    found = explained(cluster, "sts/over", TRAINING, user=TENANT)
    assert (found["answer"], found["reasons"][0]["source"], found["policy"], found["nodes"]) == (
        "denied",
        "quota",
        "",
        None,
    )
    assert found["omitted"] == [
        "list gpupolicies.gpu-admission.dev",
        "list gpuclasses.gpu-admission.dev",
        "list gpuresourcemappings.gpu-admission.dev",
        "list nodes",
        "get leases/gpu-admission-controller -n gpu-admission",
    ]
    refused = why(cluster, "sts/full", "-n", SERVING, user=TENANT)
    assert refused.exit_code == 2
    assert 'statefulsets.apps "full" is forbidden' in refused.output


@cases(
    ("arguments", "want"),
    no_such_object=(("pod/nobody", "-n", SERVING), 'pods "nobody" not found in namespace serving'),
    no_name=(("job",), "name one object as KIND/NAME or KIND NAME"),
    too_many=(("a/b/c",), "name one object as KIND/NAME or KIND NAME"),
)
def test_what_cannot_be_explained(cluster: ControlPlane, arguments: tuple[str, ...], want: str) -> None:
    result = why(cluster, *arguments)
    assert result.exit_code == 2
    assert want in result.output
