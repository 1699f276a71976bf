"""Evaluation of manifests as the webhook would evaluate the objects, without an API server.

A Pod passes /mutate and then, patched, /validate. Pod templates of a workload are checked, and the changes to their pods
computed; the workload itself is never changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from functools import reduce
from itertools import chain
from typing import Any

import jsonpatch
import msgspec

from policies.gpus.cards import too_many_resources
from policies.pods.limits import excesses
from policies.pods.pod import Pod, decode_pod
from policies.pods.workload import Workload, WorkloadPods
from policies.policy import EffectivePolicy, Exemption, Labels
from policies.quota.charge_request import ChargeRequest, QuotaGrant, ReservationOutcome
from policies.quota.spec import QuotaSpec
from policies.rule import Mode
from webhook.serving.engine import (
    ADVISED,
    Decision,
    Engine,
    EvaluatedFinding,
    Outcome,
    RuleChange,
    Subject,
    advise,
)
from webhook.tools.check.manifests import Manifest, ManifestPod, Placeholder
from webhook.tools.check.rendering import has_parameters, is_placeholder
from webhook.workloads.places import PodPlace

NAME_LABEL = "kubernetes.io/metadata.name"
"""The API server gives it to every namespace."""


class ManifestVerdict(Enum):
    REFUSED = "refused"
    CHANGED = "changed"
    ACCEPTED = "ok"
    UNKNOWN = "unknown"
    """It depends on what a tool will put in the place of a placeholder."""
    SKIPPED = "skipped"
    """A kind that is not known to have pods."""


class PodResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one pod; `data` is the pod with the changes applied. Paths of findings start at the object."""

    place: PodPlace
    findings: tuple[EvaluatedFinding, ...]
    changes: tuple[RuleChange, ...]
    data: dict[str, Any]
    policy: EffectivePolicy
    exemption: Exemption | None
    admitted: Pod | None = None
    """None of a pod that is too long to be read."""
    placeholders: tuple[Placeholder, ...] = ()
    """What findings would have been about, had the file been rendered."""

    @property
    def refused(self) -> bool:
        return any(found.outcome is Outcome.DENIED for found in self.findings)


class ManifestResult(msgspec.Struct, frozen=True):
    """Result for an object and each pod in it; `warnings` are about the object itself."""

    manifest: Manifest
    pods: tuple[PodResult, ...]
    warnings: tuple[EvaluatedFinding, ...] = ()

    @property
    def verdict(self) -> ManifestVerdict:
        if not self.manifest.is_known:
            return ManifestVerdict.SKIPPED
        if any(pod.refused for pod in self.pods):
            return ManifestVerdict.REFUSED
        if self.placeholders:
            return ManifestVerdict.UNKNOWN
        return ManifestVerdict.CHANGED if any(pod.changes for pod in self.pods) else ManifestVerdict.ACCEPTED

    def findings(self) -> Iterator[EvaluatedFinding]:
        return chain(*(pod.findings for pod in self.pods), self.warnings)

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        return (*self.manifest.placeholders, *chain(*(pod.placeholders for pod in self.pods)))

    def admitted(self) -> dict[str, Any]:
        """Return the Pod as it would be admitted, or the workload with its templates as their pods would be."""
        return reduce(lambda data, pod: pod.place.replaced(data, pod.data), self.pods, self.manifest.data)

    def submitted(self) -> dict[str, Any]:
        """Return the object as /mutate sees it."""
        places = (pod.place for pod in self.pods)
        return reduce(lambda data, place: place.replaced(data, place.data), places, self.manifest.data)


def labels_by_namespace(manifests: Iterable[Manifest]) -> dict[str, Labels]:
    """Return the labels of the Namespace objects among the manifests, with the one that the API server adds."""
    found = {}
    for manifest in manifests:
        if (manifest.group, manifest.kind) == ("", "Namespace"):
            labels = (manifest.data.get("metadata") or {}).get("labels")
            written = {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}
            found[manifest.name] = tuple(sorted({**written, NAME_LABEL: manifest.name}.items()))
    return found


def evaluate(
    manifest: Manifest, engine: Engine, now: datetime, labels: Mapping[str, Labels]
) -> ManifestResult:
    """Return the result; a namespace that is not in `labels` has only the label that every namespace has."""
    namespace, policies = manifest.namespace, engine.configuration.policies
    known = labels.get(namespace, ((NAME_LABEL, namespace),))
    # Only where something selects by labels: policies are cached by namespace and labels.
    policy = policies.for_namespace(namespace, known if policies.asks_labels(namespace) else ())
    pods = tuple(
        _without_placeholders(manifest, _evaluate_pod(manifest, pod, engine, now, policy))
        for pod in manifest.pods
    )
    warnings = () if manifest.is_pod else _warnings(manifest, pods, engine, now, policy)
    return ManifestResult(manifest, pods, warnings)


