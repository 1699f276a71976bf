"""DeviceClasses and resource names of nodes that no quota counts, because no GPUResourceMapping names them."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import msgspec

from policies.gpus.resource_mapping import ResourceMapping
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.nodes import NODES, decode_node
from webhook.configuration.loader import Configuration

EVERY_SECONDS = 600.0
"""Between lists of all nodes. Resource names change only when somebody installs a device plugin."""
RETRY_SECONDS = 5.0
POLL_SECONDS = 1.0

log = logging.getLogger("gpu_admission.controller")


def unmapped_resources(amounts: Mapping[str, Any], resource_mapping: ResourceMapping) -> frozenset[str]:
    """Return the extended resources in `allocatable` of a node that are not zero and match no pattern."""
    return frozenset(
        name
        for name, amount in amounts.items()
        if "/" in name
        and "kubernetes.io/" not in name
        and str(amount) != "0"
        and not resource_mapping.knows(name)
    )


@dataclass(eq=False)
class UnmappedResourcesWatch:
    """Lists the nodes every EVERY_SECONDS while this process leads. Calls `changed` when `names` changed."""

    api: ApiClient
    configuration: Configuration
    is_leader: Callable[[], bool]
    changed: Callable[[], object]
    due: float = 0.0
    names: Sequence[str] | None = None
    """None until this process has listed the nodes as leader."""

    def configure(self, configuration: Configuration) -> None:
        self.configuration, self.due = configuration, 0.0

    def run(self, stopping: threading.Event) -> None:
        while not stopping.wait(POLL_SECONDS):
            if not self.is_leader():
                self.names, self.due = None, 0.0
            if not self.is_leader() or monotonic() < self.due:
                continue
            self.due = monotonic() + EVERY_SECONDS
            try:
                self.look()
            except errors.ApiError as error:
                log.warning("nodes: %s", error)
                self.due = monotonic() + RETRY_SECONDS
            except Exception:  # a bug, or a node that cannot be read, must not end the thread
                log.exception("nodes")
                self.due = monotonic() + RETRY_SECONDS

    def look(self) -> None:
        """List the nodes now. Raises `errors.ApiError`."""
        configuration = self.configuration
        found: set[str] = set()

        def read(raw: msgspec.Raw) -> None:
            allocatable = decode_node(raw).status.allocatable
            found.update(unmapped_resources(allocatable, configuration.resource_mapping))

        self.api.list(NODES.path(), read)
        classes = (f"DeviceClass {name}" for name in configuration.unmapped_device_classes)
        names = (*classes, *sorted(found))
        if names != self.names:
            self.names = names
            self.changed()
