"""The judge of one namespace: what etcd stored, and when, against the charges of `charges`.

It finds
- what was admitted over `hard`: a claim or pod that was stored when the charges of all came to more, without what nothing can be
  allocated to any more: a claim whose pod has ended;
- what was allocated over `hard`: more devices in use than the quota grants;
- what was allocated above its bound;
- charges that differ: two seconds after the last change, `used` of the ledger must be the sum of the charges;
- what is left: after the last object has gone, `used` must be 0, and no reservation may stand;
- what was denied although it fits beside all that was charged in the last seconds, and beside claims that were admitted then and
  stored after it.

What a namespace is charged is only compared as a sum; charges are fractions of 5,040, so two errors hardly ever make up for
another. Where a device that was published later is allocated, or makes a bound larger, the excess is counted apart:
`by_changes`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from tests.cluster.devices.charges import (
    FREE,
    NOTHING,
    Charge,
    Devices,
    has_ended,
    has_lost_its_pod,
    is_exact,
)
from tests.cluster.devices.facts import devices_of
from tests.cluster.devices.meanings import Selector
from tests.cluster.quota.history import Event

WITHIN = 2.0
"""Seconds after which a charge must be exact."""
AFTER_CHANGES = 4.0
"""Seconds more after slices have changed: kinds are published once a second, and ledgers move to them."""
LAG, RESERVED, LATE = 4.0, 16.0, 1.0
"""Seconds for which what is gone may be held: a charge until it is exact, and a reservation for what was never counted. The last:
by which the history may show a ledger late."""
GPU, MARK = "nvidia.com/gpu", "resource.kubernetes.io/extended-resource-claim"
_ENTRY = re.compile(r"^(.*) \| (.*)$", re.MULTILINE)


@dataclass
class Verdict:
    admitted_over: list[str] = field(default_factory=list)
    allocated_over: list[str] = field(default_factory=list)
    above_bound: list[str] = field(default_factory=list)
    by_changes: list[str] = field(default_factory=list)
    inexact: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    needless: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    """Seconds from a change of the charges to a ledger that says so, of changes that nothing followed for two seconds."""
    after_allocations: list[float] = field(default_factory=list)
    """Seconds from the allocation of a claim to the first ledger that charges what it has, also where something followed."""
    claims: int = 0
    allocations: int = 0
    bounds: dict[str, tuple[Fraction, Fraction]] = field(default_factory=dict)
    """By uid: what a claim was charged at most before it was allocated, and what it got."""

    @property
    def faults(self) -> list[str]:
        return [
            *(f"admitted over hard: {each}" for each in self.admitted_over),
            *(f"allocated over hard: {each}" for each in self.allocated_over),
            *(f"allocated above its bound: {each}" for each in self.above_bound),
            *(f"charges differ: {each}" for each in self.inexact),
            *(f"left: {each}" for each in self.left),
            *(f"denied although it fits: {each}" for each in self.needless),
        ]


class Denial(NamedTuple):
    """A claim that was denied, and why."""

    at: float
    spec: Mapping[str, Any]
    message: str


class _OpenDenial(NamedTuple):
    """A claim that was denied although it fits beside what was `held`. `stored`: the uids of the claims that were stored then."""

    denial: Denial
    held: Fraction
    wanted: Fraction
    hard: Fraction
    stored: frozenset[str]


class _Change(NamedTuple):
    """When the sum of the charges changed, to what, and why. `allocated`: when a claim was that is charged what it has since."""

    at: float
    charge: Charge
    why: str
    allocated: float | None


@dataclass
class _Row:
    """A ledger: `used` is None before it was counted. `entries`: what stands in it for what is not counted yet."""

    hard: Fraction | None = None
    used: Fraction | None = None
    entries: tuple[str, ...] = ()


def _row(stored: Any) -> _Row:
    if not stored:
        return _Row()
    ledger = json.loads(stored["ledger"])
    hard = ledger.get("hard", {}).get("gpus")
    used = ledger["used"].get("gpus", "0") if "used" in ledger else None
    entries = tuple(found[0] for found in _ENTRY.finditer(ledger.get("reservations", "")))
    return _Row(None if hard is None else Fraction(hard), None if used is None else Fraction(used), entries)


class Judge:
    """Reads the history of one namespace. `classes`: the selector of each DeviceClass; `meanings`: selectors by their text."""

    def __init__(self, namespace: str, classes: Mapping[str, str], meanings: Mapping[str, Selector]) -> None:
        self.verdict = Verdict()
        self._keys = re.compile(
            rf"^/registry/(?:(pods|resourceclaims)/{namespace}/"
            rf"|gpu-admission\.dev/(gpuquotaledgers)/[^/]+/{namespace}$|(resourceslices)/)"
        )
        self.devices = Devices(classes, meanings)
        self._slices: dict[str, Any] = {}
        self._pods: dict[str, Any] = {}
        self._claims: dict[str, Any] = {}
        self._uids: dict[str, str] = {}
        """By key in etcd."""
        self._bounds: dict[str, tuple[int, Charge]] = {}
        self._at_creation: dict[str, tuple[int, Fraction]] = {}
        """By uid of a claim: the version of the devices when it was stored, and its bound by these."""
        self._open: list[_OpenDenial] = []
        self._had: dict[str, Fraction] = {}
        """By uid of a claim: what it was charged last for its devices."""
        self._changes: list[float] = []
        """When slices changed."""
        self._row = _Row()
        self._charge = FREE
        self._charges: list[_Change] = []
        self._allocated: dict[str, float] = {}
        """By uid of a claim that is not charged what it has yet: when it was allocated."""
        self._rows: list[tuple[float, _Row]] = []

    def replay(
        self, history: Iterable[tuple[Event, float]], until: float, denials: Iterable[Denial] = ()
    ) -> Verdict:
        """Judge the history, which was read until this time, and denials, by the devices that were there when they came."""
        judges = {
            "pods": self._pod,
            "resourceclaims": self._claim,
            "gpuquotaledgers": self._ledger,
            "resourceslices": self._slice,
        }
        due = sorted(denials)
        for event, at in history:
            while due and due[0].at < at:
                self._judge_denial(due.pop(0))
            if found := self._keys.match(event.key):
                judges[next(filter(None, found.groups()))](event, at)
        for denial in due:
            self._judge_denial(denial)
        for open_denial in self._open:
            self._judge_beside_coming(open_denial)
        self._compare(until)
        return self.verdict

    def _slice(self, event: Event, at: float) -> None:
        _keep(self._slices, event.key, event.value and event.value["spec"])
        self.devices.add(devices_of(self._slices.values()))
        self._changes.append(at)
        self._recount(at, event)

    def _ledger(self, event: Event, at: float) -> None:
        self._row = _row(event.value)
        self._rows.append((at, self._row))

    def _pod(self, event: Event, at: float) -> None:
        is_new = self._keep(self._pods, event)
        self._recount(at, event)
        if is_new and _pod_cost(event.value):
            self._judge_admission(event, at)

    def _claim(self, event: Event, at: float) -> None:
        is_new = self._keep(self._claims, event)
        if event.value is None:
            self._recount(at, event)
            return
        uid = event.value["metadata"]["uid"]
        if is_new:
            self.verdict.claims += 1
            self._at_creation[uid] = self.devices.version, self._bound(uid).most
        self._recount(at, event)
        if is_new and self._claim_charge(uid).least:
            self._judge_admission(event, at)
        if (results := _results(event.value)) and uid not in self.verdict.bounds:
            self._judge_allocation(event, uid, results)
            self._allocated[uid] = at

    def _keep(self, objects: dict[str, Any], event: Event) -> bool:
        """Keep what is stored, by uid, and return whether it is new."""
        if event.value is None:
            objects.pop(self._uids.pop(event.key, ""), None)
            return False
        uid = self._uids[event.key] = event.value["metadata"]["uid"]
        is_new = uid not in objects
        objects[uid] = event.value
        return is_new

    def _judge_admission(self, event: Event, at: float) -> None:
        hard = self._row.hard
        if hard is None or self._row.used is None or self._charge.least <= hard:
            return
        held = sum(map(self._owed, self._claims), self._pods_cost())
        if held > hard:
            over = self.verdict.by_changes if self._has_changed(at) else self.verdict.admitted_over
            over.append(f"{_named(event)}: {held} of {hard}")

    def _owed(self, uid: str) -> Fraction:
        """Return what the claim has or may still get."""
        claim = self._claims[uid]
        if has_lost_its_pod(claim, self._pods):
            return self.devices.exact(_results(claim))
        return self._claim_charge(uid).least

    def _has_changed(self, at: float) -> bool:
        """Whether slices changed lately, so claims may be charged by the devices before."""
        return any(at - WITHIN - AFTER_CHANGES < each for each in self._changes)

    def _judge_denial(self, denial: Denial) -> None:
        hard, since = self._row.hard, denial.at - (RESERVED if "being created" in denial.message else LAG)
        if hard is None or self._has_changed(denial.at):
            return
        known = [each.charge.most for each in self._charges if each.at > since]
        before = [each.charge.most for each in self._charges if each.at <= since][-1:]
        held, wanted = max(before + known, default=NOTHING), self.devices.bound(denial.spec).most
        if held + wanted <= hard:
            self._open.append(_OpenDenial(denial, held, wanted, hard, frozenset(self._claims)))

    def _judge_beside_coming(self, found: _OpenDenial) -> None:
        began = found.denial.at
        around = [row for at, row in self._rows if began - LAG < at < began + LATE]
        reserved = {entry.split(" | ")[1].split(":")[0] for row in around for entry in row.entries}
        coming = (self._at_creation[uid][1] for uid in reserved - found.stored if uid in self._at_creation)
        held = sum(coming, found.held)
        if held + found.wanted <= found.hard:
            self.verdict.needless.append(
                f"{found.wanted} beside {held} of {found.hard}: {found.denial.message[:300]}"
            )

    def _judge_allocation(self, event: Event, uid: str, results: list[Any]) -> None:
        exact, bound = self.devices.exact(results), self._bound(uid).most
        version, at_creation = self._at_creation[uid]
        self.verdict.allocations += 1
        self.verdict.bounds[uid] = at_creation, exact
        excess = self.verdict.above_bound
        if exact > at_creation and version != self.devices.version:
            excess = self.verdict.by_changes
        if exact > min(bound, at_creation):
            excess.append(f"{_named(event)}: {exact} of {at_creation}")
        in_use = self._in_use()
        if self._row.hard is not None and in_use > self._row.hard and excess is not self.verdict.by_changes:
            self.verdict.allocated_over.append(f"{_named(event)}: {in_use} of {self._row.hard}")

    def _in_use(self) -> Fraction:
        """Return what all claims have, and pods without claims."""
        claims = (each for each in self._claims.values() if not _is_with_pod(each))
        devices = sum((self.devices.exact(_results(each)) for each in claims), NOTHING)
        return devices + self._pods_cost()

    def _pods_cost(self) -> Fraction:
        return sum((_pod_cost(each) for each in self._pods.values()), NOTHING)

    def _recount(self, at: float, event: Event) -> None:
        pods = self._pods_cost()
        self._charge = sum(map(self._claim_charge, self._claims), Charge(pods, pods))
        exact = [each for each in self._allocated if each in self._claims and self._is_exact(each)]
        allocated = min((self._allocated.pop(each) for each in exact), default=None)
        if not self._charges or self._charges[-1].charge != self._charge:
            self._charges.append(_Change(at, self._charge, _named(event), allocated))

    def _bound(self, uid: str) -> Charge:
        version, charge = self._bounds.get(uid, (-1, FREE))
        if version != self.devices.version:
            charge = self.devices.bound(self._claims[uid]["spec"])
            self._bounds[uid] = self.devices.version, charge
        return charge

    def _claim_charge(self, uid: str) -> Charge:
        claim = self._claims[uid]
        if _is_with_pod(claim):
            return FREE
        if self._is_exact(uid):
            self._had[uid] = self.devices.exact(_results(claim))
            return Charge(self._had[uid], self._had[uid])
        bound = self._bound(uid)
        if uid in self._had and has_lost_its_pod(claim, self._pods):
            return Charge(min(self._had[uid], bound.least), bound.most)
        return bound

    def _is_exact(self, uid: str) -> bool:
        return is_exact(self._claims[uid], self._pods)

    def _compare(self, until: float) -> None:
        """Compare the ledger with the charges wherever these stay the same for longer than `WITHIN`."""
        ends = [each.at for each in self._charges[1:]] + [until]
        for change, ended in zip(self._charges, ends, strict=True):
            known = max((at for at in self._changes if change.at - AFTER_CHANGES < at < ended), default=None)
            since = change.at if known is None else max(change.at, known + AFTER_CHANGES)
            if ended - since > WITHIN:
                self._compare_between(since, ended, change)
        for number, change in enumerate(self._charges):
            counted = self._counted_at(number)
            if change.allocated is not None and counted is not None and not self._has_changed(counted):
                self.verdict.after_allocations.append(counted - change.allocated)
        last = self._rows[-1][1] if self._rows else _Row()
        if not self._claims and not self._pods and last.used is not None:
            self.verdict.left += [f"{last.used} is used"] * bool(last.used) + list(last.entries)

    def _counted_at(self, number: int) -> float | None:
        """Return when a ledger first said what was charged after this change, or after a later one. None: it never did."""
        began, later = self._charges[number].at, self._charges[number:]
        for at, row in self._rows:
            known = (each.charge for each in later if each.at <= at)
            if at >= began and row.used is not None and any(each.allows(row.used) for each in known):
                return at
        return None

    def _compare_between(self, began: float, ended: float, change: _Change) -> None:
        charge = change.charge
        before = [row for at, row in self._rows if at <= began]
        shown = [(began, before[-1])] if before else []
        shown += [(at, row) for at, row in self._rows if began < at <= ended]
        counted = [(at, row.used) for at, row in shown if row.used is not None]
        if not counted:
            return  # no quota, or one that was not counted yet
        wrong = [number for number, (_, used) in enumerate(counted) if not charge.allows(used)]
        right = wrong[-1] + 1 if wrong else 0
        since = counted[right][0] if right < len(counted) else ended
        delay = since - max(began, counted[0][0])
        if delay > WITHIN:
            said = counted[wrong[-1]][1]
            wanted = f"{charge.least}" if charge.least == charge.most else f"{charge.least} to {charge.most}"
            self.verdict.inexact.append(
                f"after {change.why} the ledger says {said} for {delay:.1f} s, not {wanted}"
            )
        elif before:
            self.verdict.delays.append(delay)


def _keep(objects: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        objects.pop(key, None)
    else:
        objects[key] = value


def _named(event: Event) -> str:
    return f"{event.key.removeprefix('/registry/')} at revision {event.revision}"


def _results(claim: Mapping[str, Any]) -> list[Any]:
    allocation = claim.get("status", {}).get("allocation", {})
    return list(allocation.get("devices", {}).get("results", ()))


def _is_with_pod(claim: Mapping[str, Any]) -> bool:
    """Whether the scheduler made it for a pod that asks for a resource by name: it counts with the pod."""
    return MARK in claim["metadata"].get("annotations", {})


def _pod_cost(pod: Mapping[str, Any]) -> Fraction:
    """Return what a pod of these tests costs by resource names, which are whole cards."""
    limits = (each.get("resources", {}).get("limits", {}) for each in pod["spec"]["containers"])
    return NOTHING if has_ended(pod) else Fraction(sum(int(each.get(GPU, 0)) for each in limits))
