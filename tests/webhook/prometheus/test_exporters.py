"""The recording rules in a real Prometheus, over what the exporters serve and what tenants forge."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.deploy.recording_rules import memory_expression, use_expression
from tests.prometheus import INTERVAL, Exporters, amd, dcgm, dcgm_slice, job, problems, prometheus
from webhook.prometheus.client import Prometheus
from webhook.prometheus.recorded_series import MEMORY, MEMORY_BY_HOUR, RECORDED_ONLY, USE, USE_BY_HOUR

pytestmark = pytest.mark.processes
BY_JOB, BY_BOTH = 'job="dcgm"', 'job="dcgm",namespace="gpu-operator"'
TRUSTED = 'job=~"dcgm|dcgm-honored|amd"'
MIB = 1024 * 1024
VICTIMS = {f"victim-{letter}": f"GPU-{letter}" for letter in "abcdefgh"}
"""Pods that work, by the GPU that each has."""
WANTED = {
    ("idle", "GPU-i", ""): (0.01, 1024 * MIB),
    ("slice", "GPU-s", "7"): (0.25, 512 * MIB),
    ("honored", "GPU-h", ""): (0.5, 1024 * MIB),
    ("rocm", "0", ""): (0.03, 1024 * MIB),
    ("plain", "1", ""): (0.04, 2048 * MIB),
    **{(pod, gpu, ""): (0.8, 1024 * MIB) for pod, gpu in VICTIMS.items()},
}
REAL = {
    "dcgm": dcgm("idle", "GPU-i", 1)
    + dcgm_slice("slice", "GPU-s", 7, 0.25, 512)
    + "".join(dcgm(pod, gpu, 80) for pod, gpu in VICTIMS.items()),
    "dcgm-honored": dcgm("honored", "GPU-h", 50),
    "amd": amd("rocm", 0, 3) + amd("plain", 1, 4, 2048, prefix=""),
}


def stolen(pod: str) -> str:
    """Return an idle GPU more of a pod, as if the trusted exporter had written it and Prometheus had renamed its labels."""
    labels = (
        f'job="dcgm",namespace="gpu-operator",exported_namespace="team",exported_pod="{pod}",UUID="GPU-z"'
    )
    return f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 0\n"


FORGED = {
    "monitor": dcgm("victim-a", "GPU-z", 0),
    "monitor-honored": dcgm("victim-b", "GPU-z", 0),
    "job": stolen("victim-c"),
    "job-enforced": stolen("victim-d"),
    "recorded": f'{USE}{{namespace="team",pod="victim-e",gpu="GPU-z"}} 0\n',
    "dropped": f'{USE}{{namespace="team",pod="victim-g",gpu="GPU-z"}} 0\n',
    "dropped-enforced": f'{USE}{{namespace="team",pod="victim-h",gpu="GPU-z"}} 0\n',
    "recorded-enforced": f'{USE}{{namespace="team",pod="victim-f",gpu="GPU-z",job="",instance=""}} 0\n',
}
WITHOUT_A_JOB = "victim-g", "GPU-z", ""
"""What `dropped` forges."""
ENFORCED = [{"target_label": "namespace", "replacement": "tenant"}]
"""What the Prometheus operator adds to monitors of the namespace by `enforcedNamespaceLabel: namespace`."""

DROPPED = [{"action": "labeldrop", "regex": "job|instance"}]
"""What a tenant may write into `metricRelabelings`."""


def recorded(of: Prometheus, query: str) -> dict[tuple[str, ...], float]:
    """Return the values of pods of the team by pod, GPU and slice."""
    return {
        tuple(each.labels.get(label, "") for label in ("pod", "gpu", "gpu_instance")): each.value
        for each in of.query(query)
        if each.labels["namespace"] == "team"
    }


def is_evaluated(client: Prometheus) -> bool:
    """Whether all that was scraped is recorded: a series has its record after the next evaluation only."""
    use, memory = use_expression(TRUSTED, INTERVAL), memory_expression(TRUSTED, INTERVAL)
    return (
        recorded(client, USE + RECORDED_ONLY).keys() == recorded(client, use).keys() | {WITHOUT_A_JOB}
        and recorded(client, MEMORY + RECORDED_ONLY).keys() == recorded(client, memory).keys()
        and all(recorded(client, name).keys() >= WANTED.keys() for name in (USE_BY_HOUR, MEMORY_BY_HOUR))
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Exporters({**REAL, **FORGED}) as exporters:
        jobs = [
            job("dcgm", exporters, labels={"namespace": "gpu-operator", "pod": "dcgm-exporter-x"}),
            job(
                "dcgm-honored", exporters, honor_labels=True, labels={"namespace": "gpu-operator", "pod": "y"}
            ),
            job("amd", exporters, honor_labels=True),
            job("monitor", exporters, labels={"namespace": "tenant", "pod": "forger"}),
            job("monitor-honored", exporters, honor_labels=True),
            job("job", exporters, honor_labels=True),
            job("job-enforced", exporters, honor_labels=True, metric_relabel_configs=ENFORCED),
            job("recorded", exporters),
            job("dropped", exporters, honor_labels=True, metric_relabel_configs=DROPPED),
            job(
                "dropped-enforced",
                exporters,
                honor_labels=True,
                metric_relabel_configs=[*DROPPED, *ENFORCED],
            ),
            job("recorded-enforced", exporters, honor_labels=True, metric_relabel_configs=ENFORCED),
        ]
        with prometheus(tmp_path_factory.mktemp("prometheus"), jobs, TRUSTED) as client:
            assert eventually(lambda: len(client.query("up == 1")) == len(jobs))
            assert eventually(lambda: is_evaluated(client))
            assert problems(client.url) == []
            yield client


def test_every_exporter_is_recorded_in_one_shape(measured: Prometheus) -> None:
    for place, names in enumerate(((USE, USE_BY_HOUR), (MEMORY, MEMORY_BY_HOUR))):
        for name in names:
            found = recorded(measured, name + RECORDED_ONLY)
            assert {key: found[key] for key in WANTED} == {
                key: pytest.approx(each[place]) for key, each in WANTED.items()
            }


def test_the_expressions_say_the_same_without_the_rules(measured: Prometheus) -> None:
    by_rules = recorded(measured, USE + RECORDED_ONLY)
    del by_rules[WITHOUT_A_JOB]
    assert recorded(measured, use_expression(TRUSTED, INTERVAL)) == by_rules
    assert recorded(measured, memory_expression(TRUSTED, INTERVAL)) == recorded(
        measured, MEMORY + RECORDED_ONLY
    )


def test_work_between_two_evaluations_is_not_lost(tmp_path: Path) -> None:
    """The GPU works at every second scrape, and the rules are evaluated at every fourth."""
    percents = itertools.cycle((90, 0))
    with Exporters({}, lambda _: dcgm("bursts", "GPU-b", next(percents))) as exporters:
        jobs = [job("dcgm", exporters, scrape_interval="500ms", scrape_timeout="500ms")]
        with prometheus(tmp_path, jobs, BY_JOB, "2s") as client:
            assert eventually(lambda: client.query(f"count_over_time({USE}[1m]) > 3"))
            (least,) = client.query(f"min_over_time({USE}[1m])")
            (raw,) = client.query("min_over_time(DCGM_FI_DEV_GPU_UTIL[1m])")

    assert (least.value, raw.value) == (0.9, 0.0)


@cases(
    ("pod", "query", "want"),
    # The labels of the target win, so `job` is that of the tenant's monitor, and so it is if the tenant does not write it.
    a_monitor=("victim-a", use_expression(BY_JOB, INTERVAL), 1),
    a_monitor_that_honors_labels=("victim-b", use_expression(BY_JOB, INTERVAL), 1),
    # A monitor that honors labels may write any `job`. Only an enforced namespace stops it.
    any_job=("victim-c", use_expression(BY_BOTH, INTERVAL), 2),
    any_job_in_an_enforced_namespace=("victim-d", use_expression(BY_JOB, INTERVAL), 2),
    any_job_where_the_namespace_is_asked_for=("victim-d", use_expression(BY_BOTH, INTERVAL), 1),
    a_recorded_name=("victim-e", USE + RECORDED_ONLY, 1),
    a_recorded_name_without_our_matcher=("victim-e", USE, 2),
    a_recorded_name_without_a_job=("victim-g", USE + RECORDED_ONLY, 2),
    a_recorded_name_without_a_job_in_an_enforced_namespace=("victim-h", USE + RECORDED_ONLY, 1),
    a_recorded_name_in_an_enforced_namespace=("victim-f", USE + RECORDED_ONLY, 1),
)
def test_forged_series(pod: str, query: str, want: int, measured: Prometheus) -> None:
    """`want` is the number of GPUs measured of a pod with one: with two it is unknown. No forgery makes a pod idle that works."""
    gpus = {key[1]: use for key, use in recorded(measured, query).items() if key[0] == pod}

    assert len(gpus) == want
    assert gpus[VICTIMS[pod]] == 0.8
