"""Random clusters with devices, and what people ask of them. A world is a function of its seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.builders import JSON
from tests.cluster.devices import meanings, slices
from tests.cluster.devices.cards import PARTITIONED, WHOLE, Card
from tests.cluster.devices.meanings import (
    AMD_CARDS,
    ANY,
    CARDS,
    DEVICE_CLASSES,
    HOPPER,
    SLICES,
    TPUS,
    DeviceClass,
    Selector,
)

CLAIMS = 25
"""Of a world: 200 worlds have 5,000."""
TAINTED = {"key": "example.com/broken", "effect": "NoSchedule"}


class Node(NamedTuple):
    name: str
    driver: str
    slices: list[slices.Slice]


class Wanted(NamedTuple):
    """A claim that somebody makes: for one pod by a template, or by itself for so many pods."""

    name: str
    spec: JSON
    pods: int
    by_template: bool


@dataclass
class World:
    seed: int
    nodes: list[Node] = field(default_factory=list)
    later: list[Node] = field(default_factory=list)
    """Nodes whose devices are published while claims are made."""
    is_renewed: bool = False
    """Whether the first node publishes its pool again while claims are made, as after an upgrade of its driver."""
    wanted: list[Wanted] = field(default_factory=list)
    meanings: dict[str, Selector] = field(default_factory=dict)
    hard: str = "1"


CLASSES = {each.name: each.selector.text for each in DEVICE_CLASSES}
"""The selector of each DeviceClass."""


def world(seed: int, claims: int = CLAIMS) -> World:
    pick = random.Random(seed)  # noqa: S311
    made = World(seed)
    cards = [pick.choice(PARTITIONED), *pick.sample((*PARTITIONED, *WHOLE), pick.randint(0, 2))]
    made.nodes = [_node(pick, f"w{seed}-{index}", card) for index, card in enumerate(cards)]
    if pick.random() < 0.3:
        made.nodes.append(_other(pick, f"w{seed}-other"))
    if pick.random() < 0.2:
        made.later.append(_node(pick, f"w{seed}-later", pick.choice((*PARTITIONED, *WHOLE))))
    made.is_renewed = pick.random() < 0.3
    meant = [each.selector for each in DEVICE_CLASSES]
    draw = _Requests(pick, made, cards, meant)
    made.wanted = [_wanted(pick, index, draw) for index in range(claims)]
    made.meanings = {each.text: each for each in meant}
    made.hard = pick.choice(["1", "3/2", "2", "3", "5", "8", "12", "20", "32"])
    return made


def _node(pick: random.Random, name: str, card: Card) -> Node:
    count = pick.choice([1, 2, 3, 4, 8])
    if not card.profiles or pick.random() < 0.15:
        parts = slices.whole(card, name, count)
    elif pick.random() < 0.15:
        parts = slices.divided(card, name, count, pick.choice(card.profiles).name)
    elif pick.random() < 0.2:
        parts = slices.shared(card, name, count, pick.choice(["unlimited", "memory", "memory", "4"]))
    else:
        parts = slices.partitioned(card, name, count)
    if pick.random() < 0.15:
        _taint(pick, parts)
    return Node(name, slices.NVIDIA, parts)


def _taint(pick: random.Random, parts: list[slices.Slice]) -> None:
    """Taint some devices of one slice. With taints a slice may have fewer devices."""
    (part, *_) = (each for each in parts if "devices" in each)
    if len(part["devices"]) <= slices.MAX_WITH_COUNTERS:
        for device in pick.sample(part["devices"], (len(part["devices"]) + 1) // 2):
            device["taints"] = [TAINTED]


def _other(pick: random.Random, name: str) -> Node:
    count = pick.choice([1, 2, 4])
    if pick.random() < 0.5:
        return Node(name, slices.TPU, slices.tpu(name, count))
    return Node(name, slices.AMD, slices.amd(count, pick.choice(["spx_nps1", "cpx_nps1"])))


class _Requests:
    """Draws requests, and notes what their selectors mean."""

    def __init__(self, pick: random.Random, world: World, cards: list[Card], meant: list[Selector]) -> None:
        self._pick = pick
        self._drivers = {each.driver for each in world.nodes}
        self._products = [each.product for each in cards]
        self._profiles = [profile.name for card in cards for profile in card.profiles]
        self._meant = meant

    def spec(self) -> JSON:
        pick = self._pick
        requests = [self._request(f"r{index}") for index in range(pick.choice([1, 1, 1, 1, 2]))]
        devices: JSON = {"requests": requests}
        return {"devices": devices}

    def _request(self, name: str) -> JSON:
        if self._pick.random() < 0.15:
            some = range(self._pick.randint(2, 3))
            return {"name": name, "firstAvailable": [{"name": f"a{i}", **self._wanted()} for i in some]}
        return {"name": name, "exactly": self._wanted(is_exact=True)}

    def _wanted(self, *, is_exact: bool = False) -> JSON:
        pick, device_class = self._pick, self._class()
        wanted: JSON = {"deviceClassName": device_class.name}
        if device_class in {CARDS, SLICES, ANY, HOPPER}:
            chosen = self._selectors(device_class)
            self._meant += chosen
            if chosen:
                wanted["selectors"] = [{"cel": {"expression": each.text}} for each in chosen]
            if device_class is not SLICES and pick.random() < 0.2:
                wanted["capacity"] = {"requests": {"memory": pick.choice(["1Gi", "5Gi", "10Gi", "19Gi"])}}
        if is_exact and pick.random() < 0.04:
            return wanted | {"adminAccess": True}
        if pick.random() < 0.1:
            wanted["tolerations"] = [{"key": TAINTED["key"], "operator": "Exists"}]
        if device_class in {CARDS, TPUS, AMD_CARDS} and pick.random() < 0.08:
            return wanted | {"allocationMode": "All"}
        count = pick.choice([1, 1, 1, 1, 1, 2, 3])
        return wanted | ({"count": count} if count > 1 else {})

    def _class(self) -> DeviceClass:
        others = {slices.AMD: AMD_CARDS, slices.TPU: TPUS}
        present = [others[each] for each in self._drivers if each in others]
        return self._pick.choice([*[SLICES] * 6, *[CARDS] * 2, ANY, HOPPER, *present])

    def _selectors(self, device_class: DeviceClass) -> list[Selector]:
        profiles = self._profiles if device_class is not CARDS else []
        return meanings.drawn(self._pick, self._products, profiles)


def _wanted(pick: random.Random, index: int, draw: _Requests) -> Wanted:
    by_template = pick.random() < 0.75
    pods = 1 if by_template else pick.choice([0, 1, 1, 2])
    return Wanted(f"c{index}", draw.spec(), pods, by_template)


def objects(wanted: Wanted) -> Iterator[tuple[str, JSON]]:
    """Yield the plural and the object of everything that somebody makes for it, in order."""
    if wanted.by_template:
        yield (
            "resourceclaimtemplates",
            {"metadata": {"name": wanted.name}, "spec": {"spec": wanted.spec}},
        )
    else:
        yield "resourceclaims", {"metadata": {"name": wanted.name}, "spec": wanted.spec}
    key = "resourceClaimTemplateName" if wanted.by_template else "resourceClaimName"
    for number in range(wanted.pods):
        yield "pods", pod(f"{wanted.name}-{number}", {"name": "devices", key: wanted.name})


def pod(name: str, *claims: JSON, **limits: str) -> JSON:
    resources: JSON = {"claims": [{"name": each["name"]} for each in claims]}
    if limits:
        resources = {"limits": limits}
    container = {"name": "train", "image": "trainer", "resources": resources}
    tolerations = [{"operator": "Exists"}]
    spec: JSON = {"containers": [container], "tolerations": tolerations}
    if claims:
        spec["resourceClaims"] = list(claims)
    return {"metadata": {"name": name}, "spec": spec}
