"""Another team's validating webhook, called beside ours: it denies some pods, and takes the names of others.

The API server asks validating webhooks at once, so what this one does comes when ours may have let the pod in already.
"""

import threading
from collections import Counter
from typing import Any, Self

from tests.builders import JSON
from tests.cluster.quota.quotas import gpu_pod
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.fake_webhook import FakeWebhook, Reply
from tests.controlplane.gpuquota import Namespace

LABELS = {"second": "asks"}
"""Of the pods about which it is asked."""
COLLIDES = "collides-"
"""Prefix of the names that are taken by a pod without GPU in the moment in which the API server has chosen them."""


def disputed_pod(index: int) -> JSON:
    """Return a pod about which this webhook is asked. Each third one gets a name that it may take."""
    body = gpu_pod("", 1 + index % 2)
    named = {"generateName": COLLIDES} if index % 3 == 0 else {"name": f"pod-{index}"}
    body["metadata"] = {**named, "labels": LABELS}
    return body


class SecondWebhook(FakeWebhook):
    """Served and registered for the pods of `namespace`, for the length of a `with` block. Of two pods it denies one."""

    def __init__(self, plane: ControlPlane, namespace: str, operation: str = "CREATE") -> None:
        super().__init__(plane, "second", lambda call: Reply({"allowed": self.decide(call.request)}), host=30)
        self._client = plane.client()
        self._namespace = namespace
        self._operation = operation
        self._lock = threading.Lock()
        self.reported: Counter[str] = Counter()

    def __enter__(self) -> Self:
        super().__enter__()
        entry = self.entry(
            "second.example.com",
            "pods",
            operation=self._operation,
            namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            objectSelector={"matchLabels": LABELS},
        )
        self.registration.enter_context(self.registered("validating", "second.example.com", entry))
        return self

    def is_called(self, team: Namespace) -> bool:
        """Whether the API server knows of it by now."""
        body = gpu_pod("probe")
        body["metadata"]["labels"] = LABELS
        team.create(body, {"dryRun": "All"})
        return self.reported["asked"] > 0

    def decide(self, request: Any) -> bool:
        """Return whether the pod may come in."""
        name: str = request["name"]
        with self._lock:
            self.reported["asked"] += 1
            refusal = "taken" if name.startswith(COLLIDES) else "denied"
            what = "allowed" if self.reported["asked"] % 2 else refusal
            self.reported[what] += 1
        if what == "taken":
            thief = {"metadata": {"name": name}, "spec": {"containers": [{"name": "any", "image": "any"}]}}
            accepted(self._client.post(f"/api/v1/namespaces/{self._namespace}/pods", thief))
        return what != "denied"
