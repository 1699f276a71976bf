"""Random LimitRanges and pods, and how answers about them are compared."""

import json
import re
from typing import Any

from policies.pods.limit_ranges import (
    NamespaceLimits,
    decode_limit_range,
    effective_amounts,
    namespace_limits,
)
from policies.pods.pod import Pod
from policies.pods.quantity import parse_or_none
from tests.builders import JSON
from tests.oracle import World
from tests.oracle.worlds import AMOUNTS, NAMESPACE, UNITS, Draw, draw_limit_range, draw_pod

SENTENCE = re.compile(r", (?=minimum |maximum |\S+ max limit)")


def draw_case(seed: int) -> World:
    """Draw up to three LimitRanges, and a pod, some with amounts for the pod as a whole."""
    draw = Draw(seed)
    pod = draw_pod(draw)
    if draw.random() < 0.2:
        amounts: JSON = {}
        for resource in ("cpu", "memory"):
            for kind in ("limits", "requests"):
                if draw.random() < 0.4:
                    amount = f"{draw.choice(AMOUNTS[resource])}{UNITS.get(resource, '')}"
                    amounts.setdefault(kind, {})[resource] = amount
        pod["spec"]["resources"] = amounts
    names = ("a", "b", "c")[: draw.choice((1, 1, 2, 3))]
    return World(pod, NAMESPACE, [draw_limit_range(draw, name) for name in names])


def read_limits(world: World) -> NamespaceLimits:
    return namespace_limits(decode_limit_range(json.dumps(each).encode()) for each in world.limit_ranges)


def amounts_of(pod: Pod) -> dict[str, Any]:
    """Return all amounts of the pod as numbers, with the requests that the API server copies from limits."""
    read = {
        f"{place.path}.{kind}": {
            name: parse_or_none(raw) for name, raw in effective_amounts(place.container, kind).items()
        }
        for place in pod.places
        for kind in ("requests", "limits")
    }
    own = pod.spec.resources
    for kind, amounts in (("requests", own and own.requests), ("limits", own and own.limits)):
        read[f"spec.{kind}"] = {name: parse_or_none(raw) for name, raw in (amounts or {}).items()}
    return read


def sentences(message: str) -> list[str]:
    """Return the sentences of a refusal, in any order: those of several are in brackets."""
    found = message.removeprefix('pods "train" is forbidden: ')
    return sorted(SENTENCE.split(found[1:-1] if found.startswith("[") else found))
