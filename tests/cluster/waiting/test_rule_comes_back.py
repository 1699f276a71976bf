"""The rule of the quota, or the quota, comes back while those who waited start: soon, nobody starts beyond it."""

import time
from typing import Any

from tests.cluster.controllers import eventually
from tests.cluster.waiting.queueing import QUEUE, Team, counted, team
from webhook.configuration.cluster_source import LONGEST_WAIT_SECONDS
from webhook.controller.waiting_line import LIFT_THREADS

__all__ = ["counted", "team"]
CROWD = 400
"""They need some five seconds to start."""


def crowd(team: Team) -> None:
    team.queue()
    for number in range(CROWD):
        team.pod(f"crowd-{number}")


def waiting(team: Team) -> int:
    pods: list[Any] = team.client.get(team.path("pods"))[1]["items"]
    return sum(bool(pod["spec"].get("schedulingGates")) for pod in pods)


def not_started(team: Team) -> int:
    events: list[Any] = team.client.get(team.path("events"))[1]["items"]
    return sum(each.get("count") or 1 for each in events if each["reason"] == "QuotaNotStarted")


def test_a_rule_that_comes_back(team: Team) -> None:
    crowd(team)
    team.policy(rules={"gpu-quota": {**QUEUE, "mode": "disabled"}})
    assert eventually(lambda: waiting(team) < CROWD)

    team.policy(rules={"gpu-quota": QUEUE})
    time.sleep(LONGEST_WAIT_SECONDS)

    left = waiting(team)
    assert left
    time.sleep(3)
    assert waiting(team) == left
    assert not_started(team) <= 2 * LIFT_THREADS, "nobody tries any more"


def test_a_quota_that_comes_back(team: Team) -> None:
    crowd(team)
    team.delete_quota()
    assert eventually(lambda: waiting(team) < CROWD)

    team.quota({"gpus": "1"})

    left = waiting(team)
    assert left
    time.sleep(3)
    assert left - waiting(team) <= LIFT_THREADS // 4, "those that were reviewed before"
