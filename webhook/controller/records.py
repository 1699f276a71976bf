"""Records of pods, ResourceClaims and ledgers in the controller's informers: identity, and the input of the charge.

Pods of one Job differ in name and node only, so they share one blueprint and the charges computed from it: ten thousand pods are
ten thousand short records. Pods that ask for no GPU and have no claim are not kept. A claim costs the same whoever shares it,
until it is deleted and no pod has its devices any more.
"""

import threading
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from policies.gpus.claims import ResourceClaim, decode_claim
from policies.placement.named_nodes import NO_NODES, NODE_NAME, NodeIndex, NodeReference
from policies.placement.pinning import named_nodes
from policies.pods.pod import Container, Metadata, Pod, PodSpec, Resources, decode_pod
from policies.quota.amounts import RESOURCES, Vector
from policies.quota.claims import beyond_pod, claim_demand, marked_for
from policies.quota.demand import Catalogues, Demand, UnclassifiedPods, pod_demand
from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.cluster.informer import Resource
from webhook.cluster.objects import decode_metadata
from webhook.quota.documents import GROUP, PLURAL, VERSION
from webhook.quota.ledger_objects import PLURAL as LEDGERS
from webhook.quota.ledger_objects import LedgerObjectError, decode_ledger_object
from webhook.quota.store import VersionedLedger

PODS = Resource("/api/v1", "pods")
QUOTAS = Resource(f"/apis/{GROUP}/{VERSION}", PLURAL)


class Blueprint(msgspec.Struct, weakref=True, eq=False):
    """The input of the charge of a pod or a claim, as compact JSON, and the charges computed from it.

    `nodes` are those that a pod selects, as long as it is on none.
    """

    document: bytes
    demands: dict[tuple[UnclassifiedPods, Hashable], Demand]
    nodes: tuple[NodeReference, ...] = ()


class CountedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored object. `holder` is shown as the holder of its GPUs: its controller (`Job/train`) or itself.

    `version` is the resourceVersion, `since` the creationTimestamp.
    """

    uid: str
    namespace: str
    name: str
    holder: str
    version: int
    since: str
    blueprint: Blueprint


class PodRecord(CountedRecord, frozen=True, kw_only=True):
    """`extended_claim` names the ResourceClaim that the scheduler made for what the pod requests by a resource name."""

    node_name: str
    is_terminal: bool
    extended_claim: str

    @property
    def nodes(self) -> tuple[NodeReference, ...]:
        """The nodes by whose labels it is charged: its own, or else those that it selects."""
        return ((NODE_NAME, self.node_name),) if self.node_name else self.blueprint.nodes


class ClaimRecord(CountedRecord, frozen=True, kw_only=True):
    """`made_for` is the uid of the pod for which the scheduler made the claim, "" if it made it for none.

    `reserved_for` are the uids of the pods that may use its devices: the scheduler writes them before it binds a pod, a kubelet
    starts no other one, and the resource-claim controller removes those that have ended.
    """

    made_for: str
    reserved_for: tuple[str, ...]


class CountedPod(NamedTuple):
    """A live pod: the claim that its status names, and what it is charged."""

    extended_claim: str
    demand: Vector


class ExtendedClaims:
    """Which claim each pod was given for its extended resources: the first of its name that was seen, for the life of the pod.

    A claim that somebody made again under that name is not the pod's. Admission refuses it, so a process that has only just
    started, and remembers nothing, sees none. One memory serves every configuration that is counted by.
    """

    def __init__(self) -> None:
        self._first: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    def is_first(self, pod: str, name: str, uid: str) -> bool:
        """Whether the claim `uid` is the first of that name that was made for the pod."""
        with self._lock:
            return self._first.setdefault(pod, {}).setdefault(name, uid) == uid

    def forget(self, pod: str) -> None:
        with self._lock:
            self._first.pop(pod, None)


class _Reader:
    """Makes records under one configuration, equal blueprints once."""

    def __init__(self, catalogues: Catalogues) -> None:
        self._catalogues, self._resource_mapping = catalogues, catalogues.resource_mapping
        self._blueprints: WeakValueDictionary[bytes, Blueprint] = WeakValueDictionary()
        self._lock = threading.Lock()

    def _common(
        self, metadata: Metadata, kind: str, reduced: Pod | ResourceClaim, nodes: Iterable[NodeReference] = ()
    ) -> dict[str, Any]:
        """Return the fields of a CountedRecord; `reduced` is the input of its charge."""
        return {
            "uid": metadata.uid or "",
            "namespace": metadata.namespace or "",
            "name": metadata.name or "",
            "holder": metadata.controlled_by or f"{kind}/{metadata.name}",
            "version": metadata.version,
            "since": metadata.creation_timestamp or "",
            "blueprint": self._blueprint(msgspec.json.encode(reduced, order="sorted"), tuple(nodes)),
        }

    def _blueprint(self, document: bytes, nodes: tuple[NodeReference, ...] = ()) -> Blueprint:
        with self._lock:  # a refresh reads in another thread than the watch does
            blueprint = self._blueprints.get(document)
            if blueprint is None:
                blueprint = self._blueprints[document] = Blueprint(document, {}, nodes)
        return blueprint


class PodReader(_Reader):
    """Makes records of pods, and computes what they cost."""

    def record(self, raw: msgspec.Raw) -> PodRecord | None:
        """Return the record of a pod in JSON, None if it costs nothing and has no claim."""
        pod = decode_pod(raw)
        extended = pod.status and pod.status.extended_resource_claim_status
        has_claim = bool(pod.spec.resource_claims or extended)
        if not has_claim and not self._resource_mapping.pod_asks(pod) and not pod.spec.overhead:
            return None
        reduced = self._reduced(pod)
        record = PodRecord(
            **self._common(pod.metadata or Metadata(), "Pod", reduced, named_nodes(reduced)),
            node_name=pod.spec.node_name or "",
            is_terminal=pod.is_terminal,
            extended_claim=extended.resource_claim_name if extended else "",
        )
        return (
            record if has_claim or self.demand(record, UnclassifiedPods.TOTAL_ONLY, NO_NODES).vector else None
        )

    def demand(self, record: PodRecord, unclassified_pods: UnclassifiedPods, nodes: NodeIndex) -> Demand:
        """Return what the pod costs."""
        places = bool(record.node_name), tuple(map(nodes.find, record.nodes))
        demands = record.blueprint.demands
        if (unclassified_pods, places) not in demands:
            pod = decode_pod(record.blueprint.document)
            body = msgspec.structs.replace(pod.spec, node_name=record.node_name or None)
            demands[unclassified_pods, places] = pod_demand(
                msgspec.structs.replace(pod, given_spec=body),
                self._catalogues,
                unclassified_pods,
                nodes=nodes,
            )
        return demands[unclassified_pods, places]

    def _reduced(self, pod: Pod) -> Pod:
        body = pod.spec
        named = {key.key for key in self._resource_mapping.fraction_annotations}
        annotations = {key: text for key, text in pod.annotations.items() if key in named}
        return Pod(
            metadata=Metadata(annotations=annotations) if annotations else None,
            given_spec=PodSpec(
                containers=_reduced_containers(body.containers),
                init_containers=_reduced_containers(body.init_containers),
                node_selector=body.node_selector,
                affinity=body.affinity,
                overhead=body.overhead,
            ),
        )


def _reduced_containers(containers: tuple[Container, ...] | None) -> tuple[Container, ...] | None:
    return containers and tuple(
        Container(
            resources=container.resources
            and Resources(limits=container.resources.limits, requests=container.resources.requests),
            restart_policy=container.restart_policy,
        )
        for container in containers
    )


class ClaimReader(_Reader):
    """Makes records of claims, and computes what they cost."""

    def __init__(self, catalogues: Catalogues, given: ExtendedClaims) -> None:
        super().__init__(catalogues)
        self._given = given

    def record(self, raw: msgspec.Raw) -> ClaimRecord:
        claim = decode_claim(raw)
        metadata = claim.metadata or Metadata()
        common = self._common(metadata, "ResourceClaim", ResourceClaim(spec=claim.spec))
        pod = marked_for(metadata)
        is_given = bool(pod) and self._given.is_first(pod, common["name"], common["uid"])
        consumers = (claim.status and claim.status.reserved_for) or ()
        pods = tuple(each.uid for each in consumers if (each.api_group, each.resource) == ("", "pods"))
        return ClaimRecord(**common, made_for=pod if is_given else "", reserved_for=pods)

    def adopted(self, record: ClaimRecord) -> ClaimRecord:
        """Return a record that another reader made, to be charged by this one's configuration."""
        return msgspec.structs.replace(record, blueprint=self._blueprint(record.blueprint.document))

    def demand(
        self, record: ClaimRecord, unclassified_pods: UnclassifiedPods, pods: Mapping[str, CountedPod]
    ) -> Vector:
        """Return what the claim costs, if the scheduler made it for one of the live `pods` beyond what that one is charged."""
        pod = pods.get(record.made_for)
        # Only the scheduler and the API server write a pod's status, which names its claim.
        own = pod.demand if pod is not None and pod.extended_claim == record.name else {}
        names = {key.removeprefix(RESOURCES): own[key] for key in sorted(own) if key.startswith(RESOURCES)}
        demands, key = record.blueprint.demands, (unclassified_pods, tuple(names.items()))
        if key not in demands:
            claim = decode_claim(record.blueprint.document)
            demands[key] = claim_demand(
                beyond_pod(claim, names, self._resource_mapping) if names else claim,
                self._catalogues,
                unclassified_pods,
            )
        return demands[key].vector


class LedgerRecord(msgspec.Struct, frozen=True):
    """A ledger as its watch showed it last; `versioned` is None if it cannot be read, and `problem` says why.

    `namespace` is that of which it is the ledger, not the one that it is in.
    """

    uid: str
    namespace: str
    versioned: VersionedLedger | None = None
    problem: str = ""

    @property
    def ledger(self) -> QuotaLedger | None:
        return None if self.versioned is None else self.versioned.ledger


def ledger_record(raw: msgspec.Raw) -> LedgerRecord:
    """Return the record of a GPUQuotaLedger in JSON."""
    metadata = decode_metadata(raw)
    try:
        return LedgerRecord(metadata.uid, metadata.name, decode_ledger_object(raw))
    except LedgerObjectError as error:
        return LedgerRecord(metadata.uid, metadata.name, problem=str(error))


def ledgers(installation: str) -> Resource:
    """Return the ledgers of an installation, those in its namespace alone."""
    return Resource(f"/apis/{GROUP}/{VERSION}/namespaces/{installation}", LEDGERS, in_full=True)
