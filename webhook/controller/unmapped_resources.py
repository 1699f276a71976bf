"""DeviceClasses and resource names of nodes that no quota counts, because no GPUResourceMapping names them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webhook.cluster.subscribers import Subscribers
from webhook.configuration.dynamic_resources import unmapped_resources
from webhook.configuration.loader import Configuration
from webhook.controller.usage_cache import UsageCache


@dataclass(eq=False)
class UnmappedResourcesWatch:
    """Looks through the nodes that our own counter watches."""

    usage_cache: UsageCache
    configuration: Callable[[], Configuration]
    names: Sequence[str] | None = None
    """None until the nodes were listed."""
    PERIOD_SECONDS = 5.0
    """Seconds between two looks at the nodes that the controller watches."""

    def __post_init__(self) -> None:
        self.changed = Subscribers[[]]("unmapped resources")

    def sync(self) -> None:
        nodes, configuration = self.usage_cache.own_counter.nodes, self.configuration()
        if not nodes.synced:
            return
        extended = frozenset[str]().union(*(each.resources for each in nodes.all()))
        classes = (f"DeviceClass {name}" for name in configuration.unmapped_device_classes)
        names = (*classes, *sorted(unmapped_resources(extended, configuration.resource_mapping)))
        if names != self.names:
            self.names = names
            self.changed()
