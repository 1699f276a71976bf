"""A user who tries to get more GPUs than the team has left is refused, or gains nothing.

The team is full. A tenant has the role `edit` in one namespace of it. A lead has that and `gpu-admission-team-lead` in all. A
portal may do everything with namespaces and pods, and may not update ClusterGPUQuotas. After each attempt who made it tries to
create a pod with one GPU in every namespace.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import pytest

from tests.builders import JSON
from tests.cluster.controllers import Counting, counting, eventually
from tests.cluster.quota.attempts import (
    AGAIN,
    ALL,
    NEW,
    OUTSIDE,
    TEAM,
    A,
    Answer,
    Attempt,
    B,
    C,
    annotated,
    at_once,
    create,
    delete,
    grown,
    in_containers,
    labelled,
    made_again,
    namespace,
    patch,
    pod,
    post,
    replaced,
    unlabelled,
    workload,
)
from tests.cluster.quota.quotas import CLAIMS, EXPIRY, PODS, QUOTAS, claim, gpu_pod, gpu_quota
from tests.cluster.quota.referee import GPU, SLICE, cost, total
from tests.cluster.quota.teams import LABEL, TEAMS, Team, team_document
from tests.controlplane import ControlPlane
from tests.controlplane.client import Client, accepted
from tests.controlplane.gpuquota import INSTALLATION, RBAC, Namespace
from tests.controlplane.webhook import strict_manifests
from webhook.configuration.documents import API_VERSION, Document
from webhook.quota.ledger_objects import ledger_objects_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RICH = "rich"
HARD = 4
ROLES: dict[str, dict[str, tuple[str, ...]]] = {
    "tenant": {A: ("edit",)},
    "lead": dict.fromkeys((A, B, C, AGAIN), ("edit", "gpu-admission-team-lead")),
    "portal": dict.fromkeys((A, B, C, AGAIN, OUTSIDE), ("edit",)),
}
CHART = {"gpu-admission-teams", "gpu-admission-team-lead", "gpu-admission-view", "gpu-admission-tenant"}
POLICY = Document(
    "GPUPolicy",
    "attacked",
    {
        "priority": 10,
        "match": {"namespaces": list(ALL)},
        "rules": {"gpu-quota": {"mode": "enforce", "required": True}},
    },
).data


class Scene(NamedTuple):
    plane: ControlPlane
    clients: dict[str, Client]
    team: Team

    @property
    def admin(self) -> Client:
        return self.team.client

    def pods(self) -> dict[str, list[JSON]]:
        """Return the pods and claims of all namespaces that are attacked."""
        paths = {each: (PODS.format(each), CLAIMS.format(each)) for each in ALL}
        return {
            name: [item for path in both for item in self.admin.get(path)[1].get("items", [])]
            for name, both in paths.items()
        }

    def held(self) -> Fraction:
        items = [each for items in self.pods().values() for each in items]
        asking = [each for each in items if "devices" in each["spec"] or requests_gpus(each)]
        return total(cost(each) for each in asking).get("gpus", Fraction(0))

    def probes(self, who: str) -> list[str]:
        """Return where one more GPU was to be had."""
        client = self.clients[who]
        found = [name for name in ALL if create(client, name, "probe")[0] == 201]
        for name in found:
            self.admin.delete(f"{PODS.format(name)}/probe", {"gracePeriodSeconds": 0})
        return found

    def delete_pods(self) -> None:
        """Delete all pods and claims but those that fill the team."""
        for name, items in self.pods().items():
            for each in items:
                if each["metadata"]["name"] != "train":
                    path = (CLAIMS if "devices" in each["spec"] else PODS).format(name)
                    self.admin.delete(f"{path}/{each['metadata']['name']}", {"gracePeriodSeconds": 0})

    def restore(self) -> None:
        """Take away all that an attempt has left."""
        for name in NEW:
            self.admin.delete(f"/api/v1/namespaces/{name}")
        chosen = {"metadata": {"name": AGAIN, "labels": {LABEL: TEAM}}}
        if self.admin.patch(f"/api/v1/namespaces/{AGAIN}", chosen)[0] == 404:
            accepted(self.admin.post("/api/v1/namespaces", chosen))
        for kind in ("apis/apps/v1", "apis/batch/v1"):
            plural = "deployments" if "apps" in kind else "jobs"
            self.admin.delete(f"/{kind}/namespaces/{A}/{plural}", {"propagationPolicy": "Background"})
        self.delete_pods()
        for name in (A, B):
            quota, path = gpu_quota(name, hard={"gpus": "100"}), QUOTAS.format(name)
            if self.admin.get(f"{path}/default")[1].get("spec") != quota["spec"]:
                self.admin.delete(f"{path}/default")
                accepted(self.admin.post(path, quota))
        assert eventually(lambda: self.held() == HARD), self.pods()
        self.team.await_force()


def requests_gpus(pod: JSON) -> bool:
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    return any(each.get("resources", {}).get("limits") for each in containers)


@pytest.fixture(scope="module")
def running(full_plane: ControlPlane) -> Iterator[Counting]:
    with counting(full_plane, expiry=EXPIRY) as running:
        yield running


@pytest.fixture(scope="module")
def scene(running: Counting) -> Iterator[Scene]:
    plane, admin = running.plane, running.plane.client()
    for document in strict_manifests():
        if document["metadata"]["name"] in CHART:
            assert admin.apply(document)[0] < 300
    assert admin.apply(POLICY)[0] < 300
    urgent = {"metadata": {"name": "urgent"}, "value": 1_000_000}
    accepted(admin.post("/apis/scheduling.k8s.io/v1/priorityclasses", urgent))
    team = Team(plane, TEAM, 0)
    namespaces = {name: Namespace(plane, name) for name in (A, B, C, AGAIN, OUTSIDE)}
    team.namespaces.extend(namespaces[name] for name in (A, B, C, AGAIN))
    for name in (C, AGAIN):
        team.label(namespaces[name], TEAM)
    team.grant({"gpus": HARD}, namespaces={"names": ["attacked-*"], "selector": selects(TEAM)}, contact="#us")
    accepted(admin.post(TEAMS, team_document(RICH, {"gpus": 100})))
    for name in (A, B):
        accepted(admin.post(QUOTAS.format(name), gpu_quota(name, hard={"gpus": "100"})))
    team.await_force()
    for name, gpus in ((A, 2), (B, 1), (C, 1)):
        accepted(create_when_counted(admin, name, gpus))
    clients = {who: account(plane, who, namespaces, roles) for who, roles in ROLES.items()}
    verbs = ["get", "list", "create", "update", "patch", "delete"]
    rules = [
        {
            "apiGroups": [""],
            "resources": ["namespaces", "namespaces/status", "namespaces/finalize"],
            "verbs": verbs,
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": verbs},
    ]
    accepted(admin.post(f"/apis/{RBAC}/v1/clusterroles", {"metadata": {"name": "portal"}, "rules": rules}))
    subject = {"kind": "ServiceAccount", "name": "portal", "namespace": INSTALLATION}
    binding = {
        "metadata": {"name": "portal"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "portal"},
        "subjects": [subject],
    }
    accepted(admin.post(f"/apis/{RBAC}/v1/clusterrolebindings", binding))
    yield Scene(plane, clients, team)
    for name in (TEAM, RICH):
        admin.delete(f"{TEAMS}/{name}")
    for name in ALL:
        admin.delete(f"/api/v1/namespaces/{name}")
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        admin.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/gpu-admission-teams")
    admin.delete(f"/apis/{API_VERSION}/gpupolicies/attacked")


def account(
    plane: ControlPlane, who: str, namespaces: dict[str, Namespace], roles: dict[str, tuple[str, ...]]
) -> Client:
    """Make a service account with these roles, and return its client."""
    admin = plane.client()
    admin.post(f"/api/v1/namespaces/{INSTALLATION}/serviceaccounts", {"metadata": {"name": who}})
    for name, bound in roles.items():
        for role in bound:
            binding = {
                "metadata": {"name": f"{who}-{role}"},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": who, "namespace": INSTALLATION}],
            }
            path = f"/apis/{RBAC}/v1/namespaces/{namespaces[name].name}/rolebindings"
            accepted(admin.post(path, binding))
    return Client(plane.url, ca_file=plane.ca_file, token=plane.account_token(INSTALLATION, who))


def selects(team: str) -> JSON:
    return {"matchLabels": {LABEL: team}}


def create_when_counted(client: Client, namespace: str, gpus: int, **spec: Any) -> Answer:
    eventually(lambda: create(client, namespace, "train", gpus, **spec)[0] in {201, 409})
    return client.get(f"{PODS.format(namespace)}/train")


FULL = r"exceeded quota: ClusterGPUQuota attacked, "
FORBIDDEN = r"cannot \w+ resource|is forbidden: User"
LEAVES, ENTERS, TO_RICH = (
    f"would {move}, and you may not update it"
    for move in (
        f"leave ClusterGPUQuota {TEAM}",
        f"enter ClusterGPUQuota {TEAM}",
        f"enter ClusterGPUQuota {RICH}",
    )
)
NOTHING_GAINED = ""
OWN = QUOTAS.format(A)
LIMITED = {"resources": {"limits": {GPU: "1"}}, "image": "x"}
LEDGER = {"metadata": {"name": "more"}, "ledger": "{}"}

ATTEMPTS: dict[str, tuple[str, Attempt, str]] = {
    # A tenant with pods and claims.
    "one more pod": ("tenant", pod(), FULL),
    "a pod with the name of one in another namespace": ("lead", at_once, FULL),
    "a pod with a generated name": ("tenant", pod(metadata={"generateName": "train-", "name": ""}), FULL),
    "a pod of high priority": ("tenant", pod(priorityClassName="urgent"), FULL),
    "a pod under a scheduling gate": ("tenant", pod(schedulingGates=[{"name": "example.com/later"}]), FULL),
    "a pod on a node that is named": ("tenant", pod(nodeName="gpu-node"), FULL),
    "a pod that selects an unknown class": ("tenant", pod(nodeSelector={"accelerator": "x"}), FULL),
    "a pod with an init container": (
        "tenant",
        in_containers(initContainers=[{"name": "i", **LIMITED}]),
        FULL,
    ),
    "a pod with a sidecar": (
        "tenant",
        in_containers(initContainers=[{"name": "i", "restartPolicy": "Always", **LIMITED}]),
        FULL,
    ),
    "a slice": ("tenant", pod(1, SLICE), FULL),
    "a time-sliced share": ("tenant", pod(1, "nvidia.com/gpu.shared"), FULL),
    "a part by annotation": ("tenant", annotated({"gpu-fraction": "0.5"}), FULL),
    "a mirror pod": (
        "tenant",
        pod(metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}, nodeName="gpu-node"),
        FULL,
    ),
    "a pod that says that it was reviewed": (
        "tenant",
        pod(metadata={"annotations": {"gpu-admission.dev/injected": "gpu-quota: reserved"}}),
        FULL,
    ),
    "a pod that has ended, as its status says": (
        "tenant",
        lambda c: c.patch(f"{PODS.format(A)}/train/status", {"status": {"phase": "Succeeded"}}),
        FORBIDDEN,
    ),
    "a pod that grows": ("tenant", grown, r"Forbidden|Invalid value|cannot patch resource"),
    "a claim": ("tenant", post(CLAIMS.format(A), claim("more", 1)), FULL),
    "a claim that is marked as the scheduler's": (
        "tenant",
        post(
            CLAIMS.format(A),
            claim("more", 1)
            | {
                "metadata": {
                    "name": "more",
                    "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
                }
            },
        ),
        "only system:kube-scheduler marks the claims",
    ),
    "a Deployment": (
        "tenant",
        workload("Deployment", replicas=3, selector={"matchLabels": {"app": "more"}}),
        NOTHING_GAINED,
    ),
    "a Job": ("tenant", workload("Job", parallelism=3), NOTHING_GAINED),
    "a pod in a namespace of others": ("tenant", lambda c: create(c, B, "more"), FORBIDDEN),
    # A tenant with quotas.
    "the tenant's own GPUQuota": ("tenant", patch(f"{OWN}/default", {"spec": {"hard": {}}}), FORBIDDEN),
    "no GPUQuota": ("tenant", delete(f"{OWN}/default"), FORBIDDEN),
    "a larger team": ("tenant", patch(f"{TEAMS}/{TEAM}", {"spec": {"hard": {"gpus": 99}}}), FORBIDDEN),
    "another team": ("tenant", post(TEAMS, team_document("mine", {"gpus": 99})), FORBIDDEN),
    "a ledger": ("tenant", post(ledger_objects_path(A), LEDGER), FORBIDDEN),
    "the tenant's namespace without its team": ("tenant", labelled(A, {LABEL: RICH}), FORBIDDEN),
    # A lead.
    "a large GPUQuota": (
        "lead",
        patch(f"{OWN}/default", {"spec": {"hard": {"gpus": "1000"}}}),
        NOTHING_GAINED,
    ),
    "a GPUQuota without limits": (
        "lead",
        patch(f"{OWN}/default", {"spec": {"hard": {"gpus": None}}}),
        NOTHING_GAINED,
    ),
    "no GPUQuota of the lead's": ("lead", delete(f"{OWN}/default"), NOTHING_GAINED),
    "a second GPUQuota": ("lead", post(OWN, gpu_quota(A, "more", hard={"gpus": "9"})), "must be .*default"),
    "a GPUQuota that counts only totals": (
        "lead",
        patch(f"{OWN}/default", {"spec": {"unclassifiedPods": "TotalOnly"}}),
        NOTHING_GAINED,
    ),
    "a GPUQuota that says that nothing is used": (
        "lead",
        patch(f"{OWN}/default/status", {"status": {"used": {"gpus": "0"}}}),
        FORBIDDEN,
    ),
    "a larger team of the lead's": (
        "lead",
        patch(f"{TEAMS}/{TEAM}", {"spec": {"hard": {"gpus": 9}}}),
        FORBIDDEN,
    ),
    "a team that is used less": (
        "lead",
        patch(f"{TEAMS}/{TEAM}/status", {"status": {"used": {"gpus": "0"}}}),
        FORBIDDEN,
    ),
    "the team's ledger": (
        "lead",
        delete(ledger_objects_path(INSTALLATION, f"clustergpuquota.{TEAM}")),
        FORBIDDEN,
    ),
    "a role with more rights": (
        "lead",
        post(
            f"/apis/{RBAC}/v1/namespaces/{A}/roles",
            {
                "metadata": {"name": "more"},
                "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
            },
        ),
        FORBIDDEN,
    ),
    # Who may create and change namespaces.
    "a namespace without its label": ("portal", labelled(C, {LABEL: None}), LEAVES),
    "a namespace with another label": ("portal", labelled(C, {LABEL: "other"}), LEAVES),
    # The API server evaluates the policy once for each team, and says what one of them found.
    "a namespace of another team": ("portal", labelled(C, {LABEL: RICH}), f"{LEAVES}|{TO_RICH}"),
    "a label less, by JSON patch": (
        "portal",
        unlabelled(C),
        LEAVES,
    ),
    "a label less, written again": ("portal", replaced(C), LEAVES),
    "a label less, through the status": ("portal", labelled(C, {LABEL: None}, "/status"), LEAVES),
    "a label less, through the finalizers": ("portal", replaced(C, "/finalize"), LEAVES),
    "a label of another team beside the name": ("portal", labelled(A, {LABEL: RICH}), TO_RICH),
    "a namespace that comes into another team": ("portal", labelled(OUTSIDE, {LABEL: RICH}), TO_RICH),
    "a new namespace by name": ("portal", namespace(NEW[0]), ENTERS),
    "a new namespace by a generated name": ("portal", namespace(generate="attacked-"), ENTERS),
    "a new namespace by label": ("portal", namespace(NEW[1], team=TEAM), ENTERS),
    "a new namespace of another team": ("portal", namespace(NEW[1], team=RICH), TO_RICH),
    "a new namespace of no team": ("portal", namespace(NEW[2]), NOTHING_GAINED),
    "a namespace that is created again": ("portal", made_again, NOTHING_GAINED),
}


@pytest.mark.parametrize(
    ("who", "attempt", "said"), [pytest.param(*each, id=name) for name, each in ATTEMPTS.items()]
)
def test_more_than_the_team_has_left_is_not_to_be_had(
    scene: Scene, who: str, attempt: Attempt, said: str
) -> None:
    try:
        status, answer = attempt(scene.clients[who])
        probed, held = scene.probes(who), scene.held()
    finally:
        scene.restore()

    if said:
        assert status in {403, 422}, answer
        assert re.search(said, answer["message"]), answer["message"]
    else:
        assert status in {200, 201}, answer
    assert probed == []
    assert held == HARD


def test_one_of_many_gets_the_last_gpu(scene: Scene) -> None:
    accepted(scene.admin.delete(f"{PODS.format(C)}/train", {"gracePeriodSeconds": 0}))
    try:
        is_admitted = eventually(lambda: at_once(scene.clients["lead"])[0] == 201)
        held = scene.held()
    finally:
        scene.delete_pods()
        accepted(create_when_counted(scene.admin, C, 1))

    assert is_admitted
    assert held == HARD


def test_a_lead_cannot_have_pods_without_a_class_count_less(scene: Scene) -> None:
    """Which a GPUQuota says as well: the stricter of both holds."""
    team = Team(scene.plane, "classy", 2)
    first, second = team.namespaces
    team.grant({"gpus": 9, "classes": {"nvidia-h100": 1}}, namespaces={"names": ["classy-*"]})
    first.quota({"gpus": "9", "classes": {"nvidia-h100": "9"}}, unclassifiedPods="TotalOnly")
    team.await_force()
    pinned = {"accelerator": "nvidia-h100-80gb"}
    accepted(create_when_counted(scene.admin, second.name, 1, nodeSelector=pinned))

    status, answer = first.create(gpu_pod("of-any-class"))
    cheaper = first.create(gpu_pod("of-another", nodeSelector={"accelerator": "nvidia-t4"}))[0]
    team.delete()

    assert status == 403, answer
    assert "exceeded quota: ClusterGPUQuota classy, requested 1 nvidia-h100" in answer["message"]
    assert cheaper == 201
