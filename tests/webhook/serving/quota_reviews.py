"""Reviews in a namespace with a quota."""

from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry

from policies.quota.quota_request import LedgerError
from tests.builders import JSON, uid
from tests.webhook.serving.served import request as request_of
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects
from webhook.evaluation.decision_cache import DecisionCache
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.enforcer import QuotaEnforcer
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.store import MemoryStore, VersionedLedger
from webhook.serving.admission_review import AdmissionRequest, AdmissionResponse
from webhook.serving.audit import Recorder
from webhook.serving.dispatch import Admission
from webhook.serving.handler import ClusterState
from webhook.serving.metrics import Metrics

QUOTA = Document(
    "GPUQuota",
    "default",
    {"hard": {"gpus": "2", "classes": {"nvidia-t4": "1"}}, "unclassifiedPods": "TotalOnly"},
    "team",
)


class BrokenStore:
    reservations_limit = 1

    def object_name(self, namespace: str) -> str:
        return namespace

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:  # noqa: ARG002 - the signature of a store
        raise LedgerError("the GPUQuota could not be read: connection refused", transient=False)

    def compare_and_swap(self, *_: object) -> VersionedLedger:
        raise AssertionError("nothing is written on a ledger that could not be read")


class Served:
    """Admission with a policy, that has this rule gpu-quota, and a quota."""

    def __init__(
        self,
        mode: str = "enforce",
        *more: Document,
        broken: bool = False,
        paused: str | None = None,
        is_led: bool = False,
        **options: Any,
    ) -> None:
        rules = {"gpu-toleration": {"mode": "disabled"}, "gpu-quota": {"mode": mode, **options}}
        policy = Document("GPUPolicy", "default", {"pausedUntil": paused, "rules": rules})
        self.cache = DecisionCache(load_objects([policy, QUOTA, *more]))
        self.registry = CollectorRegistry()
        self.store = MemoryStore(lambda: self.cache.configuration)
        metrics = QuotaMetrics(self.registry)
        batches = ReservationBatcher(BrokenStore() if broken else self.store, metrics)
        self.quota = QuotaEnforcer(
            batches, release=self.store.release, has_controller=lambda _seconds: is_led
        )
        self.metrics = Metrics(self.registry)
        self.admission = Admission(lambda: self.cache, Recorder(self.metrics), ClusterState(quota=self.quota))

    def validate(self, document: JSON | None, **tweaks: Any) -> AdmissionResponse:
        return self.admission.validate(request(document, **tweaks), monotonic() + 20)

    def held(self) -> list[str]:
        ledger = self.store.ledgers()["team"]
        return [reservation.id for reservation in ledger.reservations]


def request(document: JSON | None, **tweaks: Any) -> AdmissionRequest:
    return request_of(document, **{"namespace": "team", **tweaks})


def claim(label: str, device_class: str = "gpu.nvidia.com", count: int = 1, **metadata: Any) -> JSON:
    requested = {"deviceClassName": device_class, "count": count, "allocationMode": "ExactCount"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": label, "uid": uid(label), **metadata},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": requested}]}},
    }
