"""Pods as the controller keeps them: who they are, where they stand, and a blueprint from which their charge is computed.

Pods of one Job differ in name and node only, so they share one blueprint, and what was once computed for it: ten thousand
pods are ten thousand short records. A pod that asks for no GPU is not kept at all.
"""

import threading
from collections.abc import Callable, Mapping
from collections.abc import Container as Collection
from weakref import WeakValueDictionary

import msgspec

from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Container, Metadata, OwnerReference, Pod, PodSpec, Resources, decode_pod
from policies.quota.amounts import Vector
from policies.quota.charge import Charge, Unpinned, charge_pod
from policies.quota.claims import (
    EXTENDED_RESOURCE_CLAIM,
    ResourceClaim,
    charge_claim,
    decode_claim,
    is_charged_with_its_pod,
)
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.spec import NAME
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import CLUSTER, Resource
from webhook.quota.documents import GROUP as QUOTA_GROUP
from webhook.quota.documents import PLURAL, VERSION, DocumentError, decode_quota

PODS = Resource("/api/v1", "pods")

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})

Labels = tuple[tuple[str, str], ...]
"""Labels of a node, sorted; only those that tell its class."""


class Blueprint(msgspec.Struct, weakref=True, eq=False):
    """What of a pod its charge depends on, as compact JSON, and the charges that were computed from it."""

    document: bytes
    charges: dict[tuple[Unpinned, Labels | None], Charge]


class PodRecord(msgspec.Struct, frozen=True):
    """A stored pod. `holder` is who is told to hold its GPUs: its controller (`Job/train`) or itself.

    `version` is the resourceVersion; `extended_claim` names the ResourceClaim that the scheduler made for what the pod asks
    for by a resource name.
    """

    uid: str
    namespace: str
    name: str
    holder: str
    node_name: str
    is_terminal: bool
    blueprint: Blueprint
    version: int
    extended_claim: str = ""


class _ExtendedClaim(msgspec.Struct, rename="camel"):
    resource_claim_name: str = ""


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    extended_resource_claim_status: _ExtendedClaim | None = None


class _Body(msgspec.Struct):
    metadata: Metadata
    status: _Status | None = None


_BODY = msgspec.json.Decoder(_Body)


class PodReader:
    """Makes records; `classes` and `resource_mapping` are those of the configuration in force."""

    def __init__(self, classes: ClassCatalogue, resource_mapping: ResourceMapping) -> None:
        self.classes = classes
        self.resource_mapping = resource_mapping
        self._blueprints: WeakValueDictionary[bytes, Blueprint] = WeakValueDictionary()
        self._lock = threading.Lock()

    def record(self, raw: msgspec.Raw) -> PodRecord | None:
        """Return the record of a pod in JSON, None for one that costs nothing."""
        pod = decode_pod(raw)
        if not self.resource_mapping.pod_asks(pod) and not pod.body.overhead:
            return None
        body = _BODY.decode(raw)
        metadata, status = body.metadata, body.status or _Status()
        extended = status.extended_resource_claim_status
        record = PodRecord(
            uid=metadata.uid or "",
            namespace=metadata.namespace or "",
            name=metadata.name or "",
            holder=holder(metadata, "Pod"),
            node_name=pod.body.node_name or "",
            is_terminal=status.phase in TERMINAL_PHASES,
            blueprint=self._blueprint(pod),
            version=metadata.version,
            extended_claim=extended.resource_claim_name if extended else "",
        )
        return record if self.charge(record, Unpinned.TOTAL_ONLY, None).vector else None

    def charge(self, record: PodRecord, unpinned: Unpinned, labels: Labels | None) -> Charge:
        """Return what the pod costs; `labels` are those of its node, None where it has none that is known."""
        key = (unpinned, labels)
        charge = record.blueprint.charges.get(key)
        if charge is None:
            charge = charge_pod(
                decode_pod(record.blueprint.document),
                classes=self.classes,
                resource_mapping=self.resource_mapping,
                unpinned=unpinned,
                node_labels=None if labels is None else dict(labels),
            )
            record.blueprint.charges[key] = charge
        return charge

    def _blueprint(self, pod: Pod) -> Blueprint:
        document = msgspec.json.encode(self._reduced(pod), order="sorted")
        with self._lock:  # a refresh reads pods in another thread than the watch does
            blueprint = self._blueprints.get(document)
            if blueprint is None:
                blueprint = self._blueprints[document] = Blueprint(document, {})
            return blueprint

    def _reduced(self, pod: Pod) -> Pod:
        body = pod.body
        named = {key.key for key in self.resource_mapping.fraction_annotations}
        annotations = {key: text for key, text in pod.annotations.items() if key in named}
        return Pod(
            metadata=Metadata(annotations=annotations) if annotations else None,
            spec=PodSpec(
                containers=_reduced_containers(body.containers),
                init_containers=_reduced_containers(body.init_containers),
                node_selector=body.node_selector,
                affinity=body.affinity,
                overhead=body.overhead,
                resource_claims=body.resource_claims,
            ),
        )


