"""The ledgers of a team's namespaces, in one object: every compare-and-swap replaces all of them.

So one swap decides about the quotas of a namespace and of its team.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, reduce
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from policies.quota.amounts import ZERO, Amounts
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import Team, TeamState

NAMESPACE_PARTS = 4
"""One namespace may use at most 1/NAMESPACE_PARTS of the team's space for reservations."""


class _Sums(msgspec.Struct, frozen=True):
    """What one or more namespaces add to their team.

    `taken` and `lacking` have each dimension of `hard`; `lacking` is how many ledgers lack it. `waiting` is the number of pods
    that wait for quota of the team. `scarce`: in how many namespaces the first such pod lacks a dimension. `lifts_size` is the
    size in characters of what is held for waiting pods, and `reserved_size` of all other reservations.
    """

    taken: Amounts
    lacking: Mapping[str, int]
    scarce: Mapping[str, int]
    waiting: int = 0
    lifts_size: int = 0
    reserved_size: int = 0

    def plus(self, other: "_Sums") -> "_Sums":
        return self._with(other, operator.add)

    def minus(self, other: "_Sums") -> "_Sums":
        return self._with(other, operator.sub)

    def _with(self, other: "_Sums", combine: Callable[[Any, Any], Any]) -> "_Sums":
        def combined(mine: Any, others: Any) -> Any:
            if isinstance(mine, Mapping):
                return {key: combine(amount, others[key]) for key, amount in mine.items()}
            return combine(mine, others)

        return _Sums(*map(combined, astuple(self), astuple(other)))


class TeamLedgers(msgspec.Struct, frozen=True, dict=True):
    """The spec in force of a team, and the ledger of each of its namespaces.

    A namespace in `leaving` is moving out of this object: its ledger is frozen. It decides nothing, but still counts.
    """

    team: Team
    ledgers: Mapping[str, QuotaLedger] = {}
    leaving: frozenset[str] = frozenset()

    def has(self, namespace: str) -> bool:
        """Whether this object decides about the namespace."""
        return namespace in self.ledgers and namespace not in self.leaving

    def of(self, namespace: str) -> QuotaLedger | None:
        """Return the ledger of a namespace, with the state of its team. None if this object does not decide about it."""
        if not self.has(namespace):
            return None
        return replace(self.ledgers[namespace], team_state=self.team_state(namespace))

    def with_ledger(self, namespace: str, ledger: QuotaLedger) -> "TeamLedgers":
        """Return the ledgers of the team with this one for the namespace, which may be new here."""
        ledgers = {**self.ledgers, namespace: replace(ledger, team_state=None, moved_to="")}
        return self._after(ledgers, self.leaving, (namespace,))

    def later(self, ledgers: Mapping[str, QuotaLedger], leaving: frozenset[str]) -> "TeamLedgers":
        """Return a later version of the object, under the same spec of the team."""
        changed = [name for name, ledger in ledgers.items() if self.ledgers.get(name) is not ledger]
        return self._after(ledgers, leaving, (*changed, *(self.ledgers.keys() - ledgers.keys())))

    def _after(
        self, ledgers: Mapping[str, QuotaLedger], leaving: frozenset[str], changed: Iterable[str]
    ) -> "TeamLedgers":
        """Return the object after these ledgers changed. Sums follow by difference: adding up 500 ledgers takes several ms."""
        after = TeamLedgers(self.team, ledgers, leaving)
        taken, sums = dict(self.taken), self._sums
        after.__dict__["taken"] = taken
        for namespace in changed:
            sums = sums.minus(self._part(namespace))
            taken.pop(namespace, None)
            if namespace in ledgers or namespace in self.team.guaranteed:
                taken[namespace] = after._taken_by(namespace)
            sums = sums.plus(after._part(namespace))
        after.__dict__["_sums"] = sums
        return after

    def with_team(self, team: Team) -> "TeamLedgers":
        return replace(self, team=team)

    def leave(self, namespace: str) -> "TeamLedgers":
        """Return the object with the ledger of the namespace frozen."""
        return self._after(self.ledgers, self.leaving | {namespace}, ())

    def without(self, namespace: str) -> "TeamLedgers":
        """Return the object without the frozen ledger of a namespace that has moved."""
        ledgers = {name: ledger for name, ledger in self.ledgers.items() if name != namespace}
        return self._after(ledgers, self.leaving - {namespace}, (namespace,))

    def reservation_limit(self, namespace: str, team_limit: int) -> int:
        """Return how many characters the reservations of a namespace may take. `team_limit`: maximum of all namespaces.

        Half of the space is shared: first come, first served, up to 1/NAMESPACE_PARTS of all space for one namespace. The other
        half is divided equally, so each namespace can reserve something whatever the others do. What the controller holds for
        waiting pods counts in neither half.
        """
        others, own_lifts = self._others(namespace), self._part(namespace).lifts_size
        room = team_limit - own_lifts - others.lifts_size
        first = min(room // NAMESPACE_PARTS, room // 2 - others.reserved_size)
        own_part = room // 2 // max(1, len(self.ledgers))
        return own_lifts + max(0, min(max(first, own_part), room - others.reserved_size))

    def team_state(self, namespace: str) -> TeamState:
        """Return what the ledger of a namespace sees of the team."""
        others, guaranteed = self._others(namespace), self.team.guaranteed_to(namespace)
        return TeamState(
            team=self.team,
            taken_by_others=others.taken,
            guaranteed_to_others={
                key: amount - guaranteed.get(key, ZERO) for key, amount in self.team.all_guaranteed.items()
            },
            taken=self.taken,
            guaranteed=guaranteed,
            uncounted=frozenset(key for key, number in others.lacking.items() if number),
            waiting=others.waiting,
            scarce=frozenset(key for key, number in others.scarce.items() if number),
        )

    @cached_property
    def taken(self) -> dict[str, Amounts]:
        """By namespace: `max(used + reserved, guaranteed)`. A namespace with a guarantee has it before it is in the team, too."""
        return {name: self._taken_by(name) for name in dict.fromkeys((*self.ledgers, *self.team.guaranteed))}

    @cached_property
    def _sums(self) -> _Sums:
        none = dict.fromkeys(self.team.hard, 0)
        nothing = _Sums(dict.fromkeys(self.team.hard, ZERO), none, none)
        return reduce(_Sums.plus, map(self._part, self.taken), nothing)

    def _others(self, namespace: str) -> _Sums:
        return self._sums.minus(self._part(namespace))

    def _part(self, namespace: str) -> _Sums:
        """Return what one namespace adds to the sums, nothing if it has neither a ledger nor a guarantee."""
        ledger, hard = self.ledgers.get(namespace), self.team.hard
        taken = self.taken.get(namespace) or dict.fromkeys(hard, ZERO)
        if ledger is None:
            return _Sums(taken, dict.fromkeys(hard, 0), dict.fromkeys(hard, 0))
        return _Sums(
            taken,
            {key: ledger.used is not None and key not in ledger.used for key in hard},
            {key: ledger.scarce.get(key, False) for key in hard},
            ledger.waiting_for_team,
            ledger.reservations.lifts_size,
            ledger.size - ledger.reservations.lifts_size,
        )

    def _taken_by(self, namespace: str) -> Amounts:
        ledger = self.ledgers.get(namespace)
        return self.team.taken(namespace, ledger.held if ledger else {})
