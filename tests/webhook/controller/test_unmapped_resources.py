"""DeviceClasses and resource names of nodes that no quota counts."""

from types import SimpleNamespace
from typing import Any, cast

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
    },
)
def test_names_of_nodes(allocatable: JSON, want: tuple[str, ...]) -> None:
    class Nodes:
        def list(self, _path: str, read: Any) -> None:
            for status in ({}, {"allocatable": allocatable}):
                read(
                    msgspec.Raw(
                        msgspec.json.encode({"metadata": {"name": "n", "uid": "u"}, "status": status})
                    )
                )

    changes = list[tuple[str, ...]]()
    watch = UnmappedResourcesWatch(
        cast("Any", Nodes()),
        load_directory(None),
        lambda: True,
        lambda: changes.append(tuple(watch.names or ())),
    )

    watch.look()
    watch.look()

    assert changes == [want], "told once"


def test_the_leader_alone_lists_the_nodes_and_not_again_at_once() -> None:
    leads, ticks, listed = False, iter([False, True, True, False, True]), list[bool]()

    def wait(_seconds: float) -> bool:
        nonlocal leads
        tick = next(ticks, None)
        leads = bool(tick)
        return tick is None

    nodes = SimpleNamespace(list=lambda *_: listed.append(leads))
    watch = UnmappedResourcesWatch(cast("Any", nodes), load_directory(None), lambda: leads, lambda: None)

    watch.run(cast("Any", SimpleNamespace(wait=wait)))

    assert listed == [True, True], "once for each time that it became the leader"
