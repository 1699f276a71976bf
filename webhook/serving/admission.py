"""Answer an admission request: dispatch by kind, decide, respond, record."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import perf_counter

import msgspec

from policies.finding import Finding
from policies.gpus.claims import decode_claim
from policies.policy import TemplateMode
from policies.quota.claims import forged_mark, lost_protection
from policies.quota.quota_request import quota_request_for_claim
from policies.rule import Mode, Phase
from webhook.configuration.documents import GROUP
from webhook.serving import review
from webhook.serving.audit import Recorder
from webhook.serving.engine import (
    CLAIM,
    CLAIM_TEMPLATE,
    RESOURCE_QUOTA,
    Decision,
    Engine,
    Outcome,
    OutOfTime,
)
from webhook.serving.handling import (
    ClusterState,
    Handler,
    Review,
    ReviewResult,
    UnreadableObject,
    allow,
    check_identity,
    reading,
    shown_name,
)
from webhook.serving.namespaces import NamespaceUnknown
from webhook.serving.pod_reviews import restore_pod, review_pod
from webhook.serving.review import AdmissionRequest, AdmissionResponse, Cause
from webhook.workloads.autoscalers import AUTOSCALERS, scale_target

POD = ("", "Pod")


class Admission:
    """Answers reviews with the engine in force at that moment."""

    def __init__(
        self, engine: Callable[[], Engine], recorder: Recorder, cluster: ClusterState | None = None
    ) -> None:
        self._engine = engine
        self._recorder = recorder
        self._cluster = cluster or ClusterState()

    def mutate(self, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        """Answer by `deadline`, a moment of `monotonic`, as far as that depends on others."""
        return self._answer(Phase.MUTATE, request, deadline)

    def validate(self, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        return self._answer(Phase.VALIDATE, request, deadline)

    def _answer(self, phase: Phase, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        started, clock = datetime.now(UTC), perf_counter()
        requested = Review(request, phase, self._engine(), self._cluster, started, deadline)
        try:
            result = handler_of(phase, request)(requested)
        except NamespaceUnknown as unknown:
            result = ReviewResult(review.labels_unknown(request.uid, request.namespace, str(unknown)))
        except UnreadableObject as error:
            result = ReviewResult(review.unreadable_object(request.uid, str(error)))
        except OutOfTime:
            result = ReviewResult(review.out_of_time(request.uid))
        self._recorder.record(requested, result, perf_counter() - clock)
        return result.response


def review_claim(requested: Review) -> ReviewResult:
    """Charge a new ResourceClaim to the quota."""
    request, configuration = requested.request, requested.engine.configuration
    with reading():
        claim = decode_claim(requested.document(request.object))
    check_identity(request, claim.metadata)
    name = shown_name(request, claim.metadata)
    if (forged := forged_mark(None, claim.metadata, request.user_info.username)) is not None:
        return _refused_claim(requested, name, [forged])
    counted = quota_request_for_claim(request.uid, claim, request.user_info.username, configuration)
    decision = requested.evaluator.demand(requested.policy(), counted)
    title = f"resourceclaim {request.namespace}/{name}"
    response = review.decided(request.uid, [decision], subject=title, patch=False)
    return ReviewResult(response, [decision], name, claim.metadata)


def review_changed_claim(requested: Review) -> ReviewResult:
    """Refuse what would have a stored ResourceClaim charged to nobody; its spec never changes.

    Only the scheduler marks claims as its own. An allocated claim keeps its finalizer: whoever may clear the allocation, such as
    the resource-claim controller and administrators, is not asked (`matchConditions` of the registration).
    """
    request = requested.request
    with reading():
        claim = decode_claim(requested.document(request.object))
        before = decode_claim(requested.document(request.old_object))
    name = shown_name(request, claim.metadata)
    found = (
        forged_mark(before.metadata, claim.metadata, request.user_info.username),
        lost_protection(before, claim),
    )
    if findings := [each for each in found if each is not None]:
        return _refused_claim(requested, name, findings)
    return ReviewResult(review.allowed(request.uid), name=name)


def _refused_claim(requested: Review, name: str, findings: list[Finding]) -> ReviewResult:
    """Return the refusal of a claim that nobody would be charged for. No mode or exemption lifts it: it is not a rule's."""
    request = requested.request
    decision = Decision.on(requested.policy(), findings, Mode.ENFORCE)
    title = f"resourceclaim {request.namespace}/{name}"
    return ReviewResult(review.decided(request.uid, [decision], subject=title, patch=False), [decision], name)


