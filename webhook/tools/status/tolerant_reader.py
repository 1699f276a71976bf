"""Reads what the caller may read, and remembers the missing rights."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from policies.gpus.device_classes import NO_DEVICES, ClusterDevices
from policies.gpus.device_slices import merge_device_types
from policies.gpus.stored_devices import StoredDevices
from policies.placement.nodes import NO_NODES, NodeFacts, NodeIndex, node_facts, nodes_with_other_labels
from policies.pods.limit_ranges import LimitRange, NamespaceLimits, decode_limit_range, namespace_limits
from policies.policy import EffectivePolicy, Labels
from policies.quota.demand import Catalogue
from policies.times import utc
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.capacity import GPUNode
from webhook.cluster.namespaces import LIMIT_RANGES
from webhook.cluster.nodes import NODES_IN_FULL, node_pools, state_reader
from webhook.cluster.objects import CAPACITY_CONFIG_MAP, DEVICES, NAMESPACE, decode_metadata
from webhook.cluster.published_capacity import PublishedCapacity, decode
from webhook.configuration.cluster_source import (
    RESOURCES,
    EvaluatedDocuments,
    Record,
    decode_record,
    documents_in_force,
)
from webhook.configuration.documents import GROUP, POLICY
from webhook.configuration.dynamic_resources import (
    DRA_GROUP,
    NOTHING_PUBLISHED,
    decode_devices,
    devices_path,
    read_device_classes,
)
from webhook.configuration.loader import Configuration, keys_to_know, load_directory
from webhook.quota.documents import PLURAL, QuotaRecord, decode_quota, quota_path
from webhook.tools.status.listed_capacity import (
    ListedSlices,
    read_allocated,
    read_gpu_nodes,
    read_slices,
    read_taint_rules,
)

T = TypeVar("T")

LIST_NODES = "list nodes"


class TolerantReader:
    """Reads for one report. `omitted` are the missing rights, in the words of `kubectl auth can-i`."""

    def __init__(self, api: ApiClient) -> None:
        self.api = api
        self.omitted: list[str] = []
        self.knows_policies = True
        """Whether the policies could be read; if not, the built-in policy takes their place."""
        self.nodes_from = ""
        """What was read instead of the nodes, in words; "" if the caller may list them."""
        self.is_installed = True
        """Whether the API server has the kinds of the documents, once they were read."""
        self.limits_of = cache(self._limits_of)
        self.published = cache(self._published)
        self._slices = cache(partial(read_slices, api))
        self._has_directory = False

    def attempt(self, right: str, read: Callable[[], T]) -> T | None:
        """Return what is read, None where the caller lacks the right."""
        try:
            return read()
        except errors.Forbidden:
            if right not in self.omitted:
                self.omitted.append(right)
            return None

    def get(self, right: str, path: str) -> bytes | None:
        """Return an object; None where there is none, or the caller may not read it."""
        try:
            return self.attempt(right, partial(self.api.get, path))
        except errors.NotFound:
            return None

    def attempt_list(self, resource: str, namespace: str, read: Callable[[], T]) -> T | None:
        """Return what is read of a list in a namespace, in all if it is ""."""
        where = f"-n {namespace}" if namespace else "in all namespaces"
        return self.attempt(f"list {resource} {where}", read)

    def listed(
        self, resource: str, namespace: str, path: str, decode: Callable[[msgspec.Raw], T | None], **how: Any
    ) -> list[T] | None:
        """Return the objects at the path; None where the caller may not list them. `how`: as `ApiClient.list` takes it."""
        return self.attempt_list(resource, namespace, lambda: self.api.list(path, decode, **how).items)

    def by_namespace(
        self, resource: str, namespaces: Sequence[str], read: Callable[[str], T]
    ) -> dict[str, T | None]:
        """Return what is read of a list in each namespace, or under "" of all namespaces if `namespaces` is empty."""
        return {each: self.attempt_list(resource, each, partial(read, each)) for each in namespaces or ("",)}

    def configuration(self, config: Path | None, added: ClusterDevices = NO_DEVICES) -> Configuration:
        """Return the configuration of the directory, or without one, of the cluster. Raises ConfigurationError.

        `added` are DeviceClasses and kinds of devices that the cluster does not have yet.
        """
        if config is None:
            return self.documents(added).configuration
        self._has_directory = True
        return load_directory(config, devices=self._cluster_devices(added))

    def _cluster_devices(self, added: ClusterDevices) -> ClusterDevices:
        """Return the DeviceClasses and kinds of devices of the cluster, and those added; without classes, no kind matters."""
        classes = (*read_device_classes(self.api), *added.device_classes)
        right = f"get configmaps/{DEVICES} -n {NAMESPACE}"
        stored = self.get(right, devices_path(NAMESPACE)) if classes else None
        published = (decode_devices(stored).published if stored else NOTHING_PUBLISHED).with_classes(classes)
        taints = {**published.taints, **added.taints}
        return ClusterDevices(classes, merge_device_types(published.device_types, added.device_types), taints)

    def gpu_nodes(self, catalogue: Catalogue, *, reads_pods: bool = True) -> tuple[GPUNode, ...] | None:
        """Return the GPU nodes; None where the caller may not list nodes. reads_pods: false if nobody asks what is used."""
        devices = partial(self.devices, catalogue)
        read = partial(read_gpu_nodes, self.api, catalogue, devices, reads_pods=reads_pods)
        nodes = self.attempt(LIST_NODES, read)
        if reads_pods and nodes and nodes[0].used is None:
            self.omitted.append("list pods in all namespaces")
        return nodes

    def slices(self) -> ListedSlices | None:
        """Return the ResourceSlices, read once; None where the caller may not list them."""
        return self.attempt(f"list resourceslices.{DRA_GROUP}", self._slices)

    def devices(self, catalogue: Catalogue) -> StoredDevices | None:
        """Return the devices of ResourceSlices; None where the caller may not list them, or not what is allocated."""
        slices = self.slices()
        if slices is None or not slices.slices:
            return None
        claims = partial(read_allocated, self.api)
        allocated = self.attempt_list(f"resourceclaims.{DRA_GROUP}", "", claims)
        rules = self.attempt(f"list devicetaintrules.{DRA_GROUP}", partial(read_taint_rules, self.api)) or ()
        if allocated is None:
            return None
        mapping, left_out = catalogue.resource_mapping, slices.reader.dropped_attributes
        return StoredDevices(
            slices.slices, mapping, catalogue.classes, allocated, dropped_attributes=left_out, rules=rules
        )

    def class_nodes(
        self, catalogue: Catalogue, now: datetime, *, any_age: bool = False
    ) -> tuple[GPUNode, ...] | None:
        """Return the GPU nodes; where they may not be listed, a node for each class by what the controller has published."""
        nodes = self.gpu_nodes(catalogue)
        published = self._published_nodes(now) if nodes is None else None
        return published.nodes(catalogue) if published and (any_age or not published.is_old(now)) else nodes

    def _published_nodes(self, now: datetime) -> PublishedCapacity | None:
        """Return what the controller has published of the nodes, which may not be listed."""
        published = self.published()
        if published is not None:
            at = f"at {utc(published.observed)}"
            self.nodes_from = f"nodes by class as the controller counted them {at}"
            if published.is_old(now):
                self.nodes_from = f"the controller counted nodes last {at}: what is free now is not known"
            if LIST_NODES in self.omitted:
                self.omitted.remove(LIST_NODES)
        return published

    def _published(self) -> PublishedCapacity | None:
        # The controller counts by the documents of the cluster.
        path = api_path("/api/v1", "namespaces", NAMESPACE, "configmaps", CAPACITY_CONFIG_MAP)
        try:
            return None if self._has_directory else decode(self.api.get(path))
        except (errors.Forbidden, errors.NotFound):
            return None

    def nodes(
        self, configuration: Configuration, now: datetime | None = None
    ) -> tuple[NodeFacts | None, NodeIndex]:
        """Return nodes and pools by the labels that the configuration uses; None for facts where one may not be listed.

        now: where nodes may not be listed, what the controller has published by then stands for them.
        """
        keys = keys_to_know(configuration)
        read = partial(self.api.list, NODES_IN_FULL.path(), state_reader(keys))
        listed = self.attempt(LIST_NODES, read)
        pools = self.attempt("list nodepools.karpenter.sh", lambda: tuple(node_pools(self.api)))
        if listed is None:
            published = self._published_nodes(now) if now else None
            if published is None or pools is None or (now and published.is_old(now)):
                return None, NO_NODES
            return published.facts(pools, configuration.classes), NO_NODES
        index = NodeIndex(keys.names, listed.items)
        if pools is None:
            return None, index
        seen = ((item.labels, item.state) for item in listed.items)
        return node_facts(keys, seen, pools, nodes_with_other_labels(listed.items)), index

    def policy_of(self, configuration: Configuration, namespace: str) -> EffectivePolicy | None:
        """Return the policy of the namespace; None where the caller may not read policies or labels."""
        policies = configuration.policies
        if not self.knows_policies:
            return None
        if not policies.depends_on_labels(namespace):
            return policies.for_namespace(namespace)
        labels = self.namespace_labels(namespace)
        return None if labels is None else policies.for_namespace(namespace, labels)

    def namespace_labels(self, namespace: str) -> Labels | None:
        """Return the labels of the namespace; None where the caller may not read it."""
        return self.attempt(f"get namespaces/{namespace}", partial(self.labels_of, namespace))

    def labels_of(self, namespace: str) -> Labels:
        return decode_metadata(self.api.get(api_path("/api/v1", "namespaces", namespace))).sorted_labels

    def _limits_of(self, namespace: str) -> NamespaceLimits | None:
        """Return what the LimitRanges of the namespace say; None where the caller may not list them."""
        limit_ranges = self.limit_ranges(namespace)
        return None if limit_ranges is None else namespace_limits(limit_ranges)

    def limit_ranges(self, namespace: str) -> Sequence[LimitRange] | None:
        return self.listed("limitranges", namespace, LIMIT_RANGES.path(namespace), decode_limit_range)

    def quota(self, namespace: str) -> QuotaRecord | None:
        """Return the GPUQuota of the namespace; None where there is none, or the caller may not read it."""
        stored = self.get(f"get {PLURAL}.{GROUP} -n {namespace}", quota_path(namespace))
        return decode_quota(stored) if stored else None

    def documents(self, added: ClusterDevices = NO_DEVICES) -> EvaluatedDocuments:
        """Return the documents of the cluster; kinds that the caller may not list have none."""
        records: list[Record] = []
        for kind, resource in RESOURCES.items():
            right, decode = f"list {resource.plural}.{GROUP}", partial(decode_record, kind)
            try:
                listed = self.attempt(right, partial(self.api.list, resource.path(), decode))
            except errors.NotFound:
                self.is_installed = False
                continue
            if listed is None and kind == POLICY:
                self.knows_policies = False
            records += listed.items if listed else ()
        return documents_in_force(records, None, self._cluster_devices(added))
