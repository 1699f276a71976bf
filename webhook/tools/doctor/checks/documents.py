"""Our own kinds: the CRDs of this version, usable documents, pauses and exemptions, GPUQuotas; and ResourceQuotas of GPUs."""

from collections.abc import Iterator

import msgspec

from policies.policy import end_of
from policies.quota.spec import QuotaSpec, resource_quota_findings
from webhook.configuration.documents import quota_problems
from webhook.controller.records import QUOTAS, QuotaRecord, quota_record
from webhook.serving.canary_trace import VERSION
from webhook.tools.doctor.check import DoctorCheck, DoctorFinding, Observation, failure, warning
from webhook.tools.doctor.checks.configurations import APPLY
from webhook.tools.doctor.checks.nodes import few
from webhook.tools.doctor.cluster import InstalledCluster, Right
from webhook.tools.doctor.expected import expected_objects, schema_digest

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def _custom_resources(cluster: InstalledCluster) -> Iterator[Observation]:
    for name, digest in expected_objects().custom_resources.items():
        where = f"CustomResourceDefinition/{name}"
        definition = cluster.get(f"{CRDS}/{name}")
        if definition is None:
            yield failure("crd-missing", where, "does not exist", APPLY)
            continue
        conditions = {c["type"]: c for c in (definition.get("status") or {}).get("conditions") or ()}
        if (conditions.get("Established") or {}).get("status") != "True":
            why = (conditions.get("NamesAccepted") or {}).get("message") or "the API server does not serve it"
            remedy = f"kubectl describe crd {name}"
            yield failure("crd-not-established", where, f"is not Established: {why}", remedy)
        elif schema_digest(definition) != digest:
            yield warning(
                "crd-differs",
                where,
                f"must be that of version {VERSION}: fields may be dropped or refused",
                f"{APPLY}; Helm never upgrades CRDs of its crds folder by itself",
            )


def _documents(cluster: InstalledCluster) -> Iterator[Observation]:
    documents = cluster.documents
    for problem in documents.problems:
        yield failure(
            "document-refused",
            f"configuration of {documents.source}",
            problem,
            "correct it: until then the last good version stays in force",
        )
    for policy in documents.configuration.policies.policies if documents.configuration else ():
        where, spec = f"GPUPolicy/{policy.name}", policy.spec
        if spec.paused_until is not None and cluster.now < spec.paused_until:
            yield warning(
                "policy-paused",
                where,
                f"is paused until {spec.paused_until:%Y-%m-%d %H:%M %Z}: every rule only audits",
                "remove spec.pausedUntil as soon as its reason is gone: gpu-admission config resume",
            )
        for exemption in spec.exemptions:
            if exemption.until is not None and cluster.now >= end_of(exemption.until):
                yield warning(
                    "exemption-over",
                    where,
                    f"has an exemption of {few(exemption.namespaces)} that ended on {exemption.until} "
                    f"({exemption.reason})",
                    "remove it, or extend it",
                )


def _resource_quotas(cluster: InstalledCluster) -> Iterator[Observation]:
    resource_mapping = cluster.resource_mapping
    for quota in cluster.items("/api/v1/resourcequotas"):
        metadata, hard = quota["metadata"], quota.get("spec", {}).get("hard") or {}
        where = f"ResourceQuota/{metadata['name']} in {metadata['namespace']}"
        for found in resource_quota_findings(hard, resource_mapping):
            yield warning("resource-quota-key", where, f"{found.path} {found.message}", found.remedy)


class _StoredSpec(msgspec.Struct):
    spec: QuotaSpec


def _quota(raw: msgspec.Raw) -> tuple[QuotaRecord, QuotaSpec | None] | None:
    record = quota_record(raw)
    if record is None:
        return None
    return record, None if record.ledger is None else msgspec.json.decode(raw, type=_StoredSpec).spec


def _gpu_quotas(cluster: InstalledCluster) -> Iterator[Observation]:
    for record, spec in cluster.listed(QUOTAS.path(), _quota):
        where, edit = (
            f"GPUQuota/default in {record.namespace}",
            f"kubectl -n {record.namespace} edit gpuquota default",
        )
        yield from _gpu_quota(record, where, edit)
        if spec is None:
            continue
        configuration = cluster.configuration
        # Admission refuses these in a new quota; a GPUClass that was deleted since leaves them behind.
        for problem, kind in quota_problems(spec, configuration.classes, configuration.resource_mapping):
            yield failure(
                "quota-limits-nothing",
                where,
                f"{problem.path} {problem.message}",
                f"correct it: {edit}; or apply the {kind} that it means",
            )


def _gpu_quota(record: QuotaRecord, where: str, edit: str) -> Iterator[DoctorFinding]:
    if record.ledger is None:
        remedy = f"correct it: {edit}; GPU pods are refused until then"
        yield failure("quota-unreadable", where, record.problem, remedy)
        return
    conditions = {condition.type: condition for condition in record.ledger.conditions}
    ready = conditions.get("Ready")
    if ready is None or ready.status != "True":
        yield failure(
            "quota-not-ready",
            where,
            f"is not Ready: {ready.message if ready else 'was never counted: every GPU pod is refused'}",
            "wait ten seconds; after that see kubectl -n gpu-admission logs deployment/gpu-admission-controller",
        )
    remedies = {
        "Stale": "see in the controller's log, and in its metric gpu_admission_watch_age_seconds, whether it reaches "
        "the API server",
        "Exceeded": f"see who holds it: gpu-admission quota -n {record.namespace}; nothing more is admitted",
    }
    for kind, remedy in remedies.items():
        condition = conditions.get(kind)
        if condition is not None and condition.status == "True":
            yield warning(f"quota-{kind.lower()}", where, f"is {kind}: {condition.message}", remedy)


CHECKS = (
    DoctorCheck(
        "custom-resources",
        "The CRDs of this version exist",
        _custom_resources,
        (Right("get", "customresourcedefinitions", "apiextensions.k8s.io"),),
    ),
    DoctorCheck(
        "documents", "Policies, classes and resource mappings are valid, and no policy is paused", _documents
    ),
)
QUOTA_CHECKS = (
    DoctorCheck(
        "resource-quotas",
        "Every ResourceQuota key about GPUs limits something",
        _resource_quotas,
        (Right("list", "resourcequotas"),),
    ),
    DoctorCheck(
        "gpu-quotas",
        "GPUQuotas are counted, current and kept, and limit something",
        _gpu_quotas,
        (Right("list", "gpuquotas", "gpu-admission.dev"),),
    ),
)
