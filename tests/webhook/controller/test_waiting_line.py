"""Removals of the gates of pods that wait in line, when the API server refuses them."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from policies.quota.waiting import QueueSpec
from tests.webhook.controller.clock import Clock
from webhook.cluster import errors
from webhook.controller import waiting_line
from webhook.controller.waiting_line import FIRST_PAUSE, WaitingLine

DENIED = errors.Invalid("ValidatingAdmissionPolicy denied the request")
POD: Any = SimpleNamespace(
    uid="a", namespace="team", name="train", version=7, waiting=SimpleNamespace(gate=0, has_other_gate=False)
)
LATER: Any = SimpleNamespace(**{**vars(POD), "version": 8})


class World:
    """A line whose pods the API server refuses to change."""

    def __init__(self) -> None:
        self.again: list[float] = []
        self.denials: list[str] = []
        reports: Any = SimpleNamespace(denied=lambda _pod, problem: self.denials.append(problem))
        api: Any = SimpleNamespace(patch=self._refuse)
        nothing: Any = None
        self.line = WaitingLine(
            api,
            nothing,
            nothing,
            reports,
            lambda _: QueueSpec(),
            lambda _namespace, seconds: self.again.append(seconds),
        )

    def _refuse(self, *_: object, **__: object) -> None:
        raise DENIED


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(waiting_line, "monotonic", Clock())
    return World()


def test_a_pod_that_has_changed_meanwhile_is_tried_again(world: World) -> None:
    for pod in (POD, LATER):
        world.line._lift(pod)
        assert world.line._obstacle(pod, None) is None
    assert (world.denials, world.again) == ([], [FIRST_PAUSE, FIRST_PAUSE])


def test_a_pod_that_an_admission_policy_denies_stands_aside(world: World) -> None:
    for _ in range(3):
        world.line._lift(POD)
    assert world.line._obstacle(POD, None) is waiting_line.Standing.DENIED
    assert world.denials == 2 * [str(DENIED)]
    assert world.again[:3] == [FIRST_PAUSE, FIRST_PAUSE, 2 * FIRST_PAUSE]
    assert world.line._obstacle(LATER, None) is None
