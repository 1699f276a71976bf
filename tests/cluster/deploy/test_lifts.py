"""By the rights of the chart, the controller removes the gate of pods that wait for quota, and changes nothing else of a pod."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from policies.quota.waiting import GATE
from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.deploy.installed import CONTROLLER, Installed
from tests.controlplane import JSON_PATCH, MERGE_PATCH, ControlPlane
from tests.controlplane.client import Client, accepted
from tests.controlplane.gpuquota import Namespace
from tests.deploy.manifests import NAMESPACE
from webhook.configuration.documents import API_VERSION, Document

ONLY_THE_GATE = "may remove the scheduling gate gpu-admission.dev/quota from a pod, and change nothing else"
QUEUE = {"gpu-quota": {"mode": "enforce", "onExceeded": "Queue"}}
OTHER = "example.com/other"


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Installed]:
    installed = Installed(plane, host=80)
    installed.apply()
    installed.start()
    accepted(
        plane.client().post(
            f"/apis/{API_VERSION}/gpupolicies", Document("GPUPolicy", "queueing", {"rules": QUEUE}).data
        )
    )
    yield installed
    installed.stop()


class Team(Namespace):
    """A namespace with one GPU, which `holder` has, so that all other pods wait."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane, installation=NAMESPACE)
        self.plane = plane
        plane.kubectl("wait", "--for=create", "--timeout=90s", "serviceaccount/default", "-n", self.name)

    def queue(self) -> None:
        self.quota({"gpus": "1"})
        assert eventually(lambda: self.used() is not None)
        self.pod("holder")
        assert eventually(self.is_queueing)

    def is_queueing(self) -> bool:
        return self.create(pod("probe"), {"dryRun": "All"})[0] == 201

    def waits(self, name: str) -> bool:
        return GATE in gates(self.get(name))

    def get(self, name: str) -> JSON:
        return dict(accepted(self.client.get(self.path("pods", name))))


