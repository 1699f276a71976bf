"""The line of a team: in which of its namespaces the next pod starts, as a pure function of the ledgers of all of them.

Each namespace has a line of its own (terms: `policies.quota.line`). The heads of these lines start in this order:

  1. the rest of a gang that has started in part, and a pod for which its object keeps quota;
  2. a head within the guarantee of its namespace, which takes nothing from the others;
  3. the head of the namespace with the smallest dominant share of `hard` beyond its guarantee;
  4. the oldest.

While a head does not fit its team, it blocks all heads after it, except those within a guarantee. Under BestEffortFIFO that
holds only once the head has waited for STARVED_SECONDS. A head that does not fit its own GPUQuota is not considered.

So nobody starves, provided that all running pods end at some time, and that their objects do not replace them: then a namespace
holds nothing beyond its guarantee, and only older heads come before its own. What an object replaces is as if it had not ended.
"""

from collections.abc import Mapping
from fractions import Fraction
from heapq import heapify, heappop, heappush

import msgspec

from policies.quota.amounts import ZERO, Amounts, total
from policies.quota.ledger.reservations import Reservations
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import NAMESPACE_PARTS, TeamLedgers
from policies.quota.line import LIFTS_LIMIT, Head, NamespaceLine, Turn
from policies.quota.queue_entries import InLine
from policies.quota.waiting import Standing


class TeamTurn(msgspec.Struct, frozen=True):
    """The ledgers of the team with what is held, and the turn of each namespace. The ledger of a turn has its `team_state`."""

    team_ledgers: TeamLedgers
    turns: Mapping[str, Turn]

    def ungate_uids(self, namespace: str) -> tuple[str, ...]:
        """Return the uids of the pods of a namespace whose gates may be removed."""
        return self.turns[namespace].ungate_uids if namespace in self.turns else ()


def next_to_start_in_team(
    team_ledgers: TeamLedgers, in_line: Mapping[str, InLine], starved_before: str = ""
) -> TeamTurn:
    """Hold quota for the next pods of all namespaces, and release what is held for pods that cannot start now.

    `in_line` is by namespace. Each ledger has its last count. `starved_before` as for `next_to_start`. A namespace has no turn if
    its ledger is not counted in full, or not decided here.
    """
    lines: dict[str, NamespaceLine] = {}
    after, team = team_ledgers, team_ledgers.team
    # Largest share first: if `hard` was lowered, its held quota is released first.
    dominant_shares = {
        name: _dominant_share(team, name, team_ledgers.taken[name])
        for name in team_ledgers.ledgers.keys() & in_line
    }
    for namespace in sorted(dominant_shares, key=lambda name: (-dominant_shares[name], name)):
        ledger = after.of(namespace)
        if ledger is None or ledger.used is None or ledger.uncounted or ledger.class_catalogue is None:
            continue
        limit = LIFTS_LIMIT // NAMESPACE_PARTS
        lines[namespace] = line = NamespaceLine(ledger, in_line[namespace], starved_before, limit)
        if line.ledger is not ledger:
            after = after.with_ledger(namespace, line.ledger)
    _hold(_TeamRoom(after, lines))
    turns = {namespace: line.turn() for namespace, line in lines.items()}
    for namespace, turn in turns.items():
        after = after.with_ledger(namespace, turn.ledger)
    turns = {
        namespace: msgspec.structs.replace(turn, ledger=after.of(namespace) or turn.ledger)
        for namespace, turn in turns.items()
    }
    return TeamTurn(after, turns)


def _hold(room: "_TeamRoom") -> None:
    """Hold quota for one head after the other.

    Holding a head changes only the sort key of its own namespace, so the heap stays valid.
    """
    heap = [(room.order(name, line.head), name, line.head) for name, line in room.lines.items() if line.head]
    heapify(heap)
    is_blocked = False
    while heap:
        _, namespace, head = heappop(heap)
        line = room.lines[namespace]
        is_behind = is_blocked and not room.is_guaranteed(namespace, head)
        if not is_behind and room.has_room_for(namespace, head):
            room.hold(namespace, head)
        else:
            standing = Standing.BEHIND if is_behind else Standing.NEXT
            blocks = line.wait_for_team(standing, room.lacking(namespace, head))
            is_blocked = is_blocked or blocks
        if line.head is not None:
            heappush(heap, (room.order(namespace, line.head), namespace, line.head))


class _TeamRoom:
    """Free quota of the team, as heads are held one after the other."""

    def __init__(self, team_ledgers: TeamLedgers, lines: Mapping[str, NamespaceLine]) -> None:
        self.lines = lines
        self._team = team_ledgers.team
        self._taken = {**team_ledgers.taken, **{name: self._taken_by(name) for name in lines}}
        self._sum = {key: sum((each[key] for each in self._taken.values()), ZERO) for key in self._team.hard}
        # Characters left in the object for reservations of waiting pods.
        lifts = (ledger.reservations.lifts.values() for ledger in team_ledgers.ledgers.values())
        self._space = LIFTS_LIMIT - sum(Reservations.of(*lift).size for lift in lifts if lift)

    def order(self, namespace: str, head: Head) -> tuple[object, ...]:
        """Return the sort key of a head among all heads."""
        entry, is_guaranteed = head.entry, self.is_guaranteed(namespace, head)
        taken = self._taken[namespace]
        dominant_share = ZERO if is_guaranteed else _dominant_share(self._team, namespace, taken)
        return not entry.goes_first, not is_guaranteed, dominant_share, entry.since, entry.waiters[0].uid

    def is_guaranteed(self, namespace: str, head: Head) -> bool:
        """Whether the head takes nothing from the other namespaces."""
        limited, guaranteed = self._limited(namespace, head), self._team.guaranteed_to(namespace)
        return all(held <= guaranteed.get(key, ZERO) for key, held in limited.items())

    def has_room_for(self, namespace: str, head: Head) -> bool:
        """Whether the quota of the team has room for the head, and the object with its ledgers for what is held."""
        state = self.lines[namespace].ledger.team_state
        if head.held.size > self._space or (state and state.uncounted.intersection(head.needed)):
            return False
        return not self.lacking(namespace, head)

    def lacking(self, namespace: str, head: Head) -> frozenset[str]:
        """Return the dimensions in which the quota of the team has no room for the head."""
        taken, hard = self._taken[namespace], self._team.hard
        limited = self._limited(namespace, head).items()
        return frozenset(key for key, held in limited if self._sum[key] - taken[key] + held > hard[key])

    def hold(self, namespace: str, head: Head) -> None:
        self._space -= head.held.size
        self.lines[namespace].hold()
        before, after = self._taken[namespace], self._taken_by(namespace)
        self._taken[namespace] = after
        self._sum = {key: amount - before[key] + after[key] for key, amount in self._sum.items()}

    def _limited(self, namespace: str, head: Head) -> Amounts:
        """Return what the namespace would hold with the head, in dimensions that the head needs and the team limits."""
        held = total((self.lines[namespace].held_by_namespace, head.needed))
        return {key: held[key] for key in head.needed if key in self._team.hard}

    def _taken_by(self, namespace: str) -> Amounts:
        return self._team.taken(namespace, self.lines[namespace].held_by_namespace)


def _dominant_share(team: Team, namespace: str, taken: Amounts) -> Fraction:
    """Return the largest part of a dimension of `hard` that a namespace takes beyond its guarantee."""
    guaranteed = team.guaranteed_to(namespace)
    parts = ((taken[key] - guaranteed.get(key, ZERO)) / (hard or 1) for key, hard in team.hard.items())
    return max(parts, default=ZERO)
