"""Evaluation of stored pods and workloads as if they were created now: by every phase, and without reserving anything.

A stored pod is evaluated as submitted (`policies.pods.submission`), once by /mutate and once, changed, by /validate. A
workload is evaluated by its templates and as a whole, as a review of it is: what is DENIED there, its pods would be denied.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import partial
from itertools import chain
from math import inf

import msgspec
from msgspec.structs import replace

from policies.gpus.cards import too_many_resources
from policies.gpus.claims import ClaimName, DeviceClassNames, requested_by
from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.placement.nodes import NodeFacts
from policies.pods.limits import check_size, excesses
from policies.pods.pod import Metadata, Pod, decode_pod
from policies.pods.submission import as_submitted
from policies.policy import EffectivePolicy, Labels
from policies.quota.amounts import NOTHING
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.charge_request import (
    ChargeRequest,
    NamespaceQuota,
    QuotaGrant,
    ReservationOutcome,
    charge_request_for_pod,
)
from policies.quota.ledger.decide import decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.rule import Mode
from webhook.configuration.loader import Configuration
from webhook.serving.admission import POD
from webhook.serving.engine import Decision, Engine, EvaluatedFinding, Outcome, RuleChange, Subject
from webhook.serving.pod_reviews import MIRROR_ANNOTATION
from webhook.serving.review import GroupVersionKind
from webhook.serving.workload_reviews import WorkloadReview
from webhook.workloads.places import PodPlace


class Verdict(Enum):
    """What would become of a stored object if it were created now."""

    REFUSED = "refused"
    """It, or the pods that it makes, would be denied."""
    CHANGED = "changed"
    ACCEPTED = "accepted"
    UNREADABLE = "unreadable"
    """It is not what its kind says, or too long to be read."""


class EvaluatedPod(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of a pod, or of one template; paths of findings start at the object.

    submitted: the pod as it is evaluated, without what was injected. admitted: with what the rules add, in a template for what is
      known of its pods.
    """

    place: PodPlace
    """With the data of a template; of a pod without."""
    policy: EffectivePolicy
    evaluated: tuple[EvaluatedFinding, ...]
    changes: tuple[RuleChange, ...]
    submitted: Pod
    admitted: Pod

    @property
    def is_refused(self) -> bool:
        return any(each.outcome is Outcome.DENIED for each in self.evaluated)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of one stored object; `advice` is about a workload as a whole.

    `owner` is the controller that made the object, as `Job/train`, "" of what no controller made.
    """

    group: str
    kind: str
    namespace: str
    name: str
    owner: str = ""
    pods: tuple[EvaluatedPod, ...] = ()
    advice: tuple[EvaluatedFinding, ...] = ()
    unreadable: str = ""
    """Why it cannot be read, "" if it can."""

    @property
    def verdict(self) -> Verdict:
        if self.unreadable:
            return Verdict.UNREADABLE
        if any(pod.is_refused for pod in self.pods):
            return Verdict.REFUSED
        return Verdict.CHANGED if any(pod.changes for pod in self.pods) else Verdict.ACCEPTED

    def findings(self) -> Iterator[EvaluatedFinding]:
        """Yield everything that was found, about the pods first."""
        return chain(*(pod.evaluated for pod in self.pods), self.advice)


class Evaluator(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration and the cluster by which objects are evaluated; of what is left out nothing is known."""

    engine: Engine
    now: datetime
    labels_of: Callable[[str], Labels] = lambda _namespace: ()
    nodes: NodeFacts | None = None
    named_nodes: NodeIndex = NO_NODES
    claims: Callable[[ClaimName], DeviceClassNames | None] = lambda _name: None
    quota_of: Callable[[str], NamespaceQuota | None] = lambda _namespace: None
    """The quota of a namespace, which must reserve nothing (`UnusedQuota`); None where it is not asked."""

    def policy(self, namespace: str) -> EffectivePolicy:
        """Return the policy that governs a namespace."""
        policies = self.engine.configuration.policies
        return policies.for_namespace(
            namespace, self.labels_of(namespace) if policies.asks_labels(namespace) else ()
        )

    def claims_of(self, namespace: str, pod: Pod) -> Mapping[str, DeviceClassNames]:
        """Return for what the claims of a pod ask, as far as that is known."""
        return requested_by(pod, namespace, self.claims) if pod.body.resource_claims else {}


