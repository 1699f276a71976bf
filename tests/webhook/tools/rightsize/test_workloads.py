"""Which workloads are judged, by which peaks, and which are not; on an API server of tests."""

from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.builders import gpu_container, uid
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.tools.rightsize.peaks import Pod, Recorded
from webhook.prometheus.recorded_series import MEMORY_BY_HOUR, USE, USE_BY_HOUR
from webhook.tools.rightsize.workloads import SizeReport, read_sizes

NOW = datetime(2026, 11, 26, tzinfo=UTC)
H100, GPU = "nvidia-h100-80gb", "nvidia.com/gpu"


def node(name: str, gpu_class: str, **resources: str) -> dict[str, Any]:
    allocatable = {GPU: "8", **{each.replace("_", "/"): amount for each, amount in resources.items()}}
    return {
        "metadata": {"name": name, "uid": uid(name), "labels": {"accelerator": gpu_class}},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


NODES = [node("h100-0", H100), node("l4-0", "nvidia-l4"), node("h100", "nvidia-h100")]


def pod(
    name: str,
    gpus: str = "1",
    *,
    owner: str = "Deployment/chat",
    phase: str = "Running",
    resource: str = GPU,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    kind, _, owner_name = owner.partition("/")
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "ml",
        "uid": uid(name),
        "annotations": annotations or {},
    }
    if kind != "Pod":
        metadata["ownerReferences"] = [
            {"apiVersion": "x/v1", "kind": kind, "name": owner_name, "uid": uid(owner), "controller": True}
        ]
    containers = [gpu_container(gpus, resource=resource)]
    return {
        "metadata": metadata,
        "spec": {"nodeName": "h100-0", "containers": containers, **spec},
        "status": {"phase": phase},
    }


def report(
    folder: Path, pods: Sequence[dict[str, Any]], prometheus: Recorded, hours: int = 336
) -> SizeReport:
    objects: dict[str, Any] = {"/api": [], "/apis": [], "/api/v1/pods": list(pods), "/api/v1/nodes": NODES}
    objects["/api/v1/namespaces/ml"] = {"metadata": {"name": "ml", "uid": "u"}}
    with ApiServer(folder, answering(objects)) as server:
        return read_sizes(server.client(), prometheus, NOW, hours=hours)


SMALL, FULL = (9.2, 0.1), (75.0, 0.95)


def test_pods_of_an_owner_are_one_workload_with_their_largest_peaks(tmp_path: Path) -> None:
    pods = [pod("chat-1"), pod("chat-2"), pod("train", owner="Pod/train")]
    measured = Recorded(
        Pod("chat-1", [(4, 0.1)]), Pod("chat-2", [(9.2, 0.02)], hours=3), Pod("train", [FULL])
    )

    found = report(tmp_path, pods, measured)

    (workload,) = found.workloads
    assert (workload.namespace, workload.owner, workload.pods, workload.size.gpus) == (
        "ml",
        "Deployment/chat",
        2,
        1,
    )
    assert workload.title == "ml Deployment/chat: 2 pods with nvidia.com/gpu: 1"
    assert (round(float(workload.peaks.memory_gib), 3), float(workload.peaks.use)) == (9.2, 0.1)
    assert workload.gpu_hours == 2 * 730
    assert (found.fitting, found.unjudged, found.by_hour) == (1, {}, True)
    best = workload.suggestions[0]
    assert (best.size.resource, best.saved_gpu_hours) == ("nvidia.com/mig-1g.20gb", 2 * Fraction(730 * 3, 4))
    assert found.saved_gpu_hours == best.saved_gpu_hours


def test_gpus_of_a_pod_are_added_up(tmp_path: Path) -> None:
    """4 × 9 = 36 GiB and 40 %, times 1.25: 45 of 80 GiB and 50 % of one GPU."""
    found = report(tmp_path, [pod("train", "4")], Recorded(Pod("train", [(9, 0.1)] * 4)))

    (workload,) = found.workloads
    assert (workload.size.gpus, workload.suggestions[0].size.gpus) == (4, 1)


def test_pods_of_two_sizes_are_two_workloads(tmp_path: Path) -> None:
    pods = [pod("head", owner="RayCluster/ray"), pod("worker", "4", owner="RayCluster/ray")]

    found = report(tmp_path, pods, Recorded(Pod("head", [SMALL]), Pod("worker", [SMALL] * 4)))

    assert [(each.owner, each.size.gpus) for each in found.workloads] == [
        ("RayCluster/ray", 4),
        ("RayCluster/ray", 1),
    ]


@cases(
    ("stored", "measured", "reason"),
    measured_for_too_short=(pod("a"), Pod("a", [SMALL], hours=23), "measured for less than 24 h"),
    unknown_to_prometheus=(pod("a"), Pod("b", [SMALL]), "with GPUs that Prometheus does not know"),
    with_a_gpu_that_is_not_measured=(
        pod("a", "2"),
        Pod("a", [SMALL]),
        "with GPUs that Prometheus does not know",
    ),
    with_values_that_are_no_numbers=(
        pod("a"),
        Pod("a", [(float("nan"), 0.1)]),
        "with GPUs that Prometheus does not know",
    ),
    time_sliced=(
        pod("a", resource="nvidia.com/gpu.shared"),
        Pod("a", [SMALL]),
        "on a shared GPU, or with GPUs of several kinds",
    ),
    a_part_by_annotation=(
        pod("a", annotations={"gpu-fraction": "0.5"}),
        Pod("a", [SMALL]),
        "on a shared GPU, or with GPUs of several kinds",
    ),
    on_no_node=(pod("a", nodeName=""), Pod("a", [SMALL]), "on no node, or on one of no known class"),
    on_a_node_of_a_family=(
        pod("a", nodeName="h100"),
        Pod("a", [SMALL]),
        "on no node, or on one of no known class",
    ),
)
def test_what_is_not_judged_is_counted(
    tmp_path: Path, stored: dict[str, Any], measured: Pod, reason: str
) -> None:
    found = report(tmp_path, [stored], Recorded(measured))

    assert (found.workloads, found.fitting, found.unjudged) == ((), 0, {reason: 1})


@cases(
    ("stored", "hours", "gpu_hours"),
    a_pod_that_succeeded_as_long_as_it_ran=(pod("a", phase="Succeeded"), 84, Fraction(730, 4)),
    an_hour_is_enough_if_it_succeeded=(pod("a", phase="Succeeded"), 1, Fraction(730, 336)),
    a_pod_that_runs_all_month=(pod("a"), 24, Fraction(730)),
)
def test_hours_of_a_month(tmp_path: Path, stored: dict[str, Any], hours: int, gpu_hours: Fraction) -> None:
    (workload,) = report(tmp_path, [stored], Recorded(Pod("a", [SMALL], hours=hours))).workloads

    assert workload.gpu_hours == gpu_hours


def test_failed_pods_and_pods_without_gpus_do_not_count(tmp_path: Path) -> None:
    pods = [pod("a", phase="Failed"), pod("b", containers=[{"name": "web"}])]

    found = report(tmp_path, pods, Recorded(Pod("a", [SMALL])))

    assert (found.workloads, found.fitting, found.unjudged) == ((), 0, {})


def test_the_hourly_series_are_read(tmp_path: Path) -> None:
    prometheus = Recorded(Pod("a", [SMALL]))

    report(tmp_path, [pod("a")], prometheus, hours=48)

    assert prometheus.asked == [
        f'min by (namespace, pod) (count_over_time({USE_BY_HOUR}{{job=""}}[48h]))',
        f'max by (namespace, pod, gpu, gpu_instance) (max_over_time({MEMORY_BY_HOUR}{{job=""}}[48h]))',
        f'max by (namespace, pod, gpu, gpu_instance) (max_over_time({USE_BY_HOUR}{{job=""}}[48h]))',
    ]


def test_without_hourly_series_all_values_are_read(tmp_path: Path) -> None:
    prometheus = Recorded(Pod("a", [SMALL]), Pod("full", [FULL]), by_hour=False)
    pods = [pod("a"), pod("full", owner="Pod/full"), pod("new", owner="Pod/new")]

    found = report(tmp_path, pods, prometheus, hours=48)

    assert list(found.notes()) == [
        "1 workload could be smaller: 547.5 GPU-hours a month",
        "1 workload of the right size",
        "not judged: 1 pod with GPUs that Prometheus does not know",
        f"Prometheus has no series {USE_BY_HOUR}: the peaks are the largest of all values that it keeps. "
        "The chart's recording rules make that series, which is cheaper to keep and to read",
    ]
    assert f'min by (namespace, pod) (count_over_time({USE}{{job=""}}[48h:1h]))' in prometheus.asked
