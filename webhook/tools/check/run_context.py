"""What the documents of one run of `check` say about each other: labels of namespaces, devices of DRA, and GPUQuotas.

What the other documents have requested so far counts as used. Nothing is known of what runs in a cluster, so what does not fit is
never certain to be denied: it is a warning.
"""

import operator
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import reduce

import msgspec

from policies.finding import Finding, Severity
from policies.gpus.claims import RECORD_OF, ClaimName, DeviceClassNames
from policies.gpus.device_classes import DeviceClass, decode_device_class
from policies.policy import Labels
from policies.quota.amounts import Vector, exceeds, total
from policies.quota.demand import RULE_ID
from policies.quota.quota_request import QuotaGrant, QuotaRequest, ReservationOutcome, decide_alone
from policies.quota.spec import QuotaSpec
from webhook.configuration.documents import (
    GROUP,
    QUOTA,
    DocumentLocation,
    DocumentSet,
    quota_problems,
    read_document,
)
from webhook.configuration.dynamic_resources import DRA_GROUP
from webhook.configuration.loader import Configuration
from webhook.tools.check.manifests import Manifest

NAME_LABEL = "kubernetes.io/metadata.name"
"""The API server gives it to every namespace."""

DEVICE_CLASS = (DRA_GROUP, "DeviceClass")


def manifest_context(
    manifests: Iterable[Manifest],
) -> tuple[dict[str, Labels], dict[ClaimName, DeviceClassNames | None]]:
    """Return the labels of namespaces, and the DeviceClasses of claims and their templates; what cannot be read is left out."""
    labels: dict[str, Labels] = {}
    claims: dict[ClaimName, DeviceClassNames | None] = {}
    for manifest in manifests:
        if manifest.group_kind == ("", "Namespace"):
            labels[manifest.name] = _labels(manifest)
        elif manifest.group == DRA_GROUP and manifest.kind in RECORD_OF:
            with suppress(msgspec.ValidationError):
                record = RECORD_OF[manifest.kind](msgspec.json.encode(manifest.data))
                claims[ClaimName(manifest.kind, manifest.namespace, manifest.name)] = record.device_classes
    return labels, claims


def default_labels(namespace: str) -> Labels:
    """Return the labels of a namespace of which nothing else is known."""
    return ((NAME_LABEL, namespace),)


def device_classes(manifests: Iterable[Manifest]) -> tuple[DeviceClass, ...]:
    """Return the DeviceClasses among the manifests, by which the configuration knows what are GPUs."""
    found = []
    for manifest in manifests:
        if manifest.group_kind == DEVICE_CLASS:
            with suppress(msgspec.ValidationError):
                found.append(decode_device_class(msgspec.json.encode(manifest.data)))
    return tuple(found)


def _labels(manifest: Manifest) -> Labels:
    labels = (manifest.data.get("metadata") or {}).get("labels")
    written = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
    return tuple(sorted({**written, NAME_LABEL: manifest.name}.items()))


Key = tuple[str, str, str]
"""API group, kind and name: of two documents of one object the later one holds."""


class RunQuota(msgspec.Struct, frozen=True):
    """A `NamespaceQuota` as the object `key` meets it: what the other objects request counts as used."""

    spec: QuotaSpec
    configuration: Configuration
    requested: dict[Key, Vector]
    key: Key = ("", "", "")

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        """Decide as serve does; what is requested counts from now on, unless it could never fit."""
        ledger = self.grant().as_ledger(self.configuration)
        request = quota_request.on(ledger, {})
        if not request.denials and not exceeds(request.demand, ledger.hard):
            self.count(request.demand)
        return decide_alone(ledger, request)

    def grant(self) -> QuotaGrant:
        others = total(demand for other, demand in self.requested.items() if other != self.key)
        return QuotaGrant(self.spec.amounts, self.spec.unclassified_pods, others)

    def count(self, demand: Vector) -> None:
        self.requested[self.key] = demand


def is_quota(manifest: Manifest) -> bool:
    return manifest.group_kind == (GROUP, QUOTA)


def run_quotas(manifests: Iterable[Manifest], configuration: Configuration) -> dict[str, RunQuota]:
    """Return the quotas by namespace: those among the documents, and of the configuration where there is none.

    A document that is not valid grants nothing; `quota_findings` says so.
    """
    found = (_read(manifest).quotas for manifest in manifests if is_quota(manifest))
    specs = reduce(operator.or_, found, dict(configuration.quotas))
    return {namespace: RunQuota(spec, configuration, {}) for namespace, spec in specs.items()}


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