def evaluate(
    group: str, kind: str, namespace: str, document: bytes | msgspec.Raw, by: Evaluator
) -> Evaluation:
    """Judge a stored object in JSON. Of a kind that makes no pods, as far as is known, there is only advice."""
    metadata, unreadable = Metadata(), ""
    pods: tuple[EvaluatedPod, ...] = ()
    advice: tuple[EvaluatedFinding, ...] = ()
    try:
        raw = check_size(msgspec.Raw(document))
        metadata = _metadata(raw)
        if (group, kind) == POD:
            pods = (_pod(namespace, raw, by),)
        else:
            pods, advice = _workload(GroupVersionKind(group=group, kind=kind), namespace, raw, by)
    except msgspec.ValidationError as error:
        unreadable = str(error)
    return Evaluation(
        group=group,
        kind=kind,
        namespace=namespace,
        name=metadata.name or "",
        owner=metadata.controlled_by,
        pods=pods,
        advice=advice,
        unreadable=unreadable,
    )


def _workload(
    kind: GroupVersionKind, namespace: str, document: msgspec.Raw, by: Evaluator
) -> tuple[tuple[EvaluatedPod, ...], tuple[EvaluatedFinding, ...]]:
    policy = by.policy(namespace)
    review = WorkloadReview(
        engine=by.engine,
        policy=policy,
        kind=kind,
        is_update=True,
        nodes=by.nodes,
        claims=partial(by.claims_of, namespace),
        quota=by.quota_of(namespace),
        now=by.now,
        deadline=inf,
    )
    templates, advice = review.reviewed(document)
    pods = (_evaluated(each.place, policy, each.pod, [each.decision]) for each in templates)
    return tuple(pods), tuple(chain.from_iterable(each.evaluated for each in advice))


def _pod(namespace: str, document: msgspec.Raw, by: Evaluator) -> EvaluatedPod:
    stored = decode_pod(document)
    if _is_mirror_pod(stored):
        return _evaluated(PodPlace((), {}, {(): ()}), by.policy(namespace), stored, [])
    by_author = bool(stored.body.node_name) and _names_its_node(document)
    of_daemonset = _has_controller(stored, "DaemonSet", "apps/")
    return evaluate_submitted(
        namespace, as_submitted(stored, by_author=by_author), by, of_daemonset=of_daemonset
    )


def evaluate_submitted(namespace: str, pod: Pod, by: Evaluator, *, of_daemonset: bool) -> EvaluatedPod:
    """Judge a pod as its author submitted it; `of_daemonset`: the DaemonSet controller did."""
    engine, now, policy = by.engine, by.now, by.policy(namespace)
    place = PodPlace((), {}, {(): ()})
    too_long = excesses(pod) or too_many_resources(pod, engine.configuration.resource_mapping)
    if too_long:
        return _evaluated(place, policy, pod, [Decision.on(policy, too_long, Mode.ENFORCE)])
    subject = Subject(
        policy=policy,
        pod=pod,
        claims=by.claims_of(namespace, pod),
        made_by_daemonset=of_daemonset,
        nodes=by.nodes,
    )
    mutated = engine.mutate(subject, now)
    final = mutated.pod or pod
    charged = charge_request_for_pod("evaluated", final, None, engine.configuration, by.named_nodes)
    subject = replace(subject, pod=final, charge_request=charged, quota=by.quota_of(namespace))
    # A pod that /mutate denies never reaches /validate; its findings are shown at once all the same, as `check` does.
    return _evaluated(place, policy, pod, [mutated, engine.validate(subject, now)])


