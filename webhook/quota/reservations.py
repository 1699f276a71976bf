"""What Admission asks of the quota: may this pod, change or claim come in, and what is its author told.

A creation is reserved under the object's uid, which at validation is final; a change of a stored pod under `uid/request uid`.
Nothing is reserved for a dry run, and nothing is ever given back here: whether an object was stored, only a list can tell.
"""

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache

import msgspec

from policies.finding import Finding
from policies.pods.pod import Metadata, Pod
from policies.quota.amounts import positive_difference
from policies.quota.charge import Charge, Unpinned, catalogue_digest, charge_pod, counted_by
from policies.quota.claims import (
    SCHEDULER,
    ResourceClaim,
    charge_claim,
    decode_claim,
    is_charged_with_its_pod,
)
from policies.quota.ledger.decide import ReservationRequest
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.rules.gpu_quota import GpuQuotaOptions, OnLedgerError
from webhook.configuration.loader import Configuration
from webhook.quota import messages as answers
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.store import LedgerError
from webhook.serving.review import AdmissionRequest

Release = Callable[[str, str], None]
"""Gives back what the object of (namespace, uid) holds."""

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
        self._request_uid = request_uid
        self._uid = uid
        self._catalogue = catalogue
        self.after = lru_cache(after)
        self._before = lru_cache(before) if before else None
        self._version = version

    def denials(self, unpinned: Unpinned) -> tuple[Finding, ...]:
        """Return why it may not come in whatever is free. What was let in like that once may change."""
        if self._before is not None and self._before(unpinned).denials:
            return ()
        return self.after(unpinned).denials

    @property
    def is_free(self) -> bool:
        return not any(self.denials(unpinned) or self._growth(unpinned) for unpinned in Unpinned)

    def reservation(self, row: QuotaLedger) -> ReservationRequest | None:
        """Return what is asked of the row; None if it is refused whatever is free."""
        after, catalogue = self.after(row.unpinned), counted_by(self._catalogue, row.unpinned)
        if self.denials(row.unpinned):
            return None
        if self._before is None:
            return ReservationRequest.creation(self._uid, after.vector, catalogue)
        return ReservationRequest.change(
            self._uid,
            self._request_uid,
            self._before(row.unpinned).vector,
            after.vector,
            catalogue,
            version=self._version,
        )

    def _growth(self, unpinned: Unpinned) -> bool:
        before = self._before(unpinned).vector if self._before else {}
        return bool(positive_difference(self.after(unpinned).vector, before))


class QuotaEnforcer:
    """The quota as Admission sees it. `release` is there only for a store that no controller counts."""

    def __init__(
        self,
        batches: ReservationBatcher,
        metrics: QuotaMetrics,
        *,
        release: Release | None = None,
    ) -> None:
        self._batches = batches
        self._metrics = metrics
        self._release = release

    def reserve(
        self,
        request: AdmissionRequest,
        charge_request: ChargeRequest,
        options: GpuQuotaOptions,
        now: datetime,
        deadline: float,
    ) -> list[Finding]:
        """Reserve what the bill says until `deadline` (`monotonic`); return what stands in the way or is worth knowing."""
        if self._batches.has_no_quota(request.namespace) and not options.required:
            self._metrics.decisions.labels("no quota").inc()
            return []
        if charge_request.is_free:
            return []
        decide = self._batches.try_out if request.dry_run else self._batches.reserve
        try:
            answer = decide(request.namespace, charge_request.reservation, deadline)
        except LedgerError as error:
            refuse = options.on_ledger_error is OnLedgerError.DENY
            self._metrics.decisions.labels("ledger error").inc()
            return [answers.ledger_failed(error, refuse=refuse)]
        if answer.row is None:
            self._metrics.decisions.labels("no quota").inc()
            return [answers.no_quota(request.namespace)] if options.required else []
        unpinned = answer.row.unpinned
        if answer.verdict is None:
            self._metrics.decisions.labels("refused").inc()
            return list(charge_request.denials(unpinned))
        self._metrics.decisions.labels(answer.verdict.reason.value).inc()
        charge = charge_request.after(unpinned)
        return list(answers.quota_findings(request.namespace, answer.row, answer.verdict, charge, now))

    def look(self, namespace: str, deadline: float) -> QuotaLedger | None:
        """Return the row of a namespace, for advice: None as well where it cannot be asked in time."""
        try:
            return self._batches.look(namespace, deadline)
        except LedgerError:
            return None

    def release(self, request: AdmissionRequest) -> None:
        """Take note that an object is being deleted. With a cluster the controller sees that for itself."""
        if self._release is not None and not request.dry_run:
            uid = _uid_of(request.old_object)
            if uid:
                self._release(request.namespace, uid)


def charge_request_for_pod(
    request: AdmissionRequest, pod: Pod, before: Pod | None, configuration: Configuration
) -> ChargeRequest:
    """Return what a review of a pod costs; `before` is the pod as it is stored, if it is."""

    def charge(of: Pod) -> ChargeOf:
        return lambda unpinned: charge_pod(
            of,
            classes=configuration.classes,
            resource_mapping=configuration.resource_mapping,
            unpinned=unpinned,
        )

    return ChargeRequest(
        request.uid,
        _final_uid(request, pod.metadata),
        catalogue_digest(configuration.classes, configuration.resource_mapping),
        charge(pod),
        charge(before) if before else None,
        before.metadata.version if before and before.metadata else 0,
    )


def charge_request_for_claim(request: AdmissionRequest, configuration: Configuration) -> ChargeRequest:
    """Return what a new ResourceClaim costs. Raises msgspec.ValidationError."""
    claim = decode_claim(request.object)
    by_scheduler = request.user_info.username == SCHEDULER

    def charge(unpinned: Unpinned) -> Charge:
        if is_charged_with_its_pod(claim, by_scheduler=by_scheduler, charged_pods=_owners(claim)):
            return Charge({})
        return charge_claim(
            claim,
            classes=configuration.classes,
            resource_mapping=configuration.resource_mapping,
            unpinned=unpinned,
        )

    catalogue = catalogue_digest(configuration.classes, configuration.resource_mapping)
    return ChargeRequest(request.uid, _final_uid(request, claim.metadata), catalogue, charge)


def _owners(claim: ResourceClaim) -> frozenset[str]:
    """Return the uids of the owners: the scheduler makes a claim only for a pod that lives, and each of those is charged."""
    owners = (claim.metadata and claim.metadata.owner_references) or ()
    return frozenset(owner.uid for owner in owners)


def _final_uid(request: AdmissionRequest, metadata: Metadata | None) -> str:
    """Return the object's uid. Only reviews that no API server made lack it; each of those is an object of its own."""
    return (metadata and metadata.uid) or request.uid


class _Identified(msgspec.Struct, frozen=True):
    uid: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Identified | None = None


_OBJECT = msgspec.json.Decoder(_Object | None)


def _uid_of(document: msgspec.Raw) -> str:
    try:
        found = _OBJECT.decode(document)
    except msgspec.ValidationError:
        return ""
    return found.metadata.uid if found and found.metadata else ""
