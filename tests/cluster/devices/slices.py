"""Drivers for tests: ResourceSlices as three drivers publish them, for nodes that exist only as objects.

What they publish was read in kubernetes-sigs/dra-driver-nvidia-gpu (95932046: `partitions.go`, `mig.go`, `deviceinfo.go`,
`consumable_shares.go`, `driver.go`), ROCm/k8s-gpu-dra-driver (26224272: `deviceinfo.go`) and kubernetes-sigs/dra-driver-google-
tpu (f5a9d8c8: `manager.go`). A pool is a node. Of cards that are partitioned on demand, a slice has all CounterSets, and each
card one slice: the card itself and every placement of every profile.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import NAMESPACE_OID, uuid5

from tests.builders import JSON
from tests.cluster.devices.cards import Card, Profile
from tests.controlplane import CLAIMS_API, accepted
from tests.controlplane.client import Client

NVIDIA, AMD, TPU = "gpu.nvidia.com", "gpu.amd.com", "tpu.google.com"
SLICES = f"{CLAIMS_API}/resourceslices"
MAX_COUNTER_SETS, MAX_DEVICES, MAX_WITH_COUNTERS = 8, 128, 64
"""Of one slice (`ResourceSliceMaxCounterSets`, `ResourceSliceMaxDevices`, `…WithAdvancedFeatures`)."""

Slice = JSON
"""A part of a pool: its devices, or its CounterSets."""


def _capacity(**amounts: int) -> JSON:
    return {name: {"value": str(amount)} for name, amount in amounts.items()}


class Version(NamedTuple):
    text: str


def _named(**values: str | int | Version) -> JSON:
    def typed(value: str | int | Version) -> JSON:
        if isinstance(value, Version):
            return {"version": value.text}
        return {"string" if isinstance(value, str) else "int": value}

    return {name: typed(value) for name, value in values.items()}


def _uuid(node: str, index: int) -> str:
    return f"GPU-{uuid5(NAMESPACE_OID, f'{node}/{index}')}"


def _card_attributes(card: Card, index: int) -> JSON:
    """Return what a card and its partitions have in common. The address is a standard attribute, without the driver's domain."""
    shared = _named(
        productName=card.product,
        brand="Nvidia",
        architecture=card.architecture,
        cudaComputeCapability=Version(card.capability),
        driverVersion=Version("580.65.6"),
        cudaDriverVersion=Version("13.0.0"),
    )
    address = {"string": f"0000:{index + 16:02x}:00.0"}
    return {
        **shared,
        "resource.kubernetes.io/pciBusID": address,
        "resource.kubernetes.io/numaNode": {"int": index // 4},
    }


def _whole(card: Card, node: str, index: int) -> JSON:
    attributes = {**_card_attributes(card, index), **_named(type="gpu", uuid=_uuid(node, index))}
    return {
        "name": f"gpu-{index}",
        "attributes": attributes,
        "capacity": _capacity(memory=card.mib * 2**20),
    }


def _engines(card: Card, profile: Profile) -> dict[str, int]:
    """Return what a profile has beside memory and processors. `+me` has all media engines."""
    whole, has_media = profile is card.profiles[-1], profile.name.endswith("+me")
    part = 7 if whole else profile.size
    return {
        "copyEngines": 8 if whole else part,
        "decoders": 7 if whole else part,
        "encoders": 0,
        "jpegEngines": 7 if whole or has_media else 1,
        "ofaEngines": 1 if whole or has_media else 0,
    }


def _amounts(card: Card, profile: Profile) -> dict[str, int]:
    return {
        "memory": profile.mib * 2**20,
        "multiprocessors": profile.processors,
        **_engines(card, profile),
    }


COUNTERS = {"copyEngines": "copy-engines", "jpegEngines": "jpeg-engines", "ofaEngines": "ofa-engines"}


def _counters(amounts: dict[str, int], start: int, size: int) -> JSON:
    named = {COUNTERS.get(name, name): {"value": str(amount)} for name, amount in amounts.items()}
    return named | {f"memory-slice-{number}": {"value": "1"} for number in range(start, start + size)}


def _all_of(card: Card) -> dict[str, int]:
    """Return the largest amount of each capacity of all profiles, which is what the driver takes for the card's."""
    every = [_amounts(card, profile) for profile in card.profiles]
    return {name: max(amounts[name] for amounts in every) for name in every[0]}


def _mig(card: Card, node: str, index: int, profile: Profile, start: int) -> JSON:
    name = profile.name.replace(".", "").replace("+", "-")
    attributes = {
        **_card_attributes(card, index),
        **_named(type="mig", parentUUID=_uuid(node, index), profile=profile.name),
    }
    return {
        "name": f"gpu-{index}-mig-{name}-{profile.identity}-{start}",
        "attributes": attributes,
        "capacity": _capacity(**_amounts(card, profile)),
    }


def partitioned(card: Card, node: str, count: int) -> list[Slice]:
    """Return the slices of cards that are partitioned on demand (feature gate DynamicMIG, Kubernetes 1.35 or newer)."""
    whole, slices = _all_of(card), list[Slice]()
    sets = [
        {"name": f"gpu-{index}-counter-set", "counters": _counters(whole, 0, 8)} for index in range(count)
    ]
    for index in range(count):
        consumer = {"counterSet": f"gpu-{index}-counter-set"}
        full = _whole(card, node, index) | {
            "capacity": _capacity(**whole),
            "consumesCounters": [{**consumer, "counters": _counters(whole, 0, 8)}],
        }
        placements = [
            _mig(card, node, index, profile, start)
            | {
                "consumesCounters": [
                    {**consumer, "counters": _counters(_amounts(card, profile), start, profile.size)}
                ]
            }
            for profile in card.profiles
            for start in profile.starts
        ]
        slices.append({"devices": sorted([full, *placements], key=lambda each: str(each["name"]))})
    counters = [
        {"sharedCounters": sets[at : at + MAX_COUNTER_SETS]} for at in range(0, count, MAX_COUNTER_SETS)
    ]
    return [*counters, *slices]


def whole(card: Card, node: str, count: int) -> list[Slice]:
    """Return the slice of cards that cannot be partitioned, or whose driver has not read how: no CounterSets."""
    return [{"devices": [_whole(card, node, index) for index in range(count)]}]


def divided(card: Card, node: str, count: int, profile: str) -> list[Slice]:
    """Return the slices of cards that an administrator has divided: MIG devices without counters, and no cards."""
    (found,) = (each for each in card.profiles if each.name == profile)
    devices = [
        _divided(card, node, index, found, start) for index in range(count) for start in _beside(found)
    ]
    return [{"devices": devices[at : at + MAX_DEVICES]} for at in range(0, len(devices), MAX_DEVICES)]


def _divided(card: Card, node: str, index: int, profile: Profile, start: int) -> JSON:
    device = _mig(card, node, index, profile, start)
    taken = {f"memorySlice{number}": 1 for number in range(start, start + profile.size)}
    identity = _named(uuid=f"MIG-{_uuid(node, index)[4:-4]}{profile.identity:02}{start:02}")
    return device | {
        "attributes": device["attributes"] | identity,
        "capacity": device["capacity"] | _capacity(**taken),
    }


def _beside(profile: Profile) -> Iterator[int]:
    """Yield placements of a profile that do not overlap."""
    free = 0
    for start in profile.starts:
        if start >= free:
            yield start
            free = start + profile.size


def shared(card: Card, node: str, count: int, shares: str) -> list[Slice]:
    """Return the slice of cards that several claims may have at once: `unlimited`, `memory`, or the number of shares of each."""
    step, size = 2**20, card.mib * 2**20
    least = step if shares == "memory" else 0
    policy = {
        "default": str(size if shares == "memory" else 0),
        "validRange": {"min": str(least), "max": str(size), "step": str(step)},
    }
    capacity = {"memory": {"value": str(size), "requestPolicy": policy}}
    if shares.isdigit():
        parts = {"default": "1", "validRange": {"min": "1", "max": shares, "step": "1"}}
        capacity["shares"] = {"value": shares, "requestPolicy": parts}
    cards = (_whole(card, node, index) for index in range(count))
    return [{"devices": [{**each, "allowMultipleAllocations": True, "capacity": capacity} for each in cards]}]


def amd(count: int, profile: str = "spx_nps1") -> list[Slice]:
    """Return the slice of MI300X cards, or of their partitions, which share no counters: each is a device of its own."""
    is_whole, parts = profile.startswith("spx"), 1 if profile.startswith("spx") else 8
    devices = []
    for index in range(count * parts):
        address = f"0000:{index // parts + 32:02x}:00.0"
        attributes = _named(
            type="amdgpu" if is_whole else "amdgpu-partition",
            cardIndex=index,
            renderIndex=128 + index,
            family="AI",
            productName="AMD_Instinct_MI300X_OAM",
            driverVersion=Version("6.12.12"),
            partitionProfile=profile,
            **({"pciAddr": address} if is_whole else {"parentPciAddr": address}),
        )
        capacity = _capacity(
            memory=(196592 // parts) * 2**20, computeUnits=304 // parts, simdUnits=1216 // parts
        )
        devices.append({"name": f"gpu-{index}-{128 + index}", "attributes": attributes, "capacity": capacity})
    return [{"devices": devices}]


def tpu(node: str, count: int) -> list[Slice]:
    """Return the slice of a node with chips of a TPU v6e. They have no capacity."""
    kind = {"tpuGen": "v6e", "brand": "Google", "accelerator": "tpu-v6e-slice", "topology": "2x4"}
    devices = [
        {
            "name": f"accel{index}",
            "attributes": _named(index=index, uuid=_uuid(node, index), chipCount=count, **kind),
        }
        for index in range(count)
    ]
    return [{"devices": devices}]


def pool(driver: str, node: str, slices: Sequence[Slice], generation: int = 1) -> list[JSON]:
    """Return the ResourceSlices of the pool of a node."""
    named = {"name": node, "generation": generation, "resourceSliceCount": len(slices)}
    return [
        {
            "metadata": {"name": f"{node}-{driver}-g{generation}-{number}"},
            "spec": {"driver": driver, "nodeName": node, "pool": named, **each},
        }
        for number, each in enumerate(slices)
    ]


def upgraded(parts: Sequence[Slice], version: str) -> list[Slice]:
    """Return the slices with another version of the vendor's driver."""

    def device(before: JSON) -> JSON:
        return {**before, "attributes": {**before["attributes"], **_named(driverVersion=Version(version))}}

    return [
        {**each, "devices": [device(before) for before in each["devices"]]} if "devices" in each else each
        for each in parts
    ]


def publish(client: Client, slices: Iterable[JSON]) -> None:
    for each in slices:
        accepted(client.post(SLICES, each))


def withdraw(client: Client, slices: Iterable[JSON]) -> None:
    for each in slices:
        accepted(client.delete(f"{SLICES}/{each['metadata']['name']}"))
