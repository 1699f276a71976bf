"""Ledgers of a team whose pods wait in line."""

from collections.abc import Mapping
from fractions import Fraction

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.waiting import QueueOrder, QueueSpec
from tests.builders import quota_ledger
from tests.policies.quota.waiters import gpus

STRICT, BEST_EFFORT = QueueSpec(), QueueSpec(order=QueueOrder.BEST_EFFORT_FIFO)

Amounts = Mapping[str, int]


def ledger(used: int = 0, *reservations: Reservation, hard: int | None = None) -> QuotaLedger:
    return quota_ledger(
        *reservations,
        hard={} if hard is None else {"gpus": Fraction(hard)},
        used={"gpus": Fraction(used)},
        class_catalogue="now",
    )


def of_team(hard: int, guaranteed: Amounts | None = None, **ledgers: QuotaLedger) -> TeamLedgers:
    guarantees = {namespace: gpus(amount) for namespace, amount in (guaranteed or {}).items()}
    team = Team(name="t", uid="t", generation=1, hard={"gpus": Fraction(hard)}, guaranteed=guarantees)
    return TeamLedgers(team, ledgers)