def release(requested: Review) -> ReviewResult:
    """Give back what a deleted object holds, where no controller counts."""
    request, quota = requested.request, requested.cluster.quota
    if quota is not None and quota.release is not None and not request.dry_run:
        quota.release(request.namespace, review.metadata_of(request.old_object).uid)
    return allow(requested)


def review_templates(requested: Review) -> ReviewResult:
    """Check the pod templates of a workload; what they deny is a warning, unless the policy enforces templates."""
    request, kind = requested.request, requested.request.kind
    try:
        document, policy = requested.document(request.object), requested.policy()
        decisions = requested.of_workload(policy).decisions(document)
    except msgspec.ValidationError as error:
        # A template that cannot be read is the API server's or the operator's to reject, never ours.
        return _unchecked(request, f"could not read the pod template: {error}")
    except OutOfTime:
        # As if it had not answered at all: these webhooks have failurePolicy Ignore, and the pods are checked themselves.
        return _unchecked(request, review.OUT_OF_TIME)
    if policy.templates is TemplateMode.ENFORCE:
        title = f"{kind.kind} {request.namespace}/{request.name}"
        return ReviewResult(review.decided(request.uid, decisions, subject=title, patch=False), decisions)
    return ReviewResult(review.advised(request.uid, decisions), decisions)


def review_autoscaler(requested: Review) -> ReviewResult:
    """Advise on an autoscaler by what it scales, which is read only where the namespace has a quota, or it scales to zero."""
    request, kind = requested.request, requested.request.kind
    by = requested.of_workload(requested.policy())
    has_quota = requested.quota is not None and requested.quota.grant() is not None
    try:
        data = msgspec.json.decode(requested.document(request.object))
        target = scale_target(kind.group, kind.kind, data)
        if target is None or not (has_quota or target.to_zero):
            return allow(requested)
        stored = requested.cluster.scaled(request.namespace, target, requested.deadline)
        if stored is None:
            return allow(requested)
        decision = by.autoscaler(data, target, stored)
    except (msgspec.ValidationError, OutOfTime, RecursionError):
        return allow(requested)
    return ReviewResult(review.advised(request.uid, [decision]), [decision])


def _unchecked(request: AdmissionRequest, why: str) -> ReviewResult:
    warnings = review.warning_texts(before=[f"gpu-admission {why}"])
    return ReviewResult(review.allowed(request.uid, warnings=warnings))


def review_advised(requested: Review) -> ReviewResult:
    """Advise on what is always admitted."""
    request, kind = requested.request, requested.request.kind
    try:
        document = requested.document(request.object)
    except (msgspec.ValidationError, OutOfTime):
        return allow(requested)
    decision = requested.evaluator.advise(requested.policy(), (kind.group, kind.kind), document)
    return ReviewResult(review.advised(request.uid, [decision]), [decision])


def review_document(requested: Review) -> ReviewResult:
    """Check a document of our own configuration."""
    request = requested.request
    if requested.cluster.documents is None:
        return allow(requested)
    with reading():
        requested.document(request.object)
        found = requested.cluster.documents.findings(request, requested.now)
    policy = requested.engine.configuration.policies.for_namespace(request.namespace)
    decision = Decision.on(policy, found, Mode.ENFORCE)
    if decision.allowed:
        return ReviewResult(review.advised(request.uid, [decision]), [decision])
    causes = tuple(Cause(finding.path, finding.message) for finding in decision.findings(Outcome.DENIED))
    warnings = review.warning_texts(decision.findings(Outcome.WARNED))
    name = review.object_name(request)
    response = review.invalid_document(request.uid, request.kind, name, causes, warnings)
    return ReviewResult(response, [decision], name)


_MUTATING: Mapping[tuple[str, str, str], Handler] = {
    (*POD, "CREATE"): review_pod,
    (*POD, "UPDATE"): restore_pod,
}
_VALIDATING: Mapping[tuple[str, str, str], Handler] = {
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
    requested = kind.group, kind.kind, request.operation
    if request.sub_resource:
        return allow
    if phase is Phase.MUTATE:
        return _MUTATING.get(requested, allow)
    handler = _VALIDATING.get(requested)
    if handler is not None or request.operation == "DELETE":
        return handler or allow
    if kind.group == GROUP:
        return review_document
    return review_templates
