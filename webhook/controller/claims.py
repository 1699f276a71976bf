"""ResourceClaims (DRA) as the controller keeps them; a claim costs the same whoever shares it, until it is deleted."""

import threading
from collections.abc import Container, Mapping
from weakref import WeakValueDictionary

import msgspec

from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Metadata
from policies.quota.amounts import Vector
from policies.quota.charge import Charge, Unpinned
from policies.quota.claims import (
    EXTENDED_RESOURCE_CLAIM,
    ResourceClaim,
    charge_claim,
    decode_claim,
    is_charged_with_its_pod,
)
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Resource
from webhook.controller.pods import PodRecord, holder

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


def _pods_naming(claim: str, charged: Mapping[str, PodRecord]) -> Container[str]:
    """Return the pods whose status names the claim: only the scheduler and the API server write there."""
    return frozenset(uid for uid, pod in charged.items() if pod.extended_claim == claim)
