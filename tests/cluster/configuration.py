"""The kinds of our configuration on a test control plane, and their review by a running webhook."""

from typing import Any

import yaml

from tests.cluster.controllers import eventually
from tests.controlplane.client import accepted
from tests.controlplane.gpuquota import install_kinds
from tests.controlplane.plane import ControlPlane
from tests.controlplane.webhook import NAMESPACE, Webhook
from tests.deploy.manifests import webhooks
from webhook.configuration.documents import API_VERSION, Document

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NAME, REVIEWS = "gpu-admission", "zz-gpu-admission-documents"
KINDS = {"GPUPolicy": "gpupolicies", "GPUClass": "gpuclasses", "GPUResourceMapping": "gpuresourcemappings"}


def default_policy(rules: dict[str, Any]) -> str:
    """Return the GPUPolicy `default` with these rules, as YAML."""
    return yaml.safe_dump(Document("GPUPolicy", "default", {"rules": rules}).data)


def install_configuration_kinds(plane: ControlPlane) -> None:
    install_kinds(plane.client(), *KINDS.values())


def register_reviews(plane: ControlPlane, webhook: Webhook) -> None:
    """Have our own documents reviewed by `webhook`; return once the API server calls it."""
    client = plane.client()
    client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    service = {"metadata": {"name": NAME}, "spec": {"clusterIP": webhook.address, "ports": [{"port": 443}]}}
    accepted(client.post(f"/api/v1/namespaces/{NAMESPACE}/services", service))
    name = "documents.validate.gpu-admission.dev"
    (entry,) = (entry for entry in webhooks(webhook.manifests()) if entry["name"] == name)
    body = {"metadata": {"name": REVIEWS}, "webhooks": [entry]}
    accepted(client.post(CONFIGURATIONS, body))
    wrong = Document("GPUPolicy", "probe", {"rules": {"gpu-class": {"default": "no-such-class"}}}).data
    assert eventually(
        lambda: client.post(f"/apis/{API_VERSION}/gpupolicies", wrong, {"dryRun": "All"})[0] == 422
    )


def unregister_reviews(plane: ControlPlane) -> None:
    client = plane.client()
    client.delete(f"{CONFIGURATIONS}/{REVIEWS}")
    client.delete(f"/api/v1/namespaces/{NAMESPACE}/services/{NAME}")