def _without_placeholders(manifest: Manifest, pod: PodResult) -> PodResult:
    """Return the result without findings about values that are not there yet, nor advice, which may follow from them."""
    placeholders = {
        Placeholder(found.finding.path, found.finding.value): None
        for found in pod.findings
        if found.finding.value is not None and is_placeholder(found.finding.value, found.finding.path)
    }
    if not placeholders:
        return pod
    paths = {placeholder.path for placeholder in placeholders}
    return msgspec.structs.replace(
        pod,
        findings=tuple(
            found
            for found in pod.findings
            if found.outcome is Outcome.DENIED and found.finding.path not in paths
        ),
        placeholders=() if has_parameters(manifest.group, manifest.kind) else tuple(placeholders),
    )


class _ConfiguredQuota(msgspec.Struct, frozen=True):
    """The quota that the configuration grants a namespace; offline nothing is reserved."""

    spec: QuotaSpec | None

    def reserve(self, charge_request: ChargeRequest) -> ReservationOutcome:  # noqa: ARG002 - of NamespaceQuota
        return ReservationOutcome()

    def grant(self) -> QuotaGrant | None:
        return QuotaGrant(self.spec.amounts, self.spec.unpinned) if self.spec else None


def _warnings(
    manifest: Manifest, pods: Iterable[PodResult], engine: Engine, now: datetime, policy: EffectivePolicy
) -> tuple[EvaluatedFinding, ...]:
    kind = manifest.group, manifest.kind
    quota = _ConfiguredQuota(engine.configuration.quotas.get(manifest.namespace))
    subject = Subject(policy=policy, quota=quota)
    readable = (
        WorkloadPods(source.place.path, source.pod, source.place.count, result.admitted)
        for source, result in zip(manifest.pods, pods, strict=True)
        if result.admitted is not None
    )
    workload = Workload.of(*kind, manifest.namespace, manifest.data, readable)
    decisions = [engine.check_workload(workload, subject, now)]
    if kind in ADVISED:
        decisions.append(advise(kind, msgspec.json.encode(manifest.data), subject, engine, now))
    judged = chain.from_iterable(decision.judged for decision in decisions)
    return tuple(each for each in judged if each.outcome is Outcome.WARNED)


def _evaluate_pod(
    manifest: Manifest, source: ManifestPod, engine: Engine, now: datetime, policy: EffectivePolicy
) -> PodResult:
    if too_long := excesses(source.pod) or too_many_resources(
        source.pod, engine.configuration.resource_mapping
    ):
        return _combined(source.place, [Decision.on(policy, too_long, Mode.ENFORCE)])
    subject = Subject(policy=policy, pod=source.pod, made_by_daemonset=manifest.kind == "DaemonSet")
    if not manifest.is_pod:
        return _combined(source.place, [engine.check_template(subject, now)])
    decision = engine.mutate(subject, now)
    final = decode_pod(msgspec.json.encode(_patched(source.place, decision)))
    # A Pod that /mutate denies never reaches /validate; here its author sees the findings of both at once.
    validated = engine.validate(msgspec.structs.replace(subject, pod=final), now)
    known = {_about(judged) for judged in decision.judged}
    rest = tuple(judged for judged in validated.judged if _about(judged) not in known)
    return _combined(source.place, [decision, msgspec.structs.replace(validated, judged=rest)])


def _about(judged: EvaluatedFinding) -> tuple[str, str, str | None, str | None]:
    """Return the identity of a finding, whose sentence may differ once the pod is pinned."""
    finding = judged.finding
    return (finding.rule, finding.path or finding.message, finding.container, finding.value)


def _combined(place: PodPlace, decisions: list[Decision]) -> PodResult:
    first = decisions[0]
    located = [decision.located(place.located) for decision in decisions]
    return PodResult(
        place=place,
        findings=tuple(dict.fromkeys(judged for decision in located for judged in decision.judged)),
        changes=() if place.is_partial else first.changes,
        data=place.data if place.is_partial else _patched(place, first),
        policy=first.policy,
        exemption=first.exemption,
        admitted=first.pod,
    )


def _patched(place: PodPlace, decision: Decision) -> dict[str, Any]:
    operations = msgspec.json.decode(msgspec.json.encode(decision.operations))
    data: dict[str, Any] = jsonpatch.apply_patch(place.data, operations)
    return data
