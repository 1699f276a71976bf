"""Pods of real controllers, which differ by an index, have one fingerprint: the webhook decides on one of them for all."""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import msgspec

from policies.pods.pod import decode_pod
from policies.registry import RULES, fingerprints
from tests.builders import JSON, RESOURCE_MAPPING, gpu_container, manifest
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.fake_webhook import Call, FakeWebhook, Reply

PODS = 20
LABELS = {"app": "equal"}
TEMPLATE: JSON = {"metadata": {"labels": LABELS}, "spec": {"containers": [gpu_container()]}}
JOB = manifest(
    "batch/v1",
    "Job",
    "indexed",
    {
        "completionMode": "Indexed",
        "completions": PODS,
        "parallelism": PODS,
        "template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}},
    },
)
STATEFUL_SET = manifest(
    "apps/v1",
    "StatefulSet",
    "stateful",
    {
        "podManagementPolicy": "Parallel",
        "replicas": PODS,
        "selector": {"matchLabels": LABELS},
        "serviceName": "stateful",
        "template": TEMPLATE,
    },
)


@cases(
    ("document", "path"),
    of_an_indexed_job=(JOB, "/apis/batch/v1/namespaces/{}/jobs"),
    of_a_stateful_set=(STATEFUL_SET, "/apis/apps/v1/namespaces/{}/statefulsets"),
)
def test_pods_that_differ_by_an_index(full_plane: ControlPlane, document: JSON, path: str) -> None:
    namespace, seen = document["metadata"]["name"], dict[str, list[Any]]()

    def record(call: Call) -> Reply:
        if call.request["namespace"] == namespace:
            pod = decode_pod(msgspec.json.encode(call.request["object"]))
            seen.setdefault(call.path.partition("?")[0], []).append(pod)
        return Reply()

    client = full_plane.client()
    client.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    with FakeWebhook(full_plane, "equal", record, host=41) as recorder, ExitStack() as registrations:
        for kind in ("mutating", "validating"):
            # The API server learns a moment late that it has gone: nobody's pods may depend on it.
            entry = recorder.entry("equal.example.com", "pods", path=f"/{kind}", failurePolicy="Ignore")
            registrations.enter_context(recorder.registered(kind, "equal", entry))
        accepted(client.post(path.format(namespace), document))
        assert eventually(lambda: min(map(len, seen.values()), default=0) >= PODS and len(seen) == 2)
    client.delete(f"/api/v1/namespaces/{namespace}")

    prints = fingerprints(RULES, RESOURCE_MAPPING)
    for pods in seen.values():
        assert len(Counter(pod.metadata and str(pod.metadata.labels) for pod in pods)) == PODS
        assert len({prints.of(pod) for pod in pods}) == 1
