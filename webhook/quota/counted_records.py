"""Records of pods and ResourceClaims that count in quotas, in informers.

The pods of a Job differ only in name and node. So they share one blueprint, and ten thousand pods are ten thousand short records.
"""

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from sys import intern
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from policies.gpus.claimed_devices import (
    ClaimStatus,
    DeviceResult,
    ResourceClaim,
    decode_claim,
    owner_pod_uid,
)
from policies.gpus.classes import GPUClasses
from policies.placement.nodes import NO_NODES, NODE_NAME_FIELD, NodeIndex, NodeReference
from policies.placement.pinning import named_nodes
from policies.pods.pod import Container, Metadata, Pod, PodSpec, Resources, decode_pod
from policies.pods.quantity import QuantityText
from policies.quota.amounts import CLASSES, RESOURCES, Amounts, amount_texts
from policies.quota.claim_demand import AllocatedDevice, allocated_demand, beyond_pod, claim_demand
from policies.quota.claim_protection import marked_pod_uid
from policies.quota.demand import Catalogue, UnclassifiedPods, pod_demand
from policies.quota.waiting import GATE, has_quota_gate, names_kueue
from webhook.cluster.informer import Resource
from webhook.cluster.objects import fields_of
from webhook.workloads.gang_sources import SCHEDULING, GangSource, gang_source, owner_source

LONG_PENDING_SECONDS = 600.0
"""A pod that holds quota without a node for this time is shown to administrators: new nodes take a few minutes."""

PODS = Resource("/api/v1", "pods")

KindIndexes = tuple[int | None, ...]
"""Indexes of kinds of devices in the catalogue; None for an unknown device."""


class Blueprint(msgspec.Struct, weakref=True, eq=False):
    """What the demand of a pod or claim depends on (JSON), its demands, and the nodes that a pod without a node selects."""

    document: bytes
    demands: dict[tuple[UnclassifiedPods, Hashable], Amounts]
    nodes: tuple[NodeReference, ...] = ()


class CountedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored pod or claim, its resourceVersion and creationTimestamp. `holder`: its controller (`Job/train`), or itself."""

    uid: str
    namespace: str
    name: str
    holder: str
    version: int
    since: str
    blueprint: Blueprint


class WaitingPod(msgspec.Struct, frozen=True):
    """What decides when a pod under our scheduling gate may start: the index of our gate, other gates, and the priority.

    `may_start_by_kueue`: it claims that Kueue starts it, and no other gate holds it.
    """

    gate: int
    has_other_gate: bool
    priority: int
    may_start_by_kueue: bool = False


class CountedPod(CountedRecord, frozen=True, kw_only=True):
    """`extended_claim` is the name of the ResourceClaim that the scheduler made for the extended resources of the pod.

    `generated_claims` are the names of those that the resource-claim controller made from templates.
    `ended` is when the last container of a terminal pod ended, "" if its status does not say so.
    `is_deleted`: the pod is stored until it has ended, or for its finalizers. It never starts.
    `owner` is its controller as its metadata name it, which may not exist. `never_waits`: one that replaces it waits in no line.
    """

    node_name: str
    is_terminal: bool
    ended: str = ""
    is_deleted: bool = False
    has_succeeded: bool = False
    extended_claim: str
    generated_claims: tuple[str, ...] = ()
    gang_source: GangSource | None = None
    owner: GangSource | None = None
    waiting: WaitingPod | None = None
    never_waits: bool = False

    def is_in_group(self, names: Collection[str]) -> bool:
        """Whether its PodGroup, of Kubernetes' own, has one of the names."""
        source = self.gang_source
        return source is not None and source.api_version == SCHEDULING and source.name in names

    @property
    def waits(self) -> bool:
        """Whether it waits under our scheduling gate."""
        return self.waiting is not None and not self.is_deleted and not self.is_terminal

    @property
    def priority(self) -> int:
        """Its priority in line; 0 if it does not wait."""
        return self.waiting.priority if self.waiting is not None else 0

    @property
    def holds_quota(self) -> bool:
        return not self.is_terminal and self.waiting is None

    @property
    def nodes(self) -> tuple[NodeReference, ...]:
        """The nodes whose labels decide its demand: its own node, or else the nodes that it selects."""
        return ((NODE_NAME_FIELD, self.node_name),) if self.node_name else self.blueprint.nodes

    def owns(self, claim: "CountedClaim") -> bool:
        """Whether a controller made the claim for this pod. A tenant can write the owner of a claim, but no status of a pod."""
        return claim.pod == self.uid and claim.name in (self.extended_claim, *self.generated_claims)

    @property
    def is_bound_with_claims(self) -> bool:
        """Whether it has a node, and claims that controllers made for it."""
        return bool(self.node_name and (self.generated_claims or self.extended_claim))

    def has_final_devices(self, claim: "CountedClaim") -> bool:
        """Whether the scheduler does not choose other devices for the claim any more."""
        is_running = bool(self.node_name) and not self.is_terminal
        return is_running and self.uid in claim.reserved_for and self.owns(claim)


