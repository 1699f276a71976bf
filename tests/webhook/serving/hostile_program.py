"""Send hostile bodies through the app, quotas included, and report what became of them, as JSON on stdout.

`python -m tests.webhook.serving.hostile_program COUNT SEED`, a process of its own: its memory is that of the app and of one body.
"""

import base64
import gc
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import jsonpatch
import msgspec
import psutil
from prometheus_client import CollectorRegistry

from policies.gpus.device_classes import NO_DEVICES, ClusterDevices
from tests.builders import gpu_container, pod
from tests.webhook.app_client import AppClient
from tests.webhook.serving.hostile_bodies import Body, bodies
from tests.webhook.serving.hostile_bodies import review as review_of
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.facts import Facts
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.enforcer import QuotaEnforcer
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.store import MemoryStore
from webhook.serving import admission_review
from webhook.serving.audit import AuditLog, Recorder
from webhook.serving.dispatch import Admission
from webhook.serving.endpoints import create_app
from webhook.serving.handler import ClusterState
from webhook.serving.metrics import Metrics

POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: everything}
spec:
  match: {namespaces: [strict]}
  templates: enforce
  rules:
    gpu-requests: {mode: enforce, maxPerContainer: 8, maxPerPod: 8, completeLimits: true}
    gpu-class: {mode: enforce, default: nvidia-a100-80gb}
    readiness-delay: {mode: enforce, modelLoadSeconds: 60}
    gpu-isolation: {mode: enforce}
    shared-memory: {mode: enforce}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: defaults}
spec:
  hard: {gpus: "64"}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: strict}
spec:
  hard: {gpus: "64", classes: {nvidia-a100-80gb: "32", nvidia-t4: "8"}, resources: {nvidia.com/mig-1g.10gb: "14"}}
  unclassifiedPods: MostExpensive
