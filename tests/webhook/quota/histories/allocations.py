"""When a claim counts for the devices that it has: once its pod is bound, and only if nobody else may use it, now or later."""

from typing import Any
from unittest.mock import patch

import msgspec

from policies.quota.claim_protection import borrowed_claims
from policies.quota.ledger.quota_ledger import Revisions
from policies.quota.ledger.reconcile import StoredObject
from tests.builders import gpu_container, used_by, view
from tests.builders import pod as pod_document
from tests.webhook.quota.histories.setting import admitted, put, world
from tests.webhook.quota.world import NAMESPACE, Controller, Flight, World, vector
from tests.webhook.serving.quota_reviews import Served
from tests.webhook.serving.quota_reviews import claim as claim_document
from webhook.controller.allocations import Allocations
from webhook.quota.counted_records import Blueprint, ClaimedDevice, CountedClaim, CountedPod

COMMON: dict[str, Any] = {
    "namespace": NAMESPACE,
    "holder": "Pod/pod",
    "since": "",
    "blueprint": Blueprint(b"", {}),
}
CLAIM_KIND = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
SMALL, LARGE = 1, 2
BOUND_AT = 8


def pod(node: str = "node", **fields: Any) -> CountedPod:
    """Return the pod for which the claim was generated."""
    names = {"extended_claim": "", "generated_claims": ("claim",), "node_name": node, "is_terminal": False}
    return CountedPod(uid="pod", name="pod", version=BOUND_AT, **{**COMMON, **names, **fields})


def claim(
    *,
    owner: str = "pod",
    devices: tuple[ClaimedDevice, ...] = (ClaimedDevice("gpu", "driver", "pool", "small"),),
) -> CountedClaim:
    names: dict[str, Any] = {
        "uid": "claim",
        "name": "claim",
        "extended_pod": "",
        "pod": owner,
        "devices": devices,
    }
    return CountedClaim(**names, version=5, reserved_for=("pod",), **COMMON)


def counts(
    record: CountedClaim, owner: CountedPod, *, held_at: int = BOUND_AT, awaits_list: bool = True
) -> int:
    """Return the GPUs for which a claim counts that was admitted for 2: 1 if it counts for its small device."""
    allocations = Allocations()
    allocations.find_kinds(record.uid, record.devices, lambda *_: 0)
    if awaits_list:
        allocations.pod_changed(None, owner)
    allocations.reached(held_at)
    return SMALL if allocations.kinds(record, owner) else LARGE


def stored_claim(around: World) -> str:
    """Admit and store a claim that may get 2 GPUs."""
    flight = Flight("claim", vector(gpus=LARGE), vector(gpus=LARGE), around.now)
    assert around.admit(flight)
    around.be_stored(flight)
    count_claim(around, as_=LARGE)
    return flight.uid


def count_claim(around: World, *, as_: int) -> None:
    held = around.list(Controller())
    objects = {**held.listing.objects, "claim": StoredObject(vector(gpus=as_))}
    held.listing = msgspec.structs.replace(held.listing, objects=objects, used=used_by(objects))
    around.reconcile(held)


def a_binding_fails(*, rule: bool) -> World:
    """Count a claim for its devices only once its pod is bound."""
    around = world(gpus=2)
    stored_claim(around)
    count_claim(around, as_=counts(claim(), pod(node="" if rule else "node")))
    admitted(around, gpus=1)
    return around


def a_claim_is_used_by_one_pod_after_another(*, rule: bool) -> World:
    """Count a claim for its devices only if it was generated for one pod."""
    around = world(gpus=2)
    uid = stored_claim(around)
    around.claims[uid] = StoredObject(vector(gpus=SMALL))
    count_claim(around, as_=counts(claim(owner="" if rule else "pod"), pod()))
    flight = around.request(gpus=1)
    if around.admit(flight):
        around.be_stored(flight)
    around.claims[uid] = StoredObject(vector(gpus=LARGE))
    around.check()
    return around


