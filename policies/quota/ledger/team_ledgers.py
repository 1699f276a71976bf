"""The ledgers of a team's namespaces, which stand in one object: every compare-and-swap replaces all of them.

So one swap decides about the quota of a namespace and about that of its team.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import NOTHING, Vector
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import Team, TeamShare

NAMESPACE_PARTS = 4
"""One namespace takes at most one of so many equal parts of the room that the reservations of its team have."""


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
        after.__dict__["taken"] = {**self.taken, namespace: after._taken_by(namespace)}  # noqa: SLF001 - of its own class
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
        ledger, own = self.ledgers.get(namespace), self.taken.get(namespace, {})
        guaranteed, all_guaranteed = self.team.guaranteed.get(namespace, {}), self._sums_guaranteed
        lacks = _lacked_by(ledger, self.team.hard)
        return TeamShare(
            team=self.team,
            others={key: amount - own.get(key, NOTHING) for key, amount in self._sums_taken.items()},
            guaranteed_to_others={
                key: amount - guaranteed.get(key, NOTHING) for key, amount in all_guaranteed.items()
            },
            taken=self.taken,
            guaranteed=guaranteed,
            uncounted=frozenset(key for key, number in self._lacking.items() if number > (key in lacks)),
            waiting=self._waiting - (_waiting_in(ledger) if ledger else 0),
        )

    @cached_property
    def taken(self) -> dict[str, Vector]:
        """By namespace: `max(used + reserved, guaranteed)`. A namespace with a guarantee has it before it is in the team, too."""
        return {name: self._taken_by(name) for name in dict.fromkeys((*self.ledgers, *self.team.guaranteed))}

    @cached_property
    def _sums_taken(self) -> Vector:
        return _sums(self.taken.values(), self.team.hard)

    @cached_property
    def _sums_guaranteed(self) -> Vector:
        return _sums(self.team.guaranteed.values(), self.team.hard)

    @cached_property
    def _lacking(self) -> Counter[str]:
        """How many ledgers lack a dimension of `hard`."""
        lacks = (_lacked_by(ledger, self.team.hard) for ledger in self.ledgers.values())
        return Counter(chain.from_iterable(lacks))

    @cached_property
    def _waiting(self) -> int:
        return sum(map(_waiting_in, self.ledgers.values()))

    def _taken_by(self, namespace: str) -> Vector:
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


def _lacked_by(ledger: QuotaLedger | None, hard: Vector) -> frozenset[str]:
    """Return the dimensions of the team's `hard` that a counted ledger lacks."""
    used = ledger.used if ledger else None
    return frozenset() if used is None else frozenset(key for key in hard if key not in used)


def _waiting_in(ledger: QuotaLedger) -> int:
    """Return how many pods of a namespace wait for the team, or are being created to wait."""
    return ledger.waiting_for_team + ledger.reservations.waiting
