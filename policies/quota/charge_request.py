"""What one review asks of a quota, and the quota as a rule sees it.

A creation is reserved under the object's uid, which at validation is final; a change of a stored pod under `uid/request uid`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol

import msgspec

from policies.finding import Finding
from policies.gpus.cards import container_amounts, is_shared
from policies.gpus.claims import ResourceClaim
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.named_nodes import HOSTNAME, NO_NODES, NodeIndex
from policies.pods.names import is_dns_subdomain
from policies.pods.pod import Metadata, Pod
from policies.quota.amounts import Vector, maximum, positive_difference
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.charge import RULE_ID, Catalogues, Charge, UnclassifiedPods, charge_pod
from policies.quota.claims import SCHEDULER, charge_claim, marked_for, uncovered
from policies.quota.ledger.decide import ReservationRequest, ReservationVerdict
from policies.quota.ledger.quota_ledger import QuotaLedger

ChargeOf = Callable[[Catalogues, UnclassifiedPods], Charge]


class ChargedRequest(msgspec.Struct, frozen=True):
    """What a request costs on one ledger, and its reservation: None if it is denied whatever is free."""

    charge: Charge
    request: ReservationRequest | None


class ChargeRequest:
    """What a request costs, by any catalogue and `unclassifiedPods`: worked out when a ledger says by which, once each.

    Of a change, `before` is what the object costs as it is stored, in `version`. `name` is that of a new object, with its kind:
    `pods/train-0`. `is_free` holds by every catalogue.
    """

    def __init__(
        self,
        request_uid: str,
        uid: str,
        catalogues: Catalogues,
        after: ChargeOf,
        before: ChargeOf | None = None,
        *,
        version: int = 0,
        name: str = "",
        controlled_by: str = "",
        is_free: bool = False,
    ) -> None:
        # Only reviews that no API server made lack a uid; each is of an object of its own.
        self._uid, self._request_uid = uid or request_uid, request_uid
        self._own, self._after, self._before = catalogues, after, before
        self._version, self._name = version, name
        self._charges: dict[CatalogueVersion, Charge] = {}
        self.is_free = is_free
        self.controlled_by = controlled_by
        """The controller that made a new object, as holders are named."""
        self.outcome: ReservationOutcome | None = None
        """What the quota of its namespace answered; None until it was asked."""

    @property
    def asks_for_gpus(self) -> bool:
        """Whether it costs anything, or is denied, by our own catalogue: for namespaces without a quota."""
        return bool(self.cost.vector or self.cost.denials)

    @property
    def cost(self) -> Charge:
        """The charge by which a quota decided; where there is none, the one by our own catalogue."""
        if self.is_free:
            return Charge({})
        if self.outcome is not None and self.outcome.ledger is not None:
            return self.outcome.charge
        return self._charge(
            CatalogueVersion(catalogue_digest(self._own), UnclassifiedPods.TOTAL_ONLY), self._own
        )

    def charged(self, ledger: QuotaLedger, published: Mapping[str, Catalogues]) -> ChargedRequest:
        """Charge by both catalogue versions of the ledger, key by key the larger amount; the next one decides what is denied.

        `published` are catalogues by digest. Of what is neither there nor our own nothing can be said; where that is every
        version, it is charged by our own catalogue, and the ledger knows that it is not by its own.
        """
        own = catalogue_digest(self._own)
        known = {**published, own: self._own}
        named = (
            CatalogueVersion.parse(each) for each in (ledger.class_catalogue, ledger.next_catalogue) if each
        )
        catalogue_versions = [each for each in named if each and each.digest in known] or [
            CatalogueVersion(own, ledger.unclassified_pods)
        ]
        charges = [self._charge(each, known[each.digest]) for each in catalogue_versions]
        charge = msgspec.structs.replace(charges[-1], vector=maximum(*(each.vector for each in charges)))
        return ChargedRequest(
            charge, None if charge.denials else self._request(charge.vector, catalogue_versions)
        )

    def _charge(self, catalogue_version: CatalogueVersion, catalogues: Catalogues) -> Charge:
        """Return the charge; of a change what grows, and no denials if the object is stored with some."""
        if catalogue_version not in self._charges:
            charge = self._after(catalogues, catalogue_version.unclassified_pods)
            if self._before is not None:
                before = self._before(catalogues, catalogue_version.unclassified_pods)
                growth, denials = positive_difference(charge.vector, before.vector), charge.denials
                denials = () if before.denials else denials
                charge = msgspec.structs.replace(charge, vector=growth, denials=denials)
            self._charges[catalogue_version] = charge
        return self._charges[catalogue_version]

    def _request(self, demand: Vector, catalogue_versions: Iterable[CatalogueVersion]) -> ReservationRequest:
        if self._before is None:
            return ReservationRequest.creation(
                self._uid, demand, *map(str, catalogue_versions), name=self._name
            )
        uids, version = (self._uid, self._request_uid), self._version
        return ReservationRequest.change(*uids, {}, demand, *map(str, catalogue_versions), version=version)


class ReservationOutcome(msgspec.Struct, frozen=True):
    """The ledger on which a request was decided, None where it was not: there is no quota, or the request is free.

    `charge` is by that ledger. `verdict` is None where the request asked nothing of it, because it is denied whatever is free.
    """

    ledger: QuotaLedger | None = None
    charge: Charge = Charge({})
    verdict: ReservationVerdict | None = None


class QuotaGrant(msgspec.Struct, frozen=True):
    """What a quota grants, what it charges unpinned pods, and what is used and reserved of it, None before it was counted."""

    hard: Vector
    unclassified_pods: UnclassifiedPods
    held: Vector | None = None


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
        """Return what the quota grants and what is held of it, None if there is no quota or it could not be read in time."""
        ...


def charge_request_for_pod(
    request_uid: str, pod: Pod, before: Pod | None, catalogues: Catalogues, nodes: NodeIndex = NO_NODES
) -> ChargeRequest:
    """Return what a review of a pod costs; `before` is the pod as it is stored, if it is, `nodes` are those it may name."""

    def charge(of: Pod) -> ChargeOf:
        return lambda by, unclassified_pods: charge_pod(
            of,
            classes=by.classes,
            resource_mapping=by.resource_mapping,
            unclassified_pods=unclassified_pods,
            nodes=nodes,
        )

    def charge_new(by: Catalogues, unclassified_pods: UnclassifiedPods) -> Charge:
        charged = charge(pod)(by, unclassified_pods)
        denials = (*charged.denials, *_unheld_part(pod, by.resource_mapping))
        return msgspec.structs.replace(charged, denials=denials)

    metadata = pod.metadata or Metadata()
    uid = metadata.uid or ""
    if before is None:
        name, is_free = _qualified("pods", metadata), not _names_a_resource(pod)
        controlled_by = metadata.controlled_by
        return ChargeRequest(
            request_uid, uid, catalogues, charge_new, name=name, controlled_by=controlled_by, is_free=is_free
        )
    version = before.metadata.version if before.metadata else 0
    alike = charge_input(pod) == charge_input(before)
    return ChargeRequest(
        request_uid, uid, catalogues, charge(pod), charge(before), version=version, is_free=alike
    )


def charge_request_for_claim(
    request_uid: str, claim: ResourceClaim, username: str, catalogues: Catalogues
) -> ChargeRequest:
    """Return what a ResourceClaim costs that this user creates; the scheduler's own only what no pod is charged for."""
    metadata = claim.metadata or Metadata()
    is_scheduler = username == SCHEDULER and bool(marked_for(metadata))

    def charge(by: Catalogues, unclassified_pods: UnclassifiedPods) -> Charge:
        mapping = by.resource_mapping
        charged = uncovered(claim, mapping) if is_scheduler else claim
        return charge_claim(
            charged, classes=by.classes, resource_mapping=mapping, unclassified_pods=unclassified_pods
        )

    name = _qualified("resourceclaims", metadata)
    return ChargeRequest(request_uid, metadata.uid or "", catalogues, charge, name=name)


