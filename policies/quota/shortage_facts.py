"""What a quota lacks, in words: amounts, what is used and granted, and the largest namespaces of a team."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Protocol

from policies.finding import PLATFORM_TEAM
from policies.quota.amounts import CLASSES, GPUS, ZERO, format_amount, key_order, unit_name
from policies.quota.ledger.decide import Shortfall
from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, QuotaLedger
from policies.quota.ledger.team import TeamState, team_title
from policies.quota.spec import NAME, hard_field
from policies.times import utc

RECOUNT_SECONDS = 10
"""A controller counts at most this long after a reservation has expired."""
RELEASE_SECONDS = ceil(EXPIRY_SECONDS) + RECOUNT_SECONDS
MAX_KEYS_NAMED = 2
"""Classes and resources in one amount; the line is short."""


def quota_title(namespace: str, ledger: QuotaLedger) -> str:
    """Return what limits the namespace: `quota vision-cv/default`; if only its team does, `ClusterGPUQuota team-vision`.

    While a namespace without a GPUQuota joins or leaves a team, it is the namespace.
    """
    if ledger.has_quota:
        return f"quota {namespace}/{NAME}"
    return team_title(ledger.team_state.team.name) if ledger.team_state else f"namespace {namespace}"


class NamedTeam(Protocol):
    """A team, and whom to ask for more of it."""

    @property
    def name(self) -> str: ...
    @property
    def contact(self) -> str: ...


def escalation(
    own: Sequence[str], of_team: Sequence[str], team: NamedTeam | None, contact: str = PLATFORM_TEAM
) -> tuple[str, str]:
    """Return what to ask for, and whom: the contact of the team if only the team has too little and it names one.

    own, of_team: the dimensions of which the GPUQuota, or the team, has too little. contact: whom else.
    """
    team_contact = team.contact if team else ""
    if team and of_team and not own:
        return f"to raise {_raised_field(of_team)} of {team_title(team.name)}", team_contact or contact
    to_raise = f"to raise {_raised_field(own)}"
    if of_team:
        to_raise += f", and {team_contact} to raise the team's" if team_contact else ", and the team's"
    return to_raise, contact


def _raised_field(keys: Sequence[str]) -> str:
    return hard_field(keys[0]) if len(keys) == 1 else "spec.hard"


def granted_text(hard: Fraction, guaranteed_to_others: Fraction = ZERO) -> str:
    """Return in words what a quota grants: `granted_text 64`, `granted_text 64, 16 of them guaranteed to other namespaces`."""
    if not guaranteed_to_others:
        return f"grants {format_amount(hard)}"
    return f"grants {format_amount(hard)}, {format_amount(guaranteed_to_others)} of them guaranteed to other namespaces"


def amounts_in_words(vector: Mapping[str, Fraction]) -> str:
    """Return amounts for people, equal ones once: `3 GPUs`, `3 GPUs (nvidia-a100)`, `3 GPUs and 2 nvidia-t4`."""
    by_amount: dict[Fraction, list[str]] = {}
    for key in sorted(vector, key=key_order):
        by_amount.setdefault(vector[key], []).append(key)
    return " and ".join(_amount_text(amount, keys) for amount, keys in by_amount.items())


def missing_in_words(vector: Mapping[str, Fraction]) -> str:
    """Return likewise what must be released. GPUs of one class, if that many are enough, are not counted again as GPUs."""
    most_of_class = max((vector[key] for key in vector if key.startswith(CLASSES)), default=ZERO)
    is_enough = ZERO < vector.get(GPUS, ZERO) < most_of_class
    return amounts_in_words({key: vector[key] for key in vector if not (is_enough and key == GPUS)})


def _amount_text(amount: Fraction, keys: Sequence[str]) -> str:
    names = [unit_name(key, amount) for key in keys]
    more = [f"{len(names) - MAX_KEYS_NAMED} more"] if len(names) > MAX_KEYS_NAMED + 1 else []
    listed = names[: len(names) if not more else MAX_KEYS_NAMED] + more
    if keys[0] == GPUS and len(keys) > 1:
        return f"{format_amount(amount)} {listed[0]} ({' and '.join(listed[1:])})"
    return f"{format_amount(amount)} {' and '.join(listed)}"


def shortage_facts(shortfalls: Sequence[Shortfall], now: datetime, shown: int = 1) -> str:
    """Return the requested, used and granted amounts, also of the team. Dimensions with the same figures share a clause."""
    levels: dict[str, list[Shortfall]] = {}
    for shortfall in shortfalls:
        levels.setdefault(shortfall.team, []).append(shortfall)
    facts, omitted = [], set[str]()
    for team, exceeded_here in levels.items():
        facts.append(
            (f"{team_title(team)}, " if team else "") + _facts_of_quota(exceeded_here, now, shown, omitted)
        )
    return "; ".join(facts)


def _facts_of_quota(shortfalls: Sequence[Shortfall], now: datetime, shown: int, omitted: set[str]) -> str:
    """Return the facts about one quota. Omit a requested amount that is in `omitted`; else add it to `omitted`."""
    by_figures: dict[tuple[Fraction, ...], list[str]] = {}
    for shortfall in shortfalls:
        figures = (
            shortfall.requested,
            shortfall.used,
            shortfall.reserved,
            shortfall.hard,
            shortfall.guaranteed_to_others,
        )
        by_figures.setdefault(figures, []).append(shortfall.key)
    until = utc(now + timedelta(seconds=RELEASE_SECONDS), now)
    facts = []
    for (requested, used, reserved, hard, guaranteed), keys in by_figures.items():
        amount = amounts_in_words(dict.fromkeys(keys, requested))
        if requested > hard - guaranteed:
            who = "it" if shortfalls[0].team else "the quota"
            facts.append(f"{amount} can never fit: {who} {granted_text(hard, guaranteed)}")
            continue
        creating = f", {format_amount(reserved)} being created (until {until})" if reserved else ""
        held = f"{format_amount(used)} of {format_amount(hard)} used{' or guaranteed' if guaranteed else ''}"
        facts.append(f"{'' if amount in omitted else f'requested {amount}, '}{held}{creating}")
        omitted.add(amount)
    left = [key for keys in [*by_figures.values()][shown:] for key in keys]
    more = (
        [f"{unit_name(left[0])}, too" if len(left) == 1 else f"and {len(left)} more limits"] if left else []
    )
    return "; ".join([*facts[:shown], *more])


def largest_namespaces(
    team_state: TeamState, key: str, limit: int | None = None, *, omitted: str = ""
) -> str:
    """Return the namespaces of a team with the largest amounts of a dimension: `vision-prod 40, vision-cv 16 (guaranteed)`.

    A namespace may use less than a guaranteed amount, and stopping its pods frees nothing for others. omitted: an item to omit.
    """
    namespaces = (namespace_title(*holder) for holder in team_state.largest(key)[:limit])
    return ", ".join(namespace for namespace in namespaces if namespace != omitted)


def namespace_title(name: str, amount: Fraction, is_guaranteed: bool) -> str:
    """Return a namespace of a team and its amount: `vision-prod 40`, `vision-cv 16 (guaranteed)`."""
    return f"{name} {format_amount(amount)}{' (guaranteed)' if is_guaranteed else ''}"
