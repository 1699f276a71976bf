"""In many rounds: quota that is kept goes to no other pod, and quota that is free goes to the next one within a second."""

import logging
import random
import time

from tests.all_faults import ALL_FAULTS
from tests.bench.figures import percentile
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.line import Line
from tests.cluster.waiting.operators import Operator, other_waits, ray_cluster
from tests.controlplane import ControlPlane

ROUNDS, FREED = (200, 500) if ALL_FAULTS else (8, 20)
OF_ONE_OBJECT = 8
"""Rounds of at most 5 s: an object keeps quota for 60 s in 10 minutes."""
SOON = 1.0
"""Seconds until free quota is used (docs/tenants/queue.md)."""

log = logging.getLogger(__name__)


def test_no_other_takes_what_is_kept(line: Line, plane: ControlPlane) -> None:
    draw = random.Random(1)  # noqa: S311 - the same choices in every run
    in_force(line, {"gpus": "8"})
    operator: Operator | None = None
    for number in range(ROUNDS):
        if number % OF_ONE_OBJECT == 0:
            if operator is not None:
                operator.delete()
                assert line.starts("other")
                line.delete_pod("other")
            operator = Operator(line, plane, ray_cluster())
            other_waits(line)
        assert operator is not None
        name, fails = draw.choice(operator.names), draw.random() < 0.5
        line.set_phase(name, "Failed") if fails else line.delete_pod(name)
        time.sleep(draw.uniform(0, 2))
        assert line.waits("other"), number
        again = operator.replace(name, f"again-{number}")
        assert line.starts(again)
        assert line.waits("other"), number
        if fails:
            line.delete_pod(name)


def test_free_quota_is_used_within_a_second(line: Line) -> None:
    in_force(line, {"gpus": "1"})
    line.pod("pod-0")
    taken: list[float] = []
    for number in range(FREED):
        after = f"pod-{number + 1}"
        line.pod(after)
        assert line.waits(after)
        assert line.is_counted()
        began = time.monotonic()
        line.set_phase(f"pod-{number}", "Succeeded")
        while line.waits(after) and time.monotonic() < began + 30:
            time.sleep(0.01)
        taken.append(time.monotonic() - began)
        line.delete_pod(f"pod-{number}")
    taken.sort()
    log.warning("of %d: p50 %.2f s, p99 %.2f s", FREED, percentile(taken, 50), percentile(taken, 99))
    assert percentile(taken, 50) < SOON
    assert not ALL_FAULTS or percentile(taken, 99) < SOON
