"""What is published of nodes says as much by class as the nodes themselves, and names none of them."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import msgspec

from policies.placement.image_volumes import all_mount_images
from policies.pods.tolerations import toleration_text
from tests.builders import JSON, gpu_container, pod, view
from tests.cases import cases
from webhook.cluster.capacity import (
    ClassCapacity,
    GPUNode,
    capacity_by_class,
    counted_node_reader,
    share_by_class,
)
from webhook.cluster.published_capacity import (
    MAX_ALIKE,
    PublishedCapacity,
    PublishedClass,
    decode,
    encode,
    published_classes,
)
from webhook.configuration.loader import load_directory

CONFIGURATION = load_directory(None)
CLASSES = CONFIGURATION.classes
NOW = datetime(2026, 11, 26, 22, tzinfo=UTC)
A100, T4, GPU, SLICE = "nvidia-a100-80gb", "nvidia-t4", "nvidia.com/gpu", "nvidia.com/mig-1g.20gb"
SECRET = "team-vision"


def counted(
    name: str,
    labels: JSON,
    gpus: int = 8,
    used: int = 0,
    ready: str = "True",
    more: JSON | None = None,
    runtime: str = "",
    **spec: Any,
) -> GPUNode:
    document = {
        "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", GPU: str(gpus), **(more or {})},
            "conditions": [{"type": "Ready", "status": ready}],
            "nodeInfo": {
                "kubeletVersion": "v1.36.3",
                "containerRuntimeVersion": runtime,
                "operatingSystem": "linux",
            },
        },
    }
    node = counted_node_reader(CONFIGURATION)(msgspec.Raw(msgspec.json.encode(document)))
    assert node.gpus is not None
    return msgspec.structs.replace(node.gpus, used={GPU: Fraction(used)})


def of(gpu_class: str) -> JSON:
    return {"accelerator": gpu_class}


def published(*nodes: GPUNode, **pending: int) -> PublishedCapacity:
    waiting = {name.replace("_", "-"): Fraction(gpus) for name, gpus in pending.items()}
    return PublishedCapacity(NOW, published_classes(nodes, waiting, CLASSES))


FULL_AND_EMPTY = [counted("a", of(A100), used=8), counted("b", of(A100), used=5)]


@cases(
    "nodes",
    some_are_full=FULL_AND_EMPTY,
    one_is_away=[*FULL_AND_EMPTY, counted("c", of(A100), ready="Unknown")],
    several_classes=[*FULL_AND_EMPTY, counted("t", of(T4), gpus=4, used=1)],
    a_family_and_nodes_of_no_class=[counted("f", of("nvidia-a100")), counted("x", {}, gpus=2)],
    slices=[counted("s", of(A100), gpus=0, more={SLICE: "16"})],
)
def test_the_classes_are_those_of_the_nodes(nodes: list[GPUNode]) -> None:
    text = encode(published(*nodes))
    read = decode(text)
    assert read is not None
    instead = read.nodes(CONFIGURATION)
    assert capacity_by_class(instead) == capacity_by_class(nodes)
    assert share_by_class(instead) == share_by_class(nodes)
    assert not [each for each in instead if each.name]


def test_no_name_of_a_node_or_a_team_is_published() -> None:
    nodes = [counted("node-of-ana", {**of(A100), "team": SECRET}), counted("pool-7", {"accelerator": SECRET})]
    text = encode(published(*nodes)).decode()
    assert [name for name in ("node-of-ana", "pool-7", SECRET) if name in text] == []


def test_a_node_stands_for_those_of_its_class_and_has_the_most() -> None:
    nodes = [*FULL_AND_EMPTY, counted("c", of(A100), gpus=4, used=1), counted("d", of(A100), ready="False")]
    found, away = published(*nodes).nodes(CONFIGURATION)
    assert (found.kind, found.number, found.takes_pods) == (A100, 3, True)
    assert (away.number, away.takes_pods) == (1, False)
    assert (found.allocatable, found.free) == ({GPU: Fraction(8)}, {GPU: Fraction(3)})
    assert found.stands_for is not None
    assert found.stands_for.capacity == ClassCapacity(
        nodes=4,
        nodes_taking_pods=3,
        gpus=Fraction(28),
        free=Fraction(6),
        resources={GPU: (Fraction(28), Fraction(6))},
    )


TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
STARTING = {"key": "karpenter.sh/unregistered", "effect": "NoExecute", "timeAdded": "2026-11-26T22:00:00Z"}
SOFT = {"key": "dedicated", "value": "ml", "effect": "PreferNoSchedule"}


@cases(
    ("nodes", "want"),
    alike=([counted("a", of(A100)), counted("b", of(A100))], [(2, "")]),
    with_a_taint=([counted("a", of(A100), taints=[TAINT])], [(1, "dedicated=ml:NoSchedule")]),
    some_with_it=(
        [counted("a", of(A100), taints=[TAINT]), counted("b", of(A100))],
        [(1, ""), (1, "dedicated=ml:NoSchedule")],
    ),
    one_that_goes_by_itself=(
        [counted("a", of(A100), taints=[STARTING])],
        [(1, "karpenter.sh/unregistered:NoExecute")],
    ),
    one_that_keeps_nobody_away=([counted("a", of(A100), taints=[SOFT]), counted("b", of(A100))], [(2, "")]),
    cordoned=([counted("a", of(A100)), counted("b", of(A100), unschedulable=True)], [(1, ""), (1, "")]),
    in_two_zones=(
        [counted(each, {**of(A100), "topology.kubernetes.io/zone": each}) for each in "ab"],
        [(1, ""), (1, "")],
    ),
    more_than_are_published=(
        [counted(f"n{index}", of(A100), taints=[{**TAINT, "value": f"t{index:02}"}]) for index in range(20)],
        [(1, f"dedicated=t{index:02}:NoSchedule") for index in range(16)],
    ),
)
def test_nodes_with_the_same_labels_and_taints_are_one(
    nodes: list[GPUNode], want: list[tuple[int, str]]
) -> None:
    read = decode(encode(published(*nodes)))
    assert read is not None
    found = read.nodes(CONFIGURATION)
    assert [(each.number, ", ".join(map(toleration_text, each.taints))) for each in found] == want


@cases(
    ("nodes", "pending", "want"),
    of_a_class_with_nodes=(FULL_AND_EMPTY, {"nvidia_a100_80gb": 4}, {A100: 4}),
    of_a_class_without=([], {"nvidia_t4": 2}, {T4: 2}),
    not_twice_for_its_family=(FULL_AND_EMPTY, {"nvidia_a100_80gb": 4, "nvidia_a100": 4}, {A100: 4}),
    none=(FULL_AND_EMPTY, {}, {A100: 0}),
)
def test_what_waits_for_a_class(nodes: list[GPUNode], pending: dict[str, int], want: dict[str, int]) -> None:
    found = published(*nodes, **pending).classes
    assert {name: each.pending for name, each in found.items()} == want


@cases(
    ("selector", "taken"),
    a_class_with_nodes=({"accelerator": A100}, True),
    a_class_without=({"accelerator": T4}, False),
    a_label_of_no_class=({"zone": "a"}, True),
    a_zone_without_nodes=({"topology.kubernetes.io/zone": "z"}, False),
    a_node_by_name=({"kubernetes.io/hostname": "z"}, True),
)
def test_where_a_pod_could_go(selector: JSON, taken: bool) -> None:
    facts = published(*FULL_AND_EMPTY).facts((), CLASSES)
    assert facts.labels_match(view({"spec": {"nodeSelector": selector}}), "", ()) is taken
    assert facts.resources == {GPU}


@cases(
    ("seconds", "old"),
    at_once=(0, False),
    after_a_write_that_is_due=(70, False),
    when_two_were_missed=(181, True),
)
def test_figures_that_nobody_counted_again_are_old(seconds: int, old: bool) -> None:
    assert published().is_old(NOW + timedelta(seconds=seconds)) is old


@cases(
    "data",
    never_written=None,
    another_key={"other": "{}"},
    not_json={"capacity": "{"},
    a_time_in_no_zone={"capacity": '{"observed": "2026-11-26T22:00:00", "classes": {}}'},
    an_amount_that_is_none={
        "capacity": '{"observed": "2026-11-26T22:00:00Z", "classes": {"a": {"gpus": "-1"}}}'
    },
)
def test_what_cannot_be_read_is_not_known(data: Any) -> None:
    assert decode(msgspec.json.encode({"metadata": {"name": "x"}, "data": data})) is None


def test_a_class_without_nodes_is_left_out() -> None:
    nothing = PublishedCapacity(NOW, {T4: PublishedClass(pending=Fraction(2))})
    assert nothing.nodes(CONFIGURATION) == ()


NEW, OLD_RUNTIME = "containerd://2.1.4", "containerd://1.7.0"
MANY_KINDS = [
    counted(f"n{i}", of(A100), runtime=NEW, taints=[{"key": f"k{i}", "effect": "NoSchedule"}])
    for i in range(MAX_ALIKE + 1)
]


@cases(
    ("nodes", "want"),
    all_of_the_class=([counted("a", of(A100), runtime=NEW), counted("t", of(T4), runtime=OLD_RUNTIME)], True),
    one_does_not=([counted(name, of(A100), runtime=each) for name, each in zip("ab", (NEW, OLD_RUNTIME), strict=True)], False),
    of_several_kinds=(MANY_KINDS[:2], True),
    kinds_that_are_not_published=(MANY_KINDS, False),
    written_by_an_older_controller=([counted("a", of(A100))], False),
)  # fmt: skip
def test_whether_nodes_mount_images(nodes: list[GPUNode], want: bool) -> None:
    read = decode(encode(published(*nodes)))
    assert read is not None
    asking = view(pod(gpu_container("1"), nodeSelector=of(A100), tolerations=[{"operator": "Exists"}]))

    assert all_mount_images(asking, {GPU: 1}, read.facts((), CLASSES)) is want
