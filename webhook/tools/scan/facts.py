"""The facts of a cluster that judgements rest on besides the objects; kinds that the caller may not list are left out."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cached_property, partial

import msgspec

from policies.gpus.claims import ClaimName, DeviceClassNames
from policies.gpus.device_classes import DeviceClass
from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.placement.nodes import NodeFacts
from policies.policy import Labels
from policies.quota.charge_request import NamespaceQuota, QuotaGrant
from webhook.cluster import errors
from webhook.cluster.api import METADATA, METADATA_LIST, ApiClient, api_path
from webhook.cluster.nodes import NODES, node_reader
from webhook.cluster.objects import decode_metadata
from webhook.configuration.dynamic_resources import read_claims, read_device_classes
from webhook.configuration.loader import Configuration
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.controller.records import QUOTAS, quota_record
from webhook.quota.documents import GROUP, PLURAL
from webhook.serving.engine import Engine
from webhook.serving.judging import JudgedBy, UnusedQuota
from webhook.serving.node_watch import keys_to_know, node_pools
from webhook.tools.status.capacity import GPUNode, gpu_node
from webhook.tools.status.permitted import Permitted
from webhook.tools.why.discovery import ServedKind, ServedKinds

NAMESPACES = "/api/v1/namespaces"


class ClusterFacts:
    """Facts that hold whatever the configuration, each read once. Raises `errors.ApiError` for all but a lack of rights.

    namespace: the one that is scanned, "" for all of them.
    """

    def __init__(self, reader: Permitted, namespace: str) -> None:
        self._reader, self._namespace = reader, namespace

    @property
    def api(self) -> ApiClient:
        return self._reader.api

    @cached_property
    def labels(self) -> dict[str, Labels]:
        """The labels of namespaces, as far as they can be read."""
        found: dict[str, Labels] = {}

        def read(raw: bytes | msgspec.Raw) -> None:
            metadata = decode_metadata(raw)
            found[metadata.name] = metadata.sorted_labels

        if self._namespace:
            path = api_path("/api/v1", "namespaces", self._namespace)
            right = f"get namespaces/{self._namespace}"
            self._reader.attempt(right, lambda: read(self.api.get(path, accept=METADATA)))
        else:
            self._reader.attempt(
                "list namespaces", lambda: self.api.list(NAMESPACES, read, accept=METADATA_LIST)
            )
        return found

    @cached_property
    def claims(self) -> Mapping[ClaimName, DeviceClassNames | None]:
        return read_claims(self.api)

    @cached_property
    def device_classes(self) -> tuple[DeviceClass, ...]:
        return read_device_classes(self.api)

    @cached_property
    def quotas(self) -> dict[str, QuotaGrant] | None:
        """What the GPUQuotas of the cluster grant, by namespace; None where they may not be read."""
        found: dict[str, QuotaGrant] = {}

        def read(raw: msgspec.Raw) -> None:
            record = quota_record(raw)
            if record is not None and record.ledger is not None:
                found[record.namespace] = QuotaGrant(record.ledger.hard, record.ledger.unpinned)

        try:
            path = QUOTAS.path(self._namespace)
            is_read = self._reader.attempt(f"list {PLURAL}.{GROUP}", lambda: bool(self.api.list(path, read)))
        except errors.NotFound:  # their kind is not installed
            return {}
        return found if is_read else None

    def gpu_nodes(self, configuration: Configuration) -> tuple[GPUNode, ...]:
        read = partial(gpu_node, catalogues=configuration)
        found = self._reader.attempt("list nodes", lambda: self.api.list(NODES.path(), read))
        return tuple(sorted(found.items, key=lambda node: node.name)) if found else ()

    def workload_kinds(self, configuration: Configuration) -> Iterator[tuple[WorkloadKind, ServedKind]]:
        """Yield the kinds of the table that make pods in a namespace, and that the API server serves."""
        for (group, kind), row in configuration.workload_kinds.items():
            served = self._served.of_reference(f"{group}/v1" if group else "v1", kind)
            if row.pods and served is not None:
                yield row, served

    @cached_property
    def _served(self) -> ServedKinds:
        return ServedKinds(self.api)

    def judged_by(self, configuration: Configuration, now: datetime) -> JudgedBy:
        """Return what objects are judged by under that configuration."""
        labels = self.labels if configuration.policies.has_selectors else {}
        facts, index = self._nodes(configuration)
        return JudgedBy(
            engine=Engine(configuration),
            now=now,
            labels_of=lambda namespace: labels.get(namespace, ()),
            nodes=facts,
            named_nodes=index,
            claims=self.claims.get,
            quota_of=self._quota_of(configuration),
        )

    def _nodes(self, configuration: Configuration) -> tuple[NodeFacts | None, NodeIndex]:
        """Return the nodes by the labels that the configuration goes by; nothing is known where they may not be listed."""
        keys = keys_to_know(configuration)
        read = partial(self.api.list, NODES.path(), node_reader(keys), accept=METADATA_LIST)
        listed = self._reader.attempt("list nodes", read)
        pools = self._reader.attempt("list nodepools.karpenter.sh", lambda: tuple(node_pools(self.api, keys)))
        if listed is None:
            return None, NO_NODES
        index = NodeIndex(keys.names, listed.items)
        if pools is None:
            return None, index
        return NodeFacts(keys=keys, label_sets=frozenset(n.labels for n in listed.items), pools=pools), index

    def _quota_of(self, configuration: Configuration) -> Callable[[str], NamespaceQuota | None]:
        if self.quotas is None:
            return lambda _namespace: None
        written = {
            name: QuotaGrant(spec.amounts, spec.unpinned) for name, spec in configuration.quotas.items()
        }
        granted = written | self.quotas
        return lambda namespace: UnusedQuota(granted.get(namespace), configuration)
