"""DeviceClasses and resource names of nodes that no quota counts."""

from typing import Any

import msgspec

from tests.builders import JSON
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.controller.unmapped_resources import UnmappedResourcesWatch


@cases(
    ("allocatable", "want"),
    {
        "of-a-device-plugin-that-nobody-knows": (
            {"example.com/npu": "1", "example.com/fpga": 2},
            ("example.com/fpga", "example.com/npu"),
        ),
        "a-gpu": ({"nvidia.com/gpu": "8"}, ()),
        "a-network-card": ({"nvidia.com/hostdev": "8"}, ()),
        "of-kubernetes": ({"cpu": "8", "attachable.kubernetes.io/volumes": "8"}, ()),
        "not-one-on-the-node": ({"example.com/npu": "0"}, ()),
        "not-known-yet": (None, ()),
    },
)
def test_names_of_nodes(allocatable: JSON | None, want: tuple[str, ...]) -> None:
    class Nodes:
        def list(self, _path: str, read: Any) -> None:
            for status in ({}, {"allocatable": allocatable}):
                read(msgspec.Raw(msgspec.json.encode({"status": status})))

    changes = list[tuple[str, ...]]()
    watch = UnmappedResourcesWatch(
        Nodes(),  # type: ignore[arg-type]
        load_directory(None),
        lambda: True,
        lambda: changes.append(tuple(watch.names or ())),
    )

    watch.look()
    watch.look()

    assert changes == [want], "told once"
