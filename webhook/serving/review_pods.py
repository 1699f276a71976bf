"""The review of a pod: mutate or validate it, and find out who created it."""

from collections.abc import Set as AbstractSet

import msgspec
from msgspec.structs import replace

from policies.gpus.cards import too_many_resources
from policies.pods.injected import as_submitted, author_wrote_node_name, injected_changes, restore
from policies.pods.limits import excesses
from policies.pods.pod import Pod, decode_pod
from policies.pods.workload import NO_OWNER
from policies.policy import EffectivePolicy
from policies.quota.ledger.decide import Line
from policies.quota.quota_request import QuotaRequest, quota_request_for_pod
from policies.quota.waiting import has_quota_gate, without_gate
from policies.rule import Phase
from webhook.canary.traces import canary_trace
from webhook.cluster.namespaces import NamespaceUnknown
from webhook.evaluation.decision import DeadlineExceeded, Decision, Outcome, Violation
from webhook.evaluation.evaluator import Creation, Evaluator
from webhook.evaluation.facts import owner_of
from webhook.evaluation.queue_gate import keep_gate, line_of, queue_pod, without_unwanted_gate
from webhook.serving.admission_review import AdmissionRequest, allowed_response, decided
from webhook.serving.handler import Review, ReviewResult, allow, check_uid_and_name, display_name
from webhook.workloads import creators

LONGEST_CACHED = 64 * 1024
"""A pod with more bytes skips the cache of decisions. JSON with managedFields has some four times the bytes that rules read."""


def review_pod(review: Review) -> ReviewResult:
    """Mutate or validate a pod; an update is validated with the pod as it is stored.

    A pod over quota that may wait gets our scheduling gate at /mutate (`queue_pod`); the controller removes it (`Line.LIFTS`).
    """
    request, evaluator, phase = review.request, review.evaluator, review.phase
    submitted = review.decode(decode_pod, request.object)
    before = review.decode(decode_pod, request.old_object) if request.operation == "UPDATE" else None
    name = display_name(request, submitted.metadata)
    if is_mirror_pod(submitted, request):
        return ReviewResult(allowed_response(request.uid), name=name)
    policy = review.policy()
    # None of lets_wait: the quota denies nothing here, so a gate does no harm.
    has_unwanted_gate = before is None and has_quota_gate(submitted) and evaluator.lets_wait(policy) is False
    pod = without_gate(submitted) if has_unwanted_gate and phase is Phase.MUTATE else submitted
    oversize = decision = evaluator.too_long(policy, pod, before)
    if decision is None and phase is Phase.VALIDATE and before is None:
        decision = evaluator.borrows_claim(policy, pod)
    if decision is None:
        if phase is Phase.VALIDATE:
            check_uid_and_name(request, pod.metadata)
        fingerprint = evaluator.cache.fingerprints.of(pod) if _is_cached(request) else None
        decision = _by_rules(review, policy, pod, fingerprint)
        if has_unwanted_gate:
            decision = without_unwanted_gate(decision, submitted, phase)
        if phase is Phase.MUTATE:
            by_daemonset = made_by_daemonset(pod, request)
            decision = queue_pod(evaluator, decision, pod, request.uid, by_daemonset=by_daemonset)
        else:
            decision = evaluator.reserve(decision, _quota_request(review, pod, before, fingerprint))
    trace = canary_trace(pod, decision, evaluator.now, phase=phase, dry_run=request.dry_run is True)
    subject, patch = f"pod {request.namespace}/{name}", phase is Phase.MUTATE
    response = decided(request.uid, [decision], subject=subject, patch=patch, trace=trace)
    return ReviewResult(response, [decision], name, pod.metadata, pod=None if oversize else pod)


def _by_rules(review: Review, policy: EffectivePolicy, pod: Pod, fingerprint: bytes | None) -> Decision:
    request, evaluator = review.request, review.evaluator
    is_update = request.operation == "UPDATE"
    owner = NO_OWNER  # no rule that reads one checks updates
    if not is_update:
        is_proven = made_by_controller(request)
        owner = owner_of(policy, pod, evaluator.configuration, evaluator.facts, is_proven=is_proven)
    creation = Creation(review.phase, policy, made_by_daemonset(pod, request), owner)
    return evaluator.evaluate(creation, pod, is_update=is_update, fingerprint=fingerprint)


def _is_cached(request: AdmissionRequest) -> bool:
    return memoryview(request.object).nbytes <= LONGEST_CACHED


