"""DeviceClasses and resource names of nodes that no quota counts, because no GPUResourceMapping names them."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webhook.configuration.dynamic_resources import unmapped_resources
from webhook.configuration.loader import Configuration
from webhook.controller.usage_counter import UsageCounter

EVERY_SECONDS = 5.0
"""Between two looks at the nodes that the controller watches."""


@dataclass(eq=False)
class UnmappedResourcesWatch:
    """Looks through the nodes of `counter`. Calls `changed` when `names` changed."""

    counter: Callable[[], UsageCounter]
    configuration: Callable[[], Configuration]
    changed: Callable[[], object]
    names: Sequence[str] | None = None
    """None until the nodes were listed."""

    def run(self, stopping: threading.Event) -> None:
        while not stopping.wait(EVERY_SECONDS):
            self.look()

    def look(self) -> None:
        nodes, configuration = self.counter().nodes, self.configuration()
        if not nodes.synced:
            return
        there = frozenset[str]().union(*(each.resources for each in nodes.all()))
        classes = (f"DeviceClass {name}" for name in configuration.unmapped_device_classes)
        names = (*classes, *sorted(unmapped_resources(there, configuration.resource_mapping)))
        if names != self.names:
            self.names = names
            self.changed()