def _evaluated(
    place: PodPlace, policy: EffectivePolicy, submitted: Pod, decisions: Sequence[Decision]
) -> EvaluatedPod:
    """Return the evaluation by the decisions of the phases in their order; of two findings on one thing the first counts."""
    found: dict[object, EvaluatedFinding] = {}
    for evaluated in chain.from_iterable(each.evaluated for each in decisions):
        about = evaluated.finding
        # The sentence may differ once the pod is pinned.
        found.setdefault((about.rule, about.path or about.message, about.container, about.value), evaluated)
    first = decisions[0] if decisions else None
    return EvaluatedPod(
        place=place,
        policy=policy,
        evaluated=tuple(found.values()),
        changes=first.changes if first and not place.is_partial else (),
        submitted=submitted,
        admitted=(first and first.pod) or submitted,
    )


class _Named(msgspec.Struct):
    metadata: Metadata = Metadata()


class _ManagedFields(msgspec.Struct, rename="camel"):
    fields_v1: msgspec.Raw = msgspec.field(name="fieldsV1", default=msgspec.Raw(b""))


class _ManagedMetadata(msgspec.Struct, rename="camel"):
    managed_fields: list[_ManagedFields] | None = None


class _Managed(msgspec.Struct):
    metadata: _ManagedMetadata


# Made once, as everywhere: msgspec crashes where threads use a type for the first time together.
_NAMED, _MANAGED = msgspec.json.Decoder(_Named), msgspec.json.Decoder(_Managed)


def _metadata(document: msgspec.Raw) -> Metadata:
    return _NAMED.decode(document).metadata


def _names_its_node(document: msgspec.Raw) -> bool:
    """Whether the pod was created with its nodeName: who writes a field owns it, and a binding owns none.

    (`BindingREST.assignPod`, pkg/registry/core/pod/storage, v1.36.) Where nothing is recorded, the scheduler is assumed.
    """
    managed = _MANAGED.decode(document).metadata.managed_fields
    return any(b'"f:nodeName"' in bytes(each.fields_v1) for each in managed or ())


def _is_mirror_pod(pod: Pod) -> bool:
    """Whether a kubelet shows a static pod of its own, which passes; of one that is none the kubelet lets nothing live."""
    return MIRROR_ANNOTATION in pod.annotations and _has_controller(pod, "Node", "v1")


def _has_controller(pod: Pod, kind: str, api_version: str) -> bool:
    owners = (pod.metadata and pod.metadata.owner_references) or ()
    return any(
        each.controller and each.kind == kind and each.api_version.startswith(api_version) for each in owners
    )


class UnusedQuota(msgspec.Struct, frozen=True):
    """A `NamespaceQuota` of which nothing is used: it denies what could never fit, and reserves nothing.

    `granted` is None where the namespace has no quota; what it says is held is not looked up.
    """

    granted: QuotaGrant | None
    configuration: Configuration

    def reserve(self, charge_request: ChargeRequest) -> ReservationOutcome:
        if self.granted is None or charge_request.is_free:
            return ReservationOutcome()
        hard, unclassified_pods = self.granted.hard, self.granted.unclassified_pods
        ledger = QuotaLedger(
            quota_uid="evaluated",
            generation=1,
            hard=hard,
            unclassified_pods=unclassified_pods,
            used=dict.fromkeys(hard, NOTHING),
            class_catalogue=str(CatalogueVersion(catalogue_digest(self.configuration), unclassified_pods)),
        )
        charged = charge_request.charged(ledger, {})
        verdict = None if charged.request is None else decide(ledger, [charged.request]).verdicts[0]
        return ReservationOutcome(ledger, charged.charge, verdict)

    def grant(self) -> QuotaGrant | None:
        return self.granted and replace(self.granted, held=None)
