"""The demand of a pod by class: pinned, unpinned, bound, and beside the nodes that it names."""

from typing import Any

import pytest

from policies.gpus.classes import GPUClasses
from policies.placement.nodes import HOSTNAME
from policies.quota.amounts import amount_texts
from policies.quota.demand import UnclassifiedPods
from tests.builders import JSON, gpu_container, node_affinity, pod
from tests.cases import cases
from tests.policies.quota.charging import counted, index
from tests.policies.quota.demands import A100, GPU, H100, T4, affinity, asking, on

TOTAL_ONLY, DENY, MOST_EXPENSIVE = UnclassifiedPods


@cases(
    ("document", "want", "because"),
    a_class_and_its_family=(
        on(A100, gpu_container("2")),
        {"nvidia-a100-80gb": "2", "nvidia-a100": "2"},
        "nodeSelector accelerator=nvidia-a100-80gb",
    ),
    name_once=(on(T4, gpu_container("2")), {"nvidia-t4": "2"}, "nodeSelector accelerator=nvidia-t4"),
    the_one_class_of_the_family_that_has_these_slices=(
        on("nvidia-a100", gpu_container("4", resource="nvidia.com/mig-1g.20gb")),
        {"nvidia-a100": "1", "nvidia-a100-80gb": "1"},
        "nodeSelector accelerator=nvidia-a100",
    ),
    several_families_each_at_its_own=(
        pod(gpu_container("1"), affinity=affinity(A100, "t4-shared")),
        {"nvidia-a100": "1", "nvidia-a100-80gb": "1", "nvidia-t4": "1/4", "t4-shared": "1/4"},
        "node affinity accelerator in (nvidia-a100-80gb, t4-shared)",
    ),
    only_the_vendor_that_has_the_resource=(
        pod(gpu_container("1"), affinity=affinity(T4, "amd-mi300x")),
        {"nvidia-t4": "1"},
        "node affinity accelerator in (nvidia-t4, amd-mi300x)",
    ),
    another_vendors_class_is_counted_all_the_same=(
        on("amd-mi300x", gpu_container("1")),
        {"amd-mi300x": "1"},
        "nodeSelector accelerator=amd-mi300x",
    ),
    a_fraction_on_its_class=(
        on(H100, annotations={"gpu-fraction": "0.5"}),
        {"nvidia-h100": "1/2"},
        "nodeSelector accelerator=nvidia-h100",
    ),
    a_device_class_tells_the_class=(
        pod(gpu_container("1", resource="deviceclass.resource.kubernetes.io/h100.example.com")),
        {"nvidia-h100": "1"},
        "device class h100.example.com",
    ),
    device_classes_of_two_containers=(
        pod(
            gpu_container("1", resource="deviceclass.resource.kubernetes.io/h100.example.com"),
            gpu_container("1", "b", resource="deviceclass.resource.kubernetes.io/large.example.com"),
        ),
        {"nvidia-h100": "2", "nvidia-h200": "1"},
        "device class h100.example.com and device class large.example.com",
    ),
)
@pytest.mark.parametrize("mode", list(UnclassifiedPods))
def test_by_class(document: JSON, want: dict[str, str], because: str, mode: UnclassifiedPods) -> None:
    demand = counted(document, mode)

    assert by_class(demand.vector) == want
    assert demand.classes == tuple(sorted(want))
    assert demand.because == because
    assert demand.denials == ()


A100S = {"nvidia-a100": "2", "nvidia-a100-40gb": "2", A100: "2"}


@cases(
    ("document", "node", "family", "each"),
    the_label_of_a_family=(on("nvidia-a100", gpu_container("2")), None, {"nvidia-a100": "2"}, A100S),
    two_of_them_at_the_most_expensive=(
        pod(gpu_container("2"), affinity=affinity(T4, "t4-shared")),
        None,
        {T4: "2"},
        {T4: "2", "t4-shared": "1/2"},
    ),
    family_node=(pod(gpu_container("2")), {"accelerator": "nvidia-a100"}, {"nvidia-a100": "2"}, A100S),
)
def test_several_classes_of_one_family(
    document: JSON, node: dict[str, str] | None, family: dict[str, str], each: dict[str, str]
) -> None:
    """It may come to any of them: whoever holds limits by class charges each one."""
    found = {mode: by_class(counted(document, mode, node).vector) for mode in UnclassifiedPods}

    assert found == {TOTAL_ONLY: family, DENY: each, MOST_EXPENSIVE: each}


def by_class(vector: Any) -> dict[str, str]:
    classes = {key: amount for key, amount in amount_texts(vector).items() if key.startswith("classes/")}
    return {key.removeprefix("classes/"): amount for key, amount in classes.items()}


NOWHERE = pod(gpu_container("1"), nodeSelector={"accelerator": T4}, affinity=affinity(A100))
NVIDIA = ["nvidia-a100", "nvidia-a100-40gb", A100, H100, "nvidia-h200", T4]
ANY = {**dict.fromkeys(NVIDIA, "1"), "t4-shared": "1/4"}


