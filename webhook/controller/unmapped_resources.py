"""What nothing charges in a cluster: DeviceClasses and resource names of nodes about which nothing says whether they are GPUs."""

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import msgspec

from policies.gpus.resource_mapping import ResourceMapping
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.nodes import NODES
from webhook.configuration.loader import Configuration

EVERY_SECONDS = 600.0
"""Between lists of all nodes, pages of some hundred; names of resources change when device plugins are installed."""
RETRY_SECONDS = 5.0
POLL_SECONDS = 1.0

log = logging.getLogger("gpu_admission.controller")


class _Status(msgspec.Struct):
    allocatable: dict[str, Any] | None = None


class _Node(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


def unmapped_resources(amounts: dict[str, Any] | None, resource_mapping: ResourceMapping) -> frozenset[str]:
    """Return the extended resources, of a node's allocatable ones, that no pattern fits and of which there are some."""
    return frozenset(
        name
        for name, amount in (amounts or {}).items()
        if "/" in name
        and "kubernetes.io/" not in name
        and str(amount) != "0"
        and not resource_mapping.knows(name)
    )


def unmapped_names(configuration: Configuration, of_nodes: frozenset[str]) -> tuple[str, ...]:
    """Return, for people, everything that nothing charges."""
    classes = (f"DeviceClass {name}" for name in configuration.unmapped_device_classes)
    return (*classes, *sorted(of_nodes))


class UnmappedResourcesWatch:
    """Looks at the nodes from time to time, while this process leads; `changed` is called when `names` are others."""

    def __init__(
        self,
        api: ApiClient,
        configuration: Configuration,
        is_leader: Callable[[], bool],
        changed: Callable[[], object],
    ) -> None:
        self._api = api
        self._configuration = configuration
        self._is_leader = is_leader
        self._changed = changed
        self._due = 0.0
        self.names: Sequence[str] | None = None
        """None until this process has looked since it leads."""

    def configure(self, configuration: Configuration) -> None:
        """Judge by another configuration from now on."""
        self._configuration, self._due = configuration, 0.0

    def run(self, stopping: threading.Event) -> None:
        """Look until `stopping`; the body of a thread."""
        while not stopping.wait(POLL_SECONDS):
            if not self._is_leader():
                self.names, self._due = None, 0.0
            if not self._is_leader() or monotonic() < self._due:
                continue
            self._due = monotonic() + EVERY_SECONDS
            try:
                self.look()
            except errors.ApiError as error:
                log.warning("nodes: %s", error)
                self._due = monotonic() + RETRY_SECONDS

    def look(self) -> None:
        """List the nodes now. Raises `errors.ApiError`."""
        configuration = self._configuration
        found: set[str] = set()

        def read(raw: msgspec.Raw) -> None:
            amounts = msgspec.json.decode(raw, type=_Node).status.allocatable
            found.update(unmapped_resources(amounts, configuration.resource_mapping))

        self._api.list(NODES.path(), read)
        names = unmapped_names(configuration, frozenset(found))
        if names != self.names:
            self.names = names
            self._changed()
