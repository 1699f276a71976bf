"""What the leader publishes of the kinds of DRA devices, and when."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from policies.gpus import device_slices
from policies.gpus.device_pools import Inventory
from policies.gpus.device_slices import type_key
from policies.gpus.device_types import CARD_PARTS, DeviceType
from policies.pods.pod import Toleration
from tests.cases import cases
from webhook.cluster import errors
from webhook.configuration.dynamic_resources import (
    NOTHING_PUBLISHED,
    PublishedDevices,
    PublishedKind,
    PublishedNodes,
    decode_devices,
)
from webhook.controller.device_slices import DeviceKindsWriter, to_publish

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def kind(product: str, parts: int = CARD_PARTS, version: str | None = None) -> DeviceType:
    attributes = {"product": {"string": product}, **({"release": {"version": version}} if version else {})}
    return msgspec.convert({"driver": "x.com", "attributes": attributes, "parts": parts}, DeviceType)


A, B = kind("a"), kind("b")


def inventory(
    *nodes: dict[str, int], left_out: tuple[str, ...] = (), kinds: tuple[DeviceType, ...] = (A, B)
) -> Inventory:
    """Return nodes with so many devices of each product; only these exist."""
    keys = {each.attributes["product"].string or "": type_key(each) for each in kinds}
    present = {name for node in nodes for name in node}
    published = {type_key(each): each for each in kinds if each.attributes["product"].string in present}
    return Inventory(
        published, left_out, tuple({keys[name]: n for name, n in node.items()} for node in nodes)
    )


def published(*kinds: PublishedKind | DeviceType, nodes: tuple[PublishedNodes, ...] = ()) -> PublishedDevices:
    return PublishedDevices(
        tuple(each if isinstance(each, PublishedKind) else PublishedKind(each) for each in kinds), nodes
    )


GONE = PublishedKind(B, NOW - HOUR)
LONG_GONE = PublishedKind(B, NOW - 24 * HOUR)
OF_A, OF_B = PublishedNodes({0: 8}), PublishedNodes({1: 4})


@cases(
    ("before", "found", "want"),
    the_first=(NOTHING_PUBLISHED, inventory({"a": 8}), published(A, nodes=(OF_A,))),
    another_one=(
        published(A, nodes=(OF_A,)),
        inventory({"a": 8}, {"b": 4}),
        published(A, B, nodes=(OF_A, OF_B)),
    ),
    one_that_is_gone_stays=(
        published(A, B, nodes=(OF_A, OF_B)),
        inventory({"a": 8}),
        published(A, PublishedKind(B, NOW), nodes=(OF_A, PublishedNodes({1: 4}, NOW))),
    ),
    since_it_is_gone=(
        published(A, GONE, nodes=(OF_A, PublishedNodes({1: 4}, NOW - HOUR))),
        inventory({"a": 8}),
        published(A, GONE, nodes=(OF_A, PublishedNodes({1: 4}, NOW - HOUR))),
    ),
    for_a_day=(
        published(A, LONG_GONE, nodes=(OF_A, PublishedNodes({1: 4}, NOW - 24 * HOUR))),
        inventory({"a": 8}),
        published(A, nodes=(OF_A,)),
    ),
    it_comes_back=(published(A, GONE), inventory({"a": 8}, {"b": 4}), published(A, B, nodes=(OF_A, OF_B))),
    the_largest_node_is_gone=(
        published(A, nodes=(OF_A,)),
        inventory({"a": 4}),
        published(A, nodes=(PublishedNodes({0: 8}, NOW),)),
    ),
    everything_is_gone=(published(A), inventory(), published(PublishedKind(A, NOW))),
    that_weighs_otherwise_now_goes=(
        published(kind("a", CARD_PARTS // 2)),
        inventory({"a": 8}),
        published(A, nodes=(OF_A,)),
    ),
)
def test_what_is_published(before: PublishedDevices, found: Inventory, want: PublishedDevices) -> None:
    assert to_publish(before, found, NOW) == want


SICK = Toleration(key="example.com/sick", effect="NoExecute")


@cases(
    ("taints", "want"),
    a_few=((SICK,), (SICK,)),
    too_many=((msgspec.structs.replace(SICK, value="x" * 300_000),), ()),
)
def test_the_taints_of_all_devices_of_a_kind(
    taints: tuple[Toleration, ...], want: tuple[Toleration, ...]
) -> None:
    found = inventory({"a": 8})
    stored = to_publish(published(A, B), msgspec.structs.replace(found, taints={type_key(A): taints}), NOW)
    assert [each.taints for each in stored.kinds] == [want, ()]
    assert stored.with_classes(()).taints == ({type_key(A): want} if want else {})
    untainted = to_publish(published(A, B), found, NOW)
    assert stored.device_types == untainted.device_types, "no demand depends on them"


def test_what_is_gone_leaves_out_the_same_names() -> None:
    before = published(A, kind("b", version="1.0.0"), kind("b", version="2.0.0"))
    found = to_publish(before, inventory({"a": 8}, left_out=("release",)), NOW)
    assert [(each.kind.unknown_names, each.gone_since) for each in found.kinds] == [
        ((), None),
        (("release",), NOW),
    ]
    assert found.left_out == ("release",)


def test_what_is_gone_goes_where_there_are_too_many(monkeypatch: Any) -> None:
    monkeypatch.setattr(device_slices, "MAX_TYPES", 1)
    assert to_publish(published(A, B), inventory({"a": 8}), NOW) == published(A, nodes=(OF_A,))


class Api:
    """A ConfigMap, and how often it was read and written."""

    def __init__(self) -> None:
        self.stored = b'{"metadata":{"resourceVersion":"7"}}'
        self.reads = 0
        self.writes: list[Any] = []
        self.fails: errors.ApiError | None = None

    def get(self, _path: str, **_: Any) -> bytes:
        self.reads += 1
        return self.stored

    def patch(self, path: str, body: bytes, **_: Any) -> None:
        if self.fails:
            raise self.fails
        self.writes.append((path, msgspec.json.decode(body)["metadata"]))
        self.stored = body


def test_it_is_written_when_it_differs_and_by_swap(monkeypatch: Any) -> None:
    api, slices = Api(), SimpleNamespace(inventory=None)
    writer = DeviceKindsWriter(cast("Any", api), "ours", cast("Any", slices))
    writer.sync()
    assert api.reads == 0, "the slices were not listed yet"
    slices.inventory = inventory({"a": 8})
    api.fails = errors.Conflict("another leader wrote it")
    writer.sync()
    assert (api.reads, api.writes) == (1, [])
    api.fails = None
    writer.sync()
    writer.sync()
    path = "/api/v1/namespaces/ours/configmaps/gpu-admission-devices"
    assert (api.reads, api.writes) == (2, [(path, {"resourceVersion": "7"})])
    assert decode_devices(api.stored).published.device_types.types == (A,)
    slices.inventory = msgspec.structs.replace(inventory({"a": 8}), taints={type_key(A): (SICK,)})
    writer.sync()
    assert (api.reads, len(api.writes)) == (2, 1), "taints come and go"
    monkeypatch.setattr(
        "webhook.controller.device_slices.datetime",
        SimpleNamespace(now=lambda _zone: datetime.now(UTC) + HOUR),
    )
    writer.sync()
    assert (api.reads, len(api.writes)) == (3, 2)
    assert decode_devices(api.stored).published.with_classes(()).taints == {type_key(A): (SICK,)}
    slices.inventory = inventory({"a": 8}, {"b": 4})
    writer.sync()
    assert len(api.writes) == 3


LATER = '"data":{"devices":"{\\"kinds\\":[{\\"kind\\":{\\"driver\\":\\"x\\",\\"new\\":1}}]}"}'


@cases(
    ("data", "kinds"),
    nothing=("", 0),
    no_key=('"data":{}', 0),
    unreadable=('"data":{"devices":"{\\"kinds\\":7}"}', 0),
    fields_of_a_later_release=(LATER, 1),
)
def test_what_is_read_of_the_config_map(data: str, kinds: int) -> None:
    assert len(decode_devices(f'{{"metadata":{{}}{data and "," + data}}}'.encode()).published.kinds) == kinds
