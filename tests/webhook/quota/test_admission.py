"""The quota as the API server meets it: reviews in, answers out, with the memory store behind."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from policies.quota.quota_request import LedgerError
from tests.builders import JSON, gpu_container, pod, uid
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.enforcer import QuotaEnforcer
from webhook.quota.memory_store import MemoryStore
from webhook.quota.metrics import LedgerCollector, QuotaMetrics
from webhook.quota.store import VersionedLedger
from webhook.serving import review
from webhook.serving.admission import Admission
from webhook.serving.audit import Recorder
from webhook.serving.engine import Engine
from webhook.serving.handling import ClusterState
from webhook.serving.metrics import Metrics
from webhook.serving.review import AdmissionRequest, AdmissionResponse

QUOTA = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: team}
spec:
  hard: {gpus: "2", classes: {nvidia-t4: "1"}}
  unclassifiedPods: TotalOnly
"""
POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec: {rules: {gpu-toleration: {mode: disabled}, gpu-quota: RULE}}
"""
POD = {"group": "", "version": "v1", "kind": "Pod"}
CLAIM = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}


class BrokenStore:
    reservations_limit = 1

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:  # noqa: ARG002 - the signature of a store
        raise LedgerError("the GPUQuota could not be read: connection refused", transient=False)

    def compare_and_swap(self, *_: object) -> VersionedLedger:
        raise AssertionError("nothing is written on a ledger that could not be read")


class Served:
    """Admission with a policy, that has this rule gpu-quota, and a quota."""

    def __init__(
        self, directory: Path, rule: str = "{}", *, quota: str = "", broken: bool = False, policy: str = ""
    ) -> None:
        written = POLICY.replace("RULE", rule).replace("spec: {", f"spec: {{{policy}")
        (directory / "policy.yaml").write_text(written + "---" + (quota or QUOTA))
        self.engine = Engine(load_directory(directory))
        self.registry = CollectorRegistry()
        self.store = MemoryStore(lambda: self.engine.configuration)
        metrics = QuotaMetrics(self.registry)
        batches = ReservationBatcher(BrokenStore() if broken else self.store, metrics)
        self.quota = QuotaEnforcer(batches, metrics, release=self.store.release)
        self.metrics = Metrics(self.registry)
        self.admission = Admission(
            lambda: self.engine, Recorder(self.metrics), ClusterState(quota=self.quota)
        )

    def validate(self, document: JSON | None, **tweaks: Any) -> AdmissionResponse:
        return self.admission.validate(request(document, **tweaks), monotonic() + 20)

    def held(self) -> list[str]:
        ledger = self.store.ledgers()["team"]
        return [reservation.id for reservation in ledger.reservations]


def request(document: JSON | None, **tweaks: Any) -> AdmissionRequest:
    fields = {
        "uid": uid("review"),
        "kind": POD,
        "operation": "CREATE",
        "namespace": "team",
        "object": document,
        **tweaks,
    }
    envelope = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": fields}
    return review.decode_request(msgspec.json.encode(envelope))


def gpu_pod(label: str, gpus: int = 1, **tweaks: Any) -> JSON:
    resources = {kind: {"nvidia.com/gpu": str(gpus)} for kind in ("limits", "requests")}
    document = pod(gpu_container(resources=resources), **tweaks)
    return {**document, "metadata": {**document["metadata"], "name": label, "uid": uid(label)}}


def claim(label: str, device_class: str = "gpu.nvidia.com", count: int = 1, **metadata: Any) -> JSON:
    requested = {"deviceClassName": device_class, "count": count, "allocationMode": "ExactCount"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": label, "uid": uid(label), **metadata},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": requested}]}},
    }


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    return partial(Served, tmp_path)


def message(response: AdmissionResponse) -> str:
    assert response.status is not None
    return response.status.message


def test_what_fits_is_reserved_and_what_does_not_is_refused(serve: Serve) -> None:
    served = serve()
    assert served.validate(gpu_pod("one")).allowed
    assert served.validate(gpu_pod("two")).allowed
    refused = served.validate(gpu_pod("three"))
    assert refused.status is not None
    assert (refused.status.code, refused.status.reason) == (403, "Forbidden")
    assert message(refused) == (
        "pod team/three: wait until others release 1 GPU; exceeded quota: team/default, requested: gpus=1, used: "
        "gpus=2, limited: gpus=2; or ask the platform team to raise spec.hard.gpus "
        "[gpu-quota]"
    )
    assert served.held() == [uid("one"), uid("two")]


def test_a_class_is_named_with_what_decided_it(serve: Serve) -> None:
    served = serve()
    on_t4: JSON = {"nodeSelector": {"accelerator": "nvidia-t4"}}
    refused = served.validate(gpu_pod("one", 2, **on_t4))
    assert message(refused) == (
        "pod team/one: request 1 nvidia-t4 or fewer; exceeded quota: team/default, 2 can never fit: the quota grants 1 in all; "
        "counted for nvidia-t4: nodeSelector accelerator=nvidia-t4; or ask the platform team to raise "
        "spec.hard.classes[nvidia-t4] [gpu-quota]"
    )


def test_a_dry_run_is_decided_and_never_written(serve: Serve) -> None:
    served = serve()
    assert served.validate(gpu_pod("one", 2), dryRun=True).allowed
    assert not served.validate(gpu_pod("one", 3), dryRun=True).allowed
    assert served.held() == []


def test_mutation_reserves_nothing(serve: Serve) -> None:
    served = serve()
    assert served.admission.mutate(request(gpu_pod("one")), monotonic() + 20).allowed
    assert served.held() == []


def test_what_another_rule_refuses_holds_nothing(serve: Serve) -> None:
    served = serve()
    refused = served.validate(gpu_pod("one", -1))
    assert not refused.allowed
    assert "[gpu-requests]" in message(refused)
    assert served.held() == []


def test_a_pod_without_gpus_is_not_checked(serve: Serve) -> None:
    assert serve(broken=True).validate(pod()).allowed


@cases(
    ("rule", "allowed", "warned"),
    {
        "enforce": ("{mode: enforce}", False, False),
        "warn": ("{mode: warn}", True, True),
        "audit": ("{mode: audit}", True, False),
        "disabled": ("{mode: disabled}", True, False),
    },
)
def test_modes(serve: Serve, rule: str, allowed: bool, warned: bool) -> None:
    served = serve(rule)
    assert served.validate(gpu_pod("fits")).allowed
    answer = served.validate(gpu_pod("too-much", 2))
    assert answer.allowed is allowed
    assert bool(answer.warnings) is warned
    assert served.held() == ([] if "disabled" in rule else [uid("fits")])


@cases(
    ("rule", "want"),
    {
        "let-in": ("{}", None),
        "required": (
            "{required: true}",
            "namespace elsewhere must have a GPUQuota for pods and claims that request GPUs; ask the platform team for a "
            "GPUQuota named default [gpu-quota]",
        ),
    },
)
def test_without_a_quota(serve: Serve, rule: str, want: str | None) -> None:
    answer = serve(rule).validate(gpu_pod("one"), namespace="elsewhere")
    assert answer.allowed is (want is None)
    if want is not None:
        assert message(answer) == f"pod elsewhere/one: {want}"


@cases(
    ("rule", "allowed", "want"),
    {
        "deny": (
            "{}",
            False,
            "the quota could not be checked: the GPUQuota could not be read: connection refused",
        ),
        "allow": (
            "{onLedgerError: allow}",
            True,
            "admitted without a quota check, which failed: the GPUQuota could not be read: connection refused",
        ),
    },
)
def test_a_ledger_that_cannot_be_read(serve: Serve, rule: str, allowed: bool, want: str) -> None:
    served = serve(rule, broken=True)
    answer = served.validate(gpu_pod("one"))
    assert answer.allowed is allowed
    assert want in ((answer.warnings or ("",))[0] if allowed else message(answer))
    assert (
        served.registry.get_sample_value(
            "gpu_admission_quota_decisions_total", {"reason": "ledger error", "dry_run": "false"}
        )
        == 1
    )


def test_a_deleted_pod_gives_back(serve: Serve) -> None:
    served = serve()
    served.validate(gpu_pod("one", 2))
    gone = {"operation": "DELETE", "oldObject": gpu_pod("one", 2)}
    assert served.validate(None, dryRun=True, **gone).allowed
    assert served.held() == [uid("one")]
    assert served.validate(None, **gone).allowed
    assert served.held() == []


def test_of_a_changed_pod_only_what_grows_is_counted(serve: Serve) -> None:
    served = serve()
    gated: JSON = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    before, pinned = gpu_pod("one", **gated), gpu_pod("one", nodeSelector={"accelerator": "nvidia-t4"})
    assert served.validate(before).allowed
    stored = {**before, "metadata": {**before["metadata"], "resourceVersion": "4711"}}
    assert served.validate(pinned, operation="UPDATE", oldObject=stored, uid=uid("r1")).allowed
    ledger = served.store.ledgers()["team"]
    (change,) = [reservation for reservation in ledger.reservations if reservation.is_change]
    assert (change.id, change.version) == (f"{uid('one')}/{uid('r1')}", 4711)
    assert set(change.demand) == {"classes/nvidia-t4"}
    too_much = served.validate(
        gpu_pod("two", nodeSelector={"accelerator": "nvidia-t4"}),
        operation="UPDATE",
        oldObject=gpu_pod("two"),
        uid=uid("r2"),
    )
    assert not too_much.allowed
    assert served.validate(before, operation="UPDATE", oldObject=pinned, uid=uid("r3")).allowed
    assert served.held() == [uid("one"), f"{uid('one')}/{uid('r1')}"]


def test_a_claim_is_counted_by_its_own_uid(serve: Serve) -> None:
    served = serve()
    assert served.validate(claim("claim1"), kind=CLAIM).allowed
    assert served.validate(claim("claim1"), kind=CLAIM).allowed
    refused = served.validate(claim("claim2", count=2), kind=CLAIM, name="claim2")
    assert "resourceclaim team/claim2: request 1 GPU or fewer, or wait until others" in message(refused)
    assert served.validate(claim("claim3", "dra.net", 8), kind=CLAIM).allowed
    assert served.held() == [uid("claim1")]


@cases(
    ("kind", "name", "want"),
    {
        "of-its-pod": (POD, "train-0", "pods/train-0"),
        "of-a-pod-without-one": (POD, None, ""),
        "of-its-claim": (CLAIM, "claim1", "resourceclaims/claim1"),
    },
)
def test_a_reservation_has_the_name(serve: Serve, kind: JSON, name: str | None, want: str) -> None:
    served, document = serve(), gpu_pod("one") if kind is POD else claim("claim1")
    document["metadata"]["name"] = name
    assert served.validate(document, kind=kind).allowed
    assert [each.name for each in served.store.ledgers()["team"].reservations] == [want]


MARKED: dict[str, Any] = {
    "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
    "ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": uid("one"), "controller": True}
    ],
}
SCHEDULER = {"username": "system:kube-scheduler"}
LISTED = """
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUResourceMapping
metadata: {name: listed}
spec:
  deviceClasses:
  - {pattern: gpu.nvidia.com, resource: nvidia.com/gpu, extendedResourceName: nvidia.com/gpu}
