"""What the documents of one run of `check` say about each other: labels of namespaces, devices of DRA, and GPUQuotas.

What the other documents have requested so far counts as used. Without a cluster nothing is known of what runs there, so what does
not fit is not certain to be denied: it is a warning.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, reduce

import msgspec
from msgspec.structs import replace

from policies.finding import Finding, Reason, Severity
from policies.gpus.claims import ClaimName, DeviceClassNames, claim_record
from policies.gpus.device_classes import DeviceClass, decode_device_class
from policies.policy import Labels
from policies.quota.amounts import NOTHING, Vector, positive_difference, total
from policies.quota.demand import RULE_ID
from policies.quota.fit import TemplateDemand, able_to_start, starting
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
from webhook.configuration.dynamic_resources import CLAIM_PLURALS, DRA_GROUP
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
        elif manifest.group == DRA_GROUP and manifest.kind in CLAIM_PLURALS:
            with suppress(msgspec.ValidationError):
                record = claim_record(manifest.kind, msgspec.json.encode(manifest.data))
                claims[ClaimName(manifest.kind, manifest.namespace, manifest.name)] = record.device_classes
    return labels, claims


def applied_labels(stored: Labels, written: Labels) -> Labels:
    """Return the labels of a namespace once the manifests are applied."""
    return tuple(sorted({**dict(stored), **dict(written)}.items()))


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
    """A `NamespaceQuota` as the object `key` meets it: what the other objects request counts as used.

    `granted.held` is what a cluster holds already, None where that is not known.
    """

    granted: QuotaGrant
    configuration: Configuration
    requested: dict[Key, Vector]
    key: Key = ("", "", "")

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        """Decide as serve does; what is allowed counts from now on."""
        ledger = self.grant().as_ledger(self.configuration)
        outcome = decide_alone(ledger, quota_request.on(ledger, {}))
        if outcome.request and outcome.verdict and outcome.verdict.allowed:
            self.count(outcome.request.demand)
        return outcome

    def growth(self, requested: Sequence[TemplateDemand], held: Vector) -> Vector:
        """Return what the pods of a workload will hold beyond what it `held` already; what does not fit holds nothing."""
        grant = self.grant()
        used = positive_difference(grant.held or {}, held)
        free = {key: max(hard - used.get(key, NOTHING), NOTHING) for key, hard in grant.hard.items()}
        return positive_difference(starting(able_to_start(requested, grant.hard), free), held)

    def grant(self) -> QuotaGrant:
        others = total(demand for other, demand in self.requested.items() if other != self.key)
        return replace(self.granted, held=total((self.granted.held or {}, others)))

    def count(self, demand: Vector) -> None:
        self.requested[self.key] = demand


def is_quota(manifest: Manifest) -> bool:
    return manifest.group_kind == (GROUP, QUOTA)


def run_quotas(
    manifests: Iterable[Manifest],
    configuration: Configuration,
    stored: Callable[[str], QuotaGrant | None] | None,
) -> Callable[[str], RunQuota | None]:
    """Return what returns the quota of a namespace: among the documents, else `stored`, else of the configuration.

    A document that is not valid grants nothing; `quota_findings` says so.
    """
    found = (_read(manifest).quotas for manifest in manifests if is_quota(manifest))
    written = grants(reduce(operator.or_, found, {}))
    configured = grants(configuration.quotas)

    @cache
    def quota_of(namespace: str) -> RunQuota | None:
        in_force = stored(namespace) if stored else None
        granted = written.get(namespace) or in_force or configured.get(namespace)
        held = in_force.held if in_force else None
        return RunQuota(replace(granted, held=held), configuration, {}) if granted else None

    return quota_of


def grants(specs: Mapping[str, QuotaSpec]) -> dict[str, QuotaGrant]:
    return {name: QuotaGrant(spec.amounts, spec.unclassified_pods) for name, spec in specs.items()}


def quota_findings(manifest: Manifest, configuration: Configuration) -> Iterator[Finding]:
    """Yield a warning for each problem of a GPUQuota, which the webhook would refuse."""
    read = _read(manifest)
    problems = [(problem.path, problem.message) for problem in read.problems]
    for spec in read.quotas.values():
        checked = quota_problems(spec, configuration.classes, configuration.resource_mapping)
        problems += [(problem.path, problem.message) for problem, _ in checked]
    for path, message in problems:
        yield Finding(
            rule=RULE_ID,
            reason=Reason.INEFFECTIVE_QUOTA,
            severity=Severity.WARNING,
            path=path,
            message=message,
        )


def _read(manifest: Manifest) -> DocumentSet:
    found = DocumentSet()
    metadata = {"name": manifest.name, "namespace": manifest.namespace}
    document = {key: manifest.data.get(key) for key in ("apiVersion", "kind", "spec")}
    read_document(DocumentLocation(manifest.file, {**document, "metadata": metadata}), found)
    return found
