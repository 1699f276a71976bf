"""What ResourceSlices say, and what a device weighs, by arithmetic of the tests' own.

Nothing of what is judged is imported here.

The weight of a device in whole cards, as the specification has it:

- of a MIG device of a known card, what a slice of the profile weighs of the device plugin: the larger of sevenths and memory,
  by the sizes in the names (1g.10gb of 80 GB: 1/7; 1g.20gb: 1/4);
- of another device that consumes counters, the sum over its CounterSets of the largest part of memory, processors or memory
  slices;
- of a device without counters, a card;
- of a device that several claims have at once, that times the part of its memory (or processors) that the claim consumes. A
  claim that consumes none of them weighs the device.

What is by counters or by shares is rounded up to 1/5040.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

CARD_PARTS = 5040
NVIDIA = "gpu.nvidia.com"
NOMINAL = {
    "NVIDIA A100-SXM4-40GB": 40,
    "NVIDIA A100-SXM4-80GB": 80,
    "NVIDIA H100 80GB HBM3": 80,
    "NVIDIA H200": 141,
    "NVIDIA B200": 180,
}
"""GB by the names of products that have classes, and of which slices weigh what names say."""
STATED = {("NVIDIA H200", "3g.71gb"): Fraction(1, 2)}
"""Two of them have 142 of 141 GB."""
SCALES = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZED = re.compile(r"(\d+)g\.(\d+)gb(?:\+.*)?")

Values = Mapping[str, Any]


def quantity(text: str) -> Fraction:
    found = re.fullmatch(r"(\d+)(|[KMGT]i)", text)
    assert found, f"{text} is no quantity that this test writes"
    return Fraction(int(found[1]) * SCALES[found[2]])


def rounded_up(weight: Fraction) -> Fraction:
    return Fraction(-(-weight * CARD_PARTS // 1), CARD_PARTS)


@dataclass(frozen=True)
class Device:
    """attributes and capacity: by qualified name. `weight`: of the whole device, in cards. `policies`: of shared devices."""

    driver: str
    pool: str
    name: str
    node: str
    weight: Fraction
    attributes: Values = field(default_factory=dict, compare=False)
    capacity: Mapping[str, Fraction] = field(default_factory=dict, compare=False)
    policies: Mapping[str, Values] = field(default_factory=dict, compare=False)
    is_shared: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.name

    def get(self, attribute: str) -> Any:
        return self.attributes.get(f"{self.driver}/{attribute}")

    def amount(self, name: str) -> Fraction:
        return self.capacity.get(f"{self.driver}/{name}", Fraction(0))

    def consumption(self, requested: Mapping[str, str]) -> dict[str, Fraction] | None:
        """Return what a request takes of each capacity of this shared device; None if it cannot have it."""
        wanted = {_qualified(name, self.driver): quantity(each) for name, each in requested.items()}
        if any(name not in self.capacity for name in wanted):
            return None
        taken = {}
        for name, size in self.capacity.items():
            amount = _by_policy(wanted.get(name), size, self.policies.get(name))
            if amount is None or amount > size:
                return None
            taken[name] = amount
        return taken

    def share(self, consumed: Mapping[str, Fraction]) -> Fraction:
        """Return what a claim weighs that consumes so much of this shared device."""
        weighed = [f"{self.driver}/{name}" for name in ("memory", "multiprocessors")]
        parts = [
            consumed.get(name, Fraction(0)) / self.capacity[name] for name in weighed if name in self.capacity
        ]
        part = max(parts, default=Fraction(0))
        return rounded_up(self.weight * part) if part else self.weight


def _by_policy(wanted: Fraction | None, size: Fraction, policy: Values | None) -> Fraction | None:
    if policy is None:
        return size if wanted is None else wanted
    if wanted is None:
        return quantity(policy["default"])
    bounds = policy["validRange"]
    least, most, step = (quantity(bounds[name]) for name in ("min", "max", "step"))
    amount = least if wanted <= least else least + -(-(wanted - least) // step) * step
    return amount if amount <= most else None


def _qualified(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def devices_of(slices: Iterable[Values]) -> Iterator[Device]:
    """Yield the devices of the newest complete generation of every pool."""
    pools = defaultdict[tuple[str, str], list[Values]](list)
    for each in slices:
        pools[each["driver"], each["pool"]["name"]].append(each)
    for parts in pools.values():
        newest = max(each["pool"]["generation"] for each in parts)
        present = [each for each in parts if each["pool"]["generation"] == newest]
        if len(present) == present[0]["pool"]["resourceSliceCount"]:
            yield from _pool_devices(present)


def _pool_devices(slices: list[Values]) -> Iterator[Device]:
    totals = {
        each["name"]: {name: quantity(counter["value"]) for name, counter in each["counters"].items()}
        for part in slices
        for each in part.get("sharedCounters", ())
    }
    for part in slices:
        driver = part["driver"]
        for each in part.get("devices", ()):
            attributes = {
                _qualified(name, driver): next(iter(value.values()))
                for name, value in each.get("attributes", {}).items()
            }
            capacity = {_qualified(name, driver): value for name, value in each.get("capacity", {}).items()}
            yield Device(
                driver,
                part["pool"]["name"],
                each["name"],
                part.get("nodeName", ""),
                weight=_weight(driver, attributes, each.get("consumesCounters", ()), totals),
                attributes=attributes,
                capacity={name: quantity(value["value"]) for name, value in capacity.items()},
                policies={
                    name: value["requestPolicy"]
                    for name, value in capacity.items()
                    if "requestPolicy" in value
                },
                is_shared=each.get("allowMultipleAllocations", False),
            )


def _weight(
    driver: str, attributes: Values, consumed: Iterable[Values], totals: Mapping[str, Mapping[str, Fraction]]
) -> Fraction:
    product, profile = (attributes.get(f"{driver}/{name}", "") for name in ("productName", "profile"))
    if product in NOMINAL and (found := _SIZED.fullmatch(profile)):
        by_name = max(Fraction(int(found[1]), 7), Fraction(int(found[2]), NOMINAL[product]))
        return STATED.get((product, profile), by_name)
    parts = [
        _largest_part(each["counters"], totals[each["counterSet"]]) for each in consumed if driver == NVIDIA
    ]
    return rounded_up(sum(parts, Fraction(0))) if any(parts) else Fraction(1)


def _largest_part(consumed: Mapping[str, Values], total: Mapping[str, Fraction]) -> Fraction:
    def weighed(counters: Mapping[str, Fraction]) -> dict[str, Fraction]:
        amounts = defaultdict[str, Fraction](Fraction)
        for name, amount in counters.items():
            amounts["memory-slices" if name.startswith("memory-slice-") else name] += amount
        return {
            name: amounts[name] for name in ("memory", "multiprocessors", "memory-slices") if amounts[name]
        }

    mine = weighed({name: quantity(counter["value"]) for name, counter in consumed.items()})
    return max((amount / weighed(total)[name] for name, amount in mine.items()), default=Fraction(0))