"""
"""Beside the defaults: everything on, so that every rule has something to do, and a quota in each namespace."""

NO_FACTS = Facts()
SETTLED = 10_000
"""Bodies after which caches are full and memory should no longer grow; half of fewer."""
SLOW = 2_500
"""Reviews of a usual pod, 0.14 ms each, in whose time of the processor any body must be answered: what grows faster than the
body takes far longer. On an idle machine the longest workload takes as long as 500, the longest pod 200 (`make bench work`); a
machine on which others run takes two to three times as long for the same, though not for all of it at once."""
REPORTED = 20
"""Broken promises in full."""


def client_with_quotas(
    config: Path, facts: Facts = NO_FACTS, devices: ClusterDevices = NO_DEVICES
) -> tuple[AppClient, MemoryStore]:
    """Return a client of the app with the documents of a directory, and the ledgers of their quotas."""
    registry = CollectorRegistry()
    metrics, quota_metrics = Metrics(registry), QuotaMetrics(registry)
    cache = DecisionCache(load_directory(config, devices=devices))
    audit = AuditLog.to("/dev/null", metrics.audit_lost.inc)
    audit.start()
    store = MemoryStore(lambda: cache.configuration)
    batcher = ReservationBatcher(store, quota_metrics)
    quota = QuotaEnforcer(batcher, release=store.release)
    cluster = ClusterState(facts=lambda _deadline: facts, quota=quota)
    admission = Admission(lambda: cache, Recorder(metrics, audit), cluster)
    return AppClient(create_app(admission, metrics, lambda: (True, {}))), store


def slow_seconds(client: AppClient) -> float:
    """Return how long SLOW usual reviews take on this machine at this moment."""
    usual = review_of("", "Pod", pod(gpu_container()))

    def seconds() -> float:
        started = time.process_time()
        client.post("/validate", usual)
        return time.process_time() - started

    return SLOW * min(seconds() for _ in range(20))


class Trial:
    """The app, and what its answers have shown so far."""

    def __init__(self, config: Path) -> None:
        self.client, self.store = client_with_quotas(config)
        self.reserved = 0
        self.outcomes: Counter[str] = Counter()
        self.broken: list[str] = []
        self.slowest = 0.0
        self.slow = slow_seconds(self.client)
        self.defects = Defects()
        logging.getLogger("gpu_admission.app").addHandler(self.defects)

    def run(self, body: Body) -> None:
        before = len(self.defects.places)
        started = time.process_time()  # of the processor: a busy machine makes nothing slow here
        status, content_type, answer = self.post(body.endpoint, body.data)
        seconds = time.process_time() - started
        self.slowest = max(self.slowest, seconds)
        if seconds > self.slow:
            self.complain(f"took {seconds:.2f} s of the processor", body.data)
        self.release()
        if len(self.defects.places) > before:
            self.complain(self.defects.places[-1], body.data)
        try:
            self.outcomes[self.outcome(body, status, content_type, answer)] += 1
        except (
            AssertionError,
            ValueError,
            KeyError,
            jsonpatch.JsonPatchException,
            jsonpatch.JsonPointerException,
        ) as error:
            self.complain(f"{type(error).__name__} {error}"[:500], body.data)

    def post(self, path: str, data: bytes) -> tuple[int, str, bytes]:
        answer = self.client.post(path, data)
        return answer.status_code, answer.mimetype, answer.data

    def release(self) -> None:
        """Count what the body has reserved, and give it back: a quota that is full would hide what comes later."""
        for namespace, ledger in self.store.ledgers().items():
            for reservation in ledger.reservations:
                self.reserved += 1
                self.store.release(namespace, reservation.id.partition("/")[0])

    def outcome(self, body: Body, status: int, content_type: str, answer: bytes) -> str:
        """Check the answer against the wire contract (facts of AdmissionReview v1) and return what kind it is."""
        if status != 200:
            assert status == 400, f"status {status}"
            assert content_type.startswith("text/plain"), content_type
            assert not body.sound, f"a sound review was not answered: {answer[:200]!r}"
            return "no review"
        assert content_type == "application/json", content_type
        reviewed = json.loads(answer)
        assert set(reviewed) == {"apiVersion", "kind", "response"}
        assert (reviewed["apiVersion"], reviewed["kind"]) == (
            admission_review.API_VERSION,
            admission_review.KIND,
        )
        response = reviewed["response"]
        sent = json.loads(body.data)["request"]
        assert response["uid"] == sent["uid"], "another uid"
        assert type(response["allowed"]) is bool
        self.check_texts(response)
        if not response["allowed"]:
            assert "patch" not in response
            return f"code {response['status']['code']}"
        assert "status" not in response
        return self.patched(body, sent, response) if "patch" in response else "allowed"

    def check_texts(self, response: Any) -> None:
        warnings = response.get("warnings", [])
        assert all(text and text.isprintable() for text in warnings), "a warning that gets lost"
        assert sum(map(len, warnings)) <= admission_review.WARNINGS_TOTAL, "warnings that the API server cuts"
        assert all("/" not in key and len(key) <= 63 for key in response.get("auditAnnotations", {}))
        if "status" in response:
            assert response["status"]["message"]

    def patched(self, body: Body, sent: Any, response: Any) -> str:
        assert body.endpoint == "/mutate", "a patch of a validating webhook"
        assert response["patchType"] == "JSONPatch"
        patch = json.loads(base64.b64decode(response["patch"]))
        assert patch, "an empty patch"
        # What comes back was injected once, so the second call has nothing to add (reinvocation).
        sent["object"] = jsonpatch.apply_patch(sent["object"], patch)
        again = {"apiVersion": admission_review.API_VERSION, "kind": admission_review.KIND, "request": sent}
        _, _, answer = self.post("/mutate", msgspec.json.encode(again))
        second = json.loads(answer)["response"]
        assert second["allowed"], f"refuses its own work: {second}"
        assert "patch" not in second, f"a second patch: {base64.b64decode(second['patch'])!r}"
        return "patched"

    def complain(self, what: str, data: bytes) -> None:
        if len(self.broken) < REPORTED:
            self.broken.append(f"{what}: {data[:6000]!r}")


class Defects(logging.Handler):
    """Keeps what the app logs of failures of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.places: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.places.append(record.getMessage())


def resident() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


def main(count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as config:
        Path(config, "policy.yaml").write_text(POLICY)
        trial = Trial(Path(config))
    found = bodies(seed)
    first = min(SETTLED, count // 2)
    for body in islice(found, first):
        trial.run(body)
    settled = resident()
    for body in islice(found, count - first):
        trial.run(body)
    report = {
        "bodies": count,
        "outcomes": dict(trial.outcomes),
        "reserved": trial.reserved,
        "broken": trial.broken,
        "defects": dict(Counter(place.partition(" failed: ")[2] for place in trial.defects.places)),
        "slowest_seconds": round(trial.slowest, 3),
        "grown_bytes": resident() - settled,
        "resident_bytes": settled,
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
