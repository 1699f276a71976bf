"""Deleted ResourceClaims whose devices pods still use. Such a claim counts until the last of these pods has ended.

The API server deletes a claim in use only after somebody removed its finalizer. Admission denies that to tenants, so only
administrators can do it, and requests that admission did not review. A controller that has just started knows no such claim.
"""

import threading
from collections.abc import Callable
from time import monotonic

from msgspec.structs import replace

from webhook.controller.records import ClaimRecord


class GoneClaims:
    """For any number of threads. All catalogues share one object. `held` drops a claim without a pod, which bounds the memory."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, tuple[ClaimRecord, float]]] = {}
        """By namespace and uid: the claim, reserved for the pods that have not ended, and when it was deleted (monotonic)."""
        self._lock = threading.Lock()

    def add(self, claim: ClaimRecord) -> None:
        """Note that a claim was deleted. Mostly its pods have ended before, and it is reserved for no pod."""
        if claim.reserved_for:
            with self._lock:
                self._of.setdefault(claim.namespace, {}).setdefault(claim.uid, (claim, monotonic()))

    def namespaces(self) -> list[str]:
        with self._lock:
            return list(self._of)

    def held(self, namespace: str, has_ended: Callable[[str, float], bool]) -> dict[str, ClaimRecord]:
        """Return the claims of a namespace that pods still use, by uid, and forget the others.

        has_ended: whether the pod with this uid has ended, with the time at which its claim was deleted.
        """
        with self._lock:
            left: dict[str, tuple[ClaimRecord, float]] = {}
            for uid, (claim, since) in self._of.get(namespace, {}).items():
                if pods := tuple(pod for pod in claim.reserved_for if not has_ended(pod, since)):
                    left[uid] = replace(claim, reserved_for=pods), since
            if left:
                self._of[namespace] = left
            else:
                self._of.pop(namespace, None)
            return {uid: claim for uid, (claim, _) in left.items()}
