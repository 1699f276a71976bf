"""Answer for a manifest what the webhook would answer for the object, without an API server.

A Pod goes through /mutate and then, patched, through /validate. The templates of a workload are checked, and what their
pods would get is worked out, but the workload itself is never changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from typing import Any

import jsonpatch
import msgspec

from policies.finding import Finding
from policies.pods.pod import decode_pod
from policies.policy import EffectivePolicy, Exemption, Labels
from policies.quota.charge_request import ChargeRequest, QuotaGrant, ReservationOutcome
from policies.quota.spec import QuotaSpec
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
from webhook.serving.review import plain_operations
from webhook.tools.check.manifests import Manifest, ManifestPod
from webhook.workloads.places import PodPlace

NAME_LABEL = "kubernetes.io/metadata.name"
"""The API server gives it to every namespace."""


class Verdict(Enum):
    REFUSED = "refused"
    CHANGED = "changed"
    ACCEPTED = "ok"
    SKIPPED = "skipped"
    """A kind that is not known to have pods."""


class PodAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one pod; `data` is the pod with the changes applied. Findings have their paths from the object."""

    source: ManifestPod
    judged: tuple[EvaluatedFinding, ...]
    changes: tuple[RuleChange, ...]
    data: dict[str, Any]
    policy: EffectivePolicy
    exemption: Exemption | None

    @property
    def refused(self) -> bool:
        return any(judged.outcome is Outcome.DENIED for judged in self.judged)


class Answer(msgspec.Struct, frozen=True):
    """What becomes of an object, and of each pod in it; `warnings` are about the object itself."""

    manifest: Manifest
    pods: tuple[PodAnswer, ...]
    warnings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        if not self.manifest.is_known:
            return Verdict.SKIPPED
        if any(pod.refused for pod in self.pods):
            return Verdict.REFUSED
        return Verdict.CHANGED if any(pod.changes for pod in self.pods) else Verdict.ACCEPTED

    def findings(self) -> Iterator[EvaluatedFinding]:
        return (judged for pod in self.pods for judged in pod.judged)

    def admitted(self) -> dict[str, Any]:
        """Return the Pod as it would be admitted; of a workload, with templates as their pods would be."""
        return self._with_pods([(pod.source.place, pod.data) for pod in self.pods])

    def submitted(self) -> dict[str, Any]:
        """Return the object as /mutate sees it."""
        return self._with_pods([(pod.source.place, pod.source.data) for pod in self.pods])

    def _with_pods(self, pods: list[tuple[PodPlace, dict[str, Any]]]) -> dict[str, Any]:
        data = self.manifest.data
        for place, pod in pods:
            data = place.replaced(data, pod)
        return data


LabelsByNamespace = Mapping[str, Labels]


def labels_by_namespace(manifests: Iterable[Manifest]) -> dict[str, Labels]:
    """Return the labels of the Namespace objects among the manifests, with the one that the API server adds."""
    found = {}
    for manifest in manifests:
        if (manifest.group, manifest.kind) == ("", "Namespace"):
            labels = (manifest.data.get("metadata") or {}).get("labels")
            written = {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}
            found[manifest.name] = tuple(sorted({**written, NAME_LABEL: manifest.name}.items()))
    return found


def answer(
    manifest: Manifest, engine: Engine, now: datetime, labels: LabelsByNamespace | None = None
) -> Answer:
    """Return the answer; a namespace that is not in `labels` has the one label that every namespace has."""
    namespace = manifest.namespace
    known = (labels or {}).get(namespace, ((NAME_LABEL, namespace),))
    # Only where something is chosen by labels: what holds is remembered by namespace and labels.
    used = known if engine.configuration.policies.asks_labels(namespace) else ()
    policy = engine.configuration.policies.for_namespace(namespace, used)
    pods = tuple(_answer_pod(manifest, pod, engine, now, policy) for pod in manifest.pods)
    return Answer(manifest, pods, _warnings(manifest, engine, now, policy))


class _ConfiguredQuota(msgspec.Struct, frozen=True):
    """The quota that the configuration grants a namespace; offline nothing is reserved."""

    spec: QuotaSpec | None

    def reserve(self, charge_request: ChargeRequest) -> ReservationOutcome:  # noqa: ARG002 - of NamespaceQuota
        return ReservationOutcome()

    def grant(self) -> QuotaGrant | None:
        return QuotaGrant(self.spec.amounts, self.spec.unpinned) if self.spec else None


def _warnings(
    manifest: Manifest, engine: Engine, now: datetime, policy: EffectivePolicy
) -> tuple[Finding, ...]:
    kind = manifest.group, manifest.kind
    if kind not in ADVISED:
        return ()
    quota = _ConfiguredQuota(engine.configuration.quotas.get(manifest.namespace))
    subject = Subject(policy=policy, quota=quota)
    decision = advise(kind, msgspec.json.encode(manifest.data), subject, engine, now)
    return tuple(decision.findings(Outcome.WARNED))


def _answer_pod(
    manifest: Manifest, source: ManifestPod, engine: Engine, now: datetime, policy: EffectivePolicy
) -> PodAnswer:
    subject = Subject(policy=policy, pod=source.pod, made_by_daemonset=manifest.kind == "DaemonSet")
    if not manifest.is_pod:
        return _combined(source, [engine.check_template(subject, now)])
    decision = engine.mutate(subject, now)
    patched = msgspec.structs.replace(
        subject, pod=decode_pod(msgspec.json.encode(_patched(source, decision)))
    )
    # A Pod that /mutate refuses never gets to /validate; here its author sees at once what else would be said there.
    final = engine.validate(patched, now)
    told = {_about(judged) for judged in decision.judged}
    rest = tuple(judged for judged in final.judged if _about(judged) not in told)
    return _combined(source, [decision, msgspec.structs.replace(final, judged=rest)])


def _about(judged: EvaluatedFinding) -> tuple[str, str, str | None, str | None]:
    """Return what a finding is about: its sentence may differ once the pod is pinned."""
    finding = judged.finding
    return (finding.rule, finding.path or finding.message, finding.container, finding.value)


def _combined(source: ManifestPod, decisions: list[Decision]) -> PodAnswer:
    first = decisions[0]
    located = [decision.located(source.place.located) for decision in decisions]
    return PodAnswer(
        source=source,
        judged=tuple(dict.fromkeys(judged for decision in located for judged in decision.judged)),
        changes=() if source.place.is_partial else first.changes,
        data=source.data if source.place.is_partial else _patched(source, first),
        policy=first.policy,
        exemption=first.exemption,
    )


def _patched(source: ManifestPod, decision: Decision) -> dict[str, Any]:
    data: dict[str, Any] = jsonpatch.apply_patch(source.data, plain_operations(decision.operations))
    return data
