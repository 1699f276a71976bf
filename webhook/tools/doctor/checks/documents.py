"""Our own kinds: the CRDs of this version, documents that can be used, pauses and exemptions that are on."""

from collections.abc import Iterator

from policies.policy import end_of
from webhook.serving.canary_trace import VERSION
from webhook.tools.doctor.check import Check, Finding, Severity, Told
from webhook.tools.doctor.checks.configurations import APPLY
from webhook.tools.doctor.checks.nodes import told
from webhook.tools.doctor.cluster import Cluster
from webhook.tools.doctor.expected import schema_digest, wanted
from webhook.tools.doctor.rights import Right

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def _custom_resources(cluster: Cluster) -> Iterator[Told]:
    for name, digest in wanted().custom_resources.items():
        where = f"CustomResourceDefinition/{name}"
        definition = cluster.get(f"{CRDS}/{name}")
        if definition is None:
            yield Finding(id="crd-missing", object=where, message="is not there", remedy=APPLY)
            continue
        conditions = {c["type"]: c for c in (definition.get("status") or {}).get("conditions") or ()}
        if (conditions.get("Established") or {}).get("status") != "True":
            words = (conditions.get("NamesAccepted") or {}).get(
                "message"
            ) or "the API server does not serve it"
            yield Finding(
                id="crd-not-established",
                object=where,
                message=f"is not Established: {words}",
                remedy=f"kubectl describe crd {name}",
            )
        elif schema_digest(definition) != digest:
            yield Finding(
                id="crd-differs",
                severity=Severity.WARNING,
                object=where,
                message=f"is not that of version {VERSION}: fields may be dropped or refused",
                remedy=f"{APPLY}; Helm never upgrades CRDs of its crds folder by itself",
            )


def _documents(cluster: Cluster) -> Iterator[Told]:
    documents = cluster.documents
    for problem in documents.problems:
        yield Finding(
            id="document-refused",
            object=f"configuration of {documents.source}",
            message=problem,
            remedy="correct it: until then the last good version stays in force",
        )
    for policy in documents.configuration.policies.policies if documents.configuration else ():
        where, spec = f"GPUPolicy/{policy.name}", policy.spec
        if spec.paused_until is not None and cluster.now < spec.paused_until:
            yield Finding(
                id="policy-paused",
                severity=Severity.WARNING,
                object=where,
                message=f"is paused until {spec.paused_until:%Y-%m-%d %H:%M %Z}: every rule only audits",
                remedy="take spec.pausedUntil out as soon as what it was for is over",
            )
        for exemption in spec.exemptions:
            if exemption.until is not None and cluster.now >= end_of(exemption.until):
                where_not = told(exemption.namespaces)
                yield Finding(
                    id="exemption-over",
                    severity=Severity.WARNING,
                    object=where,
                    message=f"has an exemption of {where_not} that ended on {exemption.until} ({exemption.reason})",
                    remedy="take it out, or give it another day",
                )


CHECKS = (
    Check(
        id="custom-resources",
        title="The CRDs of this version are there",
        reads=(Right("get", "customresourcedefinitions", "apiextensions.k8s.io"),),
        run=_custom_resources,
    ),
    Check(
        id="documents",
        title="Policies, classes and resource_mappings can be used, and none is paused",
        run=_documents,
    ),
)
