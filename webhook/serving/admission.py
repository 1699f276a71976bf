"""Answer an admission request: dispatch by kind, decide, respond, record."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import chain
from time import perf_counter

import msgspec

from policies.finding import Finding
from policies.gpus.claims import decode_claim
from policies.policy import TemplateMode
from policies.quota.claims import forged_mark, lost_protection
from policies.quota.quota_request import quota_request_for_claim
from policies.rule import Mode, Phase
from webhook.configuration.documents import GROUP
from webhook.serving import review as responses
from webhook.serving.audit import Recorder
from webhook.serving.engine import (
    CLAIM,
    CLAIM_TEMPLATE,
    POD,
    RESOURCE_QUOTA,
    DeadlineExceeded,
    Decision,
    Engine,
    Outcome,
)
from webhook.serving.evaluation import evaluate_autoscaler, evaluate_workload
from webhook.serving.handling import (
    ClusterState,
    Handler,
    Review,
    ReviewResult,
    UnreadableObject,
    allow,
    check_identity,
    shown_name,
)
from webhook.serving.lookups import NamespaceUnknown
from webhook.serving.pod_reviews import restore_pod, review_pod
from webhook.serving.review import AdmissionRequest, AdmissionResponse, Cause, subject_of
from webhook.workloads.autoscalers import AUTOSCALERS, scale_target


class Admission(msgspec.Struct, frozen=True):
    """Answers reviews with the engine in force at that moment."""

    engine: Callable[[], Engine]
    recorder: Recorder
    cluster: ClusterState = ClusterState()

    def mutate(self, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        """Answer by `deadline`, a moment of `monotonic`, as far as that depends on others."""
        return self._answer(Phase.MUTATE, request, deadline)

    def validate(self, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        return self._answer(Phase.VALIDATE, request, deadline)

    def _answer(self, phase: Phase, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        started, clock = datetime.now(UTC), perf_counter()
        evaluator = self.cluster.evaluator(self.engine(), request, started, deadline)
        review = Review(request, phase, self.cluster, evaluator)
        try:
            result = handler_of(phase, request)(review)
            while not evaluator.answer_holds():  # a stopped process goes on much later
                result = handler_of(phase, request)(review)
        except NamespaceUnknown as unknown:
            what = (
                f"the labels of namespace {request.namespace}, which select its policy; try again: {unknown}"
            )
            result = _rejected(request, responses.UNAVAILABLE, "ServiceUnavailable", f"cannot read {what}")
        except UnreadableObject as error:
            result = _rejected(request, 400, "BadRequest", f"cannot read the object: {error}")
        except DeadlineExceeded:
            result = _rejected(request, responses.TIMEOUT, "Timeout", f"{responses.OUT_OF_TIME}; try again")
        self.recorder.record(review, result, perf_counter() - clock)
        return result.response


def _rejected(request: AdmissionRequest, code: int, reason: str, problem: str) -> ReviewResult:
    return ReviewResult(responses.rejected(request.uid, code, reason, f"gpu-admission {problem}"))


def review_claim(review: Review) -> ReviewResult:
    request, evaluator = review.request, review.evaluator
    claim = review.decode(decode_claim, request.object)
    check_identity(request, claim.metadata)
    name, username = shown_name(request, claim.metadata), request.user_info.username
    if (forged := forged_mark(None, claim.metadata, username)) is not None:
        return _refused_claim(review, name, [forged])
    demand = quota_request_for_claim(request.uid, claim, username, evaluator.engine.configuration)
    decision = evaluator.demand(review.policy(), demand)
    return ReviewResult(_on_claim(review, name, decision), [decision], name, claim.metadata)


def review_changed_claim(review: Review) -> ReviewResult:
    """Refuse a change by which a stored ResourceClaim would count in no quota; its spec never changes.

    Only the scheduler marks claims as its own. An allocated claim keeps its finalizer. Users who may clear it, such as
    the resource-claim controller and administrators, are not reviewed (`matchConditions` of the registration).
    """
    request = review.request
    claim = review.decode(decode_claim, request.object)
    before = review.decode(decode_claim, request.old_object)
    name = shown_name(request, claim.metadata)
    found = (
        forged_mark(before.metadata, claim.metadata, request.user_info.username),
        lost_protection(before, claim),
    )
    if findings := [each for each in found if each is not None]:
        return _refused_claim(review, name, findings)
    return ReviewResult(responses.allowed(request.uid), name=name)


def _refused_claim(review: Review, name: str, findings: list[Finding]) -> ReviewResult:
    """Refuse a claim that no quota would count. No mode or exemption lifts this, because no rule decides it."""
    decision = Decision.of_findings(review.policy(), findings, Mode.ENFORCE)
    return ReviewResult(_on_claim(review, name, decision), [decision], name)


def _on_claim(review: Review, name: str, decision: Decision) -> AdmissionResponse:
    title = f"resourceclaim {review.request.namespace}/{name}"
    return responses.decided(review.request.uid, [decision], subject=title)


def release(review: Review) -> ReviewResult:
    """Give back what a deleted object holds, where no controller counts."""
    request, quota = review.request, review.cluster.quota
    if quota is not None and quota.release is not None and not request.dry_run:
        quota.release(request.namespace, responses.metadata_of(request.old_object).uid)
    return allow(review)


def review_templates(review: Review) -> ReviewResult:
    """Check the pod templates of a workload; what they deny is a warning, unless the policy enforces templates."""
    request = review.request
    try:
        document, policy = review.document(request.object), review.policy()
        is_update = request.operation == "UPDATE"
        pods, advice = evaluate_workload(
            review.evaluator, policy, request.kind, document, is_update=is_update
        )
    except msgspec.ValidationError as error:
        # A template that cannot be read is the API server's or the operator's to reject, never ours.
        return _unchecked(request, f"could not read the pod template: {error}")
    except DeadlineExceeded:
        # As if it had not answered at all: these webhooks have failurePolicy Ignore, and the pods are checked themselves.
        return _unchecked(request, responses.OUT_OF_TIME)
    decisions = [*chain.from_iterable(each.decisions for each in pods), *advice]
    if policy.templates is TemplateMode.ENFORCE:
        response = responses.decided(request.uid, decisions, subject=subject_of(request))
        return ReviewResult(response, decisions)
    return _advised(request, decisions)


def _advised(request: AdmissionRequest, decisions: list[Decision]) -> ReviewResult:
    subject = subject_of(request)
    return ReviewResult(
        responses.decided(request.uid, decisions, subject=subject, only_advises=True), decisions
    )


def _unchecked(request: AdmissionRequest, why: str) -> ReviewResult:
    subject = subject_of(request)
    warnings = responses.warning_texts((), subject=subject, before=[f"{subject}: gpu-admission {why}"])
    return ReviewResult(responses.allowed(request.uid, warnings=warnings))


def review_autoscaler(review: Review) -> ReviewResult:
    """Advise on an autoscaler by what it scales, which is read only where the namespace has a quota, or it scales to zero."""
    request, kind, evaluator = review.request, review.request.kind, review.evaluator
    policy, quota = review.policy(), evaluator.quota_of(request.namespace)
    has_quota = quota is not None and quota.ledger() is not None
    try:
        data = msgspec.json.decode(review.document(request.object))
        target = scale_target(kind.group, kind.kind, data)
        if target is None or not (has_quota or target.to_zero):
            return allow(review)
        stored = review.cluster.scaled(request.namespace, target, evaluator.deadline)
        if stored is None:
            return allow(review)
        is_update = request.operation == "UPDATE"
        decision = evaluate_autoscaler(evaluator, policy, kind, data, target, stored, is_update=is_update)
    except (msgspec.ValidationError, DeadlineExceeded, RecursionError):
        return allow(review)
    return _advised(request, [decision])


def review_advised(review: Review) -> ReviewResult:
    """Advise on an object that is always admitted."""
    request, kind = review.request, review.request.kind
    try:
        document = review.document(request.object)
    except (msgspec.ValidationError, DeadlineExceeded):
        return allow(review)
    decision = review.evaluator.advise(review.policy(), (kind.group, kind.kind), document)
    return _advised(request, [decision])


def review_document(review: Review) -> ReviewResult:
    request, documents, evaluator = review.request, review.cluster.documents, review.evaluator
    if documents is None:
        return allow(review)
    found = review.decode(lambda _raw: documents.findings(request, evaluator.now), request.object)
    policy = evaluator.engine.configuration.policies.for_namespace(request.namespace)
    decision = Decision.of_findings(policy, found, Mode.ENFORCE)
    if decision.allowed:
        return _advised(request, [decision])
    causes = tuple(Cause(finding.path, finding.message) for finding in decision.findings(Outcome.DENIED))
    warnings = responses.warning_texts(decision.findings(Outcome.WARNED), subject=subject_of(request))
    name = responses.object_name(request)
    response = responses.invalid_document(request.uid, request.kind, name, causes, warnings)
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
    key = kind.group, kind.kind, request.operation
    if request.sub_resource:
        return allow
    if phase is Phase.MUTATE:
        return _MUTATING.get(key, allow)
    others = review_document if kind.group == GROUP else review_templates
    return _VALIDATING.get(key, allow if request.operation == "DELETE" else others)
