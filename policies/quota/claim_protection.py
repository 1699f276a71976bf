"""Protection of ResourceClaims (DRA): what would make a stored claim, or its devices, count in no quota is denied.

No mode or exemption lifts this, because no rule decides it.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from policies.finding import Edit, Finding, Reason, one_choice
from policies.gpus.claimed_devices import CLAIM, ClaimName, ResourceClaim, owner_pod_uid
from policies.pods.pod import Metadata, Pod

PROTECTED_CLAIM = Reason(
    "ProtectedClaim", "a ResourceClaim must keep an annotation or finalizer that the quota needs"
)

EXTENDED_RESOURCE_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of the claims that the scheduler makes for pods that request DRA devices by a resource name."""

SCHEDULER = "system:kube-scheduler"

FINALIZER = "resource.kubernetes.io/delete-protection"
"""The scheduler adds it before it allocates, and the resource-claim controller removes it after it has cleared the allocation."""


def forged_mark(before: Metadata | None, after: Metadata | None, username: str) -> Finding | None:
    """Deny a claim that a user other than the scheduler marks as made by the scheduler.

    The devices of a marked claim count with their pod, so a forged mark would give devices without demand. `before` is None at a
    creation.
    """
    was, mark = (((each and each.annotations) or {}).get(EXTENDED_RESOURCE_CLAIM) for each in (before, after))
    if mark is None or mark == was or username == SCHEDULER:
        return None
    return Finding(
        reason=PROTECTED_CLAIM,
        path=f"metadata.annotations[{EXTENDED_RESOURCE_CLAIM}]",
        value=mark,
        message=f"must be omitted: only {SCHEDULER} marks the claims that it makes for pods",
        choices=one_choice(Edit(f"metadata.annotations[{EXTENDED_RESOURCE_CLAIM}]")),
        remedy="remove the annotation",
    )


def lost_protection(before: ResourceClaim, after: ResourceClaim) -> Finding | None:
    """Deny an update that removes the finalizer from an allocated claim.

    Without the finalizer, a claim can be deleted while its pods run on. Then its devices count for no object, and the next pod
    gets them, too.
    """
    was, now = (((proposed.metadata and proposed.metadata.finalizers) or ()) for proposed in (before, after))
    is_allocated = before.status is not None and before.status.allocation is not None
    if not is_allocated or FINALIZER not in was or FINALIZER in now:
        return None
    return Finding(
        reason=PROTECTED_CLAIM,
        path="metadata.finalizers",
        message=f"must keep {FINALIZER} while the claim is allocated: pods may be using its devices",
        remedy="delete the pods that use the claim; its controller then removes the finalizer",
    )


def changed_owner(before: ResourceClaim | None, after: ResourceClaim) -> Finding | None:
    """Deny that a claim loses the pod that it was made for, also by the garbage collector, or gets a pod.

    The claim of a pod counts the devices that this pod got. With one that outlives its pod, or that others name, too, another pod
    could get larger ones. `before` is None at a creation, by a user who makes no claims for pods.
    """
    was, now = (owner_pod_uid((proposed and proposed.metadata) or Metadata()) for proposed in (before, after))
    if was == now:
        return None
    finding = Finding(
        reason=PROTECTED_CLAIM,
        path="metadata.ownerReferences",
        message="must keep the Pod that is its controller: the claim counts the devices of this pod, and ends with it",
        remedy="delete the pod without --cascade=orphan, and create a ResourceClaim for pods that share devices",
    )
    if was:
        return finding
    return replace(
        finding,
        message="must not have a Pod as controller: only Kubernetes makes claims for pods, from templates",
        remedy="set controller of the Pod to false, or name a ResourceClaimTemplate in the pod",
    )


def borrowed_claims(
    pod: Pod, namespace: str, is_made_for_pod: Callable[[ClaimName], bool | None]
) -> Iterator[Finding]:
    """Deny a new pod that names a claim which was made for another pod. The scheduler could give it larger devices there.

    is_made_for_pod: None for a claim that could not be read.
    """
    for index, claim in enumerate(pod.spec.resource_claims or ()):
        name = claim.resource_claim_name
        made = is_made_for_pod(ClaimName(CLAIM, namespace, name)) if name else False
        if made is False:
            continue
        finding = Finding(
            reason=PROTECTED_CLAIM,
            path=f"spec.resourceClaims[{index}].resourceClaimName",
            value=name,
            message="must not name a claim that was made from a template: it counts the devices of its own pod alone",
            remedy="name a ResourceClaim that you create for several pods, or the template",
        )
        if made is None:
            finding = replace(finding, message="could not be read", remedy="create the pod again")
        yield finding


def marked_pod_uid(metadata: Metadata) -> str:
    """Return the uid of the pod that the scheduler made the claim for, or ""."""
    is_marked = (metadata.annotations or {}).get(EXTENDED_RESOURCE_CLAIM) == "true"
    return owner_pod_uid(metadata) if is_marked else ""
