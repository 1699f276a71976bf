"""The quota of a team: the spec in force of a ClusterGPUQuota, and what the ledger of one namespace sees of it.

A request of a namespace fits its team if afterwards, for each dimension, what it holds (`used + reserved`) is at most `hard` less
the sum over the other namespaces of `max(used + reserved, guaranteed)`. So what is guaranteed to a namespace stays free for it.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

import msgspec

from policies.quota.amounts import NOTHING, Vector, total
from policies.quota.demand import UnclassifiedPods

MAX_LARGEST = 5
"""Namespaces of a team that are named."""


def team_title(name: str) -> str:
    """Return a team in words: `ClusterGPUQuota team-vision`."""
    return f"ClusterGPUQuota {name}"


class Team(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, dict=True):
    """The spec in force of a ClusterGPUQuota. `guaranteed` is by namespace. `contact` is whom a denial says to ask."""

    name: str
    uid: str
    generation: int
    hard: Vector
    guaranteed: Mapping[str, Vector] = {}
    unclassified_pods: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY
    contact: str = ""

    @cached_property
    def all_guaranteed(self) -> Vector:
        """What is guaranteed to all namespaces together, of each dimension of `hard`."""
        guaranteed = total(self.guaranteed.values())
        return {key: guaranteed.get(key, NOTHING) for key in self.hard}

    def guaranteed_to(self, namespace: str) -> Vector:
        """Return what is guaranteed to a namespace, nothing if it has no guarantee."""
        return self.guaranteed.get(namespace, {})

    def taken(self, namespace: str, held: Vector) -> Vector:
        """Return of each dimension of `hard` what a namespace takes that holds so much: its guarantee, if that is more."""
        guaranteed = self.guaranteed_to(namespace)
        return {key: max(held.get(key, NOTHING), guaranteed.get(key, NOTHING)) for key in self.hard}


class TeamShare(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger of one namespace sees of its team.

    `taken` is by namespace, also of this one: `max(used + reserved, guaranteed)` of each dimension of `hard`. `others` is the sum
    of that over the other namespaces, and `guaranteed_to_others` the part that they have whatever they use. `guaranteed` is what
    this one has whatever the others use. `uncounted`: the dimensions that the ledger of another namespace lacks, because `hard`
    gained them. `waiting` is the number of pods of other namespaces that wait for quota of the team, and `scarce` are the
    dimensions that the first of them lack.
    """

    team: Team
    others: Vector
    guaranteed_to_others: Vector
    taken: Mapping[str, Vector]
    guaranteed: Vector = {}
    uncounted: frozenset[str] = frozenset()
    waiting: int = 0
    scarce: frozenset[str] = frozenset()

    @property
    def most(self) -> Vector:
        """What this namespace can have at most of each dimension of `hard`."""
        guaranteed = self.guaranteed_to_others
        return {key: hard - guaranteed.get(key, NOTHING) for key, hard in self.team.hard.items()}

    def largest(self, key: str) -> list[tuple[str, Fraction]]:
        """Return the namespaces that have the most of a dimension, used or guaranteed, and how much."""
        taken = {name: amount for name, each in self.taken.items() if (amount := each.get(key, NOTHING))}
        return sorted(taken.items(), key=lambda each: (-each[1], each[0]))[:MAX_LARGEST]

    def free(self, key: str, held: Fraction) -> Fraction:
        """Return how much of a dimension of `hard` is free for this namespace, which holds `held`; negative if it is exceeded."""
        return self.team.hard[key] - self.others[key] - held

    def is_guaranteed(self, held: Vector, demand: Vector) -> bool:
        """Whether the demand takes nothing from the others, if this namespace then holds `held`: it is within its guarantee."""
        limited = (key for key in demand if key in self.team.hard)
        return all(held.get(key, NOTHING) <= self.guaranteed.get(key, NOTHING) for key in limited)
