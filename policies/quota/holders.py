"""Holders of a quota in words, the idle ones first: nobody misses what they hold."""

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
    idle = ((each, Fraction(each.amount)) for each in idle_first(holders) if each.idle_since)
    return "; ".join(
        f"{each.name} holds {format_amount(amount)} {unit(key, amount)}, idle for {idle_for(each.idle_since, now)}"
        for each, amount in idle
    )
