"""The review of workloads, autoscalers, ResourceQuotas and LimitRanges: it warns, and denies only pod templates."""

from itertools import chain

import msgspec

from policies.policy import TemplateMode
from policies.rule import Mode
from policies.rules.disruption import check_pdb
from webhook.cluster.namespaces import decode_budget
from webhook.evaluation.decision import DeadlineExceeded, Decision
from webhook.evaluation.workloads import evaluate_autoscaler, evaluate_workload
from webhook.serving import admission_review as responses
from webhook.serving.admission_review import AdmissionRequest, subject_of
from webhook.serving.handler import Review, ReviewResult, advisory_result, allow
from webhook.workloads.autoscalers import scale_target


def review_templates(review: Review) -> ReviewResult:
    """Check the pod templates of a workload; what they deny is a warning, unless the policy enforces templates."""
    request = review.request
    try:
        document, policy = review.document(request.object), review.policy()
        is_update = request.operation == "UPDATE"
        pods, advice = evaluate_workload(
            review.evaluator, policy, request.kind.key, document, is_update=is_update
        )
    except msgspec.ValidationError as error:
        # A template that cannot be read is the API server's or the operator's to reject, never ours.
        return _unchecked(request, f"could not read the pod template: {error}")
    except DeadlineExceeded:
        # As if it had not answered at all: these webhooks have failurePolicy Ignore, and the pods are checked themselves.
        return _unchecked(request, responses.OUT_OF_TIME)
    decisions = [*chain.from_iterable(pod.decisions for pod in pods), *advice]
    if policy.templates is TemplateMode.ENFORCE:
        response = responses.decided(request.uid, decisions, subject=subject_of(request))
        return ReviewResult(response, decisions)
    return advisory_result(request, decisions)


def _unchecked(request: AdmissionRequest, why: str) -> ReviewResult:
    subject = subject_of(request)
    warnings = responses.warning_texts((), subject=subject, before=[f"{subject}: gpu-admission {why}"])
    return ReviewResult(responses.allowed_response(request.uid, warnings=warnings))


def review_autoscaler(review: Review) -> ReviewResult:
    """Advise on an autoscaler by its target, which is read only if the namespace has a quota, or it may scale to 1 or to zero."""
    request, key, evaluator = review.request, review.request.kind.key, review.evaluator
    policy, quota = review.policy(), evaluator.quota_of(request.namespace)
    has_quota = quota is not None and quota.ledger() is not None
    try:
        data = msgspec.json.decode(review.document(request.object))
        target = scale_target(*key, data)
        if target is None or not (has_quota or target.min_replicas <= 1):
            return allow(review)
        stored = evaluator.facts.find_object(target.in_namespace(request.namespace))
        if stored is None:
            return allow(review)
        is_update = request.operation == "UPDATE"
        decision = evaluate_autoscaler(evaluator, policy, key, data, target, stored, is_update=is_update)
    except (msgspec.ValidationError, DeadlineExceeded, RecursionError):
        return allow(review)
    return advisory_result(request, [decision])


def review_pdb(review: Review) -> ReviewResult:
    """Warn of a PodDisruptionBudget that lets no pod be evicted. Only of one that may, the servers of its namespace are read."""
    request, evaluator = review.request, review.evaluator
    try:
        pdb = decode_budget(review.document(request.object)).spec
    except (msgspec.ValidationError, DeadlineExceeded):
        return allow(review)
    configuration = evaluator.configuration
    servers = None
    if pdb.may_block_all:
        kinds = configuration.workload_kinds
        servers = review.cluster.servers(request.namespace, kinds, evaluator.deadline)
    if not servers:
        return allow(review)
    # Its pods may be made later.
    findings = check_pdb(pdb, servers, configuration.resource_mapping, no_other_pods=False)
    return advisory_result(request, [Decision.of_findings(review.policy(), findings, Mode.WARN)])


def review_for_warnings(review: Review) -> ReviewResult:
    """Review an object that is always admitted, at most with warnings."""
    try:
        document = review.document(review.request.object)
    except (msgspec.ValidationError, DeadlineExceeded):
        return allow(review)
    decision = review.evaluator.advise(review.policy(), review.request.kind.key, document)
    return advisory_result(review.request, [decision])
