"""DeviceClasses and resource names of nodes that no quota counts."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.builders import JSON
from tests.cases import cases
from webhook.cluster import errors
from webhook.configuration.loader import load_directory
from webhook.controller import unmapped_resources
from webhook.controller.unmapped_resources import UnmappedResourcesWatch


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
    def list_nodes(_path: str, read: Any) -> None:
        for status in ({}, {"allocatable": allocatable}):
            node = {"metadata": {"name": "n", "uid": "u"}, "status": status}
            read(msgspec.Raw(msgspec.json.encode(node)))

    changes, api = list[tuple[str, ...]](), cast("Any", SimpleNamespace(list=list_nodes))
    watch = UnmappedResourcesWatch(
        api, load_directory(None), lambda: True, lambda: changes.append(tuple(watch.names or ()))
    )

    watch.look()
    watch.look()

    assert changes == [want], "only once"


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


@cases("error", no_answer=errors.Unreachable("cut"), no_nodes_in_the_answer=ValueError("not a node"))
def test_a_list_that_fails_is_repeated(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unmapped_resources, "RETRY_SECONDS", 0.0)
    failures, ticks = iter([error]), iter([False, False, True])

    def listed(*_: object) -> None:
        for each in failures:
            raise each

    changes = list[None]()
    watch = UnmappedResourcesWatch(
        cast("Any", SimpleNamespace(list=listed)),
        load_directory(None),
        lambda: True,
        lambda: changes.append(None),
    )

    watch.run(cast("Any", SimpleNamespace(wait=lambda _: next(ticks))))

    assert changes == [None]
