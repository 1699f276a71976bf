"""Answer an admission request: dispatch by kind, decide, respond, record."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from time import perf_counter
from typing import Any

import msgspec

from policies.finding import truncate
from policies.gpus.cards import too_many_resources
from policies.gpus.claims import ClaimName, DeviceClassNames, ResourceClaim, asked_by, decode_claim
from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.placement.nodes import NodeFacts
from policies.pods.limits import check_size, excesses
from policies.pods.names import is_dns_subdomain, is_uid
from policies.pods.pod import Metadata, Pod, decode_pod
from policies.policy import EffectivePolicy, Labels, TemplateMode
from policies.quota.charge_request import NamespaceQuota, charge_request_for_claim, charge_request_for_pod
from policies.quota.claims import forged_mark
from policies.rule import Mode, Phase
from webhook.configuration.documents import GROUP
from webhook.quota.enforcer import QuotaEnforcer
from webhook.serving import review
from webhook.serving.audit import Recorder
from webhook.serving.canary_trace import canary_trace
from webhook.serving.document_reviews import DocumentReviews
from webhook.serving.engine import (
    CLAIM,
    CLAIM_TEMPLATE,
    MOST_FINDINGS,
    RESOURCE_QUOTA,
    Decision,
    Engine,
    Outcome,
    OutOfTime,
    Subject,
    advise,
)
from webhook.serving.namespaces import NamespaceUnknown
from webhook.serving.review import AdmissionRequest, AdmissionResponse, Cause
from webhook.serving.workload_reviews import WorkloadReview
from webhook.workloads.autoscalers import AUTOSCALERS, ScaleTarget, scale_target

POD = ("", "Pod")
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

DAEMONSET_CONTROLLER = "system:serviceaccount:kube-system:daemon-set-controller"
CONTROLLER_MANAGER = "system:kube-controller-manager"
"""Who creates the pods of DaemonSets: the former, or the latter where controllers share one identity."""


Lookup = Callable[[ClaimName], DeviceClassNames | None]
"""Returns for which DeviceClasses a claim asks, None where that is not known."""


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What a review may look up beyond its object and the configuration; what is None nobody knows."""

    labels_of: Callable[[str, float], Labels] | None = None
    """Labels of a namespace by a deadline (`monotonic`). Raises NamespaceUnknown."""
    nodes: Callable[[], NodeFacts | None] = lambda: None
    named_nodes: Callable[[], NodeIndex] = lambda: NO_NODES
    claims: Callable[[float, bool], Lookup] | None = None
    """Makes the lookup of a review, of its deadline and of whether it may wait."""
    quota: QuotaEnforcer | None = None
    scaled: Callable[[str, ScaleTarget, float], Any] = lambda _namespace, _target, _deadline: None
    """Returns in plain JSON what an autoscaler in the namespace scales, None if it cannot be read by the deadline."""
    documents: DocumentReviews | None = None


class Review(msgspec.Struct, frozen=True, dict=True):
    """A request, and all that it is decided by."""

    request: AdmissionRequest
    phase: Phase
    engine: Engine
    cluster: ClusterState
    now: datetime
    deadline: float
    """A moment of `monotonic`."""
    may_wait: bool = True
    """Whether it may wait for the API server. Raises WouldWaitError where it would."""

    def document(self, raw: msgspec.Raw) -> msgspec.Raw:
        """Return the JSON of an object to be decoded. Raises OutOfTime, msgspec.ValidationError where it is too long."""
        OutOfTime.check(self.deadline)
        return check_size(raw)

    def policy(self) -> EffectivePolicy:
        """Return the policy of the namespace, by its labels only if anything depends on them. Raises NamespaceUnknown."""
        namespace, policies = self.request.namespace, self.engine.configuration.policies
        labels_of = self.cluster.labels_of
        if labels_of is None or not policies.asks_labels(namespace):
            return policies.for_namespace(namespace)
        return policies.for_namespace(namespace, labels_of(namespace, self.deadline))

    def claims(self, pod: Pod) -> Mapping[str, DeviceClassNames]:
        """Return for what the claims of a pod ask, as far as that is known."""
        if not pod.body.resource_claims or self._claim_lookup is None:
            return {}
        return asked_by(pod, self.request.namespace, self._claim_lookup)

    @cached_property
    def _claim_lookup(self) -> Lookup | None:
        claims = self.cluster.claims
        return claims(self.deadline, self.may_wait) if claims else None

    def quota(self) -> NamespaceQuota | None:
        request, quota = self.request, self.cluster.quota
        dry_run = bool(request.dry_run)
        return None if quota is None else quota.of(request.namespace, self.deadline, dry_run=dry_run)

    def of_workload(self, policy: EffectivePolicy) -> WorkloadReview:
        """Return the review as one of a workload."""
        return WorkloadReview(
            engine=self.engine,
            policy=policy,
            kind=self.request.kind,
            is_update=self.request.operation == "UPDATE",
            nodes=self.cluster.nodes(),
            claims=self.claims,
            quota=self.quota(),
            now=self.now,
            deadline=self.deadline,
        )


