"""Random worlds have what clusters have, often enough, and a cluster can be like each of them."""

from collections import Counter

import pytest

from tests.oracle import oracle
from tests.oracle.worlds import ASKED, Draw, draw_world, scarce
from tests.seed import SAID, SEED

pytestmark = pytest.mark.processes
ONE_OF = [feature for feature, *_ in ASKED]
"""A pod has one of them, and two only if it has several containers."""


def test_each_feature_and_each_pair_comes_in_a_hundred_of_five_thousand_worlds() -> None:
    drawn = []
    for seed in range(5_000):
        draw = Draw(seed)
        draw_world(draw)
        drawn.append(frozenset(draw.features))

    assert not scarce(drawn, 100, alone=[ONE_OF])


def test_the_same_seed_draws_the_same_world() -> None:
    assert draw_world(Draw(SEED)) == draw_world(Draw(SEED))


def test_clusters_can_be_like_them_and_some_pods_have_room() -> None:
    codes: Counter[int] = Counter()
    room = 0
    filters: Counter[str] = Counter()
    for seed in range(SEED, SEED + 500):
        answer = oracle().ask(draw_world(Draw(seed)))
        codes[answer.code] += 1
        room += bool(answer.room())
        filters.update(each.filter for each in (answer.nodes or {}).values() if each)

    assert set(codes) == {201, 400, 403, 422}, SAID
    assert codes[201] > 100, SAID
    assert room > 20, SAID
    assert set(filters) == {"NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodeResourcesFit"}, SAID
