"""Credits in random histories of one namespace: pods end, and two controllers see that early or late, by watch or list.

They count and write one after the other, lose writes to each other, and start again. Each end is added once, by its first count,
and lets one pod go first. An end that no controller saw is added by none.
"""

import random
from collections.abc import Iterable
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservations
from policies.quota.line import next_to_start
from policies.quota.queue_entries import line_up
from policies.quota.waiting import QueueSpec, Waiter, creation_timestamp
from tests.builders import quota_ledger
from tests.webhook.controller.lines import BY, a_line, owned
from webhook.controller import replacements
from webhook.controller.replacements import Replacements, _EndedPod
from webhook.controller.waiting_line import WaitingLine

HISTORIES, STEPS, NOW = 200, 60, 1_790_000_000_000
GPU = {"gpus": Fraction(1)}
POD = owned("web-0", "Job")


class Controller:
    def __init__(self, line: WaitingLine, revision: int) -> None:
        self.line, self.shown = line, revision


class World:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - the same in every run
        self.revision = 10
        self.ends: list[int] = []
        """The revisions at which pods ended."""
        self.ledger = quota_ledger(
            hard={"gpus": Fraction(1000)},
            used={"gpus": Fraction(0)},
            class_catalogue=str(BY),
            revisions=Revisions(pods=10),
        )
        self.controllers = [Controller(a_line(), 10), Controller(a_line(), 10)]
        self.added = self.used = 0

    def step(self) -> None:
        number = self.draw.randrange(2)
        acts = [self.end, self.end, self.watch, self.watch, self.list, self.count, self.count, self.restart]
        weights = [4, 4, 4, 4, 2, 4, 4, 1]
        self.draw.choices(acts, weights)[0](number)

    def end(self, _number: int) -> None:
        self.revision += 1
        self.ends.append(self.revision)

    def watch(self, number: int) -> None:
        """Show one more revision."""
        controller = self.controllers[number]
        if controller.shown < self.revision:
            controller.shown += 1
            controller.line.replacements.ended(POD, controller.shown - 1)

    def list(self, number: int) -> None:
        """Show everything at once: when each pod ended is not known."""
        controller = self.controllers[number]
        for _ in self.unseen(controller):
            controller.line.replacements.ended(POD, controller.shown)
        controller.shown = self.revision

    def restart(self, number: int) -> None:
        self.controllers[number] = Controller(a_line(), self.revision)

    def unseen(self, controller: Controller) -> Iterable[int]:
        return [each for each in self.ends if each > controller.shown]

    def count(self, number: int) -> None:
        controller, before = self.controllers[number], self.ledger
        if controller.shown < before.revisions.pods:
            return
        counted = replace(before, revisions=Revisions(pods=controller.shown))
        credited = controller.line.credited("team", before, counted)
        after = self.turn(credited)
        if self.draw.random() < 0.3:
            return  # the other one has won
        self.added += ended(credited) - ended(before)
        self.used += ended(credited) - ended(after)
        self.ledger = replace(after, reservations=Reservations({}))
        assert self.added <= sum(each <= self.ledger.revisions.pods for each in self.ends)

    def turn(self, counted: QuotaLedger) -> QuotaLedger:
        owner = next((each.owner for each in counted.credits), "")
        pods = [
            Waiter(uid=f"pod-{number}", demand=GPU, since=creation_timestamp(NOW), owner=owner)
            for number in range(self.draw.randrange(3))
        ]
        line = line_up(counted, pods, {}, QueueSpec(), NOW)
        assert sum(each.replaces for each in line.waiters) == min(len(pods), ended(counted))
        return next_to_start(counted, line).ledger


def ended(ledger: QuotaLedger) -> int:
    return sum(len(each.ended) for each in ledger.credits)


def run(seed: int, *, restarts: bool = True, lists: bool = True) -> World:
    world = World(seed)
    if not restarts:
        world.restart = world.watch  # type: ignore[method-assign]
    if not lists:
        world.list = world.watch  # type: ignore[method-assign]
    for _ in range(STEPS):
        world.step()
    return world


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacements, "now_ms", lambda: NOW)


def test_no_end_is_added_twice() -> None:
    assert sum(run(seed).used for seed in range(HISTORIES)) > HISTORIES


def test_each_end_that_a_watch_shows_is_added_once() -> None:
    for seed in range(HISTORIES):
        world = run(seed, restarts=False, lists=False)
        assert world.added == sum(each <= world.ledger.revisions.pods for each in world.ends)


def test_credits_in_the_memory_of_a_process_are_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The histories find what this is about: a standby never hears which ends were counted."""

    def remembered(of: Replacements, namespace: str, *_: object) -> list[_EndedPod]:
        return list(of._ended.pop(namespace, ()))

    monkeypatch.setattr(Replacements, "_ended_between", remembered)
    with pytest.raises(AssertionError):
        [run(seed) for seed in range(HISTORIES)]
