"""Whether callers are known, as doctor sees it where no replica can be reached: by flags and NetworkPolicies."""

from pathlib import Path
from typing import Any

import pytest

from tests.webhook.tools.doctor.clusters import cluster_of
from webhook.tools.doctor.check import run_check
from webhook.tools.doctor.checks import callers

[CALLERS] = callers.CHECKS
DEPLOYMENT = "/apis/apps/v1/namespaces/gpu-admission/deployments/gpu-admission-webhook"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/gpu-admission/networkpolicies"
OURS = {"app.kubernetes.io/name": "gpu-admission", "app.kubernetes.io/component": "webhook"}
CONTROL_PLANE = {"ipBlock": {"cidr": "10.0.0.0/28"}}
WARNED = ["callers-unknown"]
LIMITED = "NetworkPolicy gpu-admission-webhook limits who reaches the webhook"


def deployment(*flags: str) -> dict[str, Any]:
    containers = [{"name": "webhook", "args": ["serve", *flags]}]
    labels = {**OURS, "app.kubernetes.io/instance": "gpu-admission"}
    return {
        DEPLOYMENT: {
            "spec": {"template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}}
        }
    }


def policy(*rules: dict[str, Any], name: str = "gpu-admission-webhook", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"podSelector": {"matchLabels": OURS}, "ingress": list(rules), **spec},
    }


def ours(*peers: dict[str, Any], port: int | str = 8443) -> dict[str, Any]:
    return {"ports": [{"port": port, "protocol": "TCP"}], **({"from": list(peers)} if peers else {})}


METRICS = ours(port=9443)


@pytest.mark.parametrize(
    ("flags", "policies", "found"),
    [
        pytest.param(["--client-ca=/ca.crt", "--client-name=a"], [], [], id="client-ca"),
        pytest.param([], [], WARNED, id="neither"),
        pytest.param([], [policy(ours(), METRICS)], WARNED, id="as-installed"),
        pytest.param([], [policy(ours(CONTROL_PLANE), METRICS)], [LIMITED], id="webhook-from"),
        pytest.param([], [policy(ours(CONTROL_PLANE, port="webhook"))], [LIMITED], id="port-by-name"),
        pytest.param([], [policy()], [LIMITED], id="nobody-at-all"),
        pytest.param(
            [], [policy(ours(CONTROL_PLANE)), policy({}, name="open")], WARNED, id="another-one-opens-it"
        ),
        pytest.param([], [policy(ours({"ipBlock": {"cidr": "0.0.0.0/0"}}))], WARNED, id="from-every-address"),
        pytest.param([], [policy(ours({"namespaceSelector": {}}))], WARNED, id="from-every-namespace"),
        pytest.param(
            [],
            [policy(ours(CONTROL_PLANE), podSelector={"matchLabels": {"app": "x"}})],
            WARNED,
            id="of-other-pods",
        ),
        pytest.param(
            [], [policy(ours(CONTROL_PLANE), policyTypes=["Egress"])], WARNED, id="of-outgoing-traffic"
        ),
    ],
)
def test_callers(flags: list[str], policies: list[dict[str, Any]], found: list[str], tmp_path: Path) -> None:
    with cluster_of(tmp_path, {**deployment(*flags), POLICIES: policies}) as cluster:
        result = run_check(CALLERS, cluster)

    first, *notes = [note.text for note in result.notes]
    assert "Service/gpu-admission in gpu-admission is not reachable from here" in first
    said = [finding.id for finding in result.findings] or [
        note.removeprefix("callers present no certificate; ").partition(",")[0] for note in notes
    ]
    assert said == found
    assert result.not_checked == ()


def test_without_replica_and_deployment_it_is_not_called_fine(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {}) as cluster:
        result = run_check(CALLERS, cluster)

    assert result.findings == ()
    assert [each.why for each in result.not_checked] == [
        "Service/gpu-admission in gpu-admission is not reachable from here, and "
        "Deployment/gpu-admission-webhook does not exist"
    ]