def a_list_of_claims_from_before_the_binding(*, rule: bool) -> World:
    """Believe an allocation only of a list that is not older than the binding."""
    around = world(gpus=2)
    stored_claim(around)
    count_claim(around, as_=counts(claim(), pod(), held_at=BOUND_AT - 1, awaits_list=rule))
    return around


def an_allocation_is_reviewed_and_fails(*, rule: bool) -> World:
    """Give back by a count what an allocation leaves."""
    around = world(gpus=2)
    stored_claim(around)
    if not rule:
        put(around, used=vector(gpus=SMALL))
    count_claim(around, as_=counts(claim(devices=()), pod()) if rule else SMALL)
    return around


def review(*, owned_before: bool | None, owned: bool, user: str) -> bool:
    """Return whether the user may write the claim that a pod is the controller of, or was. None: it is new."""
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "pod", "controller": True}]
    was, now = (
        claim_document("claim", ownerReferences=owner if each else []) for each in (owned_before, owned)
    )
    change: dict[str, Any] = {"kind": CLAIM_KIND, "userInfo": {"username": user}}
    if owned_before is not None:
        change |= {"operation": "UPDATE", "oldObject": was}
    return bool(Served().validate(now, **change).allowed)


def is_used_again(*, is_refused: bool) -> World:
    """Count a claim for its small device, give the rest away, and end its pod: another pod has it allocated again."""
    around = world(gpus=2)
    uid = stored_claim(around)
    around.claims[uid] = StoredObject(vector(gpus=SMALL))
    count_claim(around, as_=counts(claim(), pod()))
    around.be_stored(admitted(around, gpus=1))
    around.claims[uid] = StoredObject({} if is_refused else vector(gpus=LARGE))
    around.check()
    return around


def a_claim_is_taken_from_its_pod(*, rule: bool) -> World:
    """Leave a claim to the pod for which it was made."""
    return is_used_again(is_refused=rule and not review(owned_before=True, owned=False, user="tenant"))


def a_claim_is_orphaned(*, rule: bool) -> World:
    """Leave it to its pod also where the garbage collector would take it."""
    collector = "system:serviceaccount:kube-system:generic-garbage-collector"
    return is_used_again(is_refused=rule and not review(owned_before=True, owned=False, user=collector))


def a_claim_is_given_to_a_pod(*, rule: bool) -> World:
    """Let only who makes claims for pods say whose they are."""
    is_allowed = any(review(owned_before=before, owned=True, user="tenant") for before in (None, False))
    return is_used_again(is_refused=rule and not is_allowed)


def a_pod_names_the_claim_of_another(*, rule: bool) -> World:
    """Let no pod name a claim that was made for another one."""
    return is_used_again(is_refused=rule and is_denied_to_others(is_made_for_pod=True))


def a_pod_names_a_claim_that_was_not_read(*, rule: bool) -> World:
    """Nor one that could not be read."""
    return is_used_again(is_refused=rule and is_denied_to_others(is_made_for_pod=None))


def is_denied_to_others(*, is_made_for_pod: bool | None) -> bool:
    named = [{"name": "gpu", "resourceClaimName": "claim"}]
    other = view(pod_document(gpu_container(), resourceClaims=named))
    return bool([*borrowed_claims(other, NAMESPACE, lambda _: is_made_for_pod)])


def slices_are_fenced_too(*, rule: bool) -> World:
    """Fence on slices: the kinds of devices come from them."""
    around = world(gpus=2)
    uid = stored_claim(around)
    around.claims[uid] = StoredObject(vector(gpus=SMALL))
    old = around.list(Controller())
    around.claims[uid] = StoredObject(vector(gpus=LARGE))  # its device is of another kind now
    around.revisions = msgspec.structs.replace(around.revisions, resource_slices=2)
    around.reconcile(around.list(Controller()))

    def without_slices(self: Revisions, other: Revisions) -> bool:
        return msgspec.structs.astuple(self)[:3] >= msgspec.structs.astuple(other)[:3]

    with patch.object(Revisions, "reaches", Revisions.reaches if rule else without_slices):
        around.reconcile(old)
    return around
