"""Pods as the controller keeps them: who they are, where they stand, and a blueprint from which their charge is computed.

Pods of one Job differ in name and node only, so they share one blueprint, and what was once computed for it: ten thousand
pods are ten thousand short records. A pod that asks for no GPU is not kept at all.
"""

import threading
from collections.abc import Mapping
from weakref import WeakValueDictionary

import msgspec

from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Container, Metadata, OwnerReference, Pod, PodSpec, Resources, decode_pod
from policies.quota.charge import Charge, Unpinned, charge_pod
from webhook.cluster.informer import Resource

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
