"""Random clusters with devices of DRA drivers, judged from what etcd stored, by arithmetic of the tests' own.

`python -m tests.cluster.devices FIRST COUNT` prints figures.
"""

import pytest

from tests.cluster.devices.playing import Cluster, cluster, play
from tests.cluster.devices.worlds import world
from tests.seed import SAID, SEED

FEW, ALL, BATCH = 1, 200, 25
"""Worlds that `make test` plays, that `make test-long` plays, and of these on one control plane."""


@pytest.mark.parametrize("number", range(FEW))
def test_charges_are_exact_and_nothing_is_over_or_left(running: Cluster, number: int) -> None:
    assert play(running, world(SEED % 10**6 + number)).verdict.faults == [], SAID


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("batch", range(ALL // BATCH))
def test_charges_of_many_worlds(batch: int) -> None:
    first = SEED % 10**6 + FEW + batch * BATCH
    with cluster() as running:
        found = {seed: play(running, world(seed)).verdict.faults for seed in range(first, first + BATCH)}

    assert {seed: faults for seed, faults in found.items() if faults} == {}, SAID
