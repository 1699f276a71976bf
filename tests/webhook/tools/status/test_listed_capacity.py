"""Nodes and free GPUs by class, from the nodes and pods that an API server lists."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from policies.gpus.classes import HostShare
from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, answering, status
from webhook.cluster.capacity import ClassCapacity, GPUNode, capacity_by_class, share_by_class
from webhook.configuration.loader import load_directory
from webhook.tools.status.listed_capacity import read_gpu_nodes

A100, GPU, SLICE = "nvidia-a100-80gb", "nvidia.com/gpu", "nvidia.com/mig-1g.20gb"
CONFIGURATION = load_directory(None)


def node(name: str, labels: JSON, resources: JSON, *, ready: str = "True", **spec: Any) -> JSON:
    conditions = [{"type": "Ready", "status": ready}]
    allocatable = {"cpu": "64", "memory": "512Gi", **resources}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": conditions},
    }


def pod(node_name: str, *amounts: str) -> JSON:
    return {
        "metadata": {"name": "train"},
        "spec": {"nodeName": node_name, "containers": [gpu_container(each, "x") for each in amounts]},
    }


def of(gpu_class: str) -> JSON:
    return {"accelerator": gpu_class}


def cluster(nodes: list[JSON], pods: list[JSON] | None) -> Callable[[Request], Answer]:
    """Answer as an API server with these objects; pods of None are forbidden."""
    forbidden = status(403, "pods is forbidden", "Forbidden")
    return answering({"/api/v1/nodes": nodes, "/api/v1/pods": forbidden if pods is None else pods})


def read(tmp_path: Path, nodes: list[JSON], pods: list[JSON] | None = None) -> tuple[GPUNode, ...]:
    with ApiServer(tmp_path, cluster(nodes, pods)) as server:
        return read_gpu_nodes(server.client(), CONFIGURATION)


def capacity(
    gpus: str,
    free: str | None,
    nodes: int = 1,
    taking: int | None = None,
    **resources: tuple[str, str | None],
) -> ClassCapacity:
    names = {"gpu": GPU, "slices": SLICE}
    return ClassCapacity(
        nodes=nodes,
        nodes_taking_pods=nodes if taking is None else taking,
        gpus=Fraction(gpus),
        free=None if free is None else Fraction(free),
        resources={
            names[key]: (Fraction(has), None if left is None else Fraction(left))
            for key, (has, left) in resources.items()
        },
    )


def of_slices(name: str, units: int, cards: str) -> ClassCapacity:
    resources = {name: (Fraction(units), Fraction(units))}
    return msgspec.structs.replace(capacity(cards, cards), resources=resources)


EIGHT = node("a", of(A100), {GPU: "8"})


@cases(
    ("nodes", "pods", "want"),
    pods_hold_what_they_request=(
        [EIGHT, node("b", of(A100), {GPU: "8"})],
        [pod("a", "2", "1"), pod("b", "4")],
        {A100: capacity("16", "9", nodes=2, gpu=("16", "9"))},
    ),
    slices_are_parts_of_cards=(
        [node("a", of(A100), {SLICE: "4", GPU: "4"})],
        [pod("a", "1")],
        {A100: capacity("5", "4", gpu=("4", "3"), slices=("4", "4"))},
    ),
    nothing_is_free_on_nodes_that_take_no_pods=(
        [
            node("a", of(A100), {GPU: "8"}, unschedulable=True),
            node("b", of(A100), {GPU: "8"}, ready="Unknown"),
            node("c", of(A100), {GPU: "8"}),
        ],
        [],
        {A100: capacity("24", "8", nodes=3, taking=1, gpu=("24", "8"))},
    ),
    a_label_that_names_the_family=(
        [node("a", of("nvidia-a100"), {GPU: "8"})],
        [],
        {"nvidia-a100": capacity("8", "8", gpu=("8", "8"))},
    ),
    nodes_of_no_known_class=(
        [node("a", {}, {GPU: "8"}), node("cpu", {}, {})],
        [],
        {"": capacity("8", "8", gpu=("8", "8"))},
    ),
    slices_of_a_family_are_those_of_its_classes_that_have_them=(
        [node("a", of("nvidia-a100"), {"nvidia.com/mig-1g.5gb": "7"})],
        [],
        {"nvidia-a100": of_slices("nvidia.com/mig-1g.5gb", 7, "1")},
    ),
    slices_of_no_known_class_are_what_a_quota_counts=(
        [node("a", {}, {SLICE: "3"})],
        [],
        {"": of_slices(SLICE, 3, "3/4")},
    ),
    a_node_whose_device_plugin_is_away=([node("a", of(A100), {})], [], {A100: capacity("0", "0")}),
    memory_of_cards_is_not_another_card=(
        [node("a", of(A100), {GPU: "8", "nvidia.com/gpumem": "640"})],
        [],
        {A100: capacity("8", "8", gpu=("8", "8"))},
    ),
    never_less_than_nothing=(
        [node("a", of(A100), {GPU: "2"})],
        [pod("a", "4")],
        {A100: capacity("2", "0", gpu=("2", "0"))},
    ),
    free_is_unknown_without_the_pods=([EIGHT], None, {A100: capacity("8", None, gpu=("8", None))}),
)
def test_capacity_by_class(
    tmp_path: Path, nodes: list[JSON], pods: list[JSON] | None, want: dict[str, ClassCapacity]
) -> None:
    assert capacity_by_class(read(tmp_path, nodes, pods)) == want


def test_what_pods_use_besides_gpus(tmp_path: Path) -> None:
    main = {
        **gpu_container("1", "x"),
        "resources": {"limits": {GPU: "1", "memory": "4Gi", "nvidia.com/gpumem": "3000"}},
    }
    sidecar = {
        "name": "proxy",
        "restartPolicy": "Always",
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
    }
    spec = {"nodeName": "a", "containers": [main], "initContainers": [sidecar], "overhead": {"cpu": "250m"}}
    elsewhere = {"metadata": {"name": "web"}, "spec": {**spec, "nodeName": "cpu"}}
    pods = [{"metadata": {"name": "train"}, "spec": spec}, elsewhere]
    nodes = [node("a", of(A100), {GPU: "8", "hugepages-2Mi": "1Gi"}), node("cpu", {}, {})]
    (found,) = read(tmp_path, nodes, pods)
    gib = Fraction(2**30)
    assert found.room == {"cpu": 64, "memory": 512 * gib, "hugepages-2Mi": gib}
    assert found.used == {GPU: 1, "cpu": Fraction(3, 4), "memory": 5 * gib, "nvidia.com/gpumem": 3000}


@cases(
    ("nodes", "requested"),
    only_where_there_are_gpu_nodes=([node("cpu", {}, {})], ["/api/v1/nodes"]),
    only_those_that_hold_resources_of_a_node=(
        [EIGHT],
        ["/api/v1/nodes", "/api/v1/pods spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"],
    ),
)
def test_which_pods_are_read(tmp_path: Path, nodes: list[JSON], requested: list[str]) -> None:
    with ApiServer(tmp_path, cluster(nodes, [])) as server:
        read_gpu_nodes(server.client(), CONFIGURATION)
        found = [f"{each.path} {each.query.get('fieldSelector', '')}".rstrip() for each in server.requests]
    assert found == requested


@cases(
    ("nodes", "want"),
    one=([EIGHT], (8, "64Gi")),
    the_node_with_the_least_decides=(
        [EIGHT, node("b", of(A100), {GPU: "8", "cpu": "63500m", "memory": "510Gi"})], (7, "63Gi"),
    ),
    fewer_gpus=([node("b", of(A100), {GPU: "5"})], (12, "102Gi")),
    slices_are_parts_of_cards=([node("b", of(A100), {SLICE: "16"})], (16, "128Gi")),
    no_gpus_yet=([node("b", of(A100), {}), EIGHT], (8, "64Gi")),
)  # fmt: skip
def test_what_a_node_has_for_each_card(tmp_path: Path, nodes: list[JSON], want: tuple[int, str]) -> None:
    assert share_by_class(read(tmp_path, nodes)) == {A100: HostShare(cpu=want[0], memory=want[1])}
