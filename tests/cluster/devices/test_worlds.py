"""Random clusters with devices of DRA drivers, judged from what etcd stored, by arithmetic of the tests' own."""

from collections.abc import Iterator

import pytest

from tests.cluster.devices.playing import Cluster, cluster, play
from tests.cluster.devices.worlds import world
from tests.seed import SAID, SEED


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


@pytest.mark.parametrize("number", range(2))
def test_a_world(running: Cluster, number: int) -> None:
    played = play(running, world(SEED % 10**6 + number))

    assert not played.verdict.faults + played.needless, (SAID, played.verdict.faults, played.needless)
