"""Whether the GPUs of a pod do work, by the measurements of exporters over a window, and holders of a quota in words.

Exporters measure cards and MIG slices. So the activity of a pod that may share a card (time-slicing, a part of a card,
`equivalents` of its class) is unknown. It is also unknown if the number of measured GPUs differs from what the pod holds.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from enum import Enum
from fractions import Fraction

from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import ResourceMapping
from policies.quota.amounts import GPUS, RESOURCES, ZERO, Amounts, format_amount, unit_name
from policies.quota.ledger.quota_ledger import Holder

_HOUR, _DAY = 3600, 86400


class Activity(Enum):
    """What the GPUs of a pod did over the window."""

    IDLE = "idle"
    BUSY = "busy"
    UNKNOWN = "unknown"


def measured_devices(demand: Amounts, resource_mapping: ResourceMapping) -> int | None:
    """Return how many cards or MIG slices of a pod with this demand exporters measure. None if it may share them."""
    by_measure = dict.fromkeys((Measure.DEVICES, Measure.SLICES), ZERO)
    for key, amount in demand.items():
        if not key.startswith(RESOURCES):
            continue
        resource = resource_mapping.resource(key.removeprefix(RESOURCES))
        if resource is None or resource.measure not in by_measure:
            return None
        by_measure[resource.measure] += amount
    cards, slices = by_measure.values()
    # A card that weighs less than one, or more, is a share or a slice under the name of a card: its class has `equivalents`.
    is_whole = not cards or (not slices and demand.get(GPUS) == cards)
    return (int(cards + slices) or None) if is_whole else None


def activity(devices: int | None, largest: Collection[float], idle_below: float) -> Activity:
    """Return the activity of a pod with this number of devices. `largest`: the largest use (0 to 1) of each measured one."""
    if devices is None or len(largest) != devices:
        return Activity.UNKNOWN
    if any(share >= idle_below for share in largest):
        return Activity.BUSY
    # NaN is neither.
    return Activity.IDLE if all(share < idle_below for share in largest) else Activity.UNKNOWN


def idle_for(since: str, now: datetime) -> str:
    """Return how long something has been idle, rounded down, for people: `45 min`, `6 h`, `3 d`. `since` is RFC 3339."""
    seconds = max(0, int((now - datetime.fromisoformat(since)).total_seconds()))
    if seconds < _HOUR:
        return f"{seconds // 60} min"
    return f"{seconds // _HOUR} h" if seconds < 2 * _DAY else f"{seconds // _DAY} d"


def idle_first(holders: Sequence[Holder]) -> list[Holder]:
    """Return the idle holders, whom it costs nothing to stop, then the others, each the largest first."""
    return sorted(largest_first(holders), key=lambda holder: not holder.idle_since)


def largest_first(holders: Sequence[Holder]) -> list[Holder]:
    return sorted(holders, key=lambda holder: -Fraction(holder.amount))


def holder_title(holder: Holder, now: datetime) -> str:
    """Return the name of a holder: `Job/train`, `Notebook/ana (idle for 6 h)`."""
    return holder.name + (f" (idle for {idle_for(holder.idle_since, now)})" if holder.idle_since else "")


def idle_holders(holders: Sequence[Holder], key: str, now: datetime) -> str:
    """Return who is idle: `Notebook/ana holds 2 GPUs, idle for 6 h; Job/old holds 1 GPU, …`; "" if nobody is known to be."""
    idle = ((holder, Fraction(holder.amount)) for holder in idle_first(holders) if holder.idle_since)
    return "; ".join(
        f"{holder.name} holds {format_amount(amount)} {unit_name(key, amount)}, idle for {idle_for(holder.idle_since, now)}"
        for holder, amount in idle
    )
