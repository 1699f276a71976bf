"""Explanations of objects of a scripted API server."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.builders import JSON, manifest
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import cluster
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Explanation

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
KINDS = {"Deployment": "deployments", "DaemonSet": "daemonsets", "Job": "jobs"}
SERVED = {
    "items": [
        {
            "metadata": {"name": group},
            "versions": [
                {
                    "version": "v1",
                    "resources": [
                        {"resource": KINDS[kind], "responseKind": {"kind": kind}, "scope": "Namespaced"}
                        for kind in kinds
                    ],
                }
            ],
        }
        for group, kinds in {"apps": ("Deployment", "DaemonSet"), "batch": ("Job",)}.items()
    ]
}


def explained(folder: Path, kind: str, spec: JSON, more: JSON, **objects: Any) -> Explanation:
    group = "batch" if kind == "Job" else "apps"
    template = {"spec": {"containers": [{"name": "main"}]}}
    stored = manifest(f"{group}/v1", kind, "train", {"template": template, **spec}, namespace="ml", uid="u")
    stored["metadata"] |= more.pop("metadata", {})
    path = f"/apis/{group}/v1/namespaces/ml/{KINDS[kind]}/train"
    given = {"/api/v1/namespaces/ml/events": [], "/api/v1/namespaces/ml/pods": [], **objects}
    with ApiServer(
        folder, answering({**cluster(), "/apis": SERVED, **given, path: {**stored, **more}})
    ) as server:
        return explain(server.client(), kind, "train", "ml", NOW)
