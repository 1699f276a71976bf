"""The recording rules in a real Prometheus, over what the exporters serve and what tenants forge."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.prometheus import Exporters, amd, dcgm, dcgm_slice, job, problems, prometheus
from webhook.prometheus.client import Prometheus
from webhook.prometheus.exporters import (
    MEMORY,
    MEMORY_BY_HOUR,
    UNFORGED,
    USE,
    USE_BY_HOUR,
    memory_expression,
    use_expression,
)

pytestmark = pytest.mark.processes
TRUSTED = 'job=~"dcgm|dcgm-honored|amd"'
MIB = 1024 * 1024
PAGE = dcgm("idle", "GPU-a", 1) + dcgm("busy", "GPU-b", 80, 40960) + dcgm_slice("slice", "GPU-c", 7, 0.25)
WANTED = {
    ("idle", "GPU-a", ""): (0.01, 1024 * MIB),
    ("busy", "GPU-b", ""): (0.8, 40960 * MIB),
    ("slice", "GPU-c", "7"): (0.25, 1024 * MIB),
    ("honored", "GPU-d", ""): (0.5, 1024 * MIB),
    ("rocm", "0", ""): (0.03, 1024 * MIB),
    ("plain", "1", ""): (0.04, 2048 * MIB),
}
FORGED = dcgm("idle", "GPU-z", 99) + dcgm("busy", "GPU-y", 0)


def recorded(of: Prometheus, name: str) -> dict[tuple[str, ...], float]:
    """Return the values by pod, GPU and slice."""
    return {
        tuple(each.labels.get(label, "") for label in ("pod", "gpu", "gpu_instance")): each.value
        for each in of.query(name)
    }


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    pages = {
        "dcgm": PAGE,
        "dcgm-honored": dcgm("honored", "GPU-d", 50),
        "amd": amd("rocm", 0, 3) + amd("plain", 1, 4, 2048, prefix=""),
        "team/monitor": FORGED,
        "team/honored": FORGED,
    }
    with Exporters(pages) as exporters:
        jobs = [
            job("dcgm", exporters),
            job("dcgm-honored", exporters, honor_labels=True),
            job("amd", exporters, honor_labels=True),
            job("team/monitor", exporters),
            job("team/honored", exporters, honor_labels=True),
        ]
        with prometheus(tmp_path_factory.mktemp("prometheus"), jobs, TRUSTED) as client:
            assert eventually(lambda: len(recorded(client, USE_BY_HOUR)) == len(WANTED))
            assert problems(client.url) == []
            yield client


def test_every_exporter_is_recorded_in_one_shape_and_no_target_that_is_not_trusted(
    measured: Prometheus,
) -> None:
    use, memory = (
        {key: each[0] for key, each in WANTED.items()},
        {key: each[1] for key, each in WANTED.items()},
    )

    assert recorded(measured, USE) == pytest.approx(use)
    assert recorded(measured, USE_BY_HOUR) == pytest.approx(use)
    assert recorded(measured, MEMORY) == recorded(measured, MEMORY_BY_HOUR) == memory
    assert {each.labels["namespace"] for each in measured.query(USE)} == {"team"}


def test_the_expressions_say_the_same_without_the_rules(measured: Prometheus) -> None:
    assert recorded(measured, use_expression(TRUSTED)) == recorded(measured, USE)
    assert recorded(measured, memory_expression(TRUSTED)) == recorded(measured, MEMORY)


VICTIM = 'namespace="team",pod="busy",gpu="GPU-b"'
ENFORCED = {"metric_relabel_configs": [{"target_label": "namespace", "replacement": "tenant"}]}
"""What the Prometheus operator adds to the monitors of a namespace by `enforcedNamespaceLabel: namespace`."""


@cases(
    ("page", "fields", "selector", "want"),
    # The target's labels win, so `job` is that of the tenant.
    a_monitor=(FORGED, {}, 'job="dcgm"', {"busy": 1}),
    a_monitor_that_honors_labels=(FORGED, {"honor_labels": True}, 'job="dcgm"', {"busy": 1}),
    a_recorded_name=(f"{USE}{{{VICTIM}}} 0\n", {}, 'job="dcgm"', {"busy": 1}),
    # With honorLabels a tenant writes `job` itself, and a selector of jobs is not enough: the busy pod has one GPU too many. It is
    # unknown then, and still not idle.
    a_job_of_its_own=(FORGED.replace("{", '{job="dcgm",'), {"honor_labels": True}, 'job="dcgm"', {"busy": 2}),
    a_job_of_its_own_in_an_enforced_namespace=(
        FORGED.replace("{", '{job="dcgm",'),
        {"honor_labels": True, **ENFORCED},
        'job="dcgm",namespace="gpu-operator"',
        {"busy": 1},
    ),
    a_recorded_name_without_job=(
        f'{USE}{{{VICTIM},job="",instance=""}} 0\n',
        {"honor_labels": True, **ENFORCED},
        'job="dcgm"',
        {"busy": 1},
    ),
)
def test_forged_series(
    page: str, fields: dict[str, Any], selector: str, want: dict[str, int], tmp_path: Path
) -> None:
    """`want` is the number of GPUs that are measured of a pod."""
    with Exporters({"dcgm": PAGE, "forger": page}) as exporters:
        real = job("dcgm", exporters)
        real["static_configs"][0]["labels"] = {"namespace": "gpu-operator"}
        with prometheus(tmp_path, [real, job("forger", exporters, **fields)], selector) as client:
            assert eventually(lambda: client.query('up{job="forger"} == 1') and client.query(USE))
            assert eventually(lambda: len(client.query(f"count_over_time({USE}{UNFORGED}[1m]) > 4")) >= 3)

            series = client.query(USE + UNFORGED)
            found = {
                pod: len(
                    [
                        each
                        for each in series
                        if (each.labels["namespace"], each.labels["pod"]) == ("team", pod)
                    ]
                )
                for pod in want
            }
            assert found == want
            largest = client.query(
                f'max(max_over_time({USE}{UNFORGED[:-1]},namespace="team",pod="busy"}}[1m]))'
            )
            assert [each.value for each in largest] == [0.8]
            assert problems(client.url) == []
