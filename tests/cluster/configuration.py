"""The kinds of our configuration on a test control plane, and their review by a running webhook."""

import time
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.controllers import eventually
from tests.controlplane.plane import ControlPlane
from tests.controlplane.webhook import NAMESPACE, Webhook
from webhook.configuration.documents import API_VERSION, Document

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOLDER = Path(__file__).parents[2] / "deploy" / "chart" / "files" / "crds"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NAME, REVIEWS = "gpu-admission", "zz-gpu-admission-documents"
KINDS = {"GPUPolicy": "gpupolicies", "GPUClass": "gpuclasses", "GPUResourceMapping": "gpuresourcemappings"}


def default_policy(rules: dict[str, Any]) -> str:
    """Return the GPUPolicy `default` with these rules, as YAML."""
    return yaml.safe_dump(Document("GPUPolicy", "default", {"rules": rules}).data)


def install_configuration_kinds(plane: ControlPlane) -> None:
    """Make the API server serve them; return when it does."""
    client = plane.client()
    for plural in KINDS.values():
        status, answer = client.post(CRDS, yaml.safe_load((FOLDER / f"{plural}.yaml").read_text()))
        assert status in {201, 409}, answer
    deadline = time.monotonic() + 60
    while any(client.get(f"/apis/{API_VERSION}/{plural}")[0] != 200 for plural in KINDS.values()):
        assert time.monotonic() < deadline, "the API server does not serve our kinds"
        time.sleep(0.05)


def register_reviews(plane: ControlPlane, webhook: Webhook) -> None:
    """Have our own documents reviewed by `webhook`; return once the API server calls it."""
    client = plane.client()
    client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    service = {"metadata": {"name": NAME}, "spec": {"clusterIP": webhook.address, "ports": [{"port": 443}]}}
    status, answer = client.post(f"/api/v1/namespaces/{NAMESPACE}/services", service)
    assert status == 201, answer
    (entry,) = (
        entry
        for document in webhook.manifests()
        for entry in document.get("webhooks", ())
        if entry["name"] == "documents.validate.gpu-admission.dev"
    )
    body = {"metadata": {"name": REVIEWS}, "webhooks": [entry]}
    status, answer = client.post(CONFIGURATIONS, body)
    assert status == 201, answer
    wrong = Document("GPUPolicy", "probe", {"rules": {"gpu-class": {"default": "no-such-class"}}}).data
    assert eventually(
        lambda: client.post(f"/apis/{API_VERSION}/gpupolicies", wrong, {"dryRun": "All"})[0] == 422
    )


def unregister_reviews(plane: ControlPlane) -> None:
    client = plane.client()
    client.delete(f"{CONFIGURATIONS}/{REVIEWS}")
    client.delete(f"/api/v1/namespaces/{NAMESPACE}/services/{NAME}")
