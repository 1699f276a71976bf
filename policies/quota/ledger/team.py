"""The quota of a team: the spec in force of a ClusterGPUQuota, and the state of the team for the ledger of one namespace.

A request of a namespace fits its team if afterwards, for each dimension, what it holds (`used + reserved`) is at most `hard` less
the sum of what the other namespaces take (`taken`, `max(used + reserved, guaranteed)`). So what is guaranteed to a namespace
stays free for it.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

import msgspec

from policies.quota.amounts import ZERO, Amounts, total
from policies.quota.demand import UnclassifiedPods

MAX_LARGEST = 5
"""Namespaces of a team that are named."""


def team_title(name: str) -> str:
    """Return a team in words: `ClusterGPUQuota team-vision`."""
    return f"ClusterGPUQuota {name}"


class Team(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, dict=True):
    """The spec in force of a ClusterGPUQuota. `guaranteed` is by namespace. Denials name `contact`."""

    name: str
    uid: str
    generation: int
    hard: Amounts
    guaranteed: Mapping[str, Amounts] = {}
    unclassified_pods: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY
    contact: str = ""

    @cached_property
    def all_guaranteed(self) -> Amounts:
        """What is guaranteed to all namespaces together, of each dimension of `hard`."""
        guaranteed = total(self.guaranteed.values())
        return {key: guaranteed.get(key, ZERO) for key in self.hard}

    def guaranteed_to(self, namespace: str) -> Amounts:
        """Return what is guaranteed to a namespace, nothing if it has no guarantee."""
        return self.guaranteed.get(namespace, {})

    def taken(self, namespace: str, held: Amounts) -> Amounts:
        """Return what a namespace takes of each dimension of `hard`: `held`, or its guarantee if that is more."""
        guaranteed = self.guaranteed_to(namespace)
        return {key: max(held.get(key, ZERO), guaranteed.get(key, ZERO)) for key in self.hard}


class TeamState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a team, as the ledger of one namespace needs it.

    taken: by namespace, also this one: `max(used + reserved, guaranteed)` of each dimension of `hard`.
    taken_by_others: the sum of `taken` over the other namespaces.
    guaranteed_to_others: the sum of their guarantees.
    guaranteed: the guarantee of this namespace.
    uncounted: dimensions of `hard` that another namespace's ledger does not count yet.
    waiting: how many pods of other namespaces wait for quota of the team.
    scarce: the dimensions that the first of them lack.
    """

    team: Team
    taken_by_others: Amounts
    guaranteed_to_others: Amounts
    taken: Mapping[str, Amounts]
    guaranteed: Amounts = {}
    uncounted: frozenset[str] = frozenset()
    waiting: int = 0
    scarce: frozenset[str] = frozenset()

    @property
    def reachable(self) -> Amounts:
        """What this namespace can have at most: `hard` less the guarantees of the others."""
        guaranteed = self.guaranteed_to_others
        return {key: hard - guaranteed.get(key, ZERO) for key, hard in self.team.hard.items()}

    def largest(self, key: str) -> list[tuple[str, Fraction, bool]]:
        """Return the namespaces with the largest amounts of a dimension, and whether an amount is guaranteed, not used."""
        amounts = (
            (name, amount, amount == self.team.guaranteed_to(name).get(key))
            for name, taken in self.taken.items()
            if (amount := taken.get(key, ZERO))
        )
        return sorted(amounts, key=lambda item: (-item[1], item[0]))[:MAX_LARGEST]

    def free(self, key: str, held: Fraction) -> Fraction:
        """Return how much of a dimension of `hard` is free for this namespace, which holds `held`; negative if it is exceeded."""
        return self.team.hard[key] - self.taken_by_others[key] - held

    def is_guaranteed(self, held: Amounts, demand: Amounts) -> bool:
        """Whether the demand is within the guarantee of this namespace, which then holds `held`."""
        limited = (key for key in demand if key in self.team.hard)
        return all(held.get(key, ZERO) <= self.guaranteed.get(key, ZERO) for key in limited)
