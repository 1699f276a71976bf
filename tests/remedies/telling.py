"""Asks a command in random worlds what it tells people to do, over one fake API server, and counts what is wrong with it."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.oracle import WorldRefused
from tests.remedies.following import Failure
from tests.seed import SAID, SEED
from tests.webhook.cluster.apiserver import ApiServer, answering

FAILING = 0.001
"""The largest share of remedies that may fail: none of some worlds, a few of many. The aim is 0."""
in_worlds = pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(SEED, SEED + 25), id="some"),
        pytest.param(range(SEED, SEED + 5_000), id="many", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)


class Followed(NamedTuple):
    """What a command says of one world: its answer, how many remedies, and what is wrong with them."""

    answer: str
    remedies: int
    failures: list[Failure]


Follow = Callable[[ApiServer, int], Followed | None]
"""Has the API server answer as in the world of this seed, and follows what the command says; None if it has nothing to say."""


def assert_true(tmp_path: Path, seeds: range, follow: Follow) -> None:
    found: list[tuple[int, Failure]] = []
    answers, remedies = Counter[str](), 0
    with ApiServer(tmp_path, answering({})) as server:
        for seed in seeds:
            followed = None
            with suppress(WorldRefused):
                followed = follow(server, seed)
            if followed is not None:
                answers[followed.answer] += 1
                remedies += followed.remedies
                found += ((seed, each) for each in followed.failures)
    kinds = Counter((each.kind, each.reason) for _, each in found)
    print(SAID, dict(answers), remedies, dict(kinds))  # noqa: T201  shown by -rA
    shown = "\n".join(f"{seed} {each.kind} {each.reason}: {each.detail}" for seed, each in found[:20])
    assert len(found) <= remedies * FAILING, f"{SAID}\n{shown}"
