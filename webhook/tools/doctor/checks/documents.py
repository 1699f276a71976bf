"""Our own kinds: the CRDs of this version, usable documents, pauses, exemptions, GPUQuotas; ResourceQuotas and LimitRanges."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from policies.gpus.limit_range_findings import limit_ranges_giving_gpus
from policies.policy import end_of
from policies.quota.spec import charged_waiting_findings, resource_quota_findings
from policies.times import utc
from webhook.cluster.objects import CATALOGUES_CONFIG_MAP
from webhook.configuration.loader import quota_problems
from webhook.quota.config_maps import digests_of
from webhook.quota.documents import QUOTAS, UNREADABLE, LimitsRecord, QuotaRecord
from webhook.quota.ledger_objects import (
    EPOCH_OBJECT,
    TeamObjects,
    is_team_object,
    ledger_objects_path,
    ledger_of,
    ledger_record,
)
from webhook.quota.ledger_objects import KIND as LEDGER
from webhook.quota.ledger_objects import PLURAL as LEDGERS
from webhook.tools.doctor.check import DoctorFinding, Observation, doctor_check, failure, warning
from webhook.tools.doctor.checks.configurations import APPLY_AGAIN, crd_digest, expected_objects
from webhook.tools.doctor.checks.nodes import names_in_words
from webhook.tools.installed_cluster import InstalledCluster, Permission
from webhook.version import VERSION

CONTROLLER_LOG = "kubectl -n gpu-admission logs deployment/gpu-admission-controller"
WAIT_REMEDY = f"wait ten seconds; after that see {CONTROLLER_LOG}"
FORMER_FIELD = "unpinned"
"""The former name of `unclassifiedPods` of a GPUQuota."""
CRD_COLLECTION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
INSTALL_CRDS = "kubectl apply --server-side -k deploy/static/crds, or helm upgrade with crds.install=true"


@doctor_check(
    "custom-resources",
    "The CRDs of this version exist",
    Permission("get", "customresourcedefinitions", "apiextensions.k8s.io"),
)
def _check_crds(cluster: InstalledCluster) -> Iterator[Observation]:
    for name, digest in expected_objects().crds.items():
        where = f"CustomResourceDefinition/{name}"
        definition = cluster.get(f"{CRD_COLLECTION}/{name}")
        if definition is None:
            yield failure("crd-missing", where, "does not exist", INSTALL_CRDS)
            continue
        conditions = {c["type"]: c for c in (definition.get("status") or {}).get("conditions") or ()}
        if (conditions.get("Established") or {}).get("status") != "True":
            why = (conditions.get("NamesAccepted") or {}).get("message") or "the API server does not serve it"
            remedy = f"kubectl describe crd {name}"
            yield failure("crd-not-established", where, f"is not Established: {why}", remedy)
        elif crd_digest(definition) != digest:
            message = f"must be that of version {VERSION}: fields may be dropped or rejected"
            remedy = f"{APPLY_AGAIN}; Helm never upgrades CRDs of its crds folder by itself"
            yield warning("crd-differs", where, message, remedy)


@doctor_check("documents", "Policies, classes and resource mappings are valid, and no policy is paused")
def _check_documents(cluster: InstalledCluster) -> Iterator[Observation]:
    documents = cluster.documents
    for problem in documents.problems:
        where = f"configuration of {documents.source}"
        remedy = "correct it: until then the last good version stays in force"
        yield failure("document-rejected", where, str(problem), remedy)
    for policy in documents.configuration.policies.policies if documents.configuration else ():
        where, spec = f"GPUPolicy/{policy.name}", policy.spec
        if spec.paused_until is not None and cluster.now < spec.paused_until:
            message = f"is paused until {utc(spec.paused_until)}: every rule only audits"
            remedy = "remove spec.pausedUntil as soon as its reason is gone: gpu-admission resume"
            yield warning("policy-paused", where, message, remedy)
        for exemption in spec.exemptions:
            if exemption.until is not None and cluster.now >= end_of(exemption.until):
                ended = f"that ended on {exemption.until} ({exemption.reason})"
                message = f"has an exemption of {names_in_words(exemption.namespaces)} {ended}"
                yield warning("exemption-over", where, message, "remove it, or extend it")


@doctor_check(
    "resource-quotas",
    "Every ResourceQuota key about GPUs limits something, and none limits the pods that wait in line",
    Permission("list", "resourcequotas"),
)
def _check_resource_quotas(cluster: InstalledCluster) -> Iterator[Observation]:
    resource_mapping = cluster.usable_configuration.resource_mapping
    with_quota = {record.namespace for record in cluster.quotas}
    for quota in cluster.items("/api/v1/resourcequotas"):
        metadata, hard = quota["metadata"], quota.get("spec", {}).get("hard") or {}
        where = f"ResourceQuota/{metadata['name']} in {metadata['namespace']}"
        for problem in resource_quota_findings(hard, resource_mapping):
            yield warning("resource-quota-key", where, f"{problem.path} {problem.message}", problem.advice)
        if metadata["namespace"] in with_quota and cluster.lets_wait(metadata["namespace"]):
            for problem in charged_waiting_findings(hard, resource_mapping):
                yield warning(
                    "resource-quota-waiting", where, f"{problem.path}: {problem.message}", problem.remedy
                )


@doctor_check(
    "limit-ranges",
    "No LimitRange gives GPUs to containers that request none",
    Permission("list", "limitranges"),
)
def _check_limit_ranges(cluster: InstalledCluster) -> Iterator[Observation]:
    for where, problem in limit_ranges_giving_gpus(
        cluster.limits, cluster.usable_configuration.resource_mapping
    ):
        yield warning("limit-range-gives-gpus", where, f"{problem.path}: {problem.message}", problem.remedy)


@doctor_check(
    "gpu-quotas",
    "GPUQuotas are counted, current and kept, and limit something",
    Permission("list", "gpuquotas", "gpu-admission.dev"),
)
def _check_gpu_quotas(cluster: InstalledCluster) -> Iterator[Observation]:
    for record in cluster.quotas:
        where = f"GPUQuota/default in {record.namespace}"
        edit = f"correct it: kubectl -n {record.namespace} edit gpuquota default"
        spec = record.spec
        if spec is None:
            remedy = f"{edit}; until then its last valid version stays in force, and the GPUs of ended pods are not released"
            yield failure("quota-unreadable", where, record.problem, remedy)
            continue
        yield from _condition_findings(record, where)
        configuration = cluster.configuration
        # Admission refuses these in a new quota; a GPUClass that was deleted since leaves them behind.
        for problem, kind in quota_problems(spec, configuration.classes, configuration.resource_mapping):
            remedy = f"{edit}; or apply the {kind} that it means"
            yield failure("quota-limits-nothing", where, f"{problem.path} {problem.message}", remedy)
        for path, message in spec.warnings():
            # Stored by the CRD of earlier versions, which had it as its default; or on purpose.
            yield warning("quota-classes-not-held", where, f"spec.{path}: {message}", edit)
    for quota in cluster.items(QUOTAS.path()):
        if FORMER_FIELD in _fields_ever_set(quota) and "unclassifiedPods" not in quota["spec"]:
            where = f"GPUQuota/default in {quota['metadata']['namespace']}"
            message = f"had spec.{FORMER_FIELD}, which the API server dropped: the field is spec.unclassifiedPods now"
            remedy = "set spec.unclassifiedPods in its manifest, and apply it"
            yield warning("quota-lost-a-field", where, message, remedy)


def _fields_ever_set(quota: Any) -> frozenset[str]:
    """Return the names of the spec's fields in managedFields, which keep fields that a later CRD lacks."""
    managed = quota["metadata"].get("managedFields") or ()
    specs = ((entry.get("fieldsV1") or {}).get("f:spec") or {} for entry in managed)
    return frozenset(name.removeprefix("f:") for spec in specs for name in spec)


