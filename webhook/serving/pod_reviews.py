"""The review of a pod: mutate or validate it, and find out who created it."""

import msgspec

from policies.gpus.cards import too_many_resources
from policies.pods.fingerprint import fingerprint_of
from policies.pods.limits import excesses
from policies.pods.pod import Pod, decode_pod
from policies.pods.submission import as_submitted, injected_changes
from policies.quota.quota_request import quota_request_for_pod
from policies.rule import Phase
from webhook.serving import review
from webhook.serving.canary_trace import canary_trace
from webhook.serving.engine import OutOfTime
from webhook.serving.handling import Review, ReviewResult, allow, check_identity, reading, shown_name
from webhook.serving.namespaces import NamespaceUnknown
from webhook.serving.review import AdmissionRequest

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

LONGEST_COMPARED = 64 * 1024
"""Bytes of a pod that is compared with those before it: with managedFields four times what rules read."""

DAEMONSET_CONTROLLER = "system:serviceaccount:kube-system:daemon-set-controller"
CONTROLLER_MANAGER = "system:kube-controller-manager"
"""Who creates the pods of DaemonSets: the former, or the latter where controllers share one identity."""


def review_pod(requested: Review) -> ReviewResult:
    """Mutate or validate a pod; an update is validated with the pod as it is stored."""
    request = requested.request
    with reading():
        pod = decode_pod(requested.document(request.object))
        before = decode_pod(requested.document(request.old_object)) if request.operation == "UPDATE" else None
    name = shown_name(request, pod.metadata)
    if is_mirror_pod(pod, request):
        return ReviewResult(review.allowed(request.uid), name=name)
    policy, evaluator = requested.policy(), requested.evaluator
    mutates = requested.phase is Phase.MUTATE
    fingerprint = fingerprint_of(pod) if memoryview(request.object).nbytes <= LONGEST_COMPARED else None
    decision = too_long = evaluator.too_long(policy, pod, before)
    if decision is None:
        if not mutates:
            check_identity(request, pod.metadata)
        by_daemonset, is_update = made_by_daemonset(pod, request), before is not None
        subject = evaluator.subject(
            policy, pod, made_by_daemonset=by_daemonset, is_update=is_update, fingerprint=fingerprint
        )
        if mutates:
            decision = evaluator.mutate(subject)
        else:
            nodes = evaluator.named_nodes
            demand = quota_request_for_pod(request.uid, pod, before, evaluator.engine.configuration, nodes)
            decision = evaluator.validate(subject, demand)
    trace = canary_trace(pod, decision, requested.now, phase=requested.phase, dry_run=request.dry_run is True)
    title = f"pod {request.namespace}/{name}"
    response = review.decided(request.uid, [decision], subject=title, patch=mutates, trace=trace)
    seen = None if too_long else pod
    return ReviewResult(
        response,
        [decision],
        name,
        pod.metadata,
        pod=seen,
        fingerprint=fingerprint,
    )


def restore_pod(requested: Review) -> ReviewResult:
    """Put back into an update what it lacks of what was injected at creation; all else about it is the API server's.

    So it is allowed also where the pod cannot be read, or where there is no time, or no policy is known.
    """
    request = requested.request
    try:
        pod = decode_pod(requested.document(request.object))
        stored = decode_pod(requested.document(request.old_object))
        injected = injected_changes(stored)
        mapping = requested.engine.configuration.resource_mapping
        if not injected or excesses(pod) or excesses(stored) or too_many_resources(pod, mapping):
            return allow(requested)
        submitted = as_submitted(pod, injected=injected)
        subject = requested.evaluator.subject(requested.policy(), submitted)
        decision = requested.engine.restore(
            subject, stored, request.old_object, request.object, requested.now
        )
    except (msgspec.ValidationError, NamespaceUnknown, OutOfTime):
        return allow(requested)
    name = shown_name(request, pod.metadata)
    response = review.decided(request.uid, [decision], subject=f"pod {request.namespace}/{name}", patch=True)
    return ReviewResult(response, [decision], name, pod.metadata)


def is_mirror_pod(pod: Pod, request: AdmissionRequest) -> bool:
    """Whether a kubelet shows a static pod of its own node: nothing may be added, and denying it would not stop it.

    Anyone can set the annotation, so only the node itself is believed.
    """
    node = pod.spec.node_name
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
