"""The values of EKS, GKE private and OpenShift, as their API servers take what they make of the chart."""

import json
import random
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.builders import JSON
from tests.cluster.controllers import eventually
from tests.cluster.deploy.installed import apply_strictly
from tests.controlplane import ControlPlane
from tests.controlplane.fake_webhook import Call, FakeWebhook, Reply
from tests.deploy.manifests import CHART, NAMESPACE, template
from webhook.canary.probe import canary_pod
from webhook.cluster.objects import CANARY_NAMESPACE

CREATE = ("--set", "namespace.create=true")
COMPONENT = "app.kubernetes.io/component"
PROFILE = "pod-security.kubernetes.io"
USERS = range(1_000_670_000, 1_000_680_000)
"""A range as OpenShift gives each namespace one (annotation openshift.io/sa.scc.uid-range: 1000670000/10000)."""


def pods(plane: ControlPlane) -> dict[str, JSON]:
    """Return a pod of each component, once all that the Deployments want are made: nothing runs them here."""
    client = plane.client()

    def made() -> list[JSON]:
        _, listed = client.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
        replicas = [item["status"].get("replicas", 0) for item in listed["items"]]
        found: list[JSON] = client.get(f"/api/v1/namespaces/{NAMESPACE}/pods")[1]["items"]
        # Those of the test before are removed some time after their Deployments.
        return found if replicas == [2, 2] and len(found) == 4 else []

    found = eventually(made)
    assert found, plane.kubectl("get", "events", "-n", NAMESPACE).stdout
    return {pod["metadata"]["labels"][COMPONENT]: pod["spec"] for pod in found}


def profile(plane: ControlPlane) -> str:
    labels = plane.client().get(f"/api/v1/namespaces/{NAMESPACE}")[1]["metadata"]["labels"]
    return str(labels[f"{PROFILE}/enforce"])


@pytest.mark.usefixtures("_afterwards")
def test_gke_private_under_the_restricted_profile(plane: ControlPlane) -> None:
    apply_strictly(plane, template("--no-hooks", *CREATE, "-f", CHART / "values-gke-private.yaml"))

    (container,) = pods(plane)["webhook"]["containers"]
    _, service = plane.client().get(f"/api/v1/namespaces/{NAMESPACE}/services/gpu-admission")
    assert profile(plane) == "restricted"
    assert [port["containerPort"] for port in container["ports"]] == [10250, 9443]
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(443, 10250)]
    quota = plane.kubectl("get", "resourcequota", "gpu-admission-critical-pods", "-n", NAMESPACE)
    assert "pods: 4/100" in quota.stdout


@pytest.mark.usefixtures("_afterwards")
def test_eks_meets_the_restricted_profile_but_for_the_network_of_its_nodes(plane: ControlPlane) -> None:
    text = template("--no-hooks", *CREATE, "-f", CHART / "values-eks.yaml")
    apply_strictly(plane, text)

    made = pods(plane)
    (container,) = made["webhook"]["containers"]
    assert profile(plane) == "privileged"
    assert (made["webhook"]["hostNetwork"], made["webhook"]["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert [port["hostPort"] for port in container["ports"]] == [10443, 10444]
    assert "hostNetwork" not in made["controller"]
    labelled = plane.kubectl(
        "label", "namespace", NAMESPACE, f"{PROFILE}/enforce=restricted", "--overwrite", "--dry-run=server"
    )
    violations = [line for line in labelled.stderr.splitlines() if "gpu-admission-" in line]
    assert len(violations) == 1, labelled.stderr
    assert violations[0].startswith("Warning: gpu-admission-webhook-")
    assert violations[0].endswith(": host namespaces, hostPort")


def scc(call: Call) -> Reply:
    """Answer as restricted-v2 of OpenShift does: no user but one of the namespace's range, which it sets where none is."""
    spec = call.request["object"]["spec"]
    contexts = [
        each.get("securityContext") or {}
        for each in (spec, *spec["containers"], *spec.get("initContainers", ()))
    ]
    requested = {each[key] for each in contexts for key in ("runAsUser", "fsGroup") if key in each}
    if wrong := sorted(requested - set(USERS)):
        refusal = {
            "code": 403,
            "message": f"unable to validate against any security context constraint: {wrong}",
        }
        return Reply({"allowed": False, "status": refusal})
    user = random.choice(USERS)  # noqa: S311 - any will do
    patch = [
        {
            "op": "add",
            "path": "/spec/securityContext",
            "value": {**contexts[0], "runAsUser": user, "fsGroup": user},
        }
    ]
    return Reply({"patchType": "JSONPatch", "patch": b64encode(json.dumps(patch).encode()).decode()})


@contextmanager
def openshift(plane: ControlPlane) -> Iterator[None]:
    """Have every new pod of our namespaces pass `scc`."""
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [NAMESPACE, CANARY_NAMESPACE]}
    with FakeWebhook(plane, "scc", scc, host=90) as fake:
        entry = fake.entry("scc.example.com", "pods", namespaceSelector={"matchExpressions": [chosen]})
        with fake.registered("mutating", "aa-scc", entry):
            yield


@pytest.mark.usefixtures("_afterwards")
def test_openshift_with_users_of_its_own(plane: ControlPlane) -> None:
    text = template(
        "--no-hooks", *CREATE, "-f", CHART / "values-openshift.yaml", "--set", "webhooks.failurePolicy=Ignore"
    )
    namespaces = [part for part in text.split("---\n") if "\nkind: Namespace\n" in f"\n{part}"]
    plane.kubectl("apply", "--server-side", "-f", "-", stdin="---\n".join(namespaces))
    canaries = f"/api/v1/namespaces/{CANARY_NAMESPACE}/pods"
    plane.kubectl("wait", "--for=create", "--timeout=90s", "serviceaccount/default", "-n", CANARY_NAMESPACE)
    fixed = canary_pod("", "1")
    fixed["spec"]["securityContext"]["runAsUser"] = 65532

    with openshift(plane):
        # The API server hears of a webhook by a watch.
        assert eventually(
            lambda: plane.client().post(canaries, fixed, {"dryRun": "All"})[0] == 403, seconds=30
        )
        apply_strictly(plane, text)
        made = pods(plane)
        status, canary = plane.client().post(canaries, canary_pod("", "1"), {"dryRun": "All"})

    assert profile(plane) == "restricted"
    assert {pod["securityContext"]["runAsUser"] in USERS for pod in made.values()} == {True}
    assert status == 201, canary
    assert canary["spec"]["securityContext"]["runAsUser"] in USERS
