"""A quota that is deleted and made again, as by `kubectl replace --force`, starts nobody who waits for it."""

import time

import pytest

from tests.cluster.controllers import eventually, uses
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.line import Line
from tests.cluster.waiting.replaced import WAITING, Team, still_wait, wait_for
from webhook.controller.teams import DELETED_SECONDS

APART = pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0])
"""Between the deletion and the creation."""


@APART
def test_a_quota_that_is_replaced_starts_nobody(line: Line, seconds: float) -> None:
    in_force(line, {"gpus": "4"})
    names = wait_for(line, 4)
    ledger_uid = line.ledger_object().ledger_uid

    line.delete_quota()
    time.sleep(seconds)
    line.quota({"gpus": "4"})

    assert eventually(line.in_force)
    assert line.ledger_object().ledger_uid == ledger_uid, "it keeps its ledger"
    time.sleep(DELETED_SECONDS + 1)
    assert still_wait(line, names)
    assert uses(line, 4)
    line.delete_pod("holder")
    assert eventually(lambda: len(line.waiting()) == WAITING - 4)
    assert uses(line, 4)


def test_a_quota_that_stays_deleted_starts_all(line: Line) -> None:
    in_force(line, {"gpus": "4"})
    names = wait_for(line, 4)

    line.delete_quota()
    time.sleep(DELETED_SECONDS / 2)
    assert still_wait(line, names)

    assert line.starts(*names)


@APART
def test_a_cluster_quota_that_is_replaced_starts_nobody(line: Line, seconds: float) -> None:
    team = Team(line, 4)
    names = wait_for(line, 4)

    team.delete()
    time.sleep(seconds)
    team.create()

    time.sleep(DELETED_SECONDS + 1)
    assert still_wait(line, names)
    line.delete_pod("holder")
    assert eventually(lambda: len(line.waiting()) == WAITING - 4)
    team.delete()
    assert line.starts(*names)


@APART
def test_a_quota_in_a_team_that_is_replaced_starts_nobody(line: Line, seconds: float) -> None:
    team = Team(line, 40)
    line.quota({"gpus": "4"})
    assert eventually(line.in_force)
    names = wait_for(line, 4)

    line.delete_quota()
    time.sleep(seconds)
    line.quota({"gpus": "4"})

    time.sleep(DELETED_SECONDS + 1)
    assert still_wait(line, names)
    line.delete_pod("holder")
    assert eventually(lambda: len(line.waiting()) == WAITING - 4)
    line.delete_quota()
    assert line.starts(*names)
    team.delete()