class ClaimedDevice(NamedTuple):
    """A device, or a share of one, that a claim has: for which request, and how much of its capacity."""

    request: str
    driver: str
    pool: str
    name: str
    consumed: tuple[tuple[str, QuantityText], ...] = ()

    @property
    def result(self) -> DeviceResult:
        return DeviceResult(self.request, self.driver, self.pool, self.name, None, dict(self.consumed))


class CountedClaim(CountedRecord, frozen=True, kw_only=True):
    """`extended_pod` is the uid of the pod for whose extended resources the scheduler made the claim, "" for an ordinary claim.

    `reserved_for` are the uids of the pods that may use its devices. The scheduler writes them before it binds a pod, a kubelet
    starts no other pod, and the resource-claim controller removes pods that have ended. `groups` are the names of the PodGroups
    whose pods may use them.

    `pod` is the uid of the pod that owns the claim, "" without one. `devices` are those that it has, of the scheduler's choice;
    administrative access is left out. A claim without an owner counts as admitted, whatever it has.
    """

    extended_pod: str
    reserved_for: tuple[str, ...]
    groups: tuple[str, ...] = ()
    pod: str = ""
    devices: tuple[ClaimedDevice, ...] = ()


class ClaimHistory:
    """What happened to claims before. All catalogues share one object. Thread-safe.

    The first claim that was seen to be made for the extended resources of a pod belongs to it, as long as the pod lives. A later
    claim with that name does not. Admission denies such claims, so a process that has just started meets none.

    A deleted claim whose devices pods still use counts until the last of these pods has ended. The API server deletes a claim in
    use only after somebody removed its finalizer. Admission denies that to tenants, so only administrators can do it, and
    requests that admission did not review. A process that has just started knows no such claim.
    """

    def __init__(self) -> None:
        self._first: dict[str, dict[str, str]] = {}
        """By uid of the pod and name of the claim: the uid of the claim."""
        self._deleted_in_use: dict[str, dict[str, tuple[CountedClaim, float]]] = {}
        """By namespace and uid: the claim, reserved for the pods that have not ended, and when it was deleted (monotonic)."""
        self._lock = threading.Lock()

    def is_first(self, pod: str, name: str, uid: str) -> bool:
        with self._lock:
            return self._first.setdefault(pod, {}).setdefault(name, uid) == uid

    def forget(self, pod: str) -> None:
        with self._lock:
            self._first.pop(pod, None)

    def add_deleted(self, claim: CountedClaim) -> None:
        """Note that a claim was deleted. Usually its pods have ended before, and it is reserved for no pod."""
        if claim.reserved_for:
            with self._lock:
                self._deleted_in_use.setdefault(claim.namespace, {}).setdefault(
                    claim.uid, (claim, monotonic())
                )

    def namespaces(self) -> list[str]:
        with self._lock:
            return list(self._deleted_in_use)

    def gone(self, namespace: str, has_ended: Callable[[str, float], bool]) -> dict[str, CountedClaim]:
        """Return the deleted claims of a namespace that pods still use, by uid, and forget the others. This bounds the memory.

        has_ended: whether the pod with this uid has ended, with the time at which its claim was deleted.
        """
        with self._lock:
            in_use: dict[str, tuple[CountedClaim, float]] = {}
            for uid, (claim, since) in self._deleted_in_use.pop(namespace, {}).items():
                if pods := tuple(pod for pod in claim.reserved_for if not has_ended(pod, since)):
                    in_use[uid] = msgspec.structs.replace(claim, reserved_for=pods), since
            if in_use:
                self._deleted_in_use[namespace] = in_use
            return {uid: claim for uid, (claim, _) in in_use.items()}


