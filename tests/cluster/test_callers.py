"""Callers that are known: a real API server with a client certificate, one without, and whoever reaches the port."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from uuid import uuid4

import pytest
import urllib3
import yaml

from tests.builders import JSON, gpu_container, manifest
from tests.cluster.controllers import Running, eventually, uses
from tests.controlplane import Authority, ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace, install_quota_kind
from tests.controlplane.webhook import ROOT, Webhook, apply_all, manifests, uninstall
from tests.webhook.serving.served import review

CALLER = "kube-apiserver-webhooks"
CALLED = 'Internal error occurred: failed calling webhook "pods.mutate.gpu-admission.dev": failed to call webhook: '
REFUSED = "gpu-admission takes reviews only from callers with a client certificate: see its docs/operate/security.md"
TIMEOUT = 30
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def presenting() -> Iterator[ControlPlane]:
    """Serve the API with a client certificate for webhooks, as docs/operate/security.md says how."""
    with ControlPlane(client_name=CALLER) as plane:
        install_quota_kind(plane.client())
        yield plane


@pytest.fixture(scope="module")
def bundle(presenting: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("callers") / "ca.crt"
    path.write_bytes(presenting.callers_ca.read_bytes())
    return path


@pytest.fixture(scope="module")
def webhook(presenting: ControlPlane, bundle: Path) -> Iterator[Webhook]:
    with webhook_of(presenting, bundle, CALLER) as running:
        running.register()  # returns once both webhooks have answered
        yield running
    uninstall(presenting)


def webhook_of(plane: ControlPlane, authority: Path, *names: str) -> Webhook:
    callers = [part for name in names for part in ("--client-name", name)]
    return Webhook(plane, arguments=("--kubeconfig", plane.kubeconfig(), "--client-ca", authority, *callers))


def gpu_pod(name: str = "trainer", gpus: int = 1) -> JSON:
    return manifest("v1", "Pod", name, {"containers": [gpu_container(str(gpus))]})


def refused(plane: ControlPlane, webhook: Webhook, want: str) -> str:
    """Register the webhook; return what the author of a GPU pod reads, once the API server knows of it."""

    def said() -> str:
        status, answer = plane.client().post(PODS, gpu_pod(), {"dryRun": "All"})
        return "" if status == 201 or want not in answer["message"] else str(answer["message"])

    apply_all(plane, manifests(webhook.address, webhook.certificates / "ca.crt"))
    try:
        # A refused handshake can also reach the API server as a reset, before the alert that says why.
        return eventually(said)
    finally:
        uninstall(plane)


def ask(webhook: Webhook, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
    """Ask as anybody who reaches the port can: without a certificate."""
    authority = str(webhook.certificates / "ca.crt")
    with urllib3.PoolManager(ca_certs=authority, retries=False, timeout=TIMEOUT) as pool:
        url = f"https://{webhook.address}{path}"
        answer = pool.request(method, url, body=body, headers={"Content-Type": "application/json"})
        return answer.status, answer.data.decode()


def forged(namespace: str, gpus: int) -> bytes:
    document = gpu_pod("forged", gpus)
    document["metadata"] |= {"namespace": namespace, "uid": str(uuid4())}
    who = {"username": "system:serviceaccount:kube-system:replicaset-controller"}
    return json.dumps(review(document, uid=str(uuid4()), namespace=namespace, userInfo=who)).encode()


# ---- the API server


def test_the_api_server_was_given_what_the_page_says(presenting: ControlPlane) -> None:
    folder = presenting.processes.folder
    text = (ROOT / "docs" / "operate" / "security.md").read_text()
    blocks = [
        yaml.safe_load(dedent(block))
        for block in re.findall(r"^ *```yaml\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    ]
    page = {block.get("kind"): block for block in blocks}
    user = {"client-certificate": f"{folder}/caller.pem", "client-key": f"{folder}/caller.pem"}
    [written] = page["Config"]["users"]
    written["user"] = {name: user[name] for name in written["user"]}
    for plugin in page["AdmissionConfiguration"]["plugins"]:
        plugin["configuration"]["kubeConfigFile"] = f"{folder}/webhooks.kubeconfig"

    assert json.loads((folder / "webhooks.kubeconfig").read_text()) == page["Config"]
    assert json.loads((folder / "admission.json").read_text()) == page["AdmissionConfiguration"]


def test_api_server_with_another_name_is_refused_with_that_name(presenting: ControlPlane) -> None:
    with webhook_of(presenting, presenting.callers_ca, "somebody-else") as webhook:
        said = refused(presenting, webhook, CALLER)
    assert said == (
        f"{CALLED}gpu-admission was called with a client certificate of '{CALLER}', which --client-name does not allow"
    )


def test_api_server_with_a_certificate_of_another_authority_is_refused_in_the_handshake(
    presenting: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_bytes(Authority("another").certificate)
    with webhook_of(presenting, tmp_path / "ca.crt", CALLER) as webhook:
        said = refused(presenting, webhook, "remote error")
        assert eventually(lambda: "refusing a caller: 127." in webhook.log())
    assert said.startswith('Internal error occurred: failed calling webhook "pods.mutate.gpu-admission.dev"')
    assert said.endswith("remote error: tls: unknown certificate authority")


def test_api_server_without_a_certificate_is_refused_and_says_where_to_read(
    plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_bytes(Authority("callers").certificate)
    with webhook_of(plane, tmp_path / "ca.crt", CALLER) as webhook:
        assert refused(plane, webhook, "client certificate") == f"{CALLED}{REFUSED}"


# ---- whoever reaches the port


def test_without_client_authentication_a_forged_review_holds_the_quota_until_it_expires(
    presenting: ControlPlane,
) -> None:
    """What docs/operate/security.md says is left where an API server can present no certificate."""
    with (
        Webhook(presenting, arguments=("--kubeconfig", presenting.kubeconfig())) as webhook,
        Running(presenting),
    ):
        webhook.register()
        try:
            team = Namespace(presenting)
            team.quota({"gpus": "8"})
            assert uses(team, 0)
            status, said = ask(webhook, "POST", "/validate", forged(team.name, 8))
            assert (status, json.loads(said)["response"]["allowed"]) == (200, True)
            status, answer = presenting.client().post(team.path("pods"), gpu_pod())
            assert status == 403
            assert "exceeded quota" in answer["message"]
            assert uses(team, 0), "nothing is gained: no pod is counted"
        finally:
            uninstall(presenting)


# ---- one webhook that takes reviews from the API server alone; last, since those above listen where it does


def test_api_server_with_the_certificate_is_answered_and_probes_need_none(
    presenting: ControlPlane, webhook: Webhook
) -> None:
    answer = accepted(presenting.client().post(PODS, gpu_pod(), {"dryRun": "All"}))
    assert answer["spec"]["tolerations"], "changed by /mutate"
    assert eventually(webhook.ready), "the documents are read"
    detail = accepted(ask(webhook, "GET", "/readyz"))
    assert json.loads(detail)["clientCA"]["lastError"] is None
    assert ask(webhook, "GET", "/healthz") == (200, "ok\n")


def test_new_authorities_fail_no_creation(presenting: ControlPlane, webhook: Webhook, bundle: Path) -> None:
    """The kept connections of the API server are answered 503 once, and it repeats the call on new ones."""
    bundle.write_bytes(Authority("next").certificate + presenting.callers_ca.read_bytes())

    def turned_away() -> bool:
        """Whether a kept connection was, by now: the file is read twice a second."""
        accepted(presenting.client().post(PODS, gpu_pod(), {"dryRun": "All"}))
        return 'gpu_admission_callers_refused_total{reason="no longer valid"}' in webhook.metrics()

    assert eventually(turned_away)
    assert all(turned_away() for _ in range(2)), "and what comes afterwards is answered as well"
    metrics = webhook.metrics()
    assert "gpu_admission_client_ca_valid 1.0" in metrics
    assert 'gpu_admission_certificate_not_after_timestamp_seconds{certificate="client-ca"}' in metrics


def test_forged_review_is_refused_and_changes_no_ledger(presenting: ControlPlane, webhook: Webhook) -> None:
    with Running(presenting):
        team = Namespace(presenting)
        team.quota({"gpus": "8"})
        assert uses(team, 0)
        before = team.ledger_object()

        for path in ("/validate", "/mutate", "/validate/for-people?timeout=5s", "//validate", "/nowhere"):
            status, said = ask(webhook, "POST", path, forged(team.name, 8))
            assert (status, said) == (403, f"{REFUSED}\n"), path

        assert team.ledger_object() == before
        assert presenting.client().post(team.path("pods"), gpu_pod())[0] == 201, "the quota is not held"
        presenting.client().delete(team.path("pods"))
