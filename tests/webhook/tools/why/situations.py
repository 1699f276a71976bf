"""Stored pods, Events and situations, with what a test does not state; explanations of a scripted API server."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from policies.finding import Finding
from policies.gpus.amount import FRACTIONAL_GPU
from tests.builders import JSON, manifest
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import cluster
from webhook.tools.status.denials import ClusterEvent
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Explanation, NodeFit
from webhook.tools.why.situation import Situation

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)


def pod(name: str = "train-0", phase: str = "Pending", spec: JSON | None = None, **status: Any) -> StoredPod:
    document = {
        "metadata": {"name": name, "namespace": "ml"},
        "spec": spec or {},
        "status": {"phase": phase, **status},
    }
    return msgspec.convert(document, StoredPod)


def unschedulable(name: str, message: str = "0/3 nodes are available") -> StoredPod:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(name, conditions=[condition])


def event(
    message: str, *, minute: int = 0, count: int = 1, owner: str = "train", kind: str = "Job"
) -> ClusterEvent:
    document = {
        "metadata": {},
        "involvedObject": {"kind": kind, "name": owner},
        "reason": "FailedCreate",
        "message": message,
        "count": count,
        "lastTimestamp": datetime(2026, 11, 22, 8, minute, tzinfo=UTC),
    }
    return msgspec.convert(document, ClusterEvent)


def situation(**given: Any) -> Situation:
    return Situation(**{"data": {}, "now": NOW, "pods": (), "events": (), "wanted": 1, **given})


def fits(name: str, *against: str, remedy: str = "", number: int = 1) -> NodeFit:
    return NodeFit(
        name=name, kind="t4", free={}, allocatable={}, against=against, remedy=remedy, number=number
    )


RUNNING = pod("train-0", "Running")

NO_GPU = Finding(
    rule="gpu-requests",
    reason=FRACTIONAL_GPU,
    path="spec",
    message="must be whole",
    remedy="set 1",
    ask_contact="to allow it",
)

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
