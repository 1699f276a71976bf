"""The quota of a team: the spec in force of a ClusterGPUQuota, and what the ledger of one namespace sees of it.

A request of a namespace fits its team if afterwards, for each dimension, what it holds (`used + reserved`) is at most `hard` less
the sum over the other namespaces of `max(used + reserved, guaranteed)`. So what is guaranteed to a namespace stays free for it.
"""

from collections.abc import Mapping
from fractions import Fraction

import msgspec

from policies.quota.amounts import Vector
from policies.quota.demand import UnclassifiedPods


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """The spec in force of a ClusterGPUQuota. `guaranteed` is by namespace. `contact` is whom a denial says to ask."""

    name: str
    uid: str
    generation: int
    hard: Vector
    guaranteed: Mapping[str, Vector] = {}
    unclassified_pods: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY
    contact: str = ""


class TeamShare(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger of one namespace sees of its team.

    `held` is by namespace, this one included: `max(used + reserved, guaranteed)` of each dimension of `hard`. `others` is the sum
    of that over the other namespaces, and `guaranteed_to_others` the part that they have whatever they use. `uncounted`: the
    dimensions that the ledger of another namespace lacks, because `hard` gained them. `waiting` is the number of pods of other
    namespaces that wait for quota of the team.
    """

    team: Team
    others: Vector
    guaranteed_to_others: Vector
    held: Mapping[str, Vector]
    uncounted: frozenset[str] = frozenset()
    waiting: int = 0

    def free(self, key: str, held: Fraction) -> Fraction:
        """Return how much of a dimension of `hard` is free for this namespace, which holds `held`; negative if it is exceeded."""
        return self.team.hard[key] - self.others[key] - held
