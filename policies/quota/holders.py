"""Holders of a quota in words. Idle ones come first, because stopping them costs nobody anything."""

from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction

from policies.quota.amounts import format_amount, unit
from policies.quota.idleness import idle_for
from policies.quota.ledger.quota_ledger import Holder


def idle_first(holders: Sequence[Holder]) -> list[Holder]:
    """Return the idle holders, then the others, each the largest first."""
    return sorted(largest_first(holders), key=lambda each: not each.idle_since)


def largest_first(holders: Sequence[Holder]) -> list[Holder]:
    return sorted(holders, key=lambda each: -Fraction(each.amount))


def holder_title(holder: Holder, now: datetime) -> str:
    """Return the name of a holder: `Job/train`, `Notebook/ana (idle for 6 h)`."""
    return (
        f"{holder.name} (idle for {idle_for(holder.idle_since, now)})" if holder.idle_since else holder.name
    )


def idle_holders(holders: Sequence[Holder], key: str, now: datetime) -> str:
    """Return who is idle: `Notebook/ana holds 2 GPUs, idle for 6 h; Job/old holds 1 GPU, …`; "" if nobody is known to be."""
    idle = ((holder, Fraction(holder.amount)) for holder in idle_first(holders) if holder.idle_since)
    return "; ".join(
        f"{holder.name} holds {format_amount(amount)} {unit(key, amount)}, idle for {idle_for(holder.idle_since, now)}"
        for holder, amount in idle
    )
