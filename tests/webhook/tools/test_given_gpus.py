"""A Deployment without GPUs where a LimitRange gives each container two: every surface counts them as those of an author."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.builders import JSON, container, deployment, gpu_container
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import GROUP, cluster
from webhook.commands import main
from webhook.tools.console.proposals import ProposalReader
from webhook.tools.scan.scanning import Scan
from webhook.tools.why.explaining import explain

NOW = datetime(2026, 11, 29, 9, 0, tzinfo=UTC)
DEPLOYMENTS = "/apis/apps/v1/namespaces/ml/deployments"
IDENTITY = {"namespace": "ml", "uid": "u", "resourceVersion": "1"}
LIMIT_RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "gpus", **IDENTITY},
    "spec": {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "2"}}]},
}
QUOTA = {
    "apiVersion": "gpu-admission.dev/v1alpha1",
    "kind": "GPUQuota",
    "metadata": {"name": "default", **IDENTITY, "generation": 1},
    "spec": {"hard": {"gpus": 4}},
}
RESOURCE = {"resource": "deployments", "responseKind": {"kind": "Deployment"}, "scope": "Namespaced"}
SERVED = [{"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [RESOURCE]}]}]
OUTLOOK = "needs 10 GPUs, which can never fit: the GPUQuota of ml grants 4 in all; 2 of 5 pods will start"


def web(gpus: str) -> JSON:
    main = gpu_container(gpus) if gpus else container()
    document = deployment("web", main, namespace="ml", replicas=5)
    document["metadata"] |= IDENTITY
    return document


def written(objects: JSON) -> JSON:
    """Return the Deployment as its author has it in a file, with another name."""
    return {**objects[f"{DEPLOYMENTS}/web"], "metadata": {"name": "new", "namespace": "ml"}}


def checked(server: ApiServer, objects: JSON) -> str:
    command = ["check", "-f", "-", "--kubeconfig", str(server.kubeconfig())]
    return CliRunner(env={"COLUMNS": None}).invoke(main, command, input=json.dumps(written(objects))).stdout


def checked_alone(_server: ApiServer, objects: JSON) -> str:
    documents = (written(objects), QUOTA, *objects["/api/v1/namespaces/ml/limitranges"])
    text = "\n---\n".join(map(json.dumps, documents))
    return CliRunner(env={"COLUMNS": None}).invoke(main, ["check", "-f", "-"], input=text).stdout


def explained(server: ApiServer, _objects: JSON) -> str:
    found = explain(server.client(), "Deployment", "web", "ml", NOW)
    return "\n".join(f"requests {amount} {resource}" for resource, amount in found.requested.items())


def scanned(server: ApiServer, _objects: JSON) -> str:
    effects = Scan(server.client(), now=NOW, namespace="ml").report(verify_proposal=False).workload_effects
    return ", ".join(f"{number} {effect.value}" for effect, number in effects.items())


def proposed(server: ApiServer, _objects: JSON) -> str:
    found = ProposalReader(server.client(), NOW).propose("Deployment", "web", "ml")
    assert found
    return "\n".join(line for _, line in found.injected)


Surface = Callable[[ApiServer, JSON], str]


@cases(
    ("surface", "want"),
    check=(checked, OUTLOOK),
    check_of_files_alone=(checked_alone, OUTLOOK),
    why=(explained, "requests 2 nvidia.com/gpu"),
    scan=(scanned, "1 changed"),
    console=(proposed, "+      - key: nvidia.com/gpu"),
)
def test_every_surface_counts_them(tmp_path: Path, surface: Surface, want: str) -> None:
    said: list[str] = []
    for gpus, limit_ranges in (("", [LIMIT_RANGE]), ("2", []), ("", [])):
        objects: dict[str, Any] = {
            **cluster(),
            "/api": [],
            "/apis": {"items": SERVED},
            "/api/v1/namespaces/ml/pods": [],
            "/api/v1/namespaces/ml/events": [],
            "/api/v1/namespaces/ml/limitranges": limit_ranges,
            f"{GROUP}/namespaces/ml/gpuquotas": [QUOTA],
            f"{GROUP}/namespaces/ml/gpuquotas/default": QUOTA,
            DEPLOYMENTS: [web(gpus)],
            f"{DEPLOYMENTS}/web": web(gpus),
        }
        folder = tmp_path / str(len(said))
        folder.mkdir()
        with ApiServer(folder, answering(objects)) as server:
            said.append(surface(server, objects))
    given, asked, nothing = said
    assert [want in each for each in (given, asked, nothing)] == [True, True, False]
