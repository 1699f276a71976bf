"""Quotas: ResourceQuota keys that limit nothing, and GPUQuotas that are not as they should be."""

from collections.abc import Iterator

import msgspec

from policies.quota.ledger.quota_ledger import Condition
from policies.quota.spec import QuotaSpec, resource_quota_findings
from webhook.configuration.documents import quota_problems
from webhook.configuration.loader import Configuration
from webhook.controller.records import QUOTAS, QuotaRecord, quota_record
from webhook.tools.doctor.check import Check, Finding, Severity, Told
from webhook.tools.doctor.cluster import Cluster
from webhook.tools.doctor.rights import Right


def _resource_quotas(cluster: Cluster) -> Iterator[Told]:
    resource_mapping = cluster.resource_mapping
    for quota in cluster.items("/api/v1/resourcequotas"):
        metadata, hard = quota["metadata"], quota.get("spec", {}).get("hard") or {}
        for found in resource_quota_findings(hard, resource_mapping):
            yield Finding(
                id="resource-quota-key",
                severity=Severity.WARNING,
                object=f"ResourceQuota/{metadata['name']} in {metadata['namespace']}",
                message=f"{found.path} {found.message}",
                remedy=found.remedy,
            )


class _Stored(msgspec.Struct):
    spec: QuotaSpec


def _gpu_quotas(cluster: Cluster) -> Iterator[Told]:
    for record, spec in cluster.listed(QUOTAS.path(), _quota):
        yield from _gpu_quota(record)
        if spec is not None:
            yield from _limits_nothing(cluster.configuration, record.namespace, spec)


def _quota(raw: msgspec.Raw) -> tuple[QuotaRecord, QuotaSpec | None] | None:
    record = quota_record(raw)
    if record is None:
        return None
    if record.ledger is None:
        return record, None
    return record, msgspec.json.decode(raw, type=_Stored).spec


def _limits_nothing(configuration: Configuration, namespace: str, spec: QuotaSpec) -> Iterator[Finding]:
    """Tell what admission refuses in a new quota, and what a GPUClass that was deleted since leaves behind."""
    for problem, kind in quota_problems(spec, configuration.classes, configuration.resource_mapping):
        yield Finding(
            id="quota-limits-nothing",
            object=f"GPUQuota/default in {namespace}",
            message=f"{problem.path} {problem.message}",
            remedy=f"correct it: kubectl -n {namespace} edit gpuquota default; or apply the {kind} that it means",
        )


def _gpu_quota(record: QuotaRecord) -> Iterator[Finding]:
    where = f"GPUQuota/default in {record.namespace}"
    if record.ledger is None:
        yield Finding(
            id="quota-unreadable",
            object=where,
            message=record.problem,
            remedy=f"correct it: kubectl -n {record.namespace} edit gpuquota default; GPU pods are refused until then",
        )
        return
    conditions = {condition.type: condition for condition in record.ledger.conditions}
    ready = conditions.get("Ready")
    if ready is None or ready.status != "True":
        told = ready.message if ready else "was never counted: every GPU pod is refused"
        yield Finding(
            id="quota-not-ready",
            object=where,
            message=f"is not Ready: {told}",
            remedy="it takes some ten seconds; after that: kubectl -n gpu-admission logs deployment/gpu-admission-controller",
        )
    for kind, identity, remedy in (
        (
            "Stale",
            "quota-stale",
            "see whether the controller reaches the API server: its log, metric gpu_admission_watch_age_seconds",
        ),
        (
            "Exceeded",
            "quota-exceeded",
            f"gpu-admission quota -n {record.namespace} shows who holds it; nothing more is admitted",
        ),
    ):
        condition: Condition | None = conditions.get(kind)
        if condition is not None and condition.status == "True":
            yield Finding(
                id=identity,
                severity=Severity.WARNING,
                object=where,
                message=f"is {kind}: {condition.message}",
                remedy=remedy,
            )


CHECKS = (
    Check(
        id="resource-quotas",
        title="Every ResourceQuota key about GPUs limits something",
        reads=(Right("list", "resourcequotas"),),
        run=_resource_quotas,
    ),
    Check(
        id="gpu-quotas",
        title="GPUQuotas are counted, current and kept, and limit something",
        reads=(Right("list", "gpuquotas", "gpu-admission.dev"),),
        run=_gpu_quotas,
    ),
)
