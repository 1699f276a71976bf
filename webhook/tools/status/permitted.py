"""Reads what the caller may read, and remembers the missing rights."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from policies.policy import EffectivePolicy, Labels
from policies.quota.demand import Catalogues
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.objects import decode_metadata
from webhook.configuration.cluster_source import RESOURCES, EvaluatedDocuments, Record, choose, record_decoder
from webhook.configuration.documents import POLICY
from webhook.configuration.dynamic_resources import read_device_classes
from webhook.configuration.loader import Configuration, load_directory
from webhook.quota.documents import GROUP
from webhook.tools.status.capacity import GPUNode, read_gpu_nodes

T = TypeVar("T")


class Permitted:
    """Reads for one report. `omitted` are the missing rights, in the words of `kubectl auth can-i`."""

    def __init__(self, api: ApiClient) -> None:
        self.api = api
        self.omitted: list[str] = []
        self.knows_policies = True
        """Whether the policies could be read; if not, the built-in policy takes their place."""

    def attempt(self, right: str, read: Callable[[], T]) -> T | None:
        """Return what is read, None where the caller lacks the right."""
        try:
            return read()
        except errors.Forbidden:
            if right not in self.omitted:
                self.omitted.append(right)
            return None

    def configuration(self, config: Path | None) -> Configuration:
        """Return the configuration of the directory, or without one, of the cluster. Raises ConfigurationError."""
        if config is None:
            return self.documents().configuration
        return load_directory(config, device_classes=read_device_classes(self.api))

    def gpu_nodes(self, catalogues: Catalogues) -> tuple[GPUNode, ...] | None:
        nodes = self.attempt("list nodes", partial(read_gpu_nodes, self.api, catalogues))
        if nodes and nodes[0].used is None:
            self.omitted.append("list pods in all namespaces")
        return nodes

    def policy_of(self, configuration: Configuration, namespace: str) -> EffectivePolicy | None:
        """Return the policy of the namespace; None where the caller may not read policies or labels."""
        policies = configuration.policies
        if not self.knows_policies:
            return None
        if not policies.asks_labels(namespace):
            return policies.for_namespace(namespace)
        labels = self.attempt(f"get namespaces/{namespace}", partial(self.labels_of, namespace))
        return None if labels is None else policies.for_namespace(namespace, labels)

    def labels_of(self, namespace: str) -> Labels:
        return decode_metadata(self.api.get(api_path("/api/v1", "namespaces", namespace))).sorted_labels

    def documents(self) -> EvaluatedDocuments:
        """Return the documents of the cluster; kinds that the caller may not list have none."""
        records: list[Record] = []
        for kind, resource in RESOURCES.items():
            right = f"list {resource.plural}.{GROUP}"
            try:
                found = self.attempt(right, partial(self.api.list, resource.path(), record_decoder(kind)))
            except errors.NotFound:  # this kind is not installed
                continue
            if found is None and kind == POLICY:
                self.knows_policies = False
            records += found.items if found else ()
        return choose(records, None, read_device_classes(self.api))
