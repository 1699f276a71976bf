"""The costs of blocks, from what was measured: garbage collection and compaction spread, rest taken off."""

import subprocess
import sys
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.bench.blocks import CREATES, Bench, Block
from tests.bench.clients import Outcome
from tests.bench.cluster import shown
from tests.bench.figures import API_SERVER, ETCD, WEBHOOK
from tests.bench.garbage import Memory
from tests.bench.intervals import Interval
from tests.bench.measure import LoadFailed, Sample, clocks, used_since

OUTCOME = Outcome(seconds=0.1, milliseconds=[4.0] * CREATES, client_cpu_seconds=0.0, statuses={201: CREATES})


def costs(cpu: dict[str, float], *, collections: int = 0, revisions: int = 0) -> dict[str, float]:
    """Return the CPU in seconds of one block of 1 s that allocated half of what a collection of 0.08 s comes after."""
    memory = (Memory(1000, 400, 800, 7), Memory(1200, 600, 800, 7 + collections))
    block = Block(Sample(outcome=OUTCOME, cpu_seconds=cpu), 1.0, memory, revisions, has_controller=False)
    bench = SimpleNamespace(
        _at_rest={(False, WEBHOOK): [0.01, 0.03]}, _collection=[0.08], _compaction=[0.001]
    )
    bench._later = lambda block, server: Bench._later(cast("Bench", bench), block, server)
    measured = Bench._costs(cast("Bench", bench), [block])
    return {server: values[0] * CREATES / 1000 for server, values in measured.cpu_ms.items()}


@pytest.mark.parametrize(
    ("measured", "more", "expected"),
    [
        pytest.param({API_SERVER: 0.10}, {}, {API_SERVER: 0.14}, id="half-a-collection-comes-later"),
        pytest.param({API_SERVER: 0.18}, {"collections": 1}, {API_SERVER: 0.14}, id="one-in-the-block-is-not-its-own"),
        pytest.param({ETCD: 0.01}, {"revisions": 25}, {ETCD: 0.035}, id="revisions-are-compacted-later"),
        pytest.param({WEBHOOK: 0.05}, {}, {WEBHOOK: 0.03}, id="what-it-spends-at-rest-is-taken-off"),
    ],
)  # fmt: skip
def test_cost_of_a_block(measured: dict[str, float], more: Any, expected: dict[str, float]) -> None:
    assert costs(measured, **more) == pytest.approx(expected)


def test_cpu_of_threads_that_ended_is_counted_and_that_of_processes_that_ended_is_an_error() -> None:
    program = (
        "import threading, time\n"
        "def work():\n"
        "    end = time.thread_time() + 0.05\n"
        "    while time.thread_time() < end: pass\n"
        "input(); thread = threading.Thread(target=work); thread.start(); thread.join(); print('done', flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = clocks({"worker": [process.pid]})
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        assert used_since(before, clocks({"worker": [process.pid]}))["worker"] >= 0.05
        process.kill()
    with pytest.raises(LoadFailed, match="a process of worker ended while it was measured"):
        used_since(before, {"worker": {}})


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        pytest.param(Interval(1.01, 0.98, 1.04), "1.01 (0.98 to 1.04)", id="exact"),
        pytest.param(Interval(1.0, -inf, inf), "1.00 (too few laps for an interval)", id="of-five-laps"),
        pytest.param(Interval(1.0, 0.9, 1.04), "1.00 (0.90 to 1.04, wide: ±10%)", id="wide"),
    ],
)
def test_a_wide_row_says_so(interval: Interval, expected: str) -> None:
    assert shown(interval) == expected
