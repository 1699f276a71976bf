"""The line and the ledger together, in random histories of one namespace: a small API server, serve and two controllers.

Pods come, with the gate and without, grow, end and are deleted, `hard` changes, and what was admitted fails. Each controller
counts and takes turns by a list of its own, which may be old. After every step:

  - what is admitted fits, and what is stored without the gate is in `used` or reserved;
  - nobody comes without the gate while somebody waits;
  - nobody is before those for whom quota is newly held, but pods that cannot start;
  - a gang is held whole, until one of its pods has started;
  - what an admitted removal of a gate reserves stays, until its pod is counted, and what is held for the rest of its gang.

At the end, whoever fits runs, and nothing else is reserved.
"""

import pytest

from tests.policies.quota.line_histories import HISTORIES, STEPS, World


@pytest.mark.parametrize("part", range(10))
def test_the_line_in_random_histories(part: int) -> None:
    started = 0
    for seed in range(part, HISTORIES, 10):
        world = World(seed)
        for _ in range(STEPS):
            world.step()
        world.come_to_rest()
        started += sum(not pod.waits for pod in world.pods.values())
    assert started > HISTORIES / 20
