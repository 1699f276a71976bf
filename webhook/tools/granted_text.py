"""What a team grants its namespaces, in words."""

from collections.abc import Mapping
from fractions import Fraction

from policies.quota.amounts import format_amount, key_order, unit_name


def overcommitted_text(granted: Mapping[str, Fraction], hard: Mapping[str, Fraction]) -> str:
    """Return what the quotas of the namespaces grant more than the team has; "" if it is nothing."""
    return granted_sum_text(
        {key: amount for key, amount in granted.items() if amount > hard.get(key, amount)}, hard
    )


def granted_sum_text(granted: Mapping[str, Fraction], hard: Mapping[str, Fraction]) -> str:
    """Return what the namespaces' quotas grant in the team's dimensions: `its namespaces are granted 40 of 64 GPUs`."""
    keys = [key for key in sorted(hard, key=key_order) if granted.get(key)]
    amounts = (
        f"{format_amount(granted[key])} of {format_amount(hard[key])} {unit_name(key)}" for key in keys
    )
    race = ": first come, first served" if any(granted[key] > hard[key] for key in keys) else ""
    return f"its namespaces are granted {', '.join(amounts)}{race}" if keys else ""