def _unheld_part(pod: Pod, resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield a denial of a new pod that names its node and asks for parts of cards: nobody would hold it to them.

    A kubelet drops extended resources that its node lacks (`removeMissingExtendedResources` in `pkg/kubelet/lifecycle`, v1.36),
    so where no such scheduler runs the pod gets the whole cards. HAMi's webhook denies such pods, too.
    """
    node = pod.body.node_name
    if node and any(is_shared(container_amounts(each.container, resource_mapping)) for each in pod.places):
        yield Finding(
            rule=RULE_ID,
            path="spec.nodeName",
            value=node,
            message="must be omitted beside a limit of GPU memory: only the scheduler that shares GPUs holds a pod to its part",
            remedy=f"set nodeSelector {HOSTNAME}, or remove the limit",
        )


def _qualified(plural: str, metadata: Metadata) -> str:
    """Return the name with its kind; empty where it is none: only a review that no API server made has such an object."""
    return f"{plural}/{metadata.name}" if is_dns_subdomain(metadata.name or "") else ""


def _names_a_resource(pod: Pod) -> bool:
    """Whether some catalogue might charge it: it names an extended resource, or has an annotation, which may be a fraction."""
    requested = ((*place.container.limits, *place.container.requests) for place in pod.places)
    names = chain(pod.body.overhead or (), *requested)
    return bool(pod.annotations) or any("/" in name for name in names)


def charge_input(pod: Pod) -> bytes:
    """Return all of a pod that its charge may depend on, by whatever catalogue, so that what is alike is equal."""
    body = pod.body
    containers = [
        (place.path, place.container.resources, place.container.restart_policy) for place in pod.places
    ]
    placement = (body.node_selector, body.affinity, body.node_name)
    found = containers, body.resources, body.overhead, placement, pod.annotations, pod.is_terminal
    return msgspec.json.encode(found, order="deterministic")