class Answered(msgspec.Struct, frozen=True):
    """The response, the decisions behind it, and the name of the object, None if its handler did not need it."""

    response: AdmissionResponse
    decisions: list[Decision] = []
    name: str | None = None


Handler = Callable[[Review], Answered]


class Admission:
    """Answers reviews with the engine in force at that moment."""

    def __init__(
        self, engine: Callable[[], Engine], recorder: Recorder, cluster: ClusterState | None = None
    ) -> None:
        self._engine = engine
        self._recorder = recorder
        self._cluster = cluster or ClusterState()

    def mutate(
        self, request: AdmissionRequest, deadline: float, *, may_wait: bool = True
    ) -> AdmissionResponse:
        """Answer by `deadline`, a moment of `monotonic`, as far as that depends on others.

        Unless it `may_wait`, it raises WouldWaitError where the answer needs the API server.
        """
        return self._answer(Phase.MUTATE, request, deadline, may_wait)

    def validate(
        self, request: AdmissionRequest, deadline: float, *, may_wait: bool = True
    ) -> AdmissionResponse:
        return self._answer(Phase.VALIDATE, request, deadline, may_wait)

    def _answer(
        self, phase: Phase, request: AdmissionRequest, deadline: float, may_wait: bool
    ) -> AdmissionResponse:
        started, clock = datetime.now(UTC), perf_counter()
        asked = Review(request, phase, self._engine(), self._cluster, started, deadline, may_wait)
        try:
            answered = handler_of(phase, request)(asked)
        except NamespaceUnknown as unknown:
            answered = Answered(review.labels_unknown(request.uid, request.namespace, str(unknown)))
        except UnreadableObject as error:
            answered = Answered(review.unreadable_object(request.uid, str(error)))
        except OutOfTime:
            answered = Answered(review.out_of_time(request.uid))
        self._recorder.record(
            request,
            answered.response,
            phase=phase.value,
            started=started,
            seconds=perf_counter() - clock,
            name=review.object_name(request) if answered.name is None else answered.name,
            decisions=answered.decisions,
        )
        return answered.response


class UnreadableObject(Exception):  # noqa: N818 - no bug
    """The object is not what its kind says; the message has the path of the field."""


@contextmanager
def reading() -> Iterator[None]:
    """Blame the object for errors of its decoding, and only for those. Raises UnreadableObject."""
    try:
        yield
    except msgspec.ValidationError as error:
        raise UnreadableObject(str(error)) from None


def check_identity(request: AdmissionRequest, metadata: Metadata | None) -> None:
    """Refuse a uid or name that no stored object has: both become part of the ledger. Raises UnreadableObject.

    At /validate the API server has set the one and checked the other; a dry run without it has no uid.
    """
    uid, name = (metadata.uid, metadata.name) if metadata else (None, None)
    if uid and not is_uid(uid):
        raise UnreadableObject("metadata.uid must be a UUID (RFC 4122)")
    if not all(is_dns_subdomain(each) for each in (request.name, name) if each):
        raise UnreadableObject("metadata.name must be a DNS subdomain of at most 253 characters")


def allow(asked: Review) -> Answered:
    """Allow what no rule looks at."""
    return Answered(review.allowed(asked.request.uid))


