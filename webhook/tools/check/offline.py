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
from policies.gpus.claims import DeviceClassNames, asked_by, decode_claim
from policies.pods.limits import excesses
from policies.pods.pod import Pod, decode_pod
from policies.pods.workload import Workload, WorkloadPods
from policies.policy import EffectivePolicy, Exemption
from policies.quota.charge_request import (
    ChargeRequest,
    QuotaGrant,
    ReservationOutcome,
    charge_request_for_claim,
)
from policies.quota.ledger.decide import decide
from policies.rule import Mode
from webhook.configuration.loader import Configuration
from webhook.quota.memory_store import MemoryStore
from webhook.serving.engine import (
    ADVISED,
    CLAIM,
    Decision,
    Engine,
    EvaluatedFinding,
    Outcome,
    RuleChange,
    Subject,
    advise,
)
from webhook.tools.check.manifests import Manifest, ManifestPod
from webhook.tools.check.surroundings import Surroundings
from webhook.workloads.places import PodPlace


class ManifestVerdict(Enum):
    REFUSED = "refused"
    CHANGED = "changed"
    ACCEPTED = "ok"
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

    @property
    def refused(self) -> bool:
        return any(found.outcome is Outcome.DENIED for found in self.findings)


class ManifestResult(msgspec.Struct, frozen=True):
    """Result for an object and each pod in it; `own` are the findings about the object itself."""

    manifest: Manifest
    pods: tuple[PodResult, ...]
    own: tuple[EvaluatedFinding, ...] = ()

    @property
    def verdict(self) -> ManifestVerdict:
        if not self.manifest.is_known:
            return ManifestVerdict.SKIPPED
        if self.is_denied or any(pod.refused for pod in self.pods):
            return ManifestVerdict.REFUSED
        return ManifestVerdict.CHANGED if any(pod.changes for pod in self.pods) else ManifestVerdict.ACCEPTED

    @property
    def is_denied(self) -> bool:
        """Whether the object itself is denied, whatever becomes of its pods."""
        return any(found.outcome is Outcome.DENIED for found in self.own)

    def findings(self) -> Iterator[EvaluatedFinding]:
        return chain(*(pod.findings for pod in self.pods), self.own)

    def admitted(self) -> dict[str, Any]:
        """Return the Pod as it would be admitted, or the workload with its templates as their pods would be."""
        return reduce(lambda data, pod: pod.place.replaced(data, pod.data), self.pods, self.manifest.data)

    def submitted(self) -> dict[str, Any]:
        """Return the object as /mutate sees it."""
        places = (pod.place for pod in self.pods)
        return reduce(lambda data, place: place.replaced(data, place.data), places, self.manifest.data)


def evaluate(manifest: Manifest, engine: Engine, now: datetime, around: Surroundings) -> ManifestResult:
    """Return the result; `around` is what the objects of the same run say."""
    namespace, policies = manifest.namespace, engine.configuration.policies
    # Only where something selects by labels: policies are cached by namespace and labels.
    labels = around.labels_of(namespace) if policies.asks_labels(namespace) else ()
    policy = policies.for_namespace(namespace, labels)
    pods = tuple(
        _evaluate_pod(manifest, each, asked_by(each.pod, namespace, around.claims.get), engine, now, policy)
        for each in manifest.pods
    )
    own = () if manifest.is_pod else _own(manifest, pods, engine, now, policy)
    return ManifestResult(manifest, pods, own)


class _ConfiguredQuota(msgspec.Struct, frozen=True):
    """The quota that the configuration grants a namespace, of which nothing is used; offline nothing is reserved."""

    configuration: Configuration
    namespace: str

    def reserve(self, charge_request: ChargeRequest) -> ReservationOutcome:
        found = MemoryStore(lambda: self.configuration).read(self.namespace, 0)
        if found is None:
            return ReservationOutcome()
        charged = charge_request.charged(found.ledger, {})
        verdicts = decide(found.ledger, [charged.request]).verdicts if charged.request else (None,)
        return ReservationOutcome(found.ledger, charged.charge, *verdicts)

    def grant(self) -> QuotaGrant | None:
        spec = self.configuration.quotas.get(self.namespace)
        return QuotaGrant(spec.amounts, spec.unpinned) if spec else None


def _own(
    manifest: Manifest, pods: Iterable[PodResult], engine: Engine, now: datetime, policy: EffectivePolicy
) -> tuple[EvaluatedFinding, ...]:
    kind = manifest.group, manifest.kind
    subject = Subject(policy=policy, quota=_ConfiguredQuota(engine.configuration, manifest.namespace))
    readable = (
        WorkloadPods(source.place.path, source.pod, source.place.count, result.admitted)
        for source, result in zip(manifest.pods, pods, strict=True)
        if result.admitted is not None
    )
    workload = Workload.of(*kind, manifest.namespace, manifest.data, readable)
    decisions = [engine.check_workload(workload, subject, now)]
    if kind in ADVISED:
        decisions.append(advise(kind, msgspec.json.encode(manifest.data), subject, engine, now))
    if kind == CLAIM:
        decisions.append(_claim_decision(manifest, subject, engine, now))
    return tuple(chain.from_iterable(decision.judged for decision in decisions))


def _claim_decision(manifest: Manifest, subject: Subject, engine: Engine, now: datetime) -> Decision:
    """Charge a ResourceClaim to the quota of its namespace; one that cannot be read is the API server's to reject."""
    try:
        claim = decode_claim(msgspec.json.encode(manifest.data))
    except msgspec.ValidationError:
        return Decision(policy=subject.policy)
    charged = charge_request_for_claim("check", claim, "", engine.configuration)
    return engine.validate_claim(msgspec.structs.replace(subject, charge_request=charged), now)


def _evaluate_pod(
    manifest: Manifest,
    source: ManifestPod,
    claims: Mapping[str, DeviceClassNames],
    engine: Engine,
    now: datetime,
    policy: EffectivePolicy,
) -> PodResult:
    if too_long := excesses(source.pod) or too_many_resources(
        source.pod, engine.configuration.resource_mapping
    ):
        return _combined(source.place, [Decision.on(policy, too_long, Mode.ENFORCE)])
    subject = Subject(
        policy=policy, pod=source.pod, claims=claims, made_by_daemonset=manifest.kind == "DaemonSet"
    )
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
