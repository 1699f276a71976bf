"""What one review asks of a quota, and the quota as a rule sees it.

A creation is reserved under the object's uid, which at validation is final; a change of a stored pod under `uid/request uid`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import msgspec

from policies.finding import Finding
from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.pods.pod import Metadata, Pod
from policies.quota.amounts import Vector, positive_difference
from policies.quota.charge import Catalogues, Charge, Unpinned, catalogue_digest, charge_pod, counted_by
from policies.quota.claims import SCHEDULER, ResourceClaim, charge_claim, is_charged_with_its_pod
from policies.quota.ledger.decide import ReservationRequest, ReservationVerdict
from policies.quota.ledger.quota_ledger import QuotaLedger

ChargeOf = Callable[[Unpinned], Charge]


class ChargeRequest:
    """What a request costs, depending on what the quota says of unpinned pods; each worked out once.

    Of a change, `before` is what the object costs as it is stored, in `version`.
    """

    def __init__(
        self,
        request_uid: str,
        uid: str,
        catalogue: str,
        after: ChargeOf,
        before: ChargeOf | None = None,
        version: int = 0,
    ) -> None:
        # Only reviews that no API server made lack a uid; each is of an object of its own.
        self._uid, self._request_uid = uid or request_uid, request_uid
        self._catalogue, self._version = catalogue, version
        self.after, self._before = lru_cache(after), lru_cache(before) if before else None

    def denials(self, unpinned: Unpinned) -> tuple[Finding, ...]:
        """Return what denies it whatever is free. A stored object that was admitted like that may change."""
        if self._before is not None and self._before(unpinned).denials:
            return ()
        return self.after(unpinned).denials

    @property
    def is_free(self) -> bool:
        def grows(unpinned: Unpinned) -> bool:
            before = self._before(unpinned).vector if self._before else {}
            return bool(positive_difference(self.after(unpinned).vector, before))

        return not any(self.denials(unpinned) or grows(unpinned) for unpinned in Unpinned)

    def reservation(self, ledger: QuotaLedger) -> ReservationRequest | None:
        """Return what is asked of the ledger; None if it is denied whatever is free."""
        after, catalogue = self.after(ledger.unpinned), counted_by(self._catalogue, ledger.unpinned)
        if self.denials(ledger.unpinned):
            return None
        if self._before is None:
            return ReservationRequest.creation(self._uid, after.vector, catalogue)
        before = self._before(ledger.unpinned).vector
        return ReservationRequest.change(
            self._uid, self._request_uid, before, after.vector, catalogue, version=self._version
        )


class ReservationOutcome(msgspec.Struct, frozen=True):
    """The ledger on which a request was decided, None where it was not: there is no quota, or the request is free.

    `verdict` is None where the request asked nothing of the ledger, because it is denied whatever is free.
    """

    ledger: QuotaLedger | None = None
    verdict: ReservationVerdict | None = None


class QuotaGrant(msgspec.Struct, frozen=True):
    """The spec of a quota: what it grants, and what it charges unpinned pods."""

    hard: Vector
    unpinned: Unpinned


class LedgerError(Exception):
    """The ledger could not be read or written; the message says why, for the author of a pod.

    Of a write it is not known whether it happened. `transient`: another attempt may succeed.
    """

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


class NamespaceQuota(Protocol):
    """The quota of a review's namespace, asked by the deadline of the review."""

    def reserve(self, charge_request: ChargeRequest) -> ReservationOutcome:
        """Decide, and reserve what the request grows by unless it is a dry run. Raises LedgerError."""
        ...

    def grant(self) -> QuotaGrant | None:
        """Return the quota's spec, None if there is no quota or it could not be read in time."""
        ...


def charge_request_for_pod(
    request_uid: str, pod: Pod, before: Pod | None, catalogues: Catalogues, nodes: NodeIndex = NO_NODES
) -> ChargeRequest:
    """Return what a review of a pod costs; `before` is the pod as it is stored, if it is, `nodes` are those it may name."""
    classes, mapping = catalogues.classes, catalogues.resource_mapping

    def charge(of: Pod) -> ChargeOf:
        return lambda unpinned: charge_pod(
            of, classes=classes, resource_mapping=mapping, unpinned=unpinned, nodes=nodes
        )

    uid, catalogue = (pod.metadata and pod.metadata.uid) or "", catalogue_digest(classes, mapping)
    if before is None:
        return ChargeRequest(request_uid, uid, catalogue, charge(pod))
    version = before.metadata.version if before.metadata else 0
    return ChargeRequest(request_uid, uid, catalogue, charge(pod), charge(before), version)


def charge_request_for_claim(
    request_uid: str, claim: ResourceClaim, username: str, catalogues: Catalogues
) -> ChargeRequest:
    """Return what a ResourceClaim costs that this user creates."""
    metadata = claim.metadata or Metadata()
    # The scheduler makes a claim only for a pod that lives, and each of those is charged.
    owners = frozenset(owner.uid for owner in metadata.owner_references or ())
    classes, mapping = catalogues.classes, catalogues.resource_mapping

    def charge(unpinned: Unpinned) -> Charge:
        if is_charged_with_its_pod(claim, by_scheduler=username == SCHEDULER, charged_pods=owners):
            return Charge({})
        return charge_claim(claim, classes=classes, resource_mapping=mapping, unpinned=unpinned)

    return ChargeRequest(request_uid, metadata.uid or "", catalogue_digest(classes, mapping), charge)