class RecordReader:
    """Makes records under one catalogue, and computes their demand. Records with an equal blueprint share it."""

    def __init__(self, catalogue: Catalogue, history: ClaimHistory | None = None) -> None:
        self.catalogue, self._resource_mapping = catalogue, catalogue.resource_mapping
        self._history = history or ClaimHistory()
        self._blueprints: WeakValueDictionary[tuple[str, bytes], Blueprint] = WeakValueDictionary()
        self._lock = threading.Lock()

    def read_pod(self, raw: msgspec.Raw) -> CountedPod | None:
        """Return the record of a pod in JSON. None if the pod has neither demand nor a claim."""
        pod = decode_pod(raw)
        extended = pod.status and pod.status.extended_resource_claim_status
        has_claim = bool(pod.spec.resource_claims or extended)
        waiting = _waiting_pod(pod, raw) if has_quota_gate(pod) else None
        requests_gpus = self._resource_mapping.pod_requests_gpus(pod) or bool(pod.spec.overhead)
        if not has_claim and not requests_gpus and waiting is None:
            return None
        reduced = self._reduced(pod)
        record = CountedPod(
            **self._record_fields(pod.metadata or Metadata(), "Pod", reduced, named_nodes(reduced)),
            node_name=pod.spec.node_name or "",
            is_terminal=pod.is_terminal,
            ended=_ended_at(raw) if pod.is_terminal else "",
            is_deleted=bool(pod.metadata and pod.metadata.deletion_timestamp),
            has_succeeded=pod.has_succeeded,
            extended_claim=extended.resource_claim_name if extended else "",
            generated_claims=_generated_claim_names(pod),
            gang_source=gang_source(pod),
            owner=owner_source(pod.metadata or Metadata()),
            waiting=waiting,
            never_waits=bool(pod.spec.resource_claims),
        )
        if has_claim or waiting is not None:
            return record
        return record if self.demand_of_pod(record, UnclassifiedPods.TOTAL_ONLY, NO_NODES) else None

    def demand_of_pod(
        self, record: CountedPod, unclassified_pods: UnclassifiedPods, nodes: NodeIndex
    ) -> Amounts:
        """Return the demand of the pod. For a pod that waits: its demand once the gate is removed."""
        demands = record.blueprint.demands
        key = unclassified_pods, (bool(record.node_name), tuple(map(nodes.find, record.nodes)))
        if key not in demands:
            pod = decode_pod(record.blueprint.document)
            spec = msgspec.structs.replace(pod.spec, node_name=record.node_name or None)
            demands[key] = pod_demand(
                msgspec.structs.replace(pod, given_spec=spec), self.catalogue, unclassified_pods, nodes=nodes
            ).vector
        return demands[key]

    def read_claim(self, raw: msgspec.Raw) -> CountedClaim:
        claim = decode_claim(raw)
        metadata = claim.metadata or Metadata()
        common = self._record_fields(metadata, "ResourceClaim", ResourceClaim(spec=claim.spec))
        pod = marked_pod_uid(metadata)
        is_extended = bool(pod) and self._history.is_first(pod, common["name"], common["uid"])
        consumers = (claim.status and claim.status.reserved_for) or ()
        pods = tuple(each.uid for each in consumers if (each.api_group, each.resource) == ("", "pods"))
        groups = (
            each.name for each in consumers if (each.api_group, each.resource) == (SCHEDULING, "podgroups")
        )
        return CountedClaim(
            **common,
            extended_pod=pod if is_extended else "",
            reserved_for=pods,
            groups=tuple(groups),
            pod=owner_pod_uid(metadata) if is_extended or not pod else "",
            devices=_claimed_devices(claim.status),
        )

    def adopted(self, claim: CountedClaim) -> CountedClaim:
        """Return the record of another reader with a blueprint of this one, for the demand under this catalogue."""
        blueprint = self._blueprint("ResourceClaim", claim.blueprint.document)
        return msgspec.structs.replace(claim, blueprint=blueprint)

    def demand_of_claim(
        self,
        record: CountedClaim,
        unclassified_pods: UnclassifiedPods,
        pods: Mapping[tuple[str, str], Amounts],
        kinds: KindIndexes = (),
    ) -> Amounts:
        """Return the demand of the claim, less the demand of the pod for which the scheduler made it.

        `pods` has the demand of live pods by uid and `extended_claim`. Only the scheduler and the API server write the status
        of a pod, which names its claim. `kinds` has the index of the kind of each device of the claim, if it counts for its
        devices.
        """
        own = pods.get((record.extended_pod, record.name), {})
        names = {key.removeprefix(RESOURCES): own[key] for key in sorted(own) if key.startswith(RESOURCES)}
        allocated = tuple(
            AllocatedDevice(device.request, kind, device.consumed)
            for device, kind in zip(record.devices, kinds, strict=False)
        )
        demands, key = record.blueprint.demands, (unclassified_pods, (tuple(names.items()), allocated))
        if key not in demands:
            claim = decode_claim(record.blueprint.document)
            claim = beyond_pod(claim, names, self._resource_mapping) if names else claim
            exact = allocated and allocated_demand(claim, allocated, self.catalogue, unclassified_pods)
            demands[key] = exact or claim_demand(claim, self.catalogue, unclassified_pods).vector
        return demands[key]

    def _record_fields(
        self, metadata: Metadata, kind: str, reduced: Pod | ResourceClaim, nodes: Iterable[NodeReference] = ()
    ) -> dict[str, Any]:
        """Return the fields of a CountedRecord. `reduced` has what the demand depends on."""
        document = msgspec.json.encode(reduced, order="sorted")
        return {
            "uid": metadata.uid or "",
            "namespace": metadata.namespace or "",
            "name": metadata.name or "",
            "holder": metadata.controlled_by or f"{kind}/{metadata.name}",
            "version": metadata.version,
            "since": metadata.creation_timestamp or "",
            "blueprint": self._blueprint(kind, document, tuple(nodes)),
        }

    def _blueprint(self, kind: str, document: bytes, nodes: tuple[NodeReference, ...] = ()) -> Blueprint:
        with self._lock:  # a refresh reads in another thread than the watch
            blueprint = self._blueprints.get((kind, document))
            if blueprint is None:
                blueprint = self._blueprints[kind, document] = Blueprint(document, {}, nodes)
        return blueprint

    def _reduced(self, pod: Pod) -> Pod:
        spec = pod.spec
        keys = {key.key for key in self._resource_mapping.fraction_annotations}
        annotations = {key: text for key, text in pod.annotations.items() if key in keys}
        return Pod(
            metadata=Metadata(annotations=annotations) if annotations else None,
            given_spec=PodSpec(
                containers=_reduced_containers(spec.containers),
                init_containers=_reduced_containers(spec.init_containers),
                node_selector=spec.node_selector,
                affinity=spec.affinity,
                overhead=spec.overhead,
            ),
        )


