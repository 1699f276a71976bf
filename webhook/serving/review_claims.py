"""The review of ResourceClaims and their templates."""

from policies.finding import Finding
from policies.gpus.claimed_devices import decode_claim, decode_claim_template
from policies.quota.claim_protection import changed_owner, forged_mark, lost_protection
from policies.quota.quota_request import quota_request_for_claim
from policies.rule import Mode
from webhook.evaluation.decision import Decision
from webhook.serving import admission_review as responses
from webhook.serving.admission_review import AdmissionResponse, subject_of
from webhook.serving.handler import Review, ReviewResult, check_uid_and_name, display_name
from webhook.workloads.creators import CLAIM_CREATORS


def review_claim(review: Review) -> ReviewResult:
    request, evaluator = review.request, review.evaluator
    claim = review.decode(decode_claim, request.object)
    check_uid_and_name(request, claim.metadata)
    name, username = display_name(request, claim.metadata), request.user_info.username
    by_cluster = username in CLAIM_CREATORS
    given = None if by_cluster else changed_owner(None, claim)
    objections = (forged_mark(None, claim.metadata, username), given)
    if findings := [objection for objection in objections if objection is not None]:
        return _refused_claim(review, name, findings)
    demand = quota_request_for_claim(request.uid, claim, username, evaluator.configuration)
    decision = evaluator.check_claim(review.policy(), claim, demand, by_cluster=by_cluster)
    return ReviewResult(_claim_response(review, name, decision), [decision], name, claim.metadata)


def review_claim_template(review: Review) -> ReviewResult:
    """Review a ResourceClaimTemplate: its claims may get devices that the namespace may not use, or never fit the quota.

    Raises DeadlineExceeded and UnreadableObject, by which it is refused: rules do not check its claims again.
    """
    request, template = review.request, review.decode(decode_claim_template, review.request.object)
    decision = review.evaluator.check_claim_template(review.policy(), template)
    return ReviewResult(responses.decided(request.uid, [decision], subject=subject_of(request)), [decision])


def review_changed_claim(review: Review) -> ReviewResult:
    """Refuse a change by which a stored ResourceClaim would count in no quota; its spec never changes.

    Only the scheduler marks claims as its own. A claim that was made for a pod stays that pod's. An allocated claim keeps its
    finalizer. Users who may clear it, such as the resource-claim controller and administrators, are not reviewed for that
    (`matchConditions` of the registration).
    """
    request = review.request
    claim = review.decode(decode_claim, request.object)
    before = review.decode(decode_claim, request.old_object)
    name = display_name(request, claim.metadata)
    objections = (
        forged_mark(before.metadata, claim.metadata, request.user_info.username),
        lost_protection(before, claim),
        changed_owner(before, claim),
    )
    if findings := [objection for objection in objections if objection is not None]:
        return _refused_claim(review, name, findings)
    return ReviewResult(responses.allowed_response(request.uid), name=name)


def _refused_claim(review: Review, name: str, findings: list[Finding]) -> ReviewResult:
    """Refuse a claim that no quota would count. No mode or exemption lifts this, because no rule decides it."""
    decision = Decision.of_findings(review.policy(), findings, Mode.ENFORCE)
    return ReviewResult(_claim_response(review, name, decision), [decision], name)


def _claim_response(review: Review, name: str, decision: Decision) -> AdmissionResponse:
    title = f"resourceclaim {review.request.namespace}/{name}"
    return responses.decided(review.request.uid, [decision], subject=title)
