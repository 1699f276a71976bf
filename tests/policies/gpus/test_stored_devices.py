"""Cards in ResourceSlices: what allocated claims leave of them, and why no device satisfies a request."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec

from policies.gpus.claimed_devices import DeviceRequest, DeviceResult
from policies.gpus.classes import DeviceAttributeValues, GPUClasses, MigProfile
from policies.gpus.device_slices import SliceReader
from policies.gpus.stored_devices import DeviceCounts, DeviceTaintRule, StoredDevices, decode_taint_rule
from policies.pods.quantity import QuantityText
from tests.builders import JSON, gpu_class
from tests.cases import cases
from tests.resource_slices import DRIVER, H100, node_slices, slice_of
from webhook.configuration.loader import load_directory

MAPPING = load_directory(None).resource_mapping
PROFILES = {
    "1g.10gb": (1, 10, 7),
    "1g.20gb": (1, 20, 4),
    "2g.20gb": (2, 20, 3),
    "3g.40gb": (3, 40, 2),
    "7g.80gb": (7, 80, 1),
}
CLASSES = GPUClasses(
    [
        gpu_class(
            "nvidia-h100-80gb",
            "nvidia-h100",
            80,
            device_attributes=(DeviceAttributeValues(key=f"{DRIVER}/productName", values=(H100[0],)),),
            mig_profiles={name: MigProfile(*sizes) for name, sizes in PROFILES.items()},
        )
    ]
)


def of_node(name: str = "n1", **tweaks: Any) -> list[JSON]:
    """Return the slices of a node whose cards have seven of each engine."""
    documents = node_slices(name, **tweaks)
    for counters in (each for document in documents for each in document["spec"].get("sharedCounters", ())):
        engines = [
            key for key in counters["counters"] if key != "multiprocessors" and not key.startswith("memory")
        ]
        counters["counters"] |= {key: {"value": "7"} for key in engines}
    return documents


def tainted(
    documents: list[JSON], device: str, effect: str = "NoSchedule", added: str | None = None
) -> list[JSON]:
    for each in (each for document in documents for each in document["spec"].get("devices", ())):
        if each["name"] == device:
            taint = {"key": "example.com/sick", "effect": effect}
            each["taints"] = [taint | ({"timeAdded": added} if added else {})]
    return documents


def stored(
    documents: Sequence[JSON],
    *devices: str,
    rules: Sequence[DeviceTaintRule] = (),
    consumed: dict[str, QuantityText] | None = None,
) -> StoredDevices:
    """Return the devices of these slices with those allocated that are named. consumed: of each, by capacity."""
    reader = SliceReader()
    read = [reader.read(msgspec.json.encode(document)) for document in documents]
    results = [
        DeviceResult(driver=DRIVER, pool="n1", device=name, consumed_capacity=consumed) for name in devices
    ]
    return StoredDevices(
        read, MAPPING, CLASSES, results, dropped_attributes=reader.dropped_attributes, rules=rules
    )


SEVENTH = Fraction(1, 7)
ONE, HALF, NONE = Fraction(1), Fraction(1, 2), Fraction(0)
SLICE = "gpu-0-mig-1g10gb"


@cases(
    ("documents", "held", "want"),
    nothing_is_allocated=(of_node(), [], (NONE, ONE, NONE)),
    overlapping_partitions_are_not_added_up=(of_node(cards=2), [], (NONE, 2 * ONE, NONE)),
    one_slice_leaves_six_sevenths=(of_node(), [f"{SLICE}-0"], (SEVENTH, 1 - SEVENTH, NONE)),
    four_slices=(of_node(), [f"{SLICE}-{each}" for each in range(4)], (4 * SEVENTH, 3 * SEVENTH, NONE)),
    # Seven slices take seven of eight memory slices, and each partition needs some processors.
    seven_slices=(of_node(), [f"{SLICE}-{each}" for each in range(7)], (ONE, NONE, NONE)),
    # Two halves of the memory leave a seventh of the processors, which no partition has alone.
    what_no_partition_fits_into_is_blocked=(
        of_node(),
        ["gpu-0-mig-2g20gb-0", "gpu-0-mig-2g20gb-2", "gpu-0-mig-3g40gb-4"],
        (ONE, NONE, NONE),
    ),
    whole=(of_node(cards=2), ["gpu-1"], (ONE, ONE, NONE)),
    without_partitions=(of_node(cards=2, partitions=False), ["gpu-0"], (ONE, ONE, NONE)),
    a_whole_card_is_tainted=(tainted(of_node(cards=2, partitions=False), "gpu-0"), [], (NONE, ONE, ONE)),
    a_taint_without_effect=(tainted(of_node(), "gpu-0", "None"), [], (NONE, ONE, NONE)),
    its_slices_are_not_tainted=(tainted(of_node(), "gpu-0"), [], (NONE, ONE, NONE)),
    a_generation_that_is_not_complete=(of_node(partitions=False)[:0], [], (NONE, NONE, NONE)),
)
def test_what_is_free_of_the_cards(
    documents: list[JSON], held: list[str], want: tuple[Fraction, ...]
) -> None:
    cards = stored(documents, *held).cards_by_node().get("n1", [])

    assert (
        tuple(sum((getattr(each, part) for each in cards), NONE) for part in ("allocated", "free", "blocked"))
        == want
    )


def test_a_card_whose_counters_are_spent_is_blocked() -> None:
    """Three eighths of the memory as 1g.20gb and 2g.20gb, and the placement of what is left overlaps them."""
    cards = stored(
        of_node(), "gpu-0-mig-3g40gb-0", *(f"{SLICE}-{each}" for each in (4, 5, 6))
    ).cards_by_node()["n1"]

    # 3g.40gb is a half by its memory, and each 1g.10gb a seventh.
    assert [(each.allocated, each.free, each.blocked) for each in cards] == [
        (HALF + 3 * SEVENTH, NONE, 1 - HALF - 3 * SEVENTH)
    ]


def shared(**consumed: QuantityText) -> StoredDevices:
    device = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    return stored(
        [slice_of("n1", pool, nodeName="n1", devices=[device])], "gpu-0", "gpu-0", consumed=consumed
    )


def test_shares_of_a_device_leave_the_rest() -> None:
    (card,) = shared(memory="20Gi").cards_by_node()["n1"]
    assert (card.allocated, card.free, card.blocked) == (HALF, HALF, NONE)

    (card,) = shared(memory="40Gi").cards_by_node()["n1"]
    assert (card.allocated, card.free, card.blocked) == (ONE, NONE, NONE)


def test_a_pool_counts_by_its_newest_complete_generation() -> None:
    old, new = of_node(cards=2, partitions=False), of_node(cards=1, partitions=False, generation=2)
    assert len(stored([*old, *new]).cards_by_node()["n1"]) == 1


def requesting(*expressions: str, **tweaks: Any) -> DeviceRequest:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return msgspec.convert({"selectors": selectors, **tweaks}, DeviceRequest)


IS_GPU = (f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"',)
IS_MIG = (f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "mig"',)
SMALL = f'device.attributes["{DRIVER}"].profile == "1g.10gb"'
RULE = decode_taint_rule(
    b'{"spec": {"deviceSelector": {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-1"},'
    b' "taint": {"key": "example.com/drain", "effect": "NoExecute", "timeAdded": "2026-11-29T08:00:00Z"}}}'
)
EVERY_RULE = decode_taint_rule(b'{"spec": {"taint": {"key": "a", "effect": "NoExecute"}}}')
TOLERATED = requesting(tolerations=[{"key": "example.com/drain", "operator": "Exists"}])


@cases(
    ("documents", "held", "rules", "of_class", "request_", "want"),
    all_are_free=(of_node(cards=8), [], [], IS_GPU, requesting(), (8, 8, 0, 0, [])),
    a_selector_takes_some=(of_node(), [], [], IS_MIG, requesting(SMALL), (25, 7, 0, 0, [])),
    one_takes_the_card_from_its_partitions=(of_node(), ["gpu-0"], [], IS_MIG, requesting(SMALL), (25, 7, 7, 0, [])),
    a_partition_takes_the_card=(of_node(cards=2), [f"{SLICE}-0"], [], IS_GPU, requesting(), (2, 2, 1, 0, [])),
    nothing_is_selected=(of_node(), [], [], IS_GPU, requesting(SMALL), (1, 0, 0, 0, [])),
    no_device_of_the_class=(of_node(), [], [], ('device.driver == "amd.com"',), requesting(), (0, 0, 0, 0, [])),
    a_taint_by_a_rule=(of_node(cards=2), [], [RULE], IS_GPU, requesting(), (2, 2, 0, 1, ["example.com/drain"])),
    that_is_tolerated=(of_node(cards=2), [], [RULE], IS_GPU, TOLERATED, (2, 2, 0, 0, [])),
    a_rule_without_a_selector=(of_node(cards=2), [], [EVERY_RULE], IS_GPU, requesting(), (2, 2, 0, 0, [])),
    the_newest_taint_comes_first=(
        tainted(of_node(cards=2), "gpu-0", added="2026-11-28T08:00:00Z"), [], [RULE], IS_GPU, requesting(),
        (2, 2, 0, 2, ["example.com/drain", "example.com/sick"]),
    ),
    allocated_and_tainted=(of_node(cards=2), ["gpu-1"], [RULE], IS_GPU, requesting(), (2, 2, 1, 0, [])),
)  # fmt: skip
def test_why_no_device_satisfies_a_request(
    documents: list[JSON],
    held: list[str],
    rules: list[DeviceTaintRule],
    of_class: tuple[str, ...],
    request_: DeviceRequest,
    want: tuple[int, int, int, int, list[str]],
) -> None:
    found = stored(documents, *held, rules=rules).counts_for(request_, of_class)

    *numbers, keys = want
    assert (found.of_class, found.selected, found.unavailable, found.tainted) == tuple(numbers)
    assert [each.key for each in found.taints] == keys
    assert found.free == found.selected - found.unavailable - found.tainted


def test_nothing_is_known_without_slices() -> None:
    assert stored([]).counts_for(requesting(), IS_GPU) == DeviceCounts()
    assert stored([]).cards_by_node() == {}
