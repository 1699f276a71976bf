"""A controller that removes a scheduling gate and places the pod, as Kueue does, and is denied.

With the real Kueue: tests/neighbours/test_kueue.py.
"""

from datetime import UTC, datetime
from typing import Any

from tests.builders import JSON, gpu_container
from tests.cluster.controllers import eventually
from tests.cluster.neighbours.team import Team, body
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.client import JSON_PATCH, Client
from tests.controlplane.gpuquota import api_client
from webhook.tools.status.denials import denials_in_events
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Answer
from webhook.tools.why.problems import read_problems

GATE = {"name": "kueue.x-k8s.io/admission"}


def held(name: str, **metadata: Any) -> JSON:
    return body(name, gpu_container("1"), metadata=metadata, schedulingGates=[GATE])


def place(team: Team, name: str, gpu_class: str, client: Client) -> int:
    operations = [
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/spec/nodeSelector", "value": {"accelerator": gpu_class}},
    ]
    return client.patch(team.path("pods", name), operations, content_type=JSON_PATCH)[0]


def test_what_a_controller_may_not_change_is_said_on_the_pod_and_its_owner(installed: ControlPlane) -> None:
    """Nobody reads its log. Its Event is a denial as any other for `why`, `status` and the console."""
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
    accepted(team.create(held("bare")))
    accepted(team.create(held("owned", ownerReferences=[owner])))
    assert eventually(lambda: place(team, "bare", "nvidia-h100-80gb", controller) == 403)
    assert place(team, "owned", "nvidia-h100-80gb", controller) == 403

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
        ("Pod/bare", Answer.DENIED),
        ("ConfigMap/set", Answer.DENIED),
    }
    explained = explain(api, "pod", "bare", team.name, now)
    assert explained.answer is Answer.DENIED
    cause = explained.reasons[0]
    keeps = f"Pod bare keeps its scheduling gate kueue.x-k8s.io/admission, since the {by} was denied: "
    assert cause.message == keeps + events()["bare"].partition(denial)[2]

    assert place(team, "bare", "nvidia-t4", controller) == 200
    assert explain(api, "pod", "bare", team.name, datetime.now(UTC)).answer is Answer.PENDING
