"""An independent count of one namespace from etcd's history: its own arithmetic, and none of the code that it watches.

It knows the three classes and the one MIG profile of `burst`, what `Weights` says of these, and nothing else.

What is *promised* at a revision is what live
pods and claims cost, and what those cost that are in the quota's ledger and are stored later. The rule: where more is promised
than the quota grants, no event made it more. So nothing is admitted while a quota is exceeded, by whatever it came to be.

A pod that waits under our scheduling gate costs nothing. What the ledger holds for it is promised, as far as the pod costs that.
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
GATE = {"name": "gpu-admission.dev/quota"}
_LINES = re.compile(r"^(.*) \| (.*)$", re.MULTILINE)


def waits(kind: Mapping[str, Any]) -> bool:
    """Whether it is a pod that waits under our scheduling gate."""
    return GATE in (kind["spec"].get("schedulingGates") or ()) and not has_ended(kind)


def has_ended(kind: Mapping[str, Any]) -> bool:
    return kind.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def cost(kind: Mapping[str, Any], weights: Weights = BUILT_IN) -> Cost:
    """Return what a pod or a claim costs, by the dimensions of a quota; nothing once a pod has ended, or while it waits."""
    return {} if has_ended(kind) or waits(kind) else cost_of_spec(kind["spec"], weights)


def cost_of_spec(spec: Mapping[str, Any], weights: Weights = BUILT_IN) -> Cost:
    if "devices" in spec:
        requests = spec["devices"]["requests"]
        return {"gpus": Fraction(sum(request["exactly"]["count"] for request in requests))}
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


def of_namespace(namespace: str, history: Iterable[Event]) -> Iterator[tuple[Event, bool]]:
    """Yield what happened to pods and claims, and to the ledger, of which alone the second is true."""
    ours = re.compile(
        rf"^/registry/(?:(?:pods|resourceclaims)/{namespace}/|gpu-admission\.dev/(gpuquotaledgers)/[^/]+/{namespace}$)"
    )
    return ((event, bool(found[1])) for event in history if (found := ours.match(event.key)))


def replay(namespace: str, history: Iterable[Event], weights_of: WeightsOf = lambda _: BUILT_IN) -> Replay:
    """Count `namespace` again at every revision. What other weights make more was admitted under the earlier ones."""
    events = list(of_namespace(namespace, history))
    referee = Referee([event for event, is_row in events if not is_row], weights_of)
    for event, is_row in events:
        if is_row:
            referee.row_event(event, ledger_in(event.value))
        else:
            referee.object_event(event)
    return referee.seen


def ledger_in(ledger_object: Any) -> Any:
    """Return what a GPUQuotaLedger says; nothing if there is none."""
    return json.loads(ledger_object["ledger"]) if ledger_object else {}


class Row:
    """The ledger as a revision left it, read by its text; empty without one."""

    def __init__(self, ledger: Mapping[str, Any]) -> None:
        self.ledger = ledger
        self.in_force = "used" in self.ledger
        self.entries: dict[str, Cost] = {}
        """By the uid of a creation, or the id of an update: what the ledger says that it demands; nothing if it will wait."""
        self.claims: set[str] = set()
        """The uids among these of claims."""
        self.lifts: dict[str, Cost] = {}
        """By uid: what is held for a pod that waits, or whose gate is being removed."""
        self.keeps: dict[str, Cost] = {}
        """By uid of a pod that ended: what its object keeps for the next one."""
        for head, ids in _LINES.findall(self.ledger.get("reservations", "")):
            items = [item.partition("=") for item in head.split()]
            demand = {key: Fraction(amount) for key, has_amount, amount in items if has_amount}
            for each in ids.split():
                key, _, name = each.partition(":")
                kept, is_keep, _ = key.partition("/keep/")
                uid, is_lift, _ = key.partition("/lift")
                if is_keep:
                    self.keeps[kept] = demand
                else:
                    (self.lifts if is_lift else self.entries)[uid] = demand
                if name.startswith("resourceclaims/"):
                    self.claims.add(uid)

    @property
    def waiting(self) -> int:
        """How many pods wait, as far as the ledger knows."""
        return int(self.ledger.get("waiting", 0)) + sum(not demand for demand in self.entries.values())


class Referee:
    """Counts one namespace, event by event."""

    def __init__(self, objects: list[Event], weights_of: WeightsOf) -> None:
        self._specs = {
            event.value["metadata"]["uid"]: event.value["spec"] for event in reversed(objects) if event.value
        }
        """As it was created, later as it is stored."""
        self._gated = {
            event.value["metadata"]["uid"]
            for event in reversed(objects)
            if event.value and waits(event.value)
        }
        self._weights_of = weights_of
        self._weigh(BUILT_IN)
        self._live: dict[str, Mapping[str, Any]] = {}
        self._hard: Cost | None = None  # None: no quota is in force
        self._row = Row({})
        self.promised: Cost = {}
        self.seen = Replay()

    def row_event(self, event: Event, ledger: Mapping[str, Any]) -> frozenset[str]:
        """Go on with this ledger, and return the dimensions in which the event promised more."""
        self._row = row = Row(ledger)
        weights = self._weights_of(row.ledger) if row.in_force else self._weights
        before, self._hard = self._hard, granted(row.ledger) if row.in_force else None
        if before is None or weights != self._weights:
            self._weigh(weights)
            self.promised = self._count()  # a quota's promise begins here, or its measure changes
        return self._evaluate(event)

    def object_event(self, event: Event) -> frozenset[str]:
        """Go on with this pod or claim, and return the dimensions in which the event promised more."""
        if event.value is None:
            self._live.pop(event.key, None)
        else:
            uid, before = event.value["metadata"]["uid"], self._live.get(event.key)
            if self._specs[uid] != event.value["spec"]:
                self._specs[uid] = event.value["spec"]
                self._costs[uid] = cost_of_spec(self._specs[uid], self._weights)
            is_started = before is not None and waits(before) and not waits(event.value)
            is_mapped = uid in (self._row.lifts if is_started else self._row.entries)
            if uid not in self.seen.stored or (is_started and not has_ended(event.value)):
                self.seen.stored.add(uid)
                if self._hard is not None and not is_mapped and any(self._costs[uid].values()):
                    self.seen.unmapped_resources.append(event.value["metadata"]["name"])
                    self.promised = total(
                        [self.promised, self._costs[uid]]
                    )  # reported apart, and no breach here
            self._live[event.key] = event.value
        return self._evaluate(event)

    def _weigh(self, weights: Weights) -> None:
        self._weights = weights
        self._costs = {uid: cost_of_spec(spec, weights) for uid, spec in self._specs.items()}

    def _promises(self) -> Iterator[Cost]:
        for each in self._live.values():
            uid = each["metadata"]["uid"]
            if waits(each):
                held = self._row.lifts.get(uid, {})
                yield {
                    key: min(amount, held.get(key, Fraction(0))) for key, amount in self._costs[uid].items()
                }
            elif not has_ended(each):
                yield self._costs[uid]
        for uid in self._row.entries.keys() - self.seen.stored - self._gated:
            yield self._costs.get(uid, {})

    def _count(self) -> Cost:
        return total(self._promises())

    def _evaluate(self, event: Event) -> frozenset[str]:
        before, self.promised = self.promised, self._count()
        grown = frozenset(key for key, amount in self.promised.items() if amount > before.get(key, 0))
        for key, amount in (self._hard or {}).items():
            if key in grown and self.promised[key] > amount:
                self.seen.over.append(
                    f"revision {event.revision}, {event.key}: {key} grew to {self.promised[key]} of {amount}"
                )
        return grown
