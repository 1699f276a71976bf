"""The rule of the quota, or the quota, comes back while those who waited start: soon, nobody starts beyond it."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.controllers import eventually
from tests.cluster.waiting.queueing import QUEUE, Team, counted, spec_of, team
from webhook.controller.waiting_line import GATE_THREADS

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


def nobody_starts(team: Team) -> bool:
    """Whether nobody starts for some seconds, but those whose review had ended, at most one of each thread."""
    left = waiting(team)
    assert left, "they had not all started"
    time.sleep(3)
    return left - waiting(team) <= GATE_THREADS


def another_waits(team: Team, names: Iterator[str]) -> bool:
    """Whether a new pod waits: serve has the rule. It is denied if the rule comes between the two reviews of the pod."""
    status, answer = team.create({"metadata": {"name": next(names)}, "spec": spec_of(gpus=1)})
    return status == 201 and bool(answer["spec"].get("schedulingGates"))


def test_a_rule_that_comes_back(team: Team) -> None:
    crowd(team)
    team.policy(rules={"gpu-quota": {**QUEUE, "mode": "disabled"}})
    assert eventually(lambda: waiting(team) < CROWD)

    team.policy(rules={"gpu-quota": QUEUE})
    names = (f"late-{number}" for number in itertools.count())
    assert eventually(lambda: another_waits(team, names))

    assert nobody_starts(team)
    assert not_started(team) <= 2 * GATE_THREADS, "nobody tries any more"


@pytest.mark.slow
def test_a_quota_that_comes_back(team: Team) -> None:
    crowd(team)
    team.delete_quota()
    assert eventually(lambda: waiting(team) < CROWD)

    team.quota({"gpus": "1"})
    assert eventually(team.in_force)

    assert nobody_starts(team)