"""


@cases(
    ("quota", "want"),
    {
        "with-its-pod": (QUOTA + LISTED, ["one"]),
        "where-nothing-says-what-its-pod-asked-for": (QUOTA, ["one", "claim1"]),
    },
)
def test_the_schedulers_claim_is_counted(serve: Serve, quota: str, want: list[str]) -> None:
    served = serve(quota=quota)
    assert served.validate(gpu_pod("one")).allowed

    assert served.validate(claim("claim1", **MARKED), kind=CLAIM, userInfo=SCHEDULER).allowed

    assert sorted(served.held()) == sorted(map(uid, want))


WHEREVER = {
    "under-a-quota": ("{}", "team"),
    "whatever-the-mode": ("{mode: disabled}", "team"),
    "without-a-quota": ("{mode: audit}", "elsewhere"),
    "in-an-exempt-namespace": ("{}", "kube-system"),
}


@cases(("rule", "namespace"), WHEREVER)
def test_an_allocated_claim_keeps_its_finalizer(serve: Serve, rule: str, namespace: str) -> None:
    served = serve(rule)
    kept, gone = claim("claim1", finalizers=["resource.kubernetes.io/delete-protection"]), claim("claim1")
    kept["status"] = gone["status"] = {"allocation": {"devices": {}}}
    change = {"operation": "UPDATE", "oldObject": kept, "kind": CLAIM, "namespace": namespace}

    refused = served.validate(gone, **change)

    assert not refused.allowed
    assert "must keep resource.kubernetes.io/delete-protection while the claim is allocated" in message(
        refused
    )
    assert served.validate(kept, **change).allowed


@cases(("rule", "namespace"), WHEREVER)
def test_only_the_scheduler_marks_claims_as_its_own(serve: Serve, rule: str, namespace: str) -> None:
    served = serve(rule)
    tenant, plain = {"username": "mallory"}, claim("claim1", ownerReferences=MARKED["ownerReferences"])
    change = {"operation": "UPDATE", "oldObject": plain, "kind": CLAIM, "namespace": namespace}

    created = served.validate(claim("claim1", **MARKED), kind=CLAIM, namespace=namespace, userInfo=tenant)
    changed = served.validate(claim("claim1", **MARKED), userInfo=tenant, **change)
    by_scheduler = served.validate(claim("claim1", **MARKED), userInfo=SCHEDULER, **change)
    kept = served.validate(
        claim("claim1", **MARKED), userInfo=tenant, **{**change, "oldObject": claim("claim1", **MARKED)}
    )

    assert by_scheduler.allowed
    assert kept.allowed
    for refused in (created, changed):
        assert not refused.allowed
        marks = "must be omitted: only system:kube-scheduler marks the claims that it makes for pods"
        assert marks in message(refused)
    assert "team" not in served.store.ledgers() or served.held() == []


def test_an_old_pod_that_cannot_be_read_is_refused(serve: Serve) -> None:
    broken = {"spec": {"containers": "none"}}
    answer = serve().validate(gpu_pod("one"), operation="UPDATE", oldObject=broken)
    assert answer.status is not None
    assert answer.status.code == 400


def test_metrics_show_the_ledgers(serve: Serve) -> None:
    served = serve()
    served.registry.register(LedgerCollector(served.store.ledgers))
    served.validate(gpu_pod("one"))
    text = generate_latest(served.registry).decode()
    for line in (
        'gpu_admission_quota_hard{dimension="gpus",namespace="team"} 2.0',
        'gpu_admission_quota_reserved{dimension="gpus",namespace="team"} 1.0',
        'gpu_admission_quota_used{dimension="gpus",namespace="team"} 0.0',
        'gpu_admission_quota_reservations{namespace="team"} 1.0',
        'gpu_admission_quota_decisions_total{dry_run="false",reason="reserved"} 1.0',
    ):
        assert line in text.splitlines()


def test_a_dry_run_counts_nothing_of_what_users_create(serve: Serve) -> None:
    served = serve()
    served.admission.mutate(request(gpu_pod("one"), dryRun=True), monotonic() + 20)
    for number in (2, 9):  # of 2
        served.validate(gpu_pod("one", number), dryRun=True)
    counted = [
        sample
        for family in served.registry.collect()
        for sample in family.samples
        if "dry_run" in sample.labels and sample.value
    ]
    assert {sample.labels["dry_run"] for sample in counted} == {"true"}
    assert {sample.name for sample in counted} >= {
        "gpu_admission_requests_total",
        "gpu_admission_request_duration_seconds_count",
        "gpu_admission_findings_total",
        "gpu_admission_quota_decisions_total",
    }
