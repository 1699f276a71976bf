"""The review of a pod: mutate or validate it, and find out who created it."""

from collections.abc import Mapping

import msgspec

from policies.gpus.cards import too_many_resources
from policies.gpus.claims import DeviceClassNames
from policies.pods.fingerprint import fingerprint_of
from policies.pods.limits import excesses
from policies.pods.pod import Pod, decode_pod
from policies.pods.submission import as_submitted, injected_changes
from policies.quota.charge_request import charge_request_for_pod
from policies.rule import Mode, Phase
from webhook.serving import review
from webhook.serving.canary_trace import canary_trace
from webhook.serving.engine import MOST_FINDINGS, Decision, OutOfTime, Subject
from webhook.serving.handling import Answered, Review, allow, check_identity, reading, shown_name
from webhook.serving.namespaces import NamespaceUnknown
from webhook.serving.review import AdmissionRequest

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

LONGEST_COMPARED = 64 * 1024
"""Bytes of a pod that is compared with those before it: with managedFields four times what rules read."""

DAEMONSET_CONTROLLER = "system:serviceaccount:kube-system:daemon-set-controller"
CONTROLLER_MANAGER = "system:kube-controller-manager"
"""Who creates the pods of DaemonSets: the former, or the latter where controllers share one identity."""


def review_pod(requested: Review) -> Answered:
    """Mutate or validate a pod; an update is validated with the pod as it is stored."""
    request, engine = requested.request, requested.engine
    with reading():
        pod = decode_pod(requested.document(request.object))
        before = decode_pod(requested.document(request.old_object)) if request.operation == "UPDATE" else None
    name = shown_name(request, pod.metadata)
    if is_mirror_pod(pod, request):
        return Answered(review.allowed(request.uid), name=name)
    policy, by_daemonset = requested.policy(), made_by_daemonset(pod, request)
    mutates, charge_request = requested.phase is Phase.MUTATE, None
    claims: Mapping[str, DeviceClassNames] = {}
    fingerprint = fingerprint_of(pod) if memoryview(request.object).nbytes <= LONGEST_COMPARED else None
    too_long = excesses(pod) or (before and excesses(before))
    if before is None and not too_long:
        too_long = too_many_resources(pod, engine.configuration.resource_mapping)
    if too_long:
        decision = Decision.on(policy, too_long[:MOST_FINDINGS], Mode.ENFORCE)
    elif mutates:
        claims = requested.claims(pod)
        subject = Subject(
            policy=policy,
            pod=pod,
            claims=claims,
            made_by_daemonset=by_daemonset,
            nodes=requested.cluster.nodes(),
            fingerprint=fingerprint,
            deadline=requested.deadline,
        )
        decision = engine.mutate(subject, requested.now)
    else:
        check_identity(request, pod.metadata)
        nodes = requested.cluster.named_nodes()
        charge_request = charge_request_for_pod(request.uid, pod, before, engine.configuration, nodes)
        subject = Subject(
            policy=policy,
            pod=pod,
            claims=requested.claims(pod),
            made_by_daemonset=by_daemonset,
            is_update=before is not None,
            nodes=requested.cluster.nodes(),
            charge_request=charge_request,
            quota=requested.quota(),
            fingerprint=fingerprint,
            deadline=requested.deadline,
        )
        decision = engine.validate(subject, requested.now)
    trace = canary_trace(pod, decision, requested.now, phase=requested.phase, dry_run=request.dry_run is True)
    title = f"pod {request.namespace}/{name}"
    response = review.decided(request.uid, [decision], subject=title, patch=mutates, trace=trace)
    seen = None if too_long else pod
    return Answered(
        response, [decision], name, pod.metadata, pod=seen, claims=claims, charge_request=charge_request
    )


def restore_pod(requested: Review) -> Answered:
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
        subject = Subject(
            policy=requested.policy(),
            pod=as_submitted(pod, injected=injected),
            claims=requested.claims(pod),
            nodes=requested.cluster.nodes(),
            deadline=requested.deadline,
        )
        decision = requested.engine.restore(
            subject, stored, request.old_object, request.object, requested.now
        )
    except (msgspec.ValidationError, NamespaceUnknown, OutOfTime):
        return allow(requested)
    name = shown_name(request, pod.metadata)
    response = review.decided(request.uid, [decision], subject=f"pod {request.namespace}/{name}", patch=True)
    return Answered(response, [decision], name, pod.metadata)


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
