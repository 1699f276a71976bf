"""A counter of the stored pods, without an API server."""

from types import SimpleNamespace
from typing import Any

import msgspec

from policies.placement.nodes import NO_NODES
from policies.quota.demand import UnclassifiedPods
from tests.builders import JSON
from webhook.cluster.capacity import counted_node_reader
from webhook.configuration.loader import load_directory
from webhook.controller.device_slices import DeviceSlices
from webhook.quota.counted_records import RecordReader

CONFIGURATION = load_directory(None)


def unknown_kind(_driver: str, _pool: str, _device: str) -> None:
    """Return the kind of any device where no ResourceSlices are read."""


class Counter:
    """What the informers of a UsageCounter hold."""

    def __init__(self, nodes: list[JSON], pods: list[JSON]) -> None:
        read, self.reader = counted_node_reader(CONFIGURATION), RecordReader(CONFIGURATION)
        self.catalogue = CONFIGURATION
        self.stored = [read(_raw(each)) for each in nodes]
        self.nodes = SimpleNamespace(all=lambda: self.stored)
        self.claims = None
        self.records = [record for each in pods if (record := self.reader.read_pod(_raw(each)))]
        self.informers = {"nodes": SimpleNamespace(age=0.0)}

    def demands(self) -> Any:
        for record in self.records:
            if record.holds_quota:
                yield record, self.reader.demand_of_pod(record, UnclassifiedPods.TOTAL_ONLY, NO_NODES)


def _raw(document: JSON) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(document))


def slices_of(*documents: JSON) -> DeviceSlices:
    """Return the devices of a cluster whose watch has shown these ResourceSlices."""
    api: Any = None
    slices = DeviceSlices(api, lambda: CONFIGURATION)
    for document in documents:
        document["metadata"] |= {"uid": document["metadata"]["name"], "resourceVersion": "1"}
        slices._changed(None, slices._record(_raw(document)))
    return slices
