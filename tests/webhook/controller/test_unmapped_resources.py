"""DeviceClasses and resource names of nodes that no quota counts."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from tests.builders import JSON
from tests.cases import cases
from webhook.cluster.capacity import counted_node_reader
from webhook.configuration.dynamic_resources import unmapped_resources
from webhook.configuration.loader import load_directory
from webhook.controller.quota_status import UnmappedResourcesWatch


@cases(
    ("allocatable", "want"),
    of_a_device_plugin_that_nobody_knows=(
        {"example.com/npu": "1", "example.com/fpga": 2},
        ("example.com/fpga", "example.com/npu"),
    ),
    a_gpu=({"nvidia.com/gpu": "8"}, ()),
    a_network_card=({"nvidia.com/hostdev": "8"}, ()),
    of_kubernetes=({"cpu": "8", "attachable.kubernetes.io/volumes": "8"}, ()),
    not_one_on_the_node=({"example.com/npu": "0"}, ()),
)
def test_names_of_nodes(allocatable: JSON, want: tuple[str, ...]) -> None:
    configuration, changes = load_directory(None), list[tuple[str, ...]]()
    read = counted_node_reader(configuration)
    nodes = [
        read(msgspec.Raw(msgspec.json.encode({"metadata": {"name": "n", "uid": "u"}, "status": status})))
        for status in ({}, {"allocatable": allocatable})
    ]
    informer = SimpleNamespace(synced=False, all=lambda: nodes)
    watch = UnmappedResourcesWatch(
        cast("Any", SimpleNamespace(own_counter=SimpleNamespace(nodes=informer))), lambda: configuration
    )
    watch.changed.subscribe(lambda: changes.append(tuple(watch.names or ())))

    watch.sync()
    assert (watch.names, changes) == (None, [])
    informer.synced = True
    watch.sync()
    watch.sync()
    assert changes == [want], "only once"


def test_device_classes_are_named_as_such() -> None:
    configuration = SimpleNamespace(
        unmapped_device_classes=["npu.example.com"], resource_mapping=load_directory(None).resource_mapping
    )
    nodes = SimpleNamespace(synced=True, all=list)
    watch = UnmappedResourcesWatch(
        cast("Any", SimpleNamespace(own_counter=SimpleNamespace(nodes=nodes))),
        lambda: cast("Any", configuration),
    )

    watch.sync()

    assert watch.names == ("DeviceClass npu.example.com",)


def test_what_no_mapping_knows() -> None:
    mapping = load_directory(None).resource_mapping
    assert unmapped_resources(["example.com/npu", "nvidia.com/gpu"], mapping) == {"example.com/npu"}
