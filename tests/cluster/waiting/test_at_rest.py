"""After everything is deleted, ledgers and statuses say so."""

import time
from fractions import Fraction

import pytest

from tests.cluster.controllers import eventually
from tests.cluster.waiting.line import Line
from tests.cluster.waiting.replaced import Team, running, wait_for
from tests.controlplane.client import accepted

__all__ = ["running"]
WAITING = 44
NOTHING_USED = {"gpus": Fraction(0)}
WITHIN = 10.0
"""It is shown within two seconds; the rest is for machines with much else to do."""


def shown(line: Line) -> tuple[int, int, int]:
    """Return what the status says: GPUs used and reserved, and pods that wait."""
    status = line.status()
    amounts = [int((amount or {}).get("gpus", 0)) for amount in (status.used, status.reserved)]
    return amounts[0], amounts[1], status.waiting.pods if status.waiting else 0


@pytest.mark.parametrize("in_team", [False, True])
def test_nothing_is_shown_of_what_is_gone(line: Line, *, in_team: bool) -> None:
    team = Team(line, 4) if in_team else None
    line.quota({"gpus": "4"})
    assert eventually(line.in_force)
    wait_for(line, 4, WAITING)
    assert eventually(lambda: shown(line) == (4, 0, WAITING)), shown(line)

    begun = time.monotonic()
    accepted(line.client.delete(line.path("pods"), {"gracePeriodSeconds": 0}))

    assert eventually(lambda: shown(line) == (0, 0, 0), seconds=60), shown(line)
    assert time.monotonic() < begun + WITHIN
    ledger = line.ledger_object()
    assert (ledger.used, ledger.all_waiting, len(ledger.reservations)) == (NOTHING_USED, 0, 0)
    if team is not None:
        assert eventually(lambda: team.status().used == NOTHING_USED)
        team.delete()
