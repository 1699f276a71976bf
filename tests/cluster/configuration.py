"""The kinds of our configuration on a test control plane."""

import time
from pathlib import Path

import yaml

from tests.controlplane.plane import ControlPlane
from webhook.configuration.documents import API_VERSION

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOLDER = Path(__file__).parents[2] / "deploy" / "chart" / "files" / "crds"
KINDS = {"GPUPolicy": "gpupolicies", "GPUClass": "gpuclasses", "GPUVocabulary": "gpuvocabularies"}


def install_configuration_kinds(plane: ControlPlane) -> None:
    """Make the API server serve them; return when it does."""
    client = plane.client()
    for plural in KINDS.values():
        status, answer = client.post(CRDS, yaml.safe_load((FOLDER / f"{plural}.yaml").read_text()))
        assert status in {201, 409}, answer
    deadline = time.monotonic() + 20
    while any(client.get(f"/apis/{API_VERSION}/{plural}")[0] != 200 for plural in KINDS.values()):
        assert time.monotonic() < deadline, "the API server does not serve our kinds"
        time.sleep(0.05)
