"""The ledgers of a team's namespaces, which stand in one object: every compare-and-swap replaces all of them.

So one swap decides about the quota of a namespace and about that of its team.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import NOTHING, Vector
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import Team, TeamShare

NAMESPACE_PARTS = 4
"""The reservations of one namespace take at most this part of what those of the whole team may take."""


class TeamLedgers(msgspec.Struct, frozen=True, dict=True):
    """The spec in force of a team, and the ledger of each of its namespaces.

    The ledger of a namespace in `leaving` is frozen: it is being moved, and nothing is decided by it. It still counts.
    """

    team: Team
    ledgers: Mapping[str, QuotaLedger] = {}
    leaving: frozenset[str] = frozenset()

    def has(self, namespace: str) -> bool:
        """Whether this object decides about the namespace."""
        return namespace in self.ledgers and namespace not in self.leaving

    def of(self, namespace: str) -> QuotaLedger | None:
        """Return the ledger of a namespace, with its share of the team. None if it is not decided by this object."""
        if not self.has(namespace):
            return None
        return replace(self.ledgers[namespace], team=self.share(namespace))

    def with_ledger(self, namespace: str, ledger: QuotaLedger) -> "TeamLedgers":
        """Return these with this ledger of the namespace, which may be new here."""
        after = replace(self, ledgers={**self.ledgers, namespace: replace(ledger, team=None, moved_to="")})
        after.__dict__["_held"] = {**self.held, namespace: after._held_of(namespace)}  # noqa: SLF001 - of its own class
        return after

    def with_team(self, team: Team) -> "TeamLedgers":
        return replace(self, team=team)

    def leave(self, namespace: str) -> "TeamLedgers":
        """Return these with a frozen ledger of the namespace."""
        return replace(self, leaving=self.leaving | {namespace})

    def without(self, namespace: str) -> "TeamLedgers":
        """Return these without the frozen ledger of a namespace that has moved."""
        ledgers = {name: ledger for name, ledger in self.ledgers.items() if name != namespace}
        return replace(self, ledgers=ledgers, leaving=self.leaving - {namespace})

    def limit(self, namespace: str, limit: int) -> int:
        """Return how many characters the reservations of a namespace may take, if those of all may take `limit`."""
        others = sum(ledger.reservations.size for name, ledger in self.ledgers.items() if name != namespace)
        return max(0, min(limit // NAMESPACE_PARTS, limit - others))

    def share(self, namespace: str) -> TeamShare:
        """Return what the ledger of a namespace sees of the team."""
        held, hard = self.held, self.team.hard
        others = {name: vector for name, vector in held.items() if name != namespace}
        guaranteed = {name: vector for name, vector in self.team.guaranteed.items() if name != namespace}
        ledgers = [ledger for name, ledger in self.ledgers.items() if name != namespace]
        counted = [ledger.used for ledger in ledgers if ledger.used is not None]
        return TeamShare(
            team=self.team,
            others=_sums(others.values(), hard),
            guaranteed_to_others=_sums(guaranteed.values(), hard),
            held=held,
            guaranteed=self.team.guaranteed.get(namespace, {}),
            uncounted=frozenset(key for key in hard if any(key not in used for used in counted)),
            waiting=sum(each.waiting_for_team + each.reservations.waiting for each in ledgers),
        )

    @property
    def held(self) -> dict[str, Vector]:
        """What each namespace holds or is guaranteed, also one that is not in the team yet. Computed once."""
        if "_held" not in self.__dict__:
            names = dict.fromkeys((*self.ledgers, *self.team.guaranteed))
            self.__dict__["_held"] = {name: self._held_of(name) for name in names}
        found: dict[str, Vector] = self.__dict__["_held"]
        return found

    def _held_of(self, namespace: str) -> Vector:
        guaranteed = self.team.guaranteed.get(namespace, {})
        ledger = self.ledgers.get(namespace)
        used, reserved = ((ledger.used or {}), ledger.reserved) if ledger else ({}, {})
        return {
            key: max(used.get(key, NOTHING) + reserved.get(key, NOTHING), guaranteed.get(key, NOTHING))
            for key in self.team.hard
        }


def _sums(vectors: Iterable[Vector], keys: Vector) -> Vector:
    known = list(vectors)
    return {key: sum((each.get(key, NOTHING) for each in known), NOTHING) for key in keys}