def review_pod(asked: Review) -> Answered:
    """Mutate or validate a pod; an update is validated with the pod as it is stored."""
    request, engine = asked.request, asked.engine
    with reading():
        pod = decode_pod(asked.document(request.object))
        before = decode_pod(asked.document(request.old_object)) if request.operation == "UPDATE" else None
    name = _name(request, pod.metadata)
    if is_mirror_pod(pod, request):
        return Answered(review.allowed(request.uid), name=name)
    policy, by_daemonset = asked.policy(), made_by_daemonset(pod, request)
    mutates = asked.phase is Phase.MUTATE
    too_long = excesses(pod) or (before and excesses(before))
    if before is None and not too_long:
        too_long = too_many_resources(pod, engine.configuration.resource_mapping)
    if too_long:
        decision = Decision.on(policy, too_long[:MOST_FINDINGS], Mode.ENFORCE)
    elif mutates:
        subject = Subject(
            policy=policy,
            pod=pod,
            claims=asked.claims(pod),
            made_by_daemonset=by_daemonset,
            nodes=asked.cluster.nodes(),
            deadline=asked.deadline,
        )
        decision = engine.mutate(subject, asked.now)
    else:
        check_identity(request, pod.metadata)
        subject = Subject(
            policy=policy,
            pod=pod,
            claims=asked.claims(pod),
            made_by_daemonset=by_daemonset,
            is_update=before is not None,
            nodes=asked.cluster.nodes(),
            charge_request=charge_request_for_pod(
                request.uid, pod, before, engine.configuration, asked.cluster.named_nodes()
            ),
            quota=asked.quota(),
            deadline=asked.deadline,
        )
        decision = engine.validate(subject, asked.now)
    trace = canary_trace(pod, decision, asked.now, phase=asked.phase, dry_run=request.dry_run is True)
    title = f"pod {request.namespace}/{name}"
    response = review.decided(request.uid, [decision], subject=title, patch=mutates, trace=trace)
    return Answered(response, [decision], name)


def review_claim(asked: Review) -> Answered:
    """Charge a new ResourceClaim to the quota."""
    request, configuration = asked.request, asked.engine.configuration
    with reading():
        claim = decode_claim(asked.document(request.object))
    check_identity(request, claim.metadata)
    name = _name(request, claim.metadata)
    if (forged := _forged_mark(asked, name, None, claim)) is not None:
        return forged
    charged = charge_request_for_claim(request.uid, claim, request.user_info.username, configuration)
    subject = Subject(
        policy=asked.policy(), charge_request=charged, quota=asked.quota(), deadline=asked.deadline
    )
    decision = asked.engine.validate_claim(subject, asked.now)
    title = f"resourceclaim {request.namespace}/{name}"
    return Answered(review.decided(request.uid, [decision], subject=title, patch=False), [decision], name)


def review_changed_claim(asked: Review) -> Answered:
    """Refuse that anybody but the scheduler marks a stored ResourceClaim as its own; its spec never changes."""
    request = asked.request
    with reading():
        claim = decode_claim(asked.document(request.object))
        before = decode_claim(asked.document(request.old_object))
    name = _name(request, claim.metadata)
    return _forged_mark(asked, name, before, claim) or Answered(review.allowed(request.uid), name=name)


def _forged_mark(
    asked: Review, name: str, before: ResourceClaim | None, claim: ResourceClaim
) -> Answered | None:
    """Return the refusal of a forged mark, None if it is not one. No mode or exemption lifts it: it is not a rule's."""
    request = asked.request
    finding = forged_mark(before.metadata if before else None, claim.metadata, request.user_info.username)
    if finding is None:
        return None
    decision = Decision.on(asked.policy(), [finding], Mode.ENFORCE)
    title = f"resourceclaim {request.namespace}/{name}"
    return Answered(review.decided(request.uid, [decision], subject=title, patch=False), [decision], name)


def release(asked: Review) -> Answered:
    """Give back what a deleted object holds, where no controller counts."""
    request, quota = asked.request, asked.cluster.quota
    if quota is not None and quota.release is not None and not request.dry_run:
        quota.release(request.namespace, review.metadata_of(request.old_object).uid)
    return allow(asked)


def review_templates(asked: Review) -> Answered:
    """Check the pod templates of a workload; what they deny is a warning, unless the policy enforces templates."""
    request, kind = asked.request, asked.request.kind
    try:
        document, policy = asked.document(request.object), asked.policy()
        decisions = asked.of_workload(policy).decisions(document)
    except msgspec.ValidationError as error:
        # A template that cannot be read is the API server's or the operator's to reject, never ours.
        return _unchecked(request, f"could not read the pod template: {error}")
    except OutOfTime:
        # As if it had not answered at all: these webhooks have failurePolicy Ignore, and the pods are checked themselves.
        return _unchecked(request, review.OUT_OF_TIME)
    if policy.templates is TemplateMode.ENFORCE:
        title = f"{kind.kind} {request.namespace}/{request.name}"
        return Answered(review.decided(request.uid, decisions, subject=title, patch=False), decisions)
    return Answered(review.advised(request.uid, decisions), decisions)