def holder(metadata: Metadata, kind: str) -> str:
    """Return `Job/train` for what a controller owns, else `kind` and its own name."""
    owner: OwnerReference | None = next((o for o in metadata.owner_references or () if o.controller), None)
    return f"{owner.kind}/{owner.name}" if owner else f"{kind}/{metadata.name}"


def labels_of(labels: Mapping[str, str], keys: frozenset[str]) -> Labels:
    """Return the labels under `keys`, in an order that makes equal ones equal."""
    return tuple(sorted((key, value) for key, value in labels.items() if key in keys))


def _reduced_containers(containers: tuple[Container, ...] | None) -> tuple[Container, ...] | None:
    return containers and tuple(
        Container(
            resources=container.resources
            and Resources(limits=container.resources.limits, requests=container.resources.requests),
            restart_policy=container.restart_policy,
        )
        for container in containers
    )


GROUP = "/apis/resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Those that `policies.quota.claims` reads, the best first."""


class ClaimBlueprint(msgspec.Struct, weakref=True, eq=False):
    """The spec of claims, as compact JSON, and the charges that were computed from it."""

    document: bytes
    charges: dict[Unpinned, Charge]


class ClaimRecord(msgspec.Struct, frozen=True):
    """A stored claim. `made_by_scheduler` is what tells whose it is, of one that says the scheduler made it."""

    uid: str
    namespace: str
    name: str
    holder: str
    blueprint: ClaimBlueprint
    version: int
    made_by_scheduler: ResourceClaim | None = None


class _Version(msgspec.Struct):
    version: str


class _Group(msgspec.Struct):
    versions: list[_Version]


def claims_resource(api: ApiClient) -> Resource | None:
    """Return where claims are served, None if this API server has none. Raises `errors.ApiError`."""
    try:
        group = msgspec.json.decode(api.get(GROUP), type=_Group)
    except errors.NotFound:
        return None
    served = {each.version for each in group.versions}
    version = next((version for version in VERSIONS if version in served), None)
    return Resource(f"{GROUP}/{version}", "resourceclaims") if version else None


