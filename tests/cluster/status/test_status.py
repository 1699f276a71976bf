"""`gpu-admission status` on a real API server: for an administrator, and for a tenant of one namespace."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from click.testing import CliRunner

from policies.registry import RULES
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.status.conftest import PATHS, SERVING, TENANT, TRAINING, apply, stateful
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from webhook.commands import main
from webhook.commands.rules import default_mode
from webhook.configuration.documents import API_VERSION
from webhook.quota.documents import quota_path

MODES: dict[str, list[str]] = {"enforce": [], "warn": ["gpu-quota"], "audit": [], "disabled": []}
for rule in RULES[:-1]:
    MODES[default_mode(rule)].append(rule.id)
POLICIES = f"/apis/{API_VERSION}/gpupolicies"


def status(plane: ControlPlane, *arguments: str, user: str = "admin") -> str:
    result = CliRunner().invoke(main, ["status", *arguments, "--kubeconfig", str(plane.kubeconfig(user))])
    assert result.exit_code == 0, result.output
    return result.stdout


def shown(plane: ControlPlane, *arguments: str, user: str = "admin") -> Any:
    return json.loads(status(plane, *arguments, "-o", "json", user=user))


def test_quotas_classes_and_denials(cluster: ControlPlane) -> None:
    def owners() -> set[str]:
        return {each["owner"] for each in shown(cluster)["denials"] or ()}

    want = {"StatefulSet/never", "StatefulSet/over", "Deployment/sliced"}
    assert eventually(lambda: owners() == want, seconds=30), owners()
    found = shown(cluster)

    (quota,) = found["quotas"]
    assert quota["denied"] == sum(each["count"] for each in found["denials"])
    assert {key: quota[key] for key in ("namespace", "state", "message", "rows", "holders")} == {
        "namespace": TRAINING,
        "state": "Ready",
        "message": "",
        "rows": [
            {"key": "gpus", "hard": "9", "used": "6", "reserved": "0", "pending": "6"},
            {"key": "classes/nvidia-a100", "hard": "8", "used": "6", "reserved": "0", "pending": "6"},
        ],
        "holders": [
            {
                "name": "StatefulSet/fits",
                "held": {"gpus": "6", "classes/nvidia-a100": "6"},
                "idleSince": None,
                "guaranteed": False,
            }
        ],
    }
    # No kubelet of this cluster says that a pod runs.
    assert [(each["owner"], each["pods"], each["held"]["gpus"]) for each in quota["pending"]] == [
        ("StatefulSet/fits", 1, "6")
    ]
    assert found["totals"] == {
        "quotas": 1,
        "granted": "9",
        "used": "6",
        "reserved": "0",
        "pending": "6",
        "nodes": "20",
        "free": found["totals"]["free"],
    }
    reasons = {each["owner"]: each["reason"] for each in found["denials"]}
    assert reasons == {
        "StatefulSet/never": "QuotaCanNeverFit",
        "StatefulSet/over": "QuotaExceeded",
        "Deployment/sliced": "gpu-requests",
    }
    classes = {each["name"]: each["capacity"] for each in found["classes"]}
    assert {name: (each["nodes"], each["gpus"]) for name, each in classes.items()} == {
        "nvidia-a100-80gb": (1, "8"),
        "nvidia-l4": (1, "8"),
        "nvidia-t4": (1, "4"),
    }
    assert (classes["nvidia-l4"]["free"], classes["nvidia-t4"]["free"]) == ("8", "4")
    parts = {each["name"]: each["health"] for each in found["installation"]["parts"]}
    # Webhook and controller of this test are processes without a Deployment, and its Lease has another name.
    assert parts == {"webhook": "unknown", "controller": "failed", "canary": "ok", "certificate": "ok"}
    assert (found["policies"], found["omitted"], found["quotasAreKnown"]) == ([], [], True)


@cases(
    ("seconds_ago", "state"),
    a_controller_leads=(0, "Ready"),
    no_controller_leads=(3600, "Stale"),
)
def test_figures_are_old_while_no_controller_leads(
    cluster: ControlPlane, seconds_ago: int, state: str
) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/gpu-admission/leases"
    renewed = (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(timespec="microseconds")
    lease = {"holderIdentity": "one", "leaseDurationSeconds": 5, "renewTime": renewed.replace("+00:00", "Z")}
    client = cluster.client()
    client.post("/api/v1/namespaces", {"metadata": {"name": "gpu-admission"}})
    body = {"metadata": {"name": "gpu-admission-controller"}, "spec": lease}
    assert client.post(leases, body)[0] == 201
    try:
        found, text = shown(cluster), status(cluster)
        quota = CliRunner().invoke(main, ["quota", "--kubeconfig", str(cluster.kubeconfig())]).stdout
    finally:
        assert client.delete(f"{leases}/gpu-admission-controller")[0] == 200
    assert [each["state"] for each in found["quotas"]] == [state]
    assert (found["figuresUntil"] is not None) is (state == "Stale")
    for each in (text, quota):
        assert (", not counted now: no controller leads" in " ".join(each.split())) is (state == "Stale")
        assert f" {state}" in each


def test_a_pod_that_no_node_takes(cluster: ControlPlane) -> None:
    """In the words of the real scheduler."""
    team, client = Namespace(cluster, "unplaced"), cluster.client()
    team.quota({"gpus": "20"})
    assert eventually(lambda: team.used() is not None)
    apply(client, team.name, stateful("large", 16))
    try:
        (owner,) = eventually(lambda: shown(cluster, "-n", team.name)["quotas"][0]["pending"])
        assert eventually(
            lambda: (
                "nodes are available" in shown(cluster, "-n", team.name)["quotas"][0]["pending"][0]["reason"]
            )
        )
        lines = status(cluster, "-n", team.name).splitlines()
    finally:
        assert client.delete(PATHS["StatefulSet"].format(team.name) + "/large")[0] == 200
        assert client.delete(quota_path(team.name))[0] == 200
    assert (owner["owner"], owner["held"]["gpus"], owner["hasNode"]) == ("StatefulSet/large", "16", False)
    at = next(
        number for number, line in enumerate(lines) if "StatefulSet/large, 16 GPUs, 1 pod since" in line
    )
    assert re.fullmatch(r"    0/\d+ nodes are available: .*Insufficient nvidia\.com/gpu.*", lines[at + 1])


def test_policies_and_pauses(cluster: ControlPlane) -> None:
    exemption = {"namespaces": ["sandbox"], "rules": ["gpu-class"], "reason": "experiments"}
    rules = {"gpu-quota": {"mode": "warn"}}
    spec = {"match": {"namespaces": ["research-*"]}, "priority": 3, "exemptions": [exemption], "rules": rules}
    document = {"apiVersion": API_VERSION, "kind": "GPUPolicy", "metadata": {"name": "research"}}
    client = cluster.client()
    paused = {**spec, "pausedUntil": "2999-01-31T18:00:00Z"}
    assert client.post(POLICIES, {**document, "spec": paused})[0] == 201
    try:
        (policy,) = shown(cluster)["policies"]
    finally:
        assert client.delete(f"{POLICIES}/research")[0] == 200
    assert {key: value for key, value in policy.items() if key != "version"} == {
        "name": "research",
        "priority": 3,
        "where": "research-*",
        "inForce": True,
        "since": None,  # no controller of this test writes the status of documents
        "message": "",
        "pausedUntil": "2999-01-31T18:00:00Z",
        "exemptions": ["sandbox: gpu-class (experiments)"],
        "modes": MODES,
    }


def test_a_tenant_sees_his_namespace_and_nothing_else(cluster: ControlPlane) -> None:
    def text() -> list[str]:
        return status(cluster, "-n", TRAINING, "--verbose", user=TENANT).splitlines()

    def denied() -> int:
        return sum(f"{TRAINING} StatefulSet/" in line and " last at " in line for line in text())

    assert eventually(lambda: denied() == 2, seconds=30)
    title, *lines = text()
    assert re.fullmatch(r"gpu-admission \S+  Kubernetes v\S+  \S+ \S+ UTC", title)
    assert re.sub(r"\d+ denied since [\d: -]+ UTC", "N denied since T", "\n".join(lines[:7])) == (
        "\n"
        "quotas                     ▄ pending ▒ reserved     used + reserved of hard\n"
        "  ml-training  Ready, N denied since T\n"
        "    gpus                   ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄········ 6 + 0 of 9, 6 pending\n"
        "    classes/nvidia-a100    ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄······ 6 + 0 of 8, 6 pending\n"
        "    held by StatefulSet/fits 6\n"
    )
    omitted = " ".join(" ".join(lines).partition("you may not ")[2].split())
    rights_of, _, rest = omitted.partition("), ")
    assert rights_of == "read the installation (webhook, controller, canary, certificate"
    checks, *rights = rest.removesuffix(": what depends on it is not shown").split(", ")
    assert re.fullmatch(r"run \d+ checks of gpu-admission doctor", checks)
    assert rights == [
        "list gpupolicies.gpu-admission.dev",
        "list gpuclasses.gpu-admission.dev",
        "list gpuresourcemappings.gpu-admission.dev",
        "list nodes",
        "get leases/gpu-admission-controller -n gpu-admission",
    ]

    assert SERVING not in "\n".join(lines)


def test_without_rights_in_all_namespaces_that_of_the_context_is_shown(cluster: ControlPlane) -> None:
    path = cluster.kubeconfig(TENANT)
    document = json.loads(path.read_text())
    document["contexts"][0]["context"]["namespace"] = TRAINING
    own = path.with_name("own.kubeconfig")
    own.write_text(json.dumps(document))
    result = CliRunner().invoke(main, ["status", "-o", "json", "--kubeconfig", str(own)])
    found = json.loads(result.stdout)
    assert (found["namespaces"], [each["namespace"] for each in found["quotas"]]) == ([TRAINING], [TRAINING])
    assert "list gpuquotas.gpu-admission.dev in all namespaces" in found["omitted"]
