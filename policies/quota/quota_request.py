"""The demand of one review, and the answer of the quota.

The reservation of a creation has the object's uid as its id, which is final at validation. The reservation of an update has the
id `uid/request uid`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain

import msgspec

from policies.finding import Finding
from policies.gpus.cards import container_amounts, is_shared
from policies.gpus.claimed_devices import ResourceClaim
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.nodes import HOSTNAME, NO_NODES, NodeIndex
from policies.pods.names import is_dns_subdomain
from policies.pods.pod import Metadata, Pod
from policies.quota.amounts import maximum, positive_difference
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.claim_demand import beyond_unknown_pod, claim_demand
from policies.quota.claim_protection import SCHEDULER, marked_pod_uid
from policies.quota.demand import UNCOUNTABLE_DEVICES, Catalogue, Demand, UnclassifiedPods, pod_demand
from policies.quota.ledger.decide import Line, ReservationRequest, ReservationVerdict, VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT, Reservation, lift_id
from policies.quota.waiting import has_quota_gate, without_gate

DemandOf = Callable[[Catalogue, UnclassifiedPods], Demand]


class QuotaRequest(msgspec.Struct, frozen=True, eq=False):
    """The demand of a request, computed once for each catalogue version that a ledger names.

    For an update, `before` is the demand of the stored object, and `version` its resourceVersion. For a creation, `name` is the
    kind and name: `pods/train-0`. `takes_nothing`: the request has no demand under any catalogue, and its pod does not wait.
    """

    request_uid: str
    uid: str
    catalogue: Catalogue
    after: DemandOf
    before: DemandOf | None = None
    version: int = 0
    name: str = ""
    controlled_by: str = ""
    """The controller of a new object, in the form of a holder: `Job/train`."""
    pod: Pod | None = None
    """The new pod."""
    line: Line = Line.BEHIND
    in_gang: bool = False
    """The new pod may be in a gang, so it waits for the other pods even if it fits."""
    by_kueue: bool = False
    """Kueue may have admitted the new pod, or may yet, so that it starts also beyond the quota: it waits for that."""
    takes_nothing: bool = False
    is_enforced: bool = True
    """Whether a denial counts. If not, the object is admitted in any case."""
    may_exceed: bool = False
    """As in ReservationRequest."""
    demands: dict[CatalogueVersion, Demand] = {}
    """Demands computed so far."""

    @property
    def requests_gpus(self) -> bool:
        """Whether the request has any demand, or denials, by our own catalogue. Used in namespaces without a quota."""
        return bool(self.demand.vector or self.demand.denials)

    @property
    def may_wait(self) -> bool:
        """Whether the object is new and may wait in line."""
        return self.before is None and self.line is Line.BEHIND

    @property
    def demand(self) -> Demand:
        """The demand by our own catalogue, for namespaces without a quota."""
        if self.takes_nothing:
            return Demand({})
        version = CatalogueVersion(catalogue_digest(self.catalogue), UnclassifiedPods.TOTAL_ONLY)
        return self._demand(version, self.catalogue)

    def for_ledger(
        self, ledger: QuotaLedger, published: Mapping[str, Catalogue], *, is_served: bool = True
    ) -> ReservationRequest:
        """Return the request for this ledger. Each key has the larger amount of both catalogue versions of the ledger.

        Denials come from the next version. `published`: catalogues by digest. Versions that are neither published nor our own are
        ignored. If none remains, demand is computed by our own catalogue, and the ledger denies.
        """
        own = catalogue_digest(self.catalogue)
        known = {**published, own: self.catalogue}
        parsed = map(CatalogueVersion.parse, filter(None, (ledger.class_catalogue, ledger.next_catalogue)))
        versions = [version for version in parsed if version and version.digest in known]
        versions = versions or [CatalogueVersion(own, ledger.unclassified_pods)]
        demands = [self._demand(version, known[version.digest]) for version in versions]
        demand = maximum(demand.vector for demand in demands)
        # Only a review that no API server sent lacks a uid. Treat each as a different object.
        uid = self.uid or self.request_uid
        if self.before is None:
            reservation = Reservation(uid, demand, name=self.name)
        elif self.line is Line.LIFTS:
            reservation = Reservation(lift_id(uid, self.request_uid), demand, self.version)
        else:
            reservation = Reservation(f"{uid}/{self.request_uid}", demand, self.version)
        return ReservationRequest(
            reservation=reservation,
            catalogue_versions=frozenset(map(str, versions)),
            denials=demands[-1].denials,
            because=demands[-1].because,
            line=self.line,
            will_need=maximum(demand.will_need for demand in demands),
            owner=self.controlled_by if self.is_enforced else None,
            is_served=is_served,
            may_exceed=self.may_exceed,
        )

    def _demand(self, catalogue_version: CatalogueVersion, catalogue: Catalogue) -> Demand:
        """Return the demand. An update has only its growth, and no denials if the stored object has denials already."""
        if catalogue_version not in self.demands:
            demand = self.after(catalogue, catalogue_version.unclassified_pods)
            if self.before is not None:
                before = self.before(catalogue, catalogue_version.unclassified_pods)
                growth = positive_difference(demand.vector, before.vector)
                denials = () if before.denials else demand.denials
                demand = msgspec.structs.replace(demand, vector=growth, denials=denials)
            self.demands[catalogue_version] = demand
        return self.demands[catalogue_version]


class ReservationOutcome(msgspec.Struct, frozen=True):
    """The ledger that decided a request; None if there is no quota, or the request has no demand.

    `request` is the request to that ledger.
    """

    ledger: QuotaLedger | None = None
    request: ReservationRequest | None = None
    verdict: ReservationVerdict | None = None

    @property
    def is_reserved(self) -> bool:
        """Whether demand was reserved for the request now, not before."""
        return self.verdict is not None and self.verdict.reason is VerdictReason.RESERVED


def decide_alone(
    ledger: QuotaLedger, request: ReservationRequest, *, limit: int = LIMIT, now: int = 0
) -> ReservationOutcome:
    """Decide on one request, and reserve nothing. `limit` and `now` as for `decide`."""
    return ReservationOutcome(ledger, request, decide(ledger, [request], limit=limit, now=now).verdicts[0])


def decide_by_own_catalogue(
    ledger: QuotaLedger,
    request: QuotaRequest,
    catalogue: Catalogue,
    *,
    waiting: int = 0,
    is_served: bool = True,
) -> ReservationOutcome:
    """Decide on one request as if the ledger was counted under this catalogue, and `waiting` pods waited. Reserve nothing.

    is_served: as in ReservationRequest.
    """
    version = CatalogueVersion(catalogue_digest(catalogue), ledger.unclassified_pods)
    counted = msgspec.structs.replace(
        ledger, class_catalogue=str(version), waiting=waiting, scarce={}, marks={}
    )
    return decide_alone(counted, request.for_ledger(counted, {}, is_served=is_served))


class LedgerError(Exception):
    """The ledger could not be read or written. The message says why, for the author of a pod.

    A write that failed may still have been stored. `transient`: another attempt may succeed.
    """

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


def quota_request_for_pod(
    request_uid: str,
    pod: Pod,
    before: Pod | None,
    catalogue: Catalogue,
    nodes: NodeIndex = NO_NODES,
    demands: dict[CatalogueVersion, Demand] | None = None,
    *,
    line: Line = Line.BEHIND,
) -> QuotaRequest:
    """Return the demand of a review of a pod. `before`: the stored pod of an update. `nodes`: the nodes that it may name.

    `demands`: the demands of other new pods with an equal `demand_input`. `line`: LIFTS for an update by the controller,
    NEVER_WAITS for a pod that never gets our gate.
    """

    def demand_of_new(by: Catalogue, unclassified_pods: UnclassifiedPods) -> Demand:
        counted = pod_demand(without_gate(pod), by, unclassified_pods, nodes)
        now, later = ({}, counted.vector) if has_quota_gate(pod) else (counted.vector, {})
        denials = (*counted.denials, *_unlimited_part_denials(pod, by.resource_mapping))
        return msgspec.structs.replace(counted, vector=now, will_need=later, denials=denials)

    metadata = pod.metadata or Metadata()
    uid = metadata.uid or ""
    if before is None:
        return QuotaRequest(
            request_uid,
            uid,
            catalogue,
            demand_of_new,
            name=_kind_and_name("pods", metadata),
            controlled_by=metadata.controlled_by,
            pod=pod,
            line=Line.JOINS if has_quota_gate(pod) else line,
            takes_nothing=not (_names_a_resource(pod) or has_quota_gate(pod)),
            demands={} if demands is None else demands,
        )
    version = before.metadata.version if before.metadata else 0
    takes_nothing = demand_input(pod) == demand_input(before)
    lifts = line is Line.LIFTS and has_quota_gate(before) and not has_quota_gate(pod)
    after, stored = partial(pod_demand, pod, nodes=nodes), partial(pod_demand, before, nodes=nodes)
    return QuotaRequest(
        request_uid,
        uid,
        catalogue,
        after,
        stored,
        version=version,
        line=Line.LIFTS if lifts else Line.BEHIND,
        takes_nothing=takes_nothing,
    )


def quota_request_for_claim(
    request_uid: str, claim: ResourceClaim, username: str, catalogue: Catalogue
) -> QuotaRequest:
    """Return the demand of a new ResourceClaim. A claim that the scheduler makes counts only beyond the demand of its pod."""
    metadata = claim.metadata or Metadata()
    is_scheduler = username == SCHEDULER and bool(marked_pod_uid(metadata))

    def demand(by: Catalogue, unclassified_pods: UnclassifiedPods) -> Demand:
        mapping = by.resource_mapping
        counted = beyond_unknown_pod(claim, mapping) if is_scheduler else claim
        return claim_demand(counted, by, unclassified_pods)

    name = _kind_and_name("resourceclaims", metadata)
    return QuotaRequest(request_uid, metadata.uid or "", catalogue, demand, name=name, line=Line.NEVER_WAITS)


def _unlimited_part_denials(pod: Pod, resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Deny a new pod that names its node and requests parts of cards: no scheduler would limit it to its part.

    The kubelet drops extended resources that its node lacks (`removeMissingExtendedResources` in `pkg/kubelet/lifecycle`,
    v1.37). So without a GPU-sharing scheduler, the pod would get whole cards. HAMi's webhook denies such pods, too.
    """
    node = pod.spec.node_name
    if node and any(is_shared(container_amounts(place.container, resource_mapping)) for place in pod.places):
        yield Finding(
            reason=UNCOUNTABLE_DEVICES,
            path="spec.nodeName",
            value=node,
            message="must be omitted beside a limit of GPU memory: only the scheduler that shares GPUs holds a pod to its part",
            remedy=f"set nodeSelector {HOSTNAME}, or remove the limit",
        )


def _kind_and_name(plural: str, metadata: Metadata) -> str:
    """Return kind and name, or "" for an invalid name, which only a review that no API server sent can have."""
    return f"{plural}/{metadata.name}" if is_dns_subdomain(metadata.name or "") else ""


def _names_a_resource(pod: Pod) -> bool:
    """Whether the pod has demand by some catalogue: it names an extended resource, or may have a fraction annotation."""
    requested = ((*place.container.limits, *place.container.requests) for place in pod.places)
    names = chain(pod.spec.overhead or (), *requested)
    return bool(pod.annotations) or any("/" in name for name in names)


def demand_input(pod: Pod) -> bytes:
    """Return all fields of a pod that its demand may depend on, besides the nodes that it names."""
    spec = pod.spec
    containers = [
        (place.path, place.container.name, place.container.resources, place.container.restart_policy)
        for place in pod.places
    ]
    placement = (spec.node_selector, spec.affinity, spec.node_name)
    state = pod.is_terminal, has_quota_gate(pod)
    fields = containers, spec.resources, spec.overhead, placement, pod.annotations, state
    return msgspec.json.encode(fields, order="deterministic")
