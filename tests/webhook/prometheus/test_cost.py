"""What one round costs the controller and a real Prometheus, for 20,000 GPUs: `-s` prints the figures of docs/operate/idle.md."""

import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from policies.quota.amounts import Amounts
from tests.builders import gpu_container, pod
from tests.cluster.controllers import eventually
from tests.prometheus import Exporters, dcgm, job, prometheus, rule_seconds
from webhook.cluster.events import EventQueue
from webhook.cluster.objects import timestamp
from webhook.configuration.loader import load_directory
from webhook.controller.gpu_use import GPUUse, Measuring
from webhook.controller.metrics import ControllerMetrics
from webhook.quota.counted_records import CountedRecord, RecordReader

pytestmark = [pytest.mark.slow, pytest.mark.processes]
GPUS, TEAMS = 20_000, 100
CATALOGUES_CONFIG_MAP = load_directory(None)


def held() -> list[tuple[CountedRecord, Amounts]]:
    reader = RecordReader(CATALOGUES_CONFIG_MAP)
    created = timestamp(datetime.now(UTC) - timedelta(hours=1))
    found: list[tuple[CountedRecord, Amounts]] = []
    for number in range(GPUS):
        document = pod(gpu_container("1"), nodeName=f"n-{number // 8}")
        names = {"name": f"p-{number}", "namespace": f"team-{number % TEAMS}", "uid": f"u-{number}"}
        document["metadata"] |= {**names, "creationTimestamp": created}
        record = reader.read_pod(msgspec.Raw(msgspec.json.encode(document)))
        assert record is not None
        found.append((record, {"gpus": Fraction(1), "resources/nvidia.com/gpu": Fraction(1)}))
    return found


def test_a_round_for_many_gpus(tmp_path: Path) -> None:
    pods, events = held(), list[object]()
    # Half of them work, so the other half are idle holders.
    page = "".join(
        dcgm(f"p-{number}", f"GPU-{number}", 90 * (number % 2), namespace=f"team-{number % TEAMS}")
        for number in range(GPUS)
    )
    with Exporters({"dcgm": page}) as exporters:
        jobs = [job("dcgm", exporters, labels={"namespace": "gpu-operator", "pod": "x"})]
        with prometheus(tmp_path, jobs, 'job="dcgm"', "30s") as client:
            measuring = Measuring(
                prometheus=client, idle_after=timedelta(seconds=60), rules_interval=timedelta(seconds=30)
            )
            usage_cache: Any = SimpleNamespace(
                own_counter=SimpleNamespace(catalogue=CATALOGUES_CONFIG_MAP, demands=lambda: pods)
            )
            quotas: Any = SimpleNamespace(first=lambda _namespace: None)
            metrics = ControllerMetrics(CollectorRegistry())
            use = GPUUse(
                measuring,
                usage_cache,
                quotas,
                events=cast("EventQueue", SimpleNamespace(put=events.append)),
                metrics=metrics,
            )

            assert eventually(lambda: len(client.query(measuring.promql)) == GPUS, seconds=240)
            now, began, cpu = datetime.now(UTC), time.monotonic(), time.thread_time()
            use.measure(now)
            seconds, cpu = time.monotonic() - began, time.thread_time() - cpu
            tracemalloc.start()
            use.measure(now)
            kept, peak = (each / 2**20 for each in tracemalloc.get_traced_memory())
            tracemalloc.stop()

            print(  # noqa: T201 - what `pytest -s` is for
                f"\n{GPUS} GPUs: {seconds:.2f} s, of which {cpu:.2f} s are CPU of the controller; {peak:.0f} MiB at most, "
                f"{kept:.0f} MiB kept; the rules of one interval take Prometheus {rule_seconds(client.url):.2f} s"
            )
    assert metrics.use_failures._value.get() == 0
    assert sum(len(use.idle(f"team-{number}")) for number in range(TEAMS)) == GPUS // 2
    assert len(events) == 200
    assert cpu < 5
    assert peak < 200