@doctor_check(
    "ledgers",
    "Every GPUQuota has a ledger, and replicas of other versions can read its catalogues",
    Permission("list", "gpuquotas", "gpu-admission.dev"),
    Permission("list", LEDGERS, "gpu-admission.dev"),
)
def _check_ledgers(cluster: InstalledCluster) -> Iterator[Observation]:
    installation = cluster.names.namespace
    catalogues = cluster.get("/api/v1", "namespaces", installation, "configmaps", CATALOGUES_CONFIG_MAP) or {}
    published = frozenset(catalogues.get("data") or ())
    records = list(cluster.decoded(ledger_objects_path(installation), partial(ledger_record, TeamObjects())))
    ledgers = {record.namespace: record for record in records if record.namespace != EPOCH_OBJECT}
    # In the object of a team are ledgers of namespaces whose own objects say so.
    orphaned = {name for name, record in ledgers.items() if not record.moved_to and not is_team_object(name)}
    for quota in cluster.quotas:
        where, record = f"GPUQuota/default in {quota.namespace}", ledger_of(quota.namespace, ledgers.get)
        orphaned.discard(quota.namespace)
        if record is None:
            message = f"has no {LEDGER} in {installation}, so replicas deny GPU pods there"
            yield failure("ledger-missing", where, message, WAIT_REMEDY)
        elif record.ledger is None:
            own = ledgers[quota.namespace]
            unreadable = [
                record.namespace for record in (own, ledgers.get(own.moved_to)) if record and record.problem
            ]
            remedy = recount_remedy(installation, *unreadable) if unreadable else WAIT_REMEDY
            message = f"has a ledger that replicas cannot use: {record.problem}"
            yield failure("ledger-unreadable", where, message, remedy)
        elif missing := sorted(digests_of(record.ledger) - published):
            config_map = f"ConfigMap {CATALOGUES_CONFIG_MAP} in {installation}"
            message = f"is counted by class catalogue {', '.join(missing)}, which {config_map} lacks"
            remedy = f"{APPLY_AGAIN}; the controller publishes it within a minute, and until then replicas of other versions deny"
            yield warning("catalogue-not-published", where, message, remedy)
    now = int(cluster.now.timestamp() * 1000)
    for team in filter(None, (record.team for record in records)):
        for namespace, ledger in sorted(team.team_ledgers.ledgers.items()):
            if ledger.is_bound(now):
                message = "were admitted lately and never stored, so the namespace may have less of its team in creation"
                remedy = "find out what rejects them: a name that is taken, a ResourceQuota, another webhook"
                yield warning("creations-not-stored", f"pods in {namespace}", message, remedy)
    for namespace in sorted(orphaned):
        message = "is of a namespace without a GPUQuota, and limits it until a controller deletes it"
        where = f"{LEDGER}/{namespace} in {installation}"
        yield warning("ledger-left", where, message, WAIT_REMEDY)


