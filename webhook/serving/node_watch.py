"""The nodes of the cluster, for `policies.placement`.

Of each node, the watch keeps the labels by which classes select nodes and pods choose hardware, the taints, whether it is
cordoned, and the names of its extended resources; with such resources, all labels. The status updates of kubelets do not change
these. Equal values share memory. Karpenter's NodePools are listed once a minute, if the API server serves them.

While something is not known, `facts` returns None, so that no warning is wrong. `index` then has no nodes, so that no demand is
too small.
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic

import msgspec

from policies.placement.hardware import LabelKeys
from policies.placement.nodes import (
    NO_NODES,
    NamedNode,
    NodeFacts,
    NodeGroup,
    NodeIndex,
    node_facts,
    nodes_with_other_labels,
)
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Informer
from webhook.cluster.nodes import NODES_IN_FULL, node_pools, state_reader
from webhook.threads import thread

LOOK_SECONDS = 2.0
POOL_SECONDS = 60.0

log = logging.getLogger("gpu_admission.nodes")


class NodeWatch:
    """`keys` returns the keys of the labels to keep: `names` of it are those of classes. `run` is the body of a thread."""

    def __init__(self, api: ApiClient, keys: Callable[[], LabelKeys]) -> None:
        self._api = api
        self._keys = keys
        self._nodes: _Nodes | None = None
        self._pools: tuple[NodeGroup, ...] | None = None
        self._pools_read = 0.0

    def facts(self) -> NodeFacts | None:
        """Return the facts about all nodes and NodePools. None while they are incomplete."""
        nodes, pools = self._nodes, self._pools
        if nodes is None or pools is None or not nodes.informer.is_current:
            return None
        return nodes.facts(pools)

    def index(self) -> NodeIndex:
        """Return the nodes by name. Empty before the first list, and while the watch is silent."""
        nodes = self._nodes
        return nodes.index if nodes is not None and nodes.informer.is_current else NO_NODES

    def start(self, stopping: threading.Event) -> None:
        thread("nodes", self.run, stopping).start()

    def run(self, stopping: threading.Event) -> None:
        """Follow the cluster until `stopping`."""
        while not stopping.is_set():
            keys = self._keys()
            if self._nodes is None or self._nodes.keys != keys:
                if self._nodes is not None:
                    self._nodes.stopping.set()
                self._nodes = _Nodes(self._api, keys)
            if not self._pools_read or monotonic() - self._pools_read > POOL_SECONDS:
                self._read_pools()
            stopping.wait(LOOK_SECONDS)
        if self._nodes is not None:
            self._nodes.stopping.set()

    def _read_pools(self) -> None:
        self._pools_read = monotonic()
        try:
            self._pools = tuple(node_pools(self._api))
        except (errors.ApiError, msgspec.MsgspecError) as error:
            self._pools = None
            log.warning("classes without nodes cannot be warned about: node pools: %s", error)


class _Nodes:
    """The nodes, with their labels under `keys`."""

    def __init__(self, api: ApiClient, keys: LabelKeys) -> None:
        self.keys = keys
        self.index = NodeIndex(keys.names)
        self._changes = 0
        self._seen: tuple[int, tuple[NodeGroup, ...], NodeFacts] = (-1, (), NodeFacts(keys=keys))
        self.informer = Informer(api, NODES_IN_FULL, state_reader(keys), self._changed)
        self.stopping = threading.Event()
        self.informer.start(self.stopping)

    def facts(self, pools: tuple[NodeGroup, ...]) -> NodeFacts:
        """Return the facts about all nodes, computed once after a change. Most events of nodes change nothing here."""
        changes = self._changes  # read first: a change meanwhile is computed next time
        known_at, with_pools, known = self._seen
        if known_at != changes or with_pools is not pools:
            # Equal nodes share their labels and state, so only the few different pairs are hashed here.
            distinct = {(id(node.labels), id(node.state)): node for node in self.informer.all()}
            pairs = ((node.labels, node.state) for node in distinct.values())
            facts = node_facts(self.keys, pairs, pools, nodes_with_other_labels(self.informer.all()))
            # Equal facts are kept: they cache what they derive, and decisions are remembered with them.
            known = known if facts == known else facts
            self._seen = changes, pools, known
        return known

    def _changed(self, before: NamedNode | None, after: NamedNode | None) -> None:
        self.index.replace(before, after)
        if _facts_input(before) != _facts_input(after):
            self._changes += 1


def _facts_input(node: NamedNode | None) -> object:
    """Return what the facts depend on."""
    return node and (node.labels, node.state, node.other_labels)
