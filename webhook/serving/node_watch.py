"""Which nodes the cluster has, for `policies.placement.nodes`.

They are watched as metadata only, and of each only the labels are kept by which classes know their nodes, equal ones once.
Karpenter's NodePools, where that API is served, are listed once a minute: they are few, and change by hand. Whatever is not known
for certain makes `facts` None, so that nobody is warned of nodes that are there.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

import msgspec

from policies.placement.nodes import Labels, NodeFacts, NodePool
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import CLUSTER, Informer, Resource, WatchTimings

NODES = Resource("/api/v1", "nodes", metadata_only=True)
KARPENTER = "/apis/karpenter.sh"
VERSIONS = ("v1", "v1beta1")

PROVIDER_DOMAINS = ("karpenter.k8s.aws/", "karpenter.azure.com/", "eks.amazonaws.com/")
"""Labels that Karpenter's providers put on nodes by the kind of machine: a pool that says nothing of them may have any value.
Any other label is only on nodes of a pool that names it (Karpenter, concepts/scheduling: user-defined labels).
"""

LOOK_SECONDS = 2.0
POOL_SECONDS = 60.0
STALE_SECONDS = 150.0
"""Silence of the watch after which nothing is said: two and a half bookmarks."""

log = logging.getLogger("gpu_admission.nodes")


class _Node(msgspec.Struct, frozen=True):
    uid: str
    labels: Labels
    namespace: str = CLUSTER


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


class _Demand(msgspec.Struct):
    key: str
    operator: str = "In"
    values: tuple[str, ...] | None = None


class _TemplateSpec(msgspec.Struct):
    requirements: tuple[_Demand, ...] | None = None


class _Template(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _TemplateSpec | None = None


class _PoolSpec(msgspec.Struct):
    template: _Template = msgspec.field(default_factory=_Template)


class _Pool(msgspec.Struct):
    metadata: _Metadata
    spec: _PoolSpec


class _Version(msgspec.Struct):
    version: str


class _Group(msgspec.Struct):
    versions: list[_Version]


_OBJECT = msgspec.json.Decoder(_Object)
_POOL = msgspec.json.Decoder(_Pool)


class NodeWatch:
    """`keys` are the labels by which the classes in force know their nodes; `run` is the body of a thread."""

    def __init__(
        self,
        api: ApiClient,
        keys: Callable[[], frozenset[str]],
        *,
        pace: WatchTimings | None = None,
        pool_seconds: float = POOL_SECONDS,
    ) -> None:
        self._api = api
        self._keys = keys
        self._pace = pace
        self._pool_seconds = pool_seconds
        self._nodes: _Nodes | None = None
        self._pools: tuple[frozenset[str], tuple[NodePool, ...]] | None = None
        self._facts: NodeFacts | None = None
        self._pools_read = 0.0
        self._told = ""

    def facts(self) -> NodeFacts | None:
        """Return what is known now, None where that is not all there is to know."""
        nodes, pools = self._nodes, self._pools
        if nodes is None or pools is None or pools[0] != nodes.keys or not nodes.is_current:
            return None
        known, label_sets = self._facts, nodes.label_sets
        if known is None or (known.keys, known.label_sets, known.pools) != (nodes.keys, label_sets, pools[1]):
            # Kept as long as it holds: it remembers what it made of its labels.
            known = self._facts = NodeFacts(keys=nodes.keys, label_sets=label_sets, pools=pools[1])
        return known

    def start(self) -> None:
        """Follow the cluster for as long as the process lives."""
        threading.Thread(target=self.run, args=(threading.Event(),), name="nodes", daemon=True).start()

    def run(self, stopping: threading.Event) -> None:
        """Follow the cluster until `stopping`."""
        while not stopping.is_set():
            keys = self._keys()
            if self._nodes is None or self._nodes.keys != keys:
                if self._nodes is not None:
                    self._nodes.stop()
                self._nodes = _Nodes(self._api, keys, self._pace)
                self._pools_read = 0.0
            if not self._pools_read or monotonic() - self._pools_read > self._pool_seconds:
                self._read_pools(keys)
            stopping.wait(LOOK_SECONDS)
        if self._nodes is not None:
            self._nodes.stop()

    def _read_pools(self, keys: frozenset[str]) -> None:
        self._pools_read = monotonic()
        try:
            self._pools = keys, tuple(node_pools(self._api, keys))
            self._told = ""
        except (errors.ApiError, msgspec.MsgspecError) as error:
            self._pools = None
            if self._told != str(error):
                log.warning("no warnings of classes without nodes: node pools: %s", error)
            self._told = str(error)


class _Nodes:
    """The nodes as labels under `keys`. The watch of other keys is another object."""

    def __init__(self, api: ApiClient, keys: frozenset[str], pace: WatchTimings | None) -> None:
        self.keys = keys
        self._changes = 0
        self._seen: tuple[int, frozenset[Labels]] = (-1, frozenset())
        self._interned: dict[Labels, Labels] = {}
        self._mirror: Informer[_Node] = Informer(api, NODES, self._read, self._changed, pace=pace)
        self._stopping = threading.Event()
        threading.Thread(
            target=self._mirror.run, args=(self._stopping,), name="watch nodes", daemon=True
        ).start()

    @property
    def is_current(self) -> bool:
        return self._mirror.synced and self._mirror.age < STALE_SECONDS

    @property
    def label_sets(self) -> frozenset[Labels]:
        """Every label set that a node has, computed once a change; most events of nodes change no label."""
        changes = self._changes  # read first: what changes meanwhile is read again next time
        seen = self._seen
        if seen[0] != changes:
            seen = self._seen = changes, frozenset(node.labels for node in self._mirror.all())
            self._interned = {labels: labels for labels in seen[1]}
        return seen[1]

    def stop(self) -> None:
        self._stopping.set()

    def _read(self, raw: msgspec.Raw) -> _Node:
        metadata = _OBJECT.decode(raw).metadata
        pairs = ((key, value) for key, value in (metadata.labels or {}).items() if key in self.keys)
        labels = tuple(sorted(pairs))
        return _Node(metadata.uid, self._interned.setdefault(labels, labels))

    def _changed(self, _before: _Node | None, _after: _Node | None) -> None:
        self._changes += 1


def node_pools(api: ApiClient, keys: frozenset[str]) -> Iterator[NodePool]:
    """Yield what Karpenter may make; nothing where it is not installed. Raises `errors.ApiError`."""
    try:
        group = msgspec.json.decode(api.get(KARPENTER), type=_Group)
    except errors.NotFound:
        return
    served = {each.version for each in group.versions}
    version = next((version for version in VERSIONS if version in served), None)
    if version is not None:
        resource = Resource(f"{KARPENTER}/{version}", "nodepools")
        for pool in api.list(resource.path(), _POOL.decode).items:
            yield _node_pool(pool, keys)


def _node_pool(pool: _Pool, keys: Iterable[str]) -> NodePool:
    template = pool.spec.template
    given = (template.metadata and template.metadata.labels) or {}
    values: dict[str, tuple[str, ...] | None] = dict.fromkeys(
        (key for key in keys if key.startswith(PROVIDER_DOMAINS)), None
    )
    for demand in (template.spec and template.spec.requirements) or ():
        # Of the other operators only the values are open: the pool makes what a pod demands.
        values[demand.key] = demand.values if demand.operator == "In" else None
    values.update({key: (value,) for key, value in given.items()})
    return NodePool(pool.metadata.name, tuple(sorted((key, values[key]) for key in keys if key in values)))