def _generated_claim_names(pod: Pod) -> tuple[str, ...]:
    statuses = (pod.status and pod.status.resource_claim_statuses) or ()
    return tuple(status.resource_claim_name for status in statuses if status.resource_claim_name)


def _claimed_devices(status: ClaimStatus | None) -> tuple[ClaimedDevice, ...]:
    """Return the devices of a claim. Ten thousand claims have equal names of requests, drivers, nodes and devices."""
    allocation = status and status.allocation and status.allocation.devices
    return tuple(
        ClaimedDevice(
            intern(result.request),
            intern(result.driver),
            intern(result.pool),
            intern(result.device),
            tuple(sorted((result.consumed_capacity or {}).items())),
        )
        for result in (allocation and allocation.results) or ()
        if not result.admin_access
    )


class _Terminated(msgspec.Struct, frozen=True, rename="camel"):
    finished_at: str | None = None


class _ContainerState(msgspec.Struct, frozen=True):
    terminated: _Terminated = _Terminated()


class _ContainerStatus(msgspec.Struct, frozen=True):
    state: _ContainerState = _ContainerState()


_CONTAINER_STATUSES = msgspec.json.Decoder(tuple[_ContainerStatus, ...] | None)
_PRIORITY = msgspec.json.Decoder(int | None)


def _ended_at(raw: msgspec.Raw) -> str:
    """Return when the last container of a terminal pod ended, "" if that cannot be read."""
    try:
        statuses = _CONTAINER_STATUSES.decode(fields_of(raw, "status").get("containerStatuses", b"null"))
    except msgspec.MsgspecError:
        return ""
    return max((status.state.terminated.finished_at or "" for status in statuses or ()), default="")


def _waiting_pod(pod: Pod, raw: msgspec.Raw) -> WaitingPod:
    names = [gate.name for gate in pod.spec.scheduling_gates or ()]
    priority = _PRIORITY.decode(fields_of(raw, "spec").get("priority", b"null")) or 0
    has_other_gate = len(names) > 1
    return WaitingPod(names.index(GATE), has_other_gate, priority, names_kueue(pod) and not has_other_gate)


def _reduced_containers(containers: tuple[Container, ...] | None) -> tuple[Container, ...] | None:
    return containers and tuple(
        Container(
            resources=container.resources
            and Resources(limits=container.resources.limits, requests=container.resources.requests),
            restart_policy=container.restart_policy,
        )
        for container in containers
    )


def demand_fields(vector: Amounts, gpu_classes: GPUClasses) -> dict[str, Any]:
    """Return the fields `demand` and `class` (class or family) of a line. No `class` if several classes are possible."""
    names = [key.removeprefix(CLASSES) for key in vector if key.startswith(CLASSES)]
    classes = [name for name in names if gpu_classes.get(name) is not None] or names
    fields: dict[str, Any] = {"demand": amount_texts(vector)} if vector else {}
    if len(classes) == 1:
        fields["class"] = classes[0]
    return fields