def _quota_request(review: Review, pod: Pod, before: Pod | None, fingerprint: bytes | None) -> QuotaRequest:
    """Return what a new pod, or a change of the stored pod `before`, demands of the quota."""
    evaluator, cache = review.evaluator, review.evaluator.cache
    if before is None:
        line = line_of(pod, by_daemonset=made_by_daemonset(pod, review.request))
    else:
        line = Line.LIFTS if review.by_controller else Line.BEHIND
    nodes = evaluator.facts.named_nodes()
    demands = cache.demands(pod, fingerprint) if _is_cached(review.request) and before is None else None
    return quota_request_for_pod(
        review.request.uid, pod, before, cache.configuration, nodes, demands, line=line
    )


def restore_pod(review: Review) -> ReviewResult:
    """Put back into an update what was injected at creation and is missing. Only the API server may refuse the update.

    So it is allowed also if the pod cannot be read, no time is left, or the policy is unknown.
    """
    request, evaluator = review.request, review.evaluator
    try:
        pod = decode_pod(review.document(request.object))
        stored = decode_pod(review.document(request.old_object))
        name, injected = display_name(request, pod.metadata), injected_changes(stored)
        mapping = evaluator.configuration.resource_mapping
        lost_gate = has_quota_gate(stored) and not has_quota_gate(pod) and not review.by_controller
        if excesses(pod) or excesses(stored) or too_many_resources(pod, mapping):
            return ReviewResult(allowed_response(request.uid), name=name)
        if not injected and not lost_gate:
            return ReviewResult(allowed_response(request.uid), name=name)
        author_set_node = bool(pod.spec.node_name) and author_wrote_node_name(request.old_object)
        submitted = as_submitted(pod, author_set_node=author_set_node, injected=injected)
        documents = request.old_object, request.object
        decision = restored(evaluator, review.policy(), submitted, stored, injected, documents)
        if lost_gate:
            decision = keep_gate(evaluator, decision, pod)
    except (msgspec.ValidationError, NamespaceUnknown, DeadlineExceeded):
        return allow(review)
    response = decided(request.uid, [decision], subject=f"pod {request.namespace}/{name}", patch=True)
    return ReviewResult(response, [decision], name, pod.metadata)


def restored(
    evaluator: Evaluator,
    policy: EffectivePolicy,
    submitted: Pod,
    stored: Pod,
    injected: AbstractSet[str],
    documents: tuple[bytes, bytes],
) -> Decision:
    """Return the decision on fields that an update lacks, although they were `injected`, and would be today. It denies none.

    `submitted`: the pod of the update as its author submitted it. `documents`: the JSON of the stored pod and of the update.
    """
    today = evaluator.evaluate(Creation(Phase.MUTATE, policy), submitted)
    wanted = {change.what: change.rule for change in today.changes if change.what in injected}
    restoration = restore(stored, *documents, wanted)
    warnings = tuple(Violation(warning, Outcome.WARNED) for warning in restoration.warnings)
    return replace(
        today, violations=warnings, changes=restoration.changes, note=restoration.note, request=None
    )


def is_mirror_pod(pod: Pod, request: AdmissionRequest) -> bool:
    """Whether a kubelet shows a static pod of its own node: nothing may be added, and denying it would not stop it.

    Anyone can set the annotation, so only the node itself is believed.
    """
    node = pod.spec.node_name
    return (
        creators.MIRROR_ANNOTATION in pod.annotations
        and bool(node)
        and request.user_info.username == f"system:node:{node}"
        and "system:nodes" in (request.user_info.groups or ())
    )


def made_by_daemonset(pod: Pod, request: AdmissionRequest) -> bool:
    """Whether the DaemonSet controller created the pod. An owner reference alone proves nothing: anyone can write one."""
    creator = request.user_info.username
    if creator == creators.DAEMONSET_CONTROLLER:
        return True
    return creator == creators.CONTROLLER_MANAGER and creators.has_controller(pod, "DaemonSet", "apps/")


def made_by_controller(request: AdmissionRequest) -> bool:
    """Whether a ServiceAccount of another namespace, or a controller of Kubernetes itself, created the object.

    So the author of a pod does not choose the kind of its owner: tenants have the ServiceAccounts of their own namespace.
    """
    creator = request.user_info.username
    if not creator.startswith(creators.SERVICE_ACCOUNT_PREFIX):
        return creator == creators.CONTROLLER_MANAGER
    return creator.removeprefix(creators.SERVICE_ACCOUNT_PREFIX).partition(":")[0] != request.namespace
