"""What Kueue does to pods and Jobs, done by a second actor: it holds them, places them by flavor, and lets them go.

Reproduced, not the real Kueue. That a class has no room when the gate is lifted stands in quota/test_demand.py.
"""

from datetime import UTC, datetime
from typing import Any

from tests.builders import JSON, gpu_container
from tests.cluster.controllers import eventually, uses
from tests.cluster.neighbours.team import TOLERATION, Team, body, ours
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.client import JSON_PATCH, Client
from tests.controlplane.gpuquota import api_client
from webhook.tools.status.denials import denials_in_events
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Answer
from webhook.tools.why.problems import read_problems

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


def admit(team: Team, name: str, gpu_class: str, client: Client | None = None) -> tuple[int, Any]:
    tolerations = team.stored(name)["spec"]["tolerations"]
    operations = [
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/spec/nodeSelector", "value": {"accelerator": gpu_class}},
        {"op": "add", "path": "/spec/tolerations", "value": [*tolerations, SPOT]},
    ]
    return (client or team.client).patch(team.path("pods", name), operations, content_type=JSON_PATCH)


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


def test_what_a_controller_may_not_change_is_said_on_the_pod_and_its_owner(installed: ControlPlane) -> None:
    """Any controller: nobody reads its log. Its Event is a denial as any other for `why`, `status` and the console."""
    team = Team(installed, "only-t4-changed")
    binding = {
        "metadata": {"name": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": team.name}],
    }
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{team.name}/rolebindings"
    accepted(team.client.post(roles, binding))
    token = installed.account_token(team.name, "default")
    controller = Client(installed.url, ca_file=installed.ca_file, token=token)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "set", "controller": True}
    path = f"/api/v1/namespaces/{team.name}/configmaps"
    owner["uid"] = accepted(team.client.post(path, {"metadata": {"name": "set"}}))["metadata"]["uid"]
    bare, owned = held("bare"), held("owned")
    owned["metadata"] = {"name": "owned", "ownerReferences": [owner]}
    assert team.create(bare)[0] == team.create(owned)[0] == 201
    assert eventually(lambda: admit(team, "bare", "nvidia-h100-80gb", controller)[0] == 403)
    assert admit(team, "owned", "nvidia-h100-80gb", controller)[0] == 403

    def events() -> dict[str, str]:
        selector = {"fieldSelector": "reason=FailedUpdate"}
        listed = accepted(team.client.get(team.path("events"), selector))["items"]
        return {each["involvedObject"]["name"]: each["message"] for each in listed}

    assert eventually(lambda: set(events()) == {"bare", "owned", "set"})
    by = f"change by system:serviceaccount:{team.name}:default"
    webhook = 'admission webhook "pod-placement.validate.gpu-admission.dev"'
    denial = f"pod {team.name}/bare: "
    assert events()["bare"].startswith(f"{by}: {webhook} denied the request: {denial}")
    assert "nvidia-t4" in events()["bare"]

    api, now = api_client(installed), datetime.now(UTC)
    said = {(each.owner, each.of_change) for each in denials_in_events(api, team.name, now)}
    assert said == {("Pod/bare", True), ("ConfigMap/set", True)}
    problems = read_problems(api, team.name, now).problems
    assert {(each.owner, each.answer) for each in problems} == {
        ("Pod/bare", Answer.REFUSED),
        ("ConfigMap/set", Answer.REFUSED),
    }
    explained = explain(api, "pod", "bare", team.name, now)
    assert explained.answer is Answer.REFUSED
    cause = explained.reasons[0]
    keeps = f"Pod bare keeps its scheduling gate kueue.x-k8s.io/admission, since the {by} was denied: "
    assert cause.message == keeps + events()["bare"].partition(denial)[2]

    assert admit(team, "bare", "nvidia-t4", controller)[0] == 200
    assert explain(api, "pod", "bare", team.name, datetime.now(UTC)).answer is Answer.PENDING


def test_the_denial_of_one_of_a_group_says_what_the_others_do(installed: ControlPlane, team: Team) -> None:
    """The first is counted and held, the second denied: Kueue admits neither, and nobody else gets the quota."""
    team.counted_quota({"gpus": "4"})
    assert team.create(held("first", "3"))[0] == 201
    assert uses(team, 3)
    status, answer = team.create(held("second", "3"))
    others = "the other pods of pod group training cannot start without it, and hold their quota"
    assert status == 403
    assert f"{others}: delete them, if it is not created again" in answer["message"]

    cause = explain(api_client(installed), "pod", "first", team.name, datetime.now(UTC)).reasons[0]
    keeps = f"Pod first keeps its scheduling gate {GATE['name']} until its group is complete"
    assert cause.message == f"{keeps}: 1 of 2 pods of training exist"
    assert team.create(held("second", "1"))[0] == 201
    found = explain(api_client(installed), "pod", "first", team.name, datetime.now(UTC)).reasons[0]
    assert found.message == f"Pod first waits for its scheduling gates to be removed: {GATE['name']}"


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
