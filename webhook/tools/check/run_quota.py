"""The GPUQuota of a namespace within one run of `check`: what the other documents ask for so far counts as used.

Nothing is known of what runs in a cluster, so what does not fit is never certain to be denied: it is a warning.
"""

import operator
from collections.abc import Iterable, Iterator
from functools import reduce

import msgspec

from policies.finding import Finding, Severity
from policies.quota.amounts import NOTHING, Vector, exceeds, total
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.charge import RULE_ID
from policies.quota.charge_request import ChargeRequest, QuotaGrant, ReservationOutcome
from policies.quota.ledger.decide import decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.spec import QuotaSpec
from webhook.configuration.documents import (
    GROUP,
    QUOTA,
    DocumentLocation,
    DocumentSet,
    quota_problems,
    read_document,
)
from webhook.configuration.loader import Configuration
from webhook.tools.check.manifests import Manifest

Key = tuple[str, str, str]
"""API group, kind and name: of two documents of one object the later one holds."""


class RunQuota(msgspec.Struct, frozen=True):
    """The quota of a namespace, and what each object asks of it so far."""

    hard: Vector
    ledger: QuotaLedger
    requested: dict[Key, Vector] = {}

    @classmethod
    def of(cls, spec: QuotaSpec, configuration: Configuration) -> "RunQuota":
        catalogue_version = str(CatalogueVersion(catalogue_digest(configuration), spec.unclassified_pods))
        hard = spec.amounts
        return cls(
            hard,
            QuotaLedger(
                quota_uid="check",
                generation=1,
                hard=hard,
                unclassified_pods=spec.unclassified_pods,
                class_catalogue=catalogue_version,
            ),
        )

    def beside(self, key: Key) -> "ObjectQuota":
        """Return the quota as that object meets it."""
        return ObjectQuota(
            self, key, total(requested for other, requested in self.requested.items() if other != key)
        )


class ObjectQuota(msgspec.Struct, frozen=True):
    """A `NamespaceQuota`."""

    quota: RunQuota
    key: Key
    used: Vector

    def reserve(self, charge_request: ChargeRequest) -> ReservationOutcome:
        """Decide as serve does; what is requested counts from now on, unless it could never fit."""
        counted = {**dict.fromkeys(self.quota.hard, NOTHING), **self.used}
        ledger = msgspec.structs.replace(self.quota.ledger, used=counted)
        charged = charge_request.charged(ledger, {})
        if charged.request is None:
            return ReservationOutcome(ledger, charged.charge)
        if not exceeds(charged.charge.vector, self.quota.hard):
            self.count(charged.charge.vector)
        (verdict,) = decide(ledger, [charged.request]).verdicts
        return ReservationOutcome(ledger, charged.charge, verdict)

    def grant(self) -> QuotaGrant:
        return QuotaGrant(self.quota.hard, self.quota.ledger.unclassified_pods, self.used)

    def count(self, demand: Vector) -> None:
        self.quota.requested[self.key] = demand


def is_quota(manifest: Manifest) -> bool:
    return (manifest.group, manifest.kind) == (GROUP, QUOTA)


def run_quotas(manifests: Iterable[Manifest], configuration: Configuration) -> dict[str, RunQuota]:
    """Return the quotas by namespace: those among the documents, and of the configuration where there is none.

    A document that is not valid grants nothing; `quota_findings` says so.
    """
    found = (_read(manifest).quotas for manifest in manifests if is_quota(manifest))
    specs = reduce(operator.or_, found, dict(configuration.quotas))
    return {namespace: RunQuota.of(spec, configuration) for namespace, spec in specs.items()}


def quota_findings(manifest: Manifest, configuration: Configuration) -> Iterator[Finding]:
    """Yield a warning for each problem of a GPUQuota, which the webhook would refuse."""
    read = _read(manifest)
    problems = [(problem.path, problem.message) for problem in read.problems]
    for spec in read.quotas.values():
        checked = quota_problems(spec, configuration.classes, configuration.resource_mapping)
        problems += [(problem.path, problem.message) for problem, _ in checked]
    for path, message in problems:
        yield Finding(rule=RULE_ID, severity=Severity.WARNING, path=path, message=message)


def _read(manifest: Manifest) -> DocumentSet:
    found = DocumentSet()
    metadata = {"name": manifest.name, "namespace": manifest.namespace}
    document = {key: manifest.data.get(key) for key in ("apiVersion", "kind", "spec")}
    read_document(DocumentLocation(manifest.file, {**document, "metadata": metadata}), found)
    return found