def pod(name: str, gpus: int = 1, **spec: Any) -> JSON:
    container = {"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def gates(stored: JSON) -> list[str]:
    return [each["name"] for each in stored["spec"].get("schedulingGates") or ()]


@pytest.fixture(scope="module")
def team(plane: ControlPlane, running: Installed) -> Team:
    del running
    team = Team(plane)
    team.queue()
    return team


def test_a_pod_waits_and_starts_by_the_rights_of_the_chart(plane: ControlPlane, running: Installed) -> None:
    team = Team(plane)
    team.queue()
    accepted(team.create(pod("next")))
    assert team.waits("next"), plane.logs("gpu-admission-webhook")

    team.delete_pod("holder")

    assert eventually(lambda: not team.waits("next")), plane.logs(CONTROLLER)
    assert running.ready()


# ---- A controller that somebody has taken over


def added(path: str, value: Any) -> JSON:
    return {"op": "add", "path": path, "value": value}


LIFT = {"op": "remove", "path": "/spec/schedulingGates/1"}
"""Removes our gate from `victim`, whose other gate comes first."""
CHANGES: dict[str, list[JSON]] = {
    "a-label": [added("/metadata/labels/more", "x")],
    "a-changed-label": [added("/metadata/labels/team", "x")],
    "a-removed-label": [{"op": "remove", "path": "/metadata/labels/team"}],
    "an-annotation": [added("/metadata/annotations/more", "x")],
    "a-finalizer": [added("/metadata/finalizers", ["example.com/stay"])],
    "an-owner": [
        added("/metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}])
    ],
    "another-gate": [{"op": "remove", "path": "/spec/schedulingGates/0"}],
    "an-image": [added("/spec/containers/0/image", "other")],
    "a-toleration": [added("/spec/tolerations/-", {"operator": "Exists"})],
    "a-node-selector": [added("/spec/nodeSelector", {"zone": "a"})],
    "a-deadline": [added("/spec/activeDeadlineSeconds", 5)],
}


@pytest.fixture(scope="module")
def victim(team: Team) -> str:
    """Return the path of a pod under our gate and another one."""
    body = pod("victim", schedulingGates=[{"name": OTHER}])
    body["metadata"] |= {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    assert gates(accepted(team.create(body))) == [OTHER, GATE]
    return team.path("pods", "victim")


@pytest.mark.parametrize("beside", [[], [LIFT]], ids=["alone", "beside-our-gate"])
@pytest.mark.parametrize("name", CHANGES)
def test_it_may_change_nothing_else(running: Installed, victim: str, name: str, beside: list[JSON]) -> None:
    client = running.client(CONTROLLER)
    status, answer = client.patch(victim, [*beside, *CHANGES[name]], content_type=JSON_PATCH)
    client.close()

    assert (status, ONLY_THE_GATE in answer["message"]) == (403, True), answer


def test_every_change_is_one_that_others_may_make(plane: ControlPlane, victim: str) -> None:
    for name, change in CHANGES.items():
        status, answer = plane.client().patch(victim, change, {"dryRun": "All"}, content_type=JSON_PATCH)
        assert status == 200, (name, answer)


def test_it_starts_no_pod_whose_turn_it_is_not(running: Installed, victim: str) -> None:
    client = running.client(CONTROLLER)
    status, answer = client.patch(victim, [LIFT], content_type=JSON_PATCH)
    client.close()

    assert (status, "is held for the pod" in answer["message"]) == (403, True), answer


@cases(
    ("containers", "length"),
    long_values=(1, 1000),
    many_values=(3, 20),  # with their managedFields almost the 20,000 values that a review reads
)
def test_the_policy_can_be_evaluated_for_the_largest_pods(
    plane: ControlPlane, running: Installed, containers: int, length: int
) -> None:
    del running
    free = Team(plane)
    body = pod("large", schedulingGates=[{"name": GATE}])
    env = [{"name": f"V{number}", "value": "x" * length} for number in range(1000)]
    first = body["spec"]["containers"][0] | {"resources": {}, "env": env}
    body["spec"]["containers"] = [first | {"name": f"c{number}"} for number in range(containers)]

    assert GATE in gates(accepted(free.create(body)))

    assert eventually(lambda: not free.waits("large")), plane.logs(CONTROLLER)


def test_the_api_server_finds_no_mistake_in_the_policy(plane: ControlPlane, running: Installed) -> None:
    del running
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/gpu-admission-controller-pods"

    def status() -> JSON:
        return dict(plane.client().get(path)[1].get("status", {}))

    assert eventually(lambda: "observedGeneration" in status())
    assert "expressionWarnings" not in status().get("typeChecking", {})


# ---- A user who may change pods

ATTEMPTS = 40


def test_a_user_gains_nothing_by_changing_pods(plane: ControlPlane, running: Installed) -> None:
    """Adds and removes gates and annotations in a random order: at any time, no more runs than the quota grants."""
    del running
    team = Team(plane)
    team.queue()
    accepted(team.create(pod("mine")))
    user = tenant(team)
    chance = random.Random(7)  # noqa: S311 - the same attempts in every run
    tolerate = {"op": "add", "path": "/spec/tolerations/-", "value": {"key": "k", "operator": "Exists"}}
    gate_of_ours = [{"name": GATE}]
    allowed = 0
    for number in range(ATTEMPTS):
        fraction = {"metadata": {"annotations": {"gpu-fraction": chance.choice(["0.5", "1", None])}}}
        without = {"spec": {"schedulingGates": chance.choice([[], None, [{"name": OTHER}]])}}
        removal: Any = [{"op": "remove", "path": "/spec/schedulingGates"}]
        body, content_type = chance.choice(
            [
                (without, MERGE_PATCH),
                (fraction, MERGE_PATCH),
                ({**fraction, **without}, MERGE_PATCH),
                (removal, JSON_PATCH),
                ([*removal, tolerate], JSON_PATCH),
                ({"spec": {"schedulingGates": gate_of_ours}}, MERGE_PATCH),
            ]
        )
        name = chance.choice(["mine", "mine", "holder"])
        status, _ = user.patch(team.path("pods", name), body, content_type=content_type)
        allowed += status == 200
        own = pod(f"new-{number}", schedulingGates=chance.choice([None, gate_of_ours, [{"name": OTHER}]]))
        user.post(team.path("pods"), own)
        stored = accepted(user.get(team.path("pods")))["items"]
        started = [each["metadata"]["name"] for each in stored if GATE not in gates(each)]
        assert started == ["holder"], (number, name, body)
    assert allowed > ATTEMPTS / 4, "most attempts are valid updates"


def tenant(team: Team) -> Client:
    """Return the client of a ServiceAccount that may do in the namespace what the ClusterRole `edit` allows."""
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": team.name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    body = {"metadata": {"name": "tenant"}, "roleRef": role, "subjects": [subject]}
    accepted(
        team.client.post(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{team.name}/rolebindings", body)
    )
    token = team.plane.account_token(team.name, "default")
    client = Client(team.plane.url, ca_file=team.plane.ca_file, token=token)
    assert eventually(lambda: client.get(team.path("pods"))[0] == 200)
    return client
