"""An independent count of one namespace from etcd's history: its own arithmetic, and none of the code that it watches.

It knows the three classes and the one MIG profile of `burst`, what `Weights` says of these, and nothing else.

What is *promised* at a revision is what live
pods and claims cost, and what those cost that are in the quota's ledger and are stored later. The rule: where more is promised
than the quota grants, no event made it more. So nothing is admitted while a quota is exceeded, by whatever it came to be.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tests.cluster.quota.history import Event

FAMILIES = {
    "nvidia-a100-80gb": "nvidia-a100",
    "nvidia-h100-80gb": "nvidia-h100",
    "nvidia-t4": "nvidia-t4",
}
GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
T4, SPOT = "nvidia-t4", "example.com/spot"

Cost = Mapping[str, Fraction]


@dataclass(frozen=True)
class Weights:
    """What a slice, a GPU of a T4 node and a unit of SPOT come to in whole cards."""

    slices: Fraction = Fraction(1, 7)
    t4: Fraction = Fraction(1)
    spot: Fraction = Fraction(0)


BUILT_IN = Weights()
_IDS = re.compile(r" \| (.*)$", re.MULTILINE)


def cost(kind: Mapping[str, Any], weights: Weights = BUILT_IN) -> Cost:
    """Return what a pod or a claim costs, by the dimensions of a quota; nothing once a pod has ended."""
    spec = kind["spec"]
    if "devices" in spec:
        requests = spec["devices"]["requests"]  # until 1.33 stored as v1beta1, which has no `exactly`
        return {"gpus": Fraction(sum(request.get("exactly", request)["count"] for request in requests))}
    if kind.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return {}
    requested: Counter[str] = Counter()
    for container in spec["containers"]:
        for name, amount in container["resources"]["limits"].items():
            requested[name] += int(amount)
    pinned = spec.get("nodeSelector", {}).get("accelerator")
    whole = requested[GPU] * (weights.t4 if pinned == T4 else 1)
    gpus = whole + requested[SLICE] * weights.slices + requested[SPOT] * weights.spot
    names = {"gpus"}
    if pinned:
        names |= {f"classes/{pinned}", f"classes/{FAMILIES[pinned]}"}
    return {**dict.fromkeys(names, gpus), f"resources/{SLICE}": Fraction(requested[SLICE])}


def granted(ledger_object: Mapping[str, Any]) -> Cost:
    return {key: Fraction(amount) for key, amount in ledger_object["hard"].items()}


def total(costs: Iterable[Cost]) -> dict[str, Fraction]:
    added: dict[str, Fraction] = {}
    for each in costs:
        for key, amount in each.items():
            added[key] = added.get(key, Fraction(0)) + amount
    return added


def fits(requested: Cost, held: Cost, hard: Cost) -> bool:
    return all(
        held.get(key, 0) + amount <= hard[key] for key, amount in requested.items() if key in hard and amount
    )


@dataclass
class Replay:
    """What the referee saw. `unmapped_resources`: what was stored under a quota in force without being in its ledger."""

    stored: set[str] = field(default_factory=set)
    over: list[str] = field(default_factory=list)
    unmapped_resources: list[str] = field(default_factory=list)


WeightsOf = Callable[[Mapping[str, Any]], Weights]
"""The weights by which a ledger is counted, by what stands in it."""


def replay(namespace: str, history: Iterable[Event], weights_of: WeightsOf = lambda _: BUILT_IN) -> Replay:
    """Count `namespace` anew at every revision. What other weights make more was admitted under the earlier ones."""
    ours = re.compile(
        rf"^/registry/(?:(?:pods|resourceclaims)/{namespace}/|gpu-admission\.dev/(gpuquotaledgers)/[^/]+/{namespace}$)"
    )
    events = [(event, bool(found[1])) for event in history if (found := ours.match(event.key))]
    referee = _Referee([event for event, is_row in events if not is_row], weights_of)
    for event, is_row in events:
        if is_row:
            referee.row_event(event)
        else:
            referee.object_event(event)
    return referee.seen


class _Referee:
    def __init__(self, objects: list[Event], weights_of: WeightsOf) -> None:
        self._created = {
            event.value["metadata"]["uid"]: event.value for event in reversed(objects) if event.value
        }
        self._weights_of = weights_of
        self._weigh(BUILT_IN)
        self._live: dict[str, Mapping[str, Any]] = {}
        self._hard: Cost | None = None  # None: no quota is in force
        self._entries: frozenset[str] = frozenset()
        self._promised: Cost = {}
        self.seen = Replay()

    def row_event(self, event: Event) -> None:
        ledger_object = json.loads(event.value["ledger"]) if event.value else {}
        entries = " ".join(_IDS.findall(ledger_object.get("reservations", ""))).split()
        self._entries = frozenset(each.partition(":")[0] for each in entries)
        in_force = "used" in ledger_object
        weights = self._weights_of(ledger_object) if in_force else self._weights
        before, self._hard = self._hard, granted(ledger_object) if in_force else None
        if before is None or weights != self._weights:
            self._weigh(weights)
            self._promised = self._count()  # a quota's promise begins here, or its measure changes
        self._evaluate(event)

    def object_event(self, event: Event) -> None:
        if event.value is None:
            self._live.pop(event.key, None)
        else:
            uid = event.value["metadata"]["uid"]
            if uid not in self.seen.stored:
                self.seen.stored.add(uid)
                if self._hard is not None and uid not in self._entries and any(self._costs[uid].values()):
                    self.seen.unmapped_resources.append(event.value["metadata"]["name"])
                    self._promised = total(
                        [self._promised, self._costs[uid]]
                    )  # reported apart, and no breach here
            self._live[event.key] = event.value
        self._evaluate(event)

    def _weigh(self, weights: Weights) -> None:
        self._weights = weights
        self._costs = {uid: cost({"spec": each["spec"]}, weights) for uid, each in self._created.items()}

    def _held(self) -> Iterator[Cost]:
        for each in self._live.values():
            ended = each.get("status", {}).get("phase") in {"Succeeded", "Failed"}
            yield {} if ended else self._costs[each["metadata"]["uid"]]

    def _count(self) -> Cost:
        coming = self._entries - self.seen.stored
        return total([*self._held(), *(self._costs.get(uid, {}) for uid in coming)])

    def _evaluate(self, event: Event) -> None:
        before, self._promised = self._promised, self._count()
        for key, amount in (self._hard or {}).items():
            promised = self._promised.get(key, Fraction(0))
            if promised > amount and promised > before.get(key, Fraction(0)):
                self.seen.over.append(
                    f"revision {event.revision}, {event.key}: {key} grew to {promised} of {amount}"
                )