@cases(
    ("document", "mode", "want", "denial"),
    total_only=(pod(gpu_container("1")), TOTAL_ONLY, {}, ""),
    denied=(pod(gpu_container("1")), DENY, {}, "counts GPUs by class: it pins no GPU class"),
    most_expensive_is_every_class_of_the_vendor=(pod(gpu_container("1")), MOST_EXPENSIVE, ANY, ""),
    most_expensive_of_slices_is_who_has_them=(
        pod(gpu_container("2", resource="nvidia.com/mig-1g.20gb")),
        MOST_EXPENSIVE,
        {"nvidia-a100": "1/2", A100: "1/2"},
        "",
    ),
    most_expensive_by_the_memory_of_each=(
        pod(asking(gpu="1", gpumem="8192")),
        MOST_EXPENSIVE,
        {
            "nvidia-a100": "1/5",
            "nvidia-a100-40gb": "1/5",
            A100: "1/10",
            H100: "1/10",
            "nvidia-h200": "8/141",
            T4: "1/2",
            "t4-shared": "1/2",
        },
        "",
    ),
    most_expensive_of_what_no_class_is_known_to_have_is_all=(
        pod(gpu_container("1", resource="volcano.sh/vgpu-number")),
        MOST_EXPENSIVE,
        {**dict.fromkeys([*NVIDIA, "amd-mi300x", "t4-shared"], "1")},
        "",
    ),
    contradiction_total_only=(NOWHERE, TOTAL_ONLY, {}, ""),
    contradiction_denied=(
        NOWHERE,
        DENY,
        {},
        "nodeSelector accelerator=nvidia-t4 and node affinity accelerator in (nvidia-a100-80gb) contradict each other "
        "and leave no GPU class",
    ),
    contradiction_most_expensive=(NOWHERE, MOST_EXPENSIVE, ANY, ""),
)
def test_unclassified(document: JSON, mode: UnclassifiedPods, want: dict[str, str], denial: str) -> None:
    demand = counted(document, mode)

    assert by_class(demand.vector) == want
    assert demand.vector["gpus"] > 0
    assert bool(demand.denials) == bool(denial)
    assert denial in " ".join(each.sentence() for each in demand.denials)


@cases(
    ("document", "labels", "want"),
    the_family_becomes_the_class=(
        on("nvidia-a100", gpu_container("2")),
        {"accelerator": A100},
        {"nvidia-a100": "2", A100: "2"},
    ),
    node_decides=(on(T4, gpu_container("2")), {"accelerator": A100}, {"nvidia-a100": "2", A100: "2"}),
    a_node_of_no_class_leaves_the_pin=(on(T4, gpu_container("2")), {"zone": "a"}, {T4: "2"}),
)
@pytest.mark.parametrize("mode", list(UnclassifiedPods))
def test_bound(document: JSON, labels: dict[str, str], want: dict[str, str], mode: UnclassifiedPods) -> None:
    demand = counted(document, mode, labels)

    assert by_class(demand.vector) == want
    assert demand.denials == ()


SELECTS = {"nodeSelector": {HOSTNAME: "node"}}


@cases(
    ("spec", "labels", "mode", "want", "denial"),
    of_no_class_total_only=({"nodeName": "node"}, {}, TOTAL_ONLY, {}, ""),
    of_no_class_most_expensive=({"nodeName": "node"}, {}, MOST_EXPENSIVE, ANY, ""),
    no_class_denied=({"nodeName": "node"}, {}, DENY, {}, "its node node has no label of a GPU class"),
    hostname_of_no_class_total_only=(SELECTS, {}, TOTAL_ONLY, {}, ""),
    hostname_of_no_class_most_expensive=(SELECTS, {}, MOST_EXPENSIVE, ANY, ""),
    hostname_of_a_class=(SELECTS, {"accelerator": T4}, TOTAL_ONLY, {T4: "1"}, ""),
    hostname_of_a_class_pins=(SELECTS, {"accelerator": T4}, DENY, {T4: "1"}, ""),
    unknown_counts_every_class=({"nodeName": "other"}, {}, TOTAL_ONLY, ANY, ""),
    unknown_most_expensive=({"nodeName": "other"}, {}, MOST_EXPENSIVE, ANY, ""),
    unknown_denied_and_count_if_stored=({"nodeName": "other"}, {}, DENY, ANY, "must name a GPU class"),
    unknown_hostname=({"nodeSelector": {HOSTNAME: "other"}}, {}, DENY, ANY, "node other is not known"),
)
def test_what_a_node_says_of_the_class(
    spec: JSON, labels: dict[str, str], mode: UnclassifiedPods, want: dict[str, str], denial: str
) -> None:
    demand = counted(pod(gpu_container("1"), **spec), mode, nodes=index({"node": labels}))

    assert by_class(demand.vector) == want
    assert demand.vector["gpus"] == 1
    assert bool(demand.denials) == bool(denial)
    assert denial in " ".join(each.sentence() for each in demand.denials)


@cases(("number", "want"), as_many_as_are_looked_up=(64, {T4: "1"}), too_many_may_be_of_any_class=(65, ANY))
def test_a_pod_that_names_many_nodes(number: int, want: dict[str, str]) -> None:
    names = [f"n{each}" for each in range(number)]
    document = pod(gpu_container("1"), affinity=node_affinity([(HOSTNAME, "In", *names)]))

    demand = counted(document, nodes=index({each: {"accelerator": T4} for each in names}))

    assert by_class(demand.vector) == want


def test_a_cluster_without_classes_counts_in_total() -> None:
    nothing = GPUClasses(())

    assert amount_texts(counted(pod(gpu_container("2")), classes=nothing).vector) == {"gpus": "2", GPU: "2"}
    assert by_class(counted(pod(gpu_container("2")), MOST_EXPENSIVE, classes=nothing).vector) == {}
