"""Kinds of devices that selectors may select, compared with what the scheduler's own package selects (selectors/main.go).

A kind of which the scheduler selects a device must be possible: else a claim would count less than what it gets.
"""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from policies.gpus.device_selectors import not_evaluated, possible_kinds
from tests.oracle.selected import KINDS, Scheduler, Selected, devices, expression, scheduler
from tests.seed import SAID, SEED

pytestmark = pytest.mark.processes
OTHERS = [
    each["expression"] for each in yaml.safe_load(Path(__file__).with_name("selectors.yaml").read_text())
]


@pytest.fixture(scope="module", name="kubernetes")
def started() -> Iterator[Scheduler]:
    running = scheduler(devices()[1])
    yield running
    running.close()


def kinds_of(answer: Selected, value: bool | None) -> set[int]:
    return {index for index, each in zip(devices()[0], answer.selected, strict=True) if each is value}


def compared(expressions: list[str], kubernetes: Scheduler) -> Counter[str]:
    """Return how often the bound was exact, above, …; asserts that it was never below."""
    counts: Counter[str] = Counter()
    for each in expressions:
        answer, possible = kubernetes.ask(each), possible_kinds([each], KINDS)
        if answer.error:
            counts["refused by the API server"] += 1
            continue
        selected = kinds_of(answer, True)
        assert selected <= possible, f"{each}: {sorted(selected - possible)}; {SAID}"
        if not_evaluated([each]):
            counts["not evaluated"] += 1
        elif selected == possible:
            counts["exact"] += 1
        elif possible <= selected | kinds_of(answer, None):
            counts["above by kinds at which the scheduler stops"] += 1
        else:
            counts["above"] += 1
    return counts


def test_every_kind_of_which_the_scheduler_selects_a_device_is_possible(kubernetes: Scheduler) -> None:
    draw = random.Random(SEED)  # noqa: S311  # draws cases, no secrets
    counts = compared([expression(draw) for _ in range(3_000)], kubernetes)

    assert counts["exact"] > 1_000, f"{counts}; {SAID}"


def test_most_selectors_of_others_are_bound_exactly(kubernetes: Scheduler) -> None:
    counts = compared(OTHERS, kubernetes)

    assert counts["exact"] >= 60, counts
