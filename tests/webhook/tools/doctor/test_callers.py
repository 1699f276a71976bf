"""Whether callers are known, as doctor sees it where no replica can be reached: by flags and NetworkPolicies."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cases import cases
from tests.webhook.tools.installed_clusters import assert_found, checked
from webhook.tools.doctor.checks import certificates

DEPLOYMENT = "/apis/apps/v1/namespaces/gpu-admission/deployments/gpu-admission-webhook"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/gpu-admission/networkpolicies"
OURS = {"app.kubernetes.io/name": "gpu-admission", "app.kubernetes.io/component": "webhook"}
CONTROL_PLANE = {"ipBlock": {"cidr": "10.0.0.0/28"}}
WARNED = [
    "callers-unknown: Service/gpu-admission in gpu-admission answers every caller: any pod of the cluster can hold a quota for "
    "40 s, again and again, and read its use\n"
    "set webhook.clientAuthentication, or networkPolicy.webhookFrom where kube-apiserver cannot be configured; see "
    "docs/operate/security.md"
]
LIMITED = (
    "callers present no certificate; NetworkPolicy gpu-admission-webhook limits who reaches the webhook, if the cluster's "
    "network enforces it"
)


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


@cases(
    ("flags", "policies", "found"),
    client_ca=(["--client-ca=/ca.crt", "--client-name=a"], [], []),
    neither=([], [], WARNED),
    as_installed=([], [policy(ours(), METRICS)], WARNED),
    webhook_from=([], [policy(ours(CONTROL_PLANE), METRICS)], [LIMITED]),
    port_by_name=([], [policy(ours(CONTROL_PLANE, port="webhook"))], [LIMITED]),
    nobody_at_all=([], [policy()], [LIMITED]),
    another_one_opens_it=([], [policy(ours(CONTROL_PLANE)), policy({}, name="open")], WARNED),
    from_every_address=([], [policy(ours({"ipBlock": {"cidr": "0.0.0.0/0"}}))], WARNED),
    from_every_namespace=([], [policy(ours({"namespaceSelector": {}}))], WARNED),
    of_other_pods=([], [policy(ours(CONTROL_PLANE), podSelector={"matchLabels": {"app": "x"}})], WARNED),
    of_outgoing_traffic=([], [policy(ours(CONTROL_PLANE), policyTypes=["Egress"])], WARNED),
)
def test_callers(flags: list[str], policies: list[dict[str, Any]], found: list[str], tmp_path: Path) -> None:
    result = checked("callers", {**deployment(*flags), POLICIES: policies}, tmp_path)

    first, *notes = result.notes
    assert first == (
        "callers are looked up in the flags of Deployment/gpu-admission-webhook: Service/gpu-admission in gpu-admission is not "
        "reachable from here"
    )
    findings = [f"{each.id}: {each.object} {each.message}\n{each.remedy}" for each in result.findings]
    assert [*findings, *notes] == found
    assert result.not_checked == ()


def test_authorities_of_callers_that_a_replica_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readiness = SimpleNamespace(client_ca={"lastError": "no certificate"})
    monkeypatch.setattr(certificates, "_read_readiness", lambda _address, _port: readiness)
    service = {"spec": {"clusterIP": "127.0.0.1"}}
    want = [
        "client-ca-unusable: Service/gpu-admission in gpu-admission cannot use the newest authorities of callers: no "
        "certificate\n"
        "correct ca.crt in the ConfigMap or Secret of webhook.clientAuthentication"
    ]
    assert_found(
        "callers", {"/api/v1/namespaces/gpu-admission/services/gpu-admission": service}, want, tmp_path
    )


def test_without_replica_and_deployment_it_is_not_called_fine(tmp_path: Path) -> None:
    result = checked("callers", {}, tmp_path)

    assert result.findings == ()
    assert [each.why for each in result.not_checked] == [
        "Service/gpu-admission in gpu-admission is not reachable from here, and "
        "Deployment/gpu-admission-webhook does not exist"
    ]
