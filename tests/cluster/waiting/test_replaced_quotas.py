"""A quota that is deleted and made again, as by `kubectl replace --force`, starts nobody who waits for it."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.cluster.controllers import Running, eventually, uses
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.line import Line
from tests.cluster.waiting.replaced import WAITING, Team, running, still_wait, wait_for
from tests.controlplane import ControlPlane
from webhook.controller.teams import DELETED_SECONDS

__all__ = ["running"]
SECONDS_BETWEEN = (0.0, 0.5, 2.0)
"""The deletion and the creation, in one namespace each."""


@pytest.fixture
def lines(running: Running, plane: ControlPlane) -> list[Line]:
    assert not running.why_unready()
    return [Line(plane) for _ in SECONDS_BETWEEN]


def replace(delete: Sequence[Callable[[], object]], create: Sequence[Callable[[], object]]) -> None:
    """Delete and create the quota of each namespace; return when all that a deletion may start would have started."""

    def replace_one(number: int) -> None:
        delete[number]()
        time.sleep(SECONDS_BETWEEN[number])
        create[number]()

    with ThreadPoolExecutor(len(SECONDS_BETWEEN)) as pool:
        list(pool.map(replace_one, range(len(SECONDS_BETWEEN))))
    time.sleep(DELETED_SECONDS + 1)


def four_start_after_the_holder(line: Line) -> bool:
    line.delete_pod("holder")
    return eventually(lambda: len(line.waiting()) == WAITING - 4)


def test_a_quota_that_is_replaced_starts_nobody(lines: list[Line]) -> None:
    for line in lines:
        in_force(line, {"gpus": "4"})
    names = [wait_for(line, 4) for line in lines]
    ledger_uids = [line.ledger_object().ledger_uid for line in lines]

    replace([line.delete_quota for line in lines], [partial(line.quota, {"gpus": "4"}) for line in lines])

    for line, waiting, ledger_uid in zip(lines, names, ledger_uids, strict=True):
        assert eventually(line.in_force)
        assert line.ledger_object().ledger_uid == ledger_uid, "it keeps its ledger"
        assert still_wait(line, waiting)
        assert uses(line, 4)
        assert four_start_after_the_holder(line)
        assert uses(line, 4)


def test_a_quota_that_stays_deleted_starts_all(line: Line) -> None:
    in_force(line, {"gpus": "4"})
    names = wait_for(line, 4)

    line.delete_quota()
    time.sleep(DELETED_SECONDS / 2)
    assert still_wait(line, names)

    assert line.starts(*names)


def test_a_cluster_quota_that_is_replaced_starts_nobody(lines: list[Line]) -> None:
    teams = [Team(line, 4) for line in lines]
    names = [wait_for(line, 4) for line in lines]

    replace([team.delete for team in teams], [team.create for team in teams])

    for line, waiting, team in zip(lines, names, teams, strict=True):
        assert still_wait(line, waiting)
        assert four_start_after_the_holder(line)
        team.delete()
    assert all(line.starts(*waiting) for line, waiting in zip(lines, names, strict=True))


@pytest.mark.slow
def test_a_quota_in_a_team_that_is_replaced_starts_nobody(lines: list[Line]) -> None:
    teams = [Team(line, 40) for line in lines]
    for line in lines:
        line.quota({"gpus": "4"})
        assert eventually(line.in_force)
    names = [wait_for(line, 4) for line in lines]

    replace([line.delete_quota for line in lines], [partial(line.quota, {"gpus": "4"}) for line in lines])

    for line, waiting in zip(lines, names, strict=True):
        assert still_wait(line, waiting)
        assert four_start_after_the_holder(line)
        line.delete_quota()
    assert all(line.starts(*waiting) for line, waiting in zip(lines, names, strict=True))
    for team in teams:
        team.delete()
