"""Which slices count, of which kinds their devices are, and what partitions weigh."""

from collections.abc import Iterable
from typing import Any

import msgspec

from policies.gpus import device_slices, vendors
from policies.gpus.device_pools import DevicePools
from policies.gpus.device_slices import coarsened, merge_device_types, type_key, without_values
from policies.gpus.device_types import CARD_PARTS, DeviceType, DeviceTypes
from policies.gpus.mapping_spec import DeviceClassPattern, Measure, ResourceMappingSpec
from policies.gpus.resource_mapping import ResourceMapping
from tests.builders import JSON
from tests.cases import cases
from tests.resource_slices import DRIVER, H100, node_slices, slice_of

MAPPING = ResourceMapping((vendors.RESOURCE_MAPPING,))
PRODUCT = f"{DRIVER}/productName"


def kinds_of(slices: Iterable[JSON], mapping: ResourceMapping = MAPPING) -> DeviceTypes:
    pools = DevicePools()
    put(pools, slices)
    pools.refresh(mapping)
    return pools.inventory.device_types


def put(pools: DevicePools, slices: Iterable[JSON]) -> None:
    for each in slices:
        pools.put(each["metadata"]["name"], None, pools.reader.read(msgspec.json.encode(each)))


def parts_by_profile(kinds: DeviceTypes) -> dict[str | None, int]:
    profiles = (kind.attributes.get(f"{DRIVER}/profile") for kind in kinds.types)
    return {
        each.string if each else None: kind.card_parts
        for each, kind in zip(profiles, kinds.types, strict=True)
    }