def review_autoscaler(asked: Review) -> Answered:
    """Advise on an autoscaler by what it scales, which is read only where the namespace has a quota."""
    request, kind = asked.request, asked.request.kind
    by = asked.of_workload(asked.policy())
    if by.quota is None or by.quota.grant() is None:
        return allow(asked)
    try:
        data = msgspec.json.decode(asked.document(request.object))
        target = scale_target(kind.group, kind.kind, data)
        stored = target and asked.cluster.scaled(request.namespace, target, asked.deadline)
        if target is None or stored is None:
            return allow(asked)
        decision = by.autoscaler(data, target, stored)
    except (msgspec.ValidationError, OutOfTime, RecursionError):
        return allow(asked)
    return Answered(review.advised(request.uid, [decision]), [decision])


def _unchecked(request: AdmissionRequest, why: str) -> Answered:
    warnings = review.warning_texts([f"gpu-admission {why}"])
    return Answered(review.allowed(request.uid, warnings=warnings))


def review_advised(asked: Review) -> Answered:
    """Advise on what is always admitted."""
    request, kind = asked.request, asked.request.kind
    try:
        document = asked.document(request.object)
    except (msgspec.ValidationError, OutOfTime):
        return allow(asked)
    subject = Subject(policy=asked.policy(), quota=asked.quota())
    decision = advise((kind.group, kind.kind), document, subject, asked.engine, asked.now)
    return Answered(review.advised(request.uid, [decision]), [decision])


def review_document(asked: Review) -> Answered:
    """Check a document of our own configuration."""
    request = asked.request
    if asked.cluster.documents is None:
        return allow(asked)
    with reading():
        asked.document(request.object)
        found = asked.cluster.documents.findings(request, asked.now)
    policy = asked.engine.configuration.policies.for_namespace(request.namespace)
    decision = Decision.on(policy, found, Mode.ENFORCE)
    if decision.allowed:
        return Answered(review.advised(request.uid, [decision]), [decision])
    causes = tuple(Cause(finding.path, finding.message) for finding in decision.findings(Outcome.DENIED))
    warnings = review.warning_texts(review.sentences([decision], Outcome.WARNED))
    name = review.object_name(request)
    response = review.invalid_document(request.uid, request.kind, name, causes, warnings)
    return Answered(response, [decision], name)


_HANDLERS: Mapping[tuple[str, str, str], Handler] = {
    (*POD, "CREATE"): review_pod,
    (*POD, "UPDATE"): review_pod,
    (*POD, "DELETE"): release,
    (*CLAIM, "CREATE"): review_claim,
    (*CLAIM, "UPDATE"): review_changed_claim,
    (*CLAIM, "DELETE"): release,
    (*CLAIM_TEMPLATE, "CREATE"): review_advised,
    (*RESOURCE_QUOTA, "CREATE"): review_advised,
    (*RESOURCE_QUOTA, "UPDATE"): review_advised,
    **{(*kind, operation): review_autoscaler for kind in AUTOSCALERS for operation in ("CREATE", "UPDATE")},
}


def handler_of(phase: Phase, request: AdmissionRequest) -> Handler:
    """Return what answers a request, by kind and operation; no rule reads subresources, and every other kind may have pods."""
    kind = request.kind
    handler = _HANDLERS.get((kind.group, kind.kind, request.operation))
    creates_pod = handler is review_pod and request.operation == "CREATE"
    if request.sub_resource or (phase is Phase.MUTATE and not creates_pod):
        return allow
    if handler is not None or request.operation == "DELETE":
        return handler or allow
    if kind.group == GROUP:
        return review_document
    return review_templates


def is_mirror_pod(pod: Pod, request: AdmissionRequest) -> bool:
    """Whether a kubelet shows a static pod of its own node: nothing may be added, and denying it would not stop it.

    Anyone can set the annotation, so only the node itself is believed.
    """
    node = pod.body.node_name
    return (
        MIRROR_ANNOTATION in pod.annotations
        and bool(node)
        and request.user_info.username == f"system:node:{node}"
        and "system:nodes" in (request.user_info.groups or ())
    )


def made_by_daemonset(pod: Pod, request: AdmissionRequest) -> bool:
    """Whether the DaemonSet controller created the pod. An owner reference alone proves nothing: anyone can write one."""
    creator = request.user_info.username
    if creator == DAEMONSET_CONTROLLER:
        return True
    owners = (pod.metadata and pod.metadata.owner_references) or ()
    return creator == CONTROLLER_MANAGER and any(
        owner.controller and owner.kind == "DaemonSet" and owner.api_version.startswith("apps/")
        for owner in owners
    )


def _name(request: AdmissionRequest, metadata: Metadata | None) -> str:
    """Return the object's name, or its generateName while it has no final one."""
    name = request.name or (metadata and (metadata.name or metadata.generate_name)) or ""
    return truncate(name, review.LONGEST_NAME)
