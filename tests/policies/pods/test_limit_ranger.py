"""What LimitRanger gives and refuses, against the plugin itself (tests/oracle): random LimitRanges and pods."""

import json
import re
from collections import Counter
from typing import Any

import pytest

from policies.pods.limit_ranger import as_admitted, effective, refusals
from policies.pods.limit_ranges import (
    DEFAULTS_ANNOTATION,
    NamespaceLimits,
    decode_limit_range,
    namespace_limits,
)
from policies.pods.pod import Pod
from policies.pods.quantity import readable
from tests.builders import JSON, view
from tests.oracle import World, oracle
from tests.oracle.worlds import AMOUNTS, NAMESPACE, UNITS, Draw, draw_limit_range, draw_pod
from tests.seed import SAID, SEED

pytestmark = pytest.mark.processes
WORLDS = 2_000
SENTENCE = re.compile(r", (?=minimum |maximum |\S+ max limit)")
SEEN = ("given", "201", "403", "min", "max", "maxLimitRequestRatio")


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
            name: readable(raw) for name, raw in effective(place.container, kind).items()
        }
        for place in pod.places
        for kind in ("requests", "limits")
    }
    own = pod.spec.resources
    for kind, amounts in (("requests", own and own.requests), ("limits", own and own.limits)):
        read[f"spec.{kind}"] = {name: readable(raw) for name, raw in (amounts or {}).items()}
    return read


def sentences(message: str) -> list[str]:
    """Return the sentences of a refusal, in any order: those of several are in brackets."""
    found = message.removeprefix('pods "train" is forbidden: ')
    return sorted(SENTENCE.split(found[1:-1] if found.startswith("[") else found))


def test_random_limit_ranges_and_pods() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEED, SEED + WORLDS):
        world = draw_case(seed)
        answer, limits = oracle().ask(world), read_limits(world)
        if answer.reviewed is None:  # it cannot be decoded
            continue
        pod = as_admitted(view(world.pod), limits)
        reviewed = view(answer.reviewed)
        said = f"{SAID}, world {seed}"
        assert amounts_of(pod) == amounts_of(reviewed), said
        assert pod.annotations == reviewed.annotations, said
        seen["given"] += DEFAULTS_ANNOTATION in pod.annotations
        if answer.code in {201, 403}:  # else validation refuses it, and comes first
            mine = sorted({each.message for each in refusals(pod, limits)})
            assert mine == (sentences(answer.message) if answer.code == 403 else []), said
            seen[str(answer.code)] += 1
            seen.update(each.bound for each in refusals(pod, limits))

    assert min(seen[each] for each in SEEN) >= WORLDS // 40, (seen, SAID)