def test_kinds_have_no_identity() -> None:
    kinds = kinds_of([*node_slices("a", cards=2), *node_slices("b", cards=3)])
    assert parts_by_profile(kinds) == {
        None: CARD_PARTS,
        "7g.80gb": CARD_PARTS,
        "4g.40gb": CARD_PARTS // 2,
        "3g.40gb": CARD_PARTS // 2,
        "2g.20gb": CARD_PARTS // 4,
        "1g.20gb": CARD_PARTS // 4,
        "1g.10gb": CARD_PARTS // 8,
        "1g.10gb+me": CARD_PARTS // 8,
    }
    of_part = next(kind for kind in kinds.types if kind.card_parts == CARD_PARTS // 8)
    assert of_part.unknown_names == (
        f"{DRIVER}/parentUUID",
        "resource.kubernetes.io/pciBusID",
        "resource.kubernetes.io/pcieRoot",
    )
    assert of_part.capacity[f"{DRIVER}/multiprocessors"].value == "16"
    number = kinds.types.index(of_part)
    assert [node[number] for node in kinds.per_node_counts] == [21]


SICK, TEAM = ({"key": f"example.com/{name}", "effect": "NoSchedule"} for name in ("sick", "team"))


def with_taints(node: str, *taints: JSON, device: str = "") -> list[JSON]:
    """Return the slices of a node of which these taints keep claims away: from one device, or all."""
    documents = node_slices(node, partitions=False, cards=2)
    for each in documents[0]["spec"]["devices"]:
        each["taints"] = [
            {**taint, "timeAdded": "2026-11-30T00:00:00Z"} for taint in taints if device in each["name"]
        ]
    return documents


@cases(
    ("slices", "want"),
    none=(node_slices("a", partitions=False), []),
    of_all_devices=(with_taints("a", SICK, TEAM), ["example.com/sick", "example.com/team"]),
    of_one_of_two=(with_taints("a", SICK, device="gpu-1"), []),
    what_all_have_in_common=([*with_taints("a", SICK, TEAM), *with_taints("b", SICK)], ["example.com/sick"]),
    a_node_without=([*with_taints("a", SICK), *node_slices("b", partitions=False)], []),
    one_that_keeps_no_claim_away=(with_taints("a", {**SICK, "effect": "None"}), []),
)
def test_taints_of_all_devices_of_a_kind(slices: list[JSON], want: list[str]) -> None:
    pools = DevicePools()
    put(pools, slices)
    pools.refresh(MAPPING)
    kinds = pools.inventory.device_types
    assert [[each.key for each in taints] for taints in pools.inventory.taints.values()] == (
        [want] if want else []
    )
    assert {*pools.inventory.taints} <= {type_key(each) for each in kinds.types}
    assert kinds == kinds_of([node_slices("a", partitions=False, cards=2)[0], *slices]), (
        "kinds do not depend on them"
    )


def device(consumed: JSON | None, **more: Any) -> JSON:
    consumes = (
        {}
        if consumed is None
        else {"consumesCounters": [{"counterSet": "card", "counters": amounts(consumed)}]}
    )
    return {"name": "x", **consumes, **more}


def amounts(counters: JSON) -> JSON:
    return {name: {"value": value} for name, value in counters.items()}


CARD = {"memory": "80Gi", "decoders": "1", "memory-slice-0": "1", "memory-slice-1": "1"}


def one(
    spec: JSON, counters: JSON = CARD, driver: str = DRIVER, mapping: ResourceMapping = MAPPING
) -> DeviceType:
    """Return the kind of the only device of a pool with one card."""
    pool = {"name": "p", "generation": 3, "resourceSliceCount": 2}
    shared = [{"name": "card", "counters": amounts(counters)}]
    slices = [
        slice_of("a", pool, driver=driver, nodeName="n", devices=[spec]),
        slice_of("b", pool, driver=driver, nodeName="n", sharedCounters=shared),
    ]
    (kind,) = kinds_of(slices, mapping).types
    return kind


@cases(
    ("consumed", "parts"),
    a_device_without_counters=(None, CARD_PARTS),
    a_whole_card=(CARD, CARD_PARTS),
    the_larger_share=({"memory": "10Gi", "memory-slice-0": "1"}, CARD_PARTS // 2),
    slices_of_memory_are_summed=(
        {"memory": "10Gi", "memory-slice-0": "1", "memory-slice-1": "1"},
        CARD_PARTS,
    ),
    an_engine_is_no_card=({"memory": "8Gi", "decoders": "1"}, CARD_PARTS // 10),
    rounded_up=({"memory": "1"}, 1),
    engines_alone_are_a_card=({"decoders": "1"}, CARD_PARTS),
    nothing_is_a_card=({"memory": "0"}, CARD_PARTS),
    more_than_there_is=({"memory": "100Gi"}, CARD_PARTS),
    no_quantity=({"memory": "ten"}, CARD_PARTS),
)
def test_what_a_partition_weighs(consumed: JSON | None, parts: int) -> None:
    assert one(device(consumed)).card_parts == parts


def test_what_is_taken_of_an_unknown_card_is_a_card() -> None:
    spec = {"name": "x", "consumesCounters": [{"counterSet": "other", "counters": amounts({"memory": "1"})}]}
    assert one(spec).card_parts == CARD_PARTS


def test_a_device_of_two_cards_weighs_both() -> None:
    consumes = [{"counterSet": each, "counters": amounts({"memory": "4"})} for each in ("a", "b")]
    sets = [{"name": each, "counters": amounts({"memory": "4"})} for each in ("a", "b")]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    spec = [slice_of("1", pool, devices=[{"name": "x", "consumesCounters": consumes}], allNodes=True)]
    (kind,) = kinds_of([*spec, slice_of("2", pool, sharedCounters=sets, allNodes=True)]).types
    assert kind.card_parts == 2 * CARD_PARTS


@cases(
    ("weigh", "parts"),
    built_in_of_nobody=((), CARD_PARTS),
    annotation_text=(("memory",), CARD_PARTS // 4),
    a_pattern=(("mem*",), CARD_PARTS // 4),
)
def test_what_another_driver_weighs_by(weigh: tuple[str, ...], parts: int) -> None:
    ours = ResourceMappingSpec(device_classes=(DeviceClassPattern(pattern="gpu.example.com", weigh=weigh),))
    mapping = ResourceMapping((ours, vendors.RESOURCE_MAPPING))
    counters = {"memory": "4", "engines": "1"}
    spec = device({"memory": "1", "engines": "1"})
    assert one(spec, counters, "gpu.example.com", mapping).card_parts == parts


def test_a_stated_pattern_without_counters_keeps_the_built_in_ones() -> None:
    ours = ResourceMappingSpec(device_classes=(DeviceClassPattern(pattern="*", resource="nvidia.com/gpu"),))
    assert ResourceMapping((ours, vendors.RESOURCE_MAPPING)).weighed_counters(
        DRIVER
    ) == MAPPING.weighed_counters(DRIVER)
    assert MAPPING.weighed_counters(DRIVER) == ("memory", "multiprocessors", "memory-slice-*")


def test_what_partitions_weigh_by_is_no_part_of_the_catalogue() -> None:
    stated = ResourceMappingSpec(device_classes=(DeviceClassPattern(pattern="x.com", weigh=("memory",)),))
    without_values = ResourceMappingSpec(device_classes=(DeviceClassPattern(pattern="x.com"),))
    assert ResourceMapping((stated,)).digest == ResourceMapping((without_values,)).digest


def test_a_shared_device_keeps_how_amounts_are_rounded() -> None:
    limits = {"min": "1Gi", "step": "1Gi"}
    policy = {"default": "4Gi", "validRange": limits}
    capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}, "cores": {"value": 4}}
    kind = one(device(None, allowMultipleAllocations=True, capacity=capacity))
    assert kind.is_shared
    assert msgspec.to_builtins(kind.capacity) == {
        f"{DRIVER}/cores": {"value": 4},
        f"{DRIVER}/memory": {"value": "80Gi", "requestPolicy": policy},
    }


def test_a_shared_device_lacks_all_capacities_or_none() -> None:
    capacity = {"memorySlice0": {"value": "1"}, "memory": {"value": "10Gi"}}
    assert one(device(None, capacity=capacity)).capacity.keys() == {f"{DRIVER}/memory"}
    shared = one(device(None, capacity=capacity, allowMultipleAllocations=True))
    assert (shared.capacity, shared.unknown_names) == ({}, (f"{DRIVER}/memory", f"{DRIVER}/memorySlice0"))
    also = msgspec.convert(
        {"driver": DRIVER, "capacity": {"a": {"value": "1"}, "b": {"value": "1"}}, "isShared": True},
        DeviceType,
    )
    assert without_values(also, {"a"}).unknown_names == ("a", "b")


def test_lists_of_values_are_unknown() -> None:
    kind = one(device(None, attributes={"links": {"strings": ["a", "b"]}, "type": {"string": "gpu"}}))
    assert (kind.unknown_names, list(kind.attributes)) == ((f"{DRIVER}/links",), [f"{DRIVER}/type"])


@cases(
    ("measure", "count"),
    of_no_gpus=(Measure.NOTHING, 0),
    of_gpus=(Measure.DEVICES, 1),
)
def test_only_drivers_of_gpus_have_kinds(measure: Measure, count: int) -> None:
    stated = ResourceMappingSpec(device_classes=(DeviceClassPattern(pattern="x.com", measure=measure),))
    slices = [
        slice_of(
            "a",
            {"name": "p", "generation": 1, "resourceSliceCount": 1},
            driver="x.com",
            devices=[{"name": "d"}],
        )
    ]
    assert len(kinds_of(slices, ResourceMapping((stated,))).types) == count


def test_a_pool_stays_as_it_was_until_its_newest_generation_is_complete() -> None:
    pools = DevicePools()
    put(pools, node_slices("a"))
    pools.refresh(MAPPING)
    key = pools.type_key_of(DRIVER, "a", "gpu-0")
    assert key is not None
    newer = node_slices("a", product=("NVIDIA H200", 132, 143771), generation=2)
    put(pools, newer[:1])
    pools.refresh(MAPPING)
    assert pools.type_key_of(DRIVER, "a", "gpu-0") == key
    put(pools, newer[1:])
    pools.refresh(MAPPING)
    assert pools.type_key_of(DRIVER, "a", "gpu-0") not in {None, key}
    for each in newer:
        read = pools.reader.read(msgspec.json.encode(each))
        pools.put(each["metadata"]["name"], read, None)
    pools.refresh(MAPPING)
    assert pools.type_key_of(DRIVER, "a", "gpu-0") is None
    assert pools.inventory.device_types == DeviceTypes()


def test_an_older_generation_beside_the_newest_does_not_count() -> None:
    pools = DevicePools()
    put(pools, node_slices("a", generation=2, partitions=False))
    put(
        pools, [{**each, "metadata": {"name": "old"}} for each in node_slices("a", cards=9, partitions=False)]
    )
    pools.refresh(MAPPING)
    assert [list(node.values()) for node in pools.inventory.device_types.per_node_counts] == [[1]]


@cases(
    ("slices", "nodes"),
    only_the_largest=(
        [*node_slices("a", partitions=False), *node_slices("b", cards=8, partitions=False)],
        [[8]],
    ),
    neither_exceeds_the_other=(
        [
            *node_slices("a", cards=4, partitions=False),
            *node_slices("b", product=("T4", 40, 15360), partitions=False),
        ],
        [[1], [4]],
    ),
    of_no_node_in_particular=(
        [
            *node_slices("a", cards=2, partitions=False),
            slice_of(
                "x",
                {"name": "x", "generation": 1, "resourceSliceCount": 1},
                allNodes=True,
                devices=[{"name": "d"}],
            ),
        ],
        [[1, 2]],
    ),
    of_no_node_at_all=(
        [
            slice_of(
                "x",
                {"name": "x", "generation": 1, "resourceSliceCount": 1},
                allNodes=True,
                devices=[{"name": "d"}],
            )
        ],
        [[1]],
    ),
    nodes_of_devices=(
        [
            slice_of(
                "x",
                {"name": "x", "generation": 1, "resourceSliceCount": 1},
                perDeviceNodeSelection=True,
                devices=[
                    {"name": "d", "nodeName": "m"},
                    {"name": "e", "nodeName": "n"},
                    {"name": "f", "nodeName": "n"},
                ],
            )
        ],
        [[2]],
    ),
)
def test_what_one_node_reaches(slices: list[JSON], nodes: list[list[int]]) -> None:
    assert sorted(sorted(node.values()) for node in kinds_of(slices).per_node_counts) == nodes


def test_combinations_of_too_many_numbers_are_left_out(monkeypatch: Any) -> None:
    slices = [*node_slices("a", cards=4, partitions=False), *node_slices("b", product=("T4", 40, 15360))]
    numbers = sum(map(len, kinds_of(slices).per_node_counts))
    monkeypatch.setattr(device_slices, "MAX_COUNTS", numbers)
    assert kinds_of(slices).per_node_counts
    monkeypatch.setattr(device_slices, "MAX_COUNTS", numbers - 1)
    assert kinds_of(slices).per_node_counts == ()


def test_values_that_tell_devices_apart_are_left_out() -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}

    def named(first: int, number: int) -> list[JSON]:
        return [{"name": f"d-{n}", "attributes": {"shelf": {"int": n}}} for n in range(first, first + number)]

    few = kinds_of([slice_of("a", pool, nodeName="n", devices=named(0, 100))])
    assert len(few.types) == 100
    many = kinds_of(
        [
            slice_of(f"s-{n}", {**pool, "name": str(n)}, devices=named(n, 1), nodeName=str(n))
            for n in range(150)
        ]
    )
    assert [(kind.unknown_names, kind.attributes) for kind in many.types] == [((f"{DRIVER}/shelf",), {})]


def kind(parts: int = CARD_PARTS, **attributes: Any) -> DeviceType:
    return msgspec.convert({"driver": DRIVER, "attributes": attributes, "parts": parts}, DeviceType)


def coarse(*kinds: DeviceType) -> tuple[list[tuple[list[str], int]], tuple[str, ...]]:
    """Return names and parts of the kinds that remain, and the names that were left out."""
    found, left_out = coarsened({type_key(each): each for each in kinds})
    remaining = {type_key(each): each for each in found.values()}
    return sorted((list(each.attributes), each.card_parts) for each in remaining.values()), left_out


def test_too_many_kinds_are_fewer_without_versions_then_without_what_has_most_values(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(device_slices, "MAX_TYPES", 4)
    of = [
        kind(product={"string": str(product)}, size={"int": size}, release={"version": f"{release}.0.0"})
        for product in range(2)
        for size in range(3)
        for release in range(2)
    ]
    assert coarse(*of[:4]) == ([(["product", "size", "release"], CARD_PARTS)] * 4, ())
    assert coarse(*of[:6]) == ([(["product", "size"], CARD_PARTS)] * 3, ("release",))
    assert coarse(*of) == ([(["product"], CARD_PARTS)] * 2, ("release", "size"))


def test_parts_that_are_too_many_are_one_kind_as_dear_as_the_dearest(monkeypatch: Any) -> None:
    monkeypatch.setattr(device_slices, "MAX_TYPES", 4)
    assert coarse(*(kind(parts, size={"int": parts}) for parts in range(1, 6))) == ([([], 5)], ("size",))


def test_kinds_of_two_sources_are_merged() -> None:
    first, second = kinds_of(node_slices("a", partitions=False)), kinds_of(node_slices("b", cards=2))
    both = merge_device_types(first, second)
    assert {each.attributes[PRODUCT].string for each in both.types} == {H100[0]}
    assert merge_device_types(both, first) == both == merge_device_types(second, first)
