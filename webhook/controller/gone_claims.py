"""ResourceClaims that are gone while pods have their devices: such a claim is charged until the last of these has ended.

The API server deletes a claim in use only after its finalizer was removed, which admission refuses to tenants: so this is about
what was not reviewed, and what administrators do. One memory serves every configuration that is counted by; a process that has
only just started remembers none.
"""

import threading
from collections.abc import Callable
from time import monotonic

import msgspec

from webhook.controller.records import ClaimRecord


class _Gone(msgspec.Struct):
    """A claim as it was held last, those of its pods that are not known to have ended, and since when (monotonic) it is gone."""

    claim: ClaimRecord
    pods: frozenset[str]
    since: float


class GoneClaims:
    """For any number of threads. Bounded by the pods that are stored: a claim without a pod is dropped when it is looked for."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, _Gone]] = {}
        self._lock = threading.Lock()

    def add(self, claim: ClaimRecord) -> None:
        """Note that a claim is gone. Where its pods ended before it, as they mostly do, it is reserved for none of them."""
        if claim.reserved_for:
            gone = _Gone(claim, frozenset(claim.reserved_for), monotonic())
            with self._lock:
                self._of.setdefault(claim.namespace, {}).setdefault(claim.uid, gone)

    def namespaces(self) -> list[str]:
        """Return those in which a claim is gone."""
        with self._lock:
            return list(self._of)

    def held(self, namespace: str, has_ended: Callable[[str, float], bool]) -> dict[str, ClaimRecord]:
        """Return the claims of a namespace that pods still have, by uid, and forget the others.

        has_ended: whether a pod, by its uid, is known to have ended; the moment (monotonic) is from when on a claim is gone that
          was reserved for it.
        """
        with self._lock:
            left: dict[str, _Gone] = {}
            for uid, gone in self._of.get(namespace, {}).items():
                gone.pods = frozenset(pod for pod in gone.pods if not has_ended(pod, gone.since))
                if gone.pods:
                    left[uid] = gone
            if left:
                self._of[namespace] = left
            else:
                self._of.pop(namespace, None)
            return {uid: gone.claim for uid, gone in left.items()}
