"""Which ResourceClaims (DRA) of a namespace count for the devices that they have, and not as they were admitted.

A claim has its devices for good only if a controller made it for one pod, and that pod was bound. The scheduler deallocates it if
the binding fails, and may then choose larger devices. A claim that other pods may use gets other devices after its pod has ended.
So these claims count as admitted. No other pod gets a claim that was made for one (`policies.quota.claim_protection`). So after
the end of its pod it counts for the same devices until it is deleted, which takes its controller some calls.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from webhook.quota.counted_records import ClaimedDevice, CountedClaim, CountedPod, CountedRecord, KindIndexes

KindOf = Callable[[str, str, str], int | None]
"""Returns the index of the kind of a device by driver, pool and name; None for an unknown device."""


def is_binding(before: CountedRecord | None, after: CountedRecord | None) -> bool:
    """Whether a pod is seen for the first time with a node and with claims that controllers made for it."""
    was, now = (isinstance(pod, CountedPod) and pod.is_bound_with_claims for pod in (before, after))
    return now and not was


class Allocations:
    """What is known of one namespace. The caller holds the lock of its sums."""

    def __init__(self) -> None:
        self._kinds: dict[str, KindIndexes] = {}
        """By uid of a claim with at least one known device. Devices of drivers without GPUs are not known."""
        self._pods: dict[str, str] = {}
        """By uid of a claim that has its devices for good: that of its pod."""
        self._reached = 0
        self._bindings: dict[str, int] = {}
        """By uid of a pod with claims: a revision at which it was bound, which the claims do not reach yet."""

    def pod_changed(self, before: CountedPod | None, after: CountedPod | None) -> None:
        if after is None:
            if before is not None:
                self._bindings.pop(before.uid, None)
        elif is_binding(before, after) and after.version > self._reached:
            self._bindings[after.uid] = after.version

    def reached(self, revision: int) -> list[str]:
        """Note that the claims are held at this revision. Return the pods that were bound before."""
        self._reached = max(self._reached, revision)
        pods = [uid for uid, bound in self._bindings.items() if bound <= self._reached]
        for uid in pods:
            del self._bindings[uid]
        return pods

    @property
    def last_binding(self) -> int:
        return max(self._bindings.values(), default=0)

    @property
    def claims_with_known_devices(self) -> AbstractSet[str]:
        """The uids of the claims whose devices are known."""
        return self._kinds.keys()

    def find_kinds(self, uid: str, devices: tuple[ClaimedDevice, ...], kind_of: KindOf) -> bool:
        """Find the kinds of the devices of a claim. Return whether they differ."""
        before = self._kinds.pop(uid, ())
        kinds = tuple(kind_of(device.driver, device.pool, device.name) for device in devices)
        if any(kind is not None for kind in kinds):
            self._kinds[uid] = kinds
        return before != self._kinds.get(uid, ())

    def note(self, claim: CountedClaim, pod: CountedPod | None) -> None:
        """Note whether the claim has its devices for good. pod: its owner, if that is stored."""
        if self._is_final(claim, pod):
            self._pods[claim.uid] = claim.pod

    def forget(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def with_devices(self, before: CountedClaim | None, claim: CountedClaim) -> CountedClaim:
        """Return a claim that lost its devices with those that it had before for good."""
        is_lost = before is not None and not claim.devices and self._is_final(claim, None)
        return replace(claim, devices=before.devices) if before is not None and is_lost else claim

    def kinds(self, claim: CountedClaim, pod: CountedPod | None) -> KindIndexes:
        """Return the kinds of devices that a claim counts as. Empty if it counts as it was admitted.

        pod: the owner of the claim, if it is stored.
        """
        is_counted = claim.devices and self._is_final(claim, pod)
        return self._kinds.get(claim.uid, ()) if is_counted else ()

    def _is_final(self, claim: CountedClaim, pod: CountedPod | None) -> bool:
        if self._pods.get(claim.uid) == claim.pod and {*claim.reserved_for} <= {claim.pod}:
            return True
        # A list of claims from before the binding may show an allocation that did not last.
        return pod is not None and pod.uid not in self._bindings and pod.has_final_devices(claim)
