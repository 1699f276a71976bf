"""Work of a review where nodes are known, in calls of functions: a busy machine does not change them."""

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import pytest

from tests.cases import cases
from tests.webhook.serving.reviews_with_nodes import client_with_nodes, reviews_with_nodes

Calls = Mapping[tuple[str, str], int]
"""By name and endpoint of a review."""

MOST = 2
"""Times the work of a review with fewer nodes and values. The order of sets of classes alone may add a few hundred calls."""


def calls(config: Path, *, nodes: int, values: int) -> Calls:
    """Return how many functions each review calls, after one like it: what is derived from the nodes once is known."""
    client = client_with_nodes(config, nodes=nodes, values=values)
    for _, endpoint, body in reviews_with_nodes("first"):
        client.post(endpoint, body)
    counts: dict[tuple[str, str], int] = defaultdict(int)

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        counts[review] += 1

    for name, endpoint, body in reviews_with_nodes("second"):
        review, before = (name, endpoint), sys.getprofile()
        sys.setprofile(count)
        try:
            client.post(endpoint, body)
        finally:
            sys.setprofile(before)
    return counts


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    return calls(tmp_path_factory.mktemp("few"), nodes=60, values=2)


@cases(
    ("nodes", "values"),
    the_number_of_nodes=(6_000, 2),
    # Of each class: 16 and 4,096. All nodes have 6 and 24 sets of labels.
    the_combinations_of_label_values_of_a_class=(60, 8),
)
def test_work_does_not_grow_with(nodes: int, values: int, tmp_path: Path, few: Calls) -> None:
    many = calls(tmp_path, nodes=nodes, values=values)

    assert {name: (few[name], many[name]) for name in many if many[name] > MOST * few[name]} == {}
