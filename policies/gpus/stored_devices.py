"""The devices of a cluster (DRA): what is allocated, what keeps claims away, and why no device satisfies a request."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fractions import Fraction

import msgspec

from policies.gpus.claimed_devices import DeviceRequest
from policies.gpus.device_kinds import DeviceKind, DeviceKinds
from policies.gpus.device_selectors import possible_kinds
from policies.gpus.device_slices import PoolSlice
from policies.gpus.free_cards import CardUse, Counters, cards_of_pool, counters_left, fits
from policies.pods.pod import Toleration, View
from policies.pods.tolerations import tolerates

PoolName = tuple[str, str]
"""A driver, and the name of a pool of it."""


class DeviceTaint(Toleration, frozen=True):
    """A taint of a device. Effects besides NoSchedule and NoExecute keep no claim away."""

    time_added: datetime | None = None

    @property
    def keeps_away(self) -> bool:
        return self.effect in {"NoSchedule", "NoExecute"}


class DeviceTaintSelector(View, frozen=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(View, frozen=True):
    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(View, frozen=True):
    """The fields of a DeviceTaintRule that are read. A rule without a selector taints no device."""

    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()

    def taints(self, pool: PoolName, device: str) -> bool:
        selector = self.spec.device_selector
        wanted = selector and (selector.driver, selector.pool, selector.device)
        return wanted is not None and all(
            each in {None, has} for each, has in zip(wanted, (*pool, device), strict=True)
        )


class Outlook(msgspec.Struct, frozen=True):
    """How many devices there are for a request: of its DeviceClass, and that its selectors select.

    Of these, `allocated` cannot be allocated, nor share their card with what is; taints keep the claim from `tainted` others.
    taints: the different ones, the newest first.
    """

    of_class: int = 0
    selected: int = 0
    allocated: int = 0
    tainted: int = 0
    taints: tuple[DeviceTaint, ...] = ()

    @property
    def free(self) -> int:
        return self.selected - self.allocated - self.tainted


class StoredDevices(msgspec.Struct, frozen=True):
    """pools: the slices of their newest complete generation. kinds: by `id` of a shape (`kinds_of_devices`).

    held: by pool, what is allocated of each device, in cards. own_taints: by pool and device, those in the slices.
    """

    pools: Mapping[PoolName, tuple[PoolSlice, ...]] = {}
    kinds: Mapping[int, DeviceKind] = {}
    held: Mapping[PoolName, Mapping[str, Fraction]] = {}
    own_taints: Mapping[PoolName, Mapping[str, Sequence[DeviceTaint]]] = {}
    rules: Sequence[DeviceTaintRule] = ()

    def cards(self) -> Iterator[CardUse]:
        for pool, slices in self.pools.items():
            names = {name for each in slices for name, _, _ in each.layout.devices}
            tainted = {name for name in names if any(self.taints(pool, name))}
            yield from cards_of_pool(slices, self.kinds, self.held.get(pool, {}), tainted)

    def taints(self, pool: PoolName, device: str) -> Iterator[DeviceTaint]:
        """Yield the taints that keep claims from a device."""
        of_rules = (rule.spec.taint for rule in self.rules if rule.taints(pool, device))
        taints = (*self.own_taints.get(pool, {}).get(device, ()), *of_rules)
        return (taint for taint in taints if taint.keeps_away)

    def outlook(self, request: DeviceRequest, of_class: Iterable[str]) -> Outlook:
        """Return the outlook of one request, which has no alternatives. of_class: the selectors of its DeviceClass."""
        kinds = tuple({id(kind): kind for kind in self.kinds.values()}.values())
        every = DeviceKinds(kinds)
        in_class = {id(kinds[index]) for index in possible_kinds(of_class, every)}
        selected = in_class & {id(kinds[index]) for index in possible_kinds(request.expressions, every)}
        counts = dict.fromkeys(("of_class", "selected", "allocated", "tainted"), 0)
        taints: dict[DeviceTaint, None] = {}
        for pool, slices in self.pools.items():
            held = self.held.get(pool, {})
            left = counters_left(slices, held)
            for name, shape, _ in (device for each in slices for device in each.layout.devices):
                kind = self.kinds.get(id(shape))
                counts["of_class"] += id(kind) in in_class
                if id(kind) not in selected or kind is None:
                    continue
                counts["selected"] += 1
                against = [
                    each
                    for each in self.taints(pool, name)
                    if not any(tolerates(toleration, each) for toleration in request.tolerations or ())
                ]
                if not fits(shape, left, is_held=name in held):
                    counts["allocated"] += 1
                elif against:
                    counts["tainted"] += 1
                    taints |= dict.fromkeys(against)
        newest = sorted(
            taints, key=lambda each: each.time_added.timestamp() if each.time_added else 0, reverse=True
        )
        return Outlook(**counts, taints=tuple(newest))
