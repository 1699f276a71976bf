"""What Kueue does to pods and Jobs, done by a second actor: it holds them, places them by flavor, and lets them go.

Reproduced, not the real Kueue. That a class has no room when the gate is lifted stands in quota/test_demand.py.
"""

from typing import Any

from tests.builders import JSON, gpu_container
from tests.cluster.controllers import eventually, uses
from tests.cluster.neighbours.team import TOLERATION, Team, body, ours
from tests.controlplane import ControlPlane, accepted

GATE = {"name": "kueue.x-k8s.io/admission"}
GROUP: JSON = {
    "labels": {
        "kueue.x-k8s.io/queue-name": "team-queue",
        "kueue.x-k8s.io/managed": "true",
        "kueue.x-k8s.io/pod-group-name": "training",
    },
    "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
    "finalizers": ["kueue.x-k8s.io/managed"],
}
SPOT = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}


def held(name: str, gpus: str = "1") -> JSON:
    return body(name, gpu_container(gpus), metadata=GROUP, schedulingGates=[GATE])


def admit(team: Team, name: str, gpu_class: str) -> tuple[int, Any]:
    tolerations = team.stored(name)["spec"]["tolerations"]
    return team.json_patch(
        name,
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/spec/nodeSelector", "value": {"accelerator": gpu_class}},
        {"op": "add", "path": "/spec/tolerations", "value": [*tolerations, SPOT]},
    )


def test_a_group_of_held_pods_is_placed_by_kueue_and_charged_to_that_class(team: Team) -> None:
    team.counted_quota({"gpus": "8", "classes": {"nvidia-t4": "4"}})
    for name in ("worker-0", "worker-1"):
        answer = accepted(team.create(held(name)))
        metadata = answer["metadata"]
        assert metadata["labels"] == GROUP["labels"]
        assert metadata["finalizers"] == GROUP["finalizers"]
        assert metadata["annotations"].items() >= GROUP["annotations"].items()
        assert answer["spec"]["schedulingGates"] == [GATE]
        assert "nodeSelector" not in answer["spec"]
        assert ours(answer["spec"]["tolerations"]) == [TOLERATION]
    assert uses(team, 2)

    for name in ("worker-0", "worker-1"):
        answer = accepted(admit(team, name, "nvidia-t4"))
        assert answer["spec"]["nodeSelector"] == {"accelerator": "nvidia-t4"}
        assert ours(answer["spec"]["tolerations"]) == [TOLERATION, SPOT]

    assert eventually(lambda: (team.used() or {}).get("classes/nvidia-t4") == 2)
    assert uses(team, 2)


def test_a_flavor_that_the_namespace_may_not_use_is_refused_to_kueue(installed: ControlPlane) -> None:
    team = Team(installed, "only-t4-kueue")
    assert team.create(held("worker"))[0] == 201

    status, answer = admit(team, "worker", "nvidia-h100-80gb")

    assert status == 403
    assert "[gpu-class]" in answer["message"]
    assert "nvidia-t4" in answer["message"]
    assert team.stored("worker")["spec"]["schedulingGates"] == [GATE]
    assert admit(team, "worker", "nvidia-t4")[0] == 200


def test_a_suspended_job_costs_nothing_until_kueue_starts_it_where_it_wants(team: Team) -> None:
    team.counted_quota({"gpus": "8"})
    jobs = f"/apis/batch/v1/namespaces/{team.name}/jobs"
    job = {
        "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "team-queue"}},
        "spec": {
            "suspend": True,
            "parallelism": 2,
            "completions": 2,
            "template": {"spec": {"restartPolicy": "Never", "containers": [gpu_container("2")]}},
        },
    }
    assert team.client.post(jobs, job)[0] == 201
    team.pod("marker", 1)  # once this one is counted, the Job's pods would have been, too
    assert uses(team, 1)

    placed = {"spec": {"template": {"spec": {"nodeSelector": {"accelerator": "nvidia-t4"}}}}}
    assert team.client.patch(f"{jobs}/train", placed)[0] == 200
    assert team.client.patch(f"{jobs}/train", {"spec": {"suspend": False}})[0] == 200

    assert uses(team, 5)
    listed = team.client.get(team.path("pods"), {"labelSelector": "job-name=train"})[1]["items"]
    assert [pod["spec"]["nodeSelector"] for pod in listed] == [{"accelerator": "nvidia-t4"}] * 2
    assert [ours(pod["spec"]["tolerations"]) for pod in listed] == [[TOLERATION]] * 2
    template = team.client.get(f"{jobs}/train")[1]["spec"]["template"]["spec"]
    assert "tolerations" not in template  # templates are looked at, never changed
