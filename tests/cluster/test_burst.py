"""Bursts of creations through the real API server: no call to the webhook fails, no pod is lost, none goes unpatched.

In a burst the API server dials connections that it then leaves idle, with TLS up and no request on them. A server that gives
each connection a thread has none left after a while, and the API server's calls time out.
"""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.bench.clients import NUMBER, Plan
from tests.bench.measure import measure
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook

PODS, CLIENTS = 1000, 32
BURSTS = int(os.environ.get("GPU_ADMISSION_BURSTS", "1"))
"""How many in a row; one tells whether it works, ten whether it works by luck."""

COLLECTION = "/api/v1/namespaces/burst/pods"
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
HOOKS = ("pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev")

_SAMPLE = re.compile(
    r"^apiserver_admission_webhook_(request_total|rejection_count|fail_open_count)\{(.*)\} (\d+)$",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def webhook_calls(plane: ControlPlane) -> Counter[tuple[str, str, str]]:
    """Return what the API server has counted: (metric, webhook, HTTP code or kind of error) → calls."""
    calls: Counter[tuple[str, str, str]] = Counter()
    for metric, labels, count in _SAMPLE.findall(plane.client().get("/metrics")[1]):
        label = dict(_LABEL.findall(labels))
        calls[metric, label["name"], label.get("code") or label.get("error_type", "")] += int(count)
    return calls


def gpu_pod(name: str) -> dict[str, object]:
    container = {"name": "train", "image": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


@pytest.fixture
def fresh_webhook(plane: ControlPlane) -> Iterator[Webhook]:
    """Serve and register again for every burst: the API server has no connection yet, so it dials all of them at once."""
    client = plane.client()
    assert client.post("/api/v1/namespaces", {"metadata": {"name": "burst"}})[0] in {201, 409}
    with Webhook(plane) as webhook:
        webhook.register()
        try:
            await_calls(plane)
            yield webhook
        finally:
            client.delete(COLLECTION, {"gracePeriodSeconds": 0})
            webhook.unregister()


def await_calls(plane: ControlPlane) -> None:
    """Return once both configurations are in force, which takes the API server a moment."""
    deadline = time.monotonic() + 60
    called: set[str] = set()
    while not called.issuperset(HOOKS):
        assert time.monotonic() < deadline, f"called: {called}"
        before = webhook_calls(plane)
        plane.client().post(COLLECTION, gpu_pod("probe"), {"dryRun": "All"})
        called = {hook for _metric, hook, _code in webhook_calls(plane) - before}


@pytest.mark.slow
@pytest.mark.parametrize("burst", range(1, BURSTS + 1))
def test_no_pod_of_a_burst_is_lost(plane: ControlPlane, fresh_webhook: Webhook, burst: int) -> None:
    user = json.loads(plane.kubeconfig().read_text())["users"][0]["user"]
    address = urlsplit(plane.url)
    before = webhook_calls(plane)
    plan = Plan(
        host=str(address.hostname),
        port=int(address.port or 0),
        path=COLLECTION,
        body=json.dumps(gpu_pod(f"burst-{burst}-{NUMBER}")),
        requests=PODS,
        clients=CLIENTS,
        ca_file=str(plane.ca_file),
        server_name="localhost",
        token=user["token"],
    )

    sample = measure(plan, {}, want=201)

    stored = plane.client().get(COLLECTION)[1]["items"]
    assert sample.outcome.statuses == {201: PODS}
    assert len({pod["metadata"]["name"] for pod in stored}) == PODS
    assert sum(TOLERATION in pod["spec"]["tolerations"] for pod in stored) == PODS
    assert webhook_calls(plane) - before == {("request_total", hook, "200"): PODS for hook in HOOKS}
    reported = Counter(
        (line["phase"], line["verdict"])
        for line in fresh_webhook.audit()
        if line["name"].startswith(f"burst-{burst}-")
    )
    assert reported == {("mutate", "patched"): PODS, ("validate", "allowed"): PODS}