def recount_remedy(installation: str, *objects: str) -> str:
    """Return how to replace the unreadable ledgers in these objects by a new count."""
    return (
        f"when little is created, kubectl -n {installation} delete {LEDGERS} {' '.join(objects)}: "
        "everything is then counted again"
    )


def _condition_findings(record: QuotaRecord, where: str) -> Iterator[DoctorFinding]:
    remedies = {
        UNREADABLE: f"wait a minute; after that see {CONTROLLER_LOG}",
        "Stale": "see in the controller's log, and in its metric gpu_admission_watch_age_seconds, whether it reaches "
        "the API server",
        "Exceeded": f"see who holds it: gpu-admission quota -n {record.namespace}; nothing more is admitted",
    }
    yield from findings_of_conditions("quota", record, where, remedies)
    if record.is_pending:
        message = f"is in force as it was before generation {record.generation} of its spec"
        yield warning("quota-pending", where, message, WAIT_REMEDY)


def findings_of_conditions(
    kind: str, record: LimitsRecord, where: str, remedies: Mapping[str, str], *, is_used: bool = True
) -> Iterator[DoctorFinding]:
    """Yield that one of either kind is not Ready, if it is used, and its True conditions that have a remedy."""
    ready = record.status.condition("Ready")
    if is_used and (ready is None or ready.status != "True"):
        why = ready.message if ready else "was never counted: every GPU pod is denied"
        remedy = remedies.get(ready.reason, WAIT_REMEDY) if ready else WAIT_REMEDY
        yield failure(f"{kind}-not-ready", where, f"is not Ready: {why}", remedy)
    for condition, remedy in remedies.items():
        if is_true := record.status.condition_if_true(condition):
            yield warning(f"{kind}-{condition.lower()}", where, f"is {condition}: {is_true.message}", remedy)


CHECKS = (_check_crds, _check_documents)
QUOTA_CHECKS = (_check_resource_quotas, _check_limit_ranges, _check_gpu_quotas, _check_ledgers)