class ClaimReader:
    """Makes records; `classes` and `resource_mapping` are those of the configuration in force."""

    def __init__(self, classes: ClassCatalogue, resource_mapping: ResourceMapping) -> None:
        self._classes = classes
        self._resource_mapping = resource_mapping
        self._blueprints: WeakValueDictionary[bytes, ClaimBlueprint] = WeakValueDictionary()
        self._lock = threading.Lock()

    def record(self, raw: msgspec.Raw) -> ClaimRecord:
        """Return the record of a claim in JSON."""
        claim = decode_claim(raw)
        metadata = claim.metadata or Metadata()
        return ClaimRecord(
            uid=metadata.uid or "",
            namespace=metadata.namespace or "",
            name=metadata.name or "",
            holder=holder(metadata, "ResourceClaim"),
            blueprint=self._blueprint(claim),
            version=metadata.version,
            made_by_scheduler=_identity(metadata),
        )

    def charge(self, record: ClaimRecord, unpinned: Unpinned, charged: Mapping[str, PodRecord]) -> Vector:
        """Return what the claim costs; `charged` are the live pods, by uid, that are charged for what they ask."""
        special = record.made_by_scheduler
        if special is not None and is_charged_with_its_pod(
            special, by_scheduler=True, charged_pods=_pods_naming(record.name, charged)
        ):
            return {}
        blueprint = record.blueprint
        charge = blueprint.charges.get(unpinned)
        if charge is None:
            claim = decode_claim(blueprint.document)
            charge = blueprint.charges[unpinned] = charge_claim(
                claim, classes=self._classes, resource_mapping=self._resource_mapping, unpinned=unpinned
            )
        return charge.vector

    def _blueprint(self, claim: ResourceClaim) -> ClaimBlueprint:
        document = msgspec.json.encode(ResourceClaim(spec=claim.spec), order="sorted")
        with self._lock:
            blueprint = self._blueprints.get(document)
            if blueprint is None:
                blueprint = self._blueprints[document] = ClaimBlueprint(document, {})
            return blueprint


def _identity(metadata: Metadata) -> ResourceClaim | None:
    mark = (metadata.annotations or {}).get(EXTENDED_RESOURCE_CLAIM)
    if mark is None:
        return None
    kept = Metadata(annotations={EXTENDED_RESOURCE_CLAIM: mark}, owner_references=metadata.owner_references)
    return ResourceClaim(metadata=kept)


def _pods_naming(claim: str, charged: Mapping[str, PodRecord]) -> Collection[str]:
    """Return the pods whose status names the claim: only the scheduler and the API server write there."""
    return frozenset(uid for uid, pod in charged.items() if pod.extended_claim == claim)


NODES = Resource("/api/v1", "nodes")


class NodeRecord(msgspec.Struct, frozen=True):
    uid: str
    name: str
    labels: Labels
    namespace: str = CLUSTER


class _Metadata(msgspec.Struct):
    uid: str
    name: str
    labels: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata


_NODE = msgspec.json.Decoder(_Node)


def node_reader(label_keys: frozenset[str]) -> Callable[[msgspec.Raw], NodeRecord]:
    """Return what makes a record of a node in JSON, keeping the labels under these keys."""

    def record(raw: msgspec.Raw) -> NodeRecord:
        metadata = _NODE.decode(raw).metadata
        return NodeRecord(metadata.uid, metadata.name, labels_of(metadata.labels or {}, label_keys))

    return record


QUOTAS = Resource(f"/apis/{QUOTA_GROUP}/{VERSION}", PLURAL)


class QuotaRecord(msgspec.Struct, frozen=True):
    """The quota of a namespace; `row` is None where it cannot be read, and `problem` says why."""

    uid: str
    namespace: str
    row: QuotaLedger | None = None
    problem: str = ""


class _QuotaMetadata(msgspec.Struct):
    name: str
    namespace: str
    uid: str


class _Quota(msgspec.Struct):
    metadata: _QuotaMetadata


_QUOTA = msgspec.json.Decoder(_Quota)


def quota_record(raw: msgspec.Raw) -> QuotaRecord | None:
    """Return the record of a GPUQuota in JSON, None for one of a name that means nothing."""
    metadata = _QUOTA.decode(raw).metadata
    if metadata.name != NAME:
        return None
    try:
        row = decode_quota(raw).versioned.row
    except DocumentError as error:
        return QuotaRecord(metadata.uid, metadata.namespace, problem=str(error))
    return QuotaRecord(metadata.uid, metadata.namespace, row)
