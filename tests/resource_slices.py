"""ResourceSlices as NVIDIA's DRA driver publishes them: a node's cards, and every placement of MIG on them."""

import re
from collections.abc import Iterator
from typing import Any

from tests.builders import JSON

DRIVER = "gpu.nvidia.com"
H100 = ("NVIDIA H100 80GB HBM3", 132, 81559)
"""A product, its multiprocessors, and its memory in MiB."""
PROFILES = {
    "1g.10gb": (16, 1, 7),
    "1g.10gb+me": (16, 1, 7),
    "1g.20gb": (26, 2, 4),
    "2g.20gb": (32, 2, 3),
    "3g.40gb": (60, 4, 2),
    "4g.40gb": (64, 4, 1),
    "7g.80gb": (132, 8, 1),
}
"""Of an H100: multiprocessors, memory slices, and the number of placements (MIG User Guide)."""


def node_slices(
    node: str,
    *,
    cards: int = 1,
    product: tuple[str, int, int] = H100,
    generation: int = 1,
    partitions: bool = True,
) -> list[JSON]:
    """Return the slices of a node: those with at most 64 devices each, then one with the counters of the cards."""
    name, processors, memory = product
    devices: list[JSON] = []
    counter_sets: list[JSON] = []
    for card in range(cards):
        identity = f"GPU-{node}-{card}"
        whole = _capacity(processors, memory)
        consumed = _counters(whole, range(8))
        counter_sets.append({"name": f"gpu-{card}-counter-set", "counters": consumed})
        devices.append(
            {
                "name": f"gpu-{card}",
                "attributes": {
                    "type": {"string": "gpu"},
                    "uuid": {"string": identity},
                    **_attributes(name, card),
                },
                "capacity": whole,
                **({"consumesCounters": [_consumes(card, consumed)]} if partitions else {}),
            }
        )
        devices += _partitions(name, card, identity, memory) if partitions else ()
    parts = [devices[start : start + 64] for start in range(0, len(devices), 64)]
    specs: list[JSON] = [{"devices": part} for part in parts]
    specs += [{"sharedCounters": counter_sets}] if partitions else []
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(specs)}
    return [slice_of(f"{node}-{index}", pool, nodeName=node, **spec) for index, spec in enumerate(specs)]


def slice_of(name: str, pool: JSON, *, driver: str = DRIVER, **spec: Any) -> JSON:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": pool, **spec},
    }


def _partitions(product: str, card: int, identity: str, memory: int) -> Iterator[JSON]:
    for profile, (processors, slices, placements) in PROFILES.items():
        for placement in range(placements):
            start = min(placement * slices, 8 - slices)
            capacity = _capacity(processors, memory * slices // 8)
            yield {
                "name": f"gpu-{card}-mig-{profile.replace('.', '').replace('+', '-')}-{start}",
                "attributes": {
                    "type": {"string": "mig"},
                    "profile": {"string": profile},
                    "parentUUID": {"string": identity},
                    **_attributes(product, card),
                },
                "capacity": capacity,
                "consumesCounters": [_consumes(card, _counters(capacity, range(start, start + slices)))],
            }


def _attributes(product: str, card: int) -> JSON:
    return {
        "productName": {"string": product},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.82.7"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{card:02x}"},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{card:02x}:00.0"},
    }


def _capacity(processors: int, memory: int) -> JSON:
    return {
        "multiprocessors": {"value": str(processors)},
        **{
            key: {"value": "1"}
            for key in ("copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
        },
        "memory": {"value": f"{memory}Mi"},
    }


def _counters(capacity: JSON, slices: range) -> JSON:
    named = {
        re.sub("[A-Z]", lambda each: f"-{each[0].lower()}", name): value for name, value in capacity.items()
    }
    return named | {f"memory-slice-{index}": {"value": "1"} for index in slices}


def _consumes(card: int, counters: JSON) -> JSON:
    return {"counterSet": f"gpu-{card}-counter-set", "counters": counters}
