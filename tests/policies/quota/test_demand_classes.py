"""The demand of a pod by class: pinned, unpinned, bound, and beside the nodes that it names."""

from typing import Any

import pytest

from policies.gpus.classes import ClassCatalogue
from policies.placement.named_nodes import HOSTNAME
from policies.quota.amounts import texts
from policies.quota.demand import UnclassifiedPods
from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from tests.policies.quota.charging import counted, index
from tests.policies.quota.test_demand import A100, GPU, H100, T4, affinity, asking, on

TOTAL_ONLY, DENY, MOST_EXPENSIVE = UnclassifiedPods


@cases(
    ("document", "want", "because"),
    {
        "a-class-and-its-family": (
            on(A100, gpu_container("2")),
            {"nvidia-a100-80gb": "2", "nvidia-a100": "2"},
            "nodeSelector accelerator=nvidia-a100-80gb",
        ),
        "one-name-once": (
            on(T4, gpu_container("2")),
            {"nvidia-t4": "2"},
            "nodeSelector accelerator=nvidia-t4",
        ),
        "the-one-class-of-the-family-that-has-these-slices": (
            on("nvidia-a100", gpu_container("4", resource="nvidia.com/mig-1g.20gb")),
            {"nvidia-a100": "1", "nvidia-a100-80gb": "1"},
            "nodeSelector accelerator=nvidia-a100",
        ),
        "several-families-each-at-its-own": (
            pod(gpu_container("1"), affinity=affinity(A100, "t4-shared")),
            {"nvidia-a100": "1", "nvidia-a100-80gb": "1", "nvidia-t4": "1/4", "t4-shared": "1/4"},
            "node affinity accelerator in (nvidia-a100-80gb, t4-shared)",
        ),
        "only-the-vendor-that-has-the-resource": (
            pod(gpu_container("1"), affinity=affinity(T4, "amd-mi300x")),
            {"nvidia-t4": "1"},
            "node affinity accelerator in (nvidia-t4, amd-mi300x)",
        ),
        "another-vendors-class-is-counted-all-the-same": (
            on("amd-mi300x", gpu_container("1")),
            {"amd-mi300x": "1"},
            "nodeSelector accelerator=amd-mi300x",
        ),
        "a-fraction-on-its-class": (
            on(H100, annotations={"gpu-fraction": "0.5"}),
            {"nvidia-h100": "1/2"},
            "nodeSelector accelerator=nvidia-h100",
        ),
        "a-device-class-tells-the-class": (
            pod(gpu_container("1", resource="deviceclass.resource.kubernetes.io/h100.example.com")),
            {"nvidia-h100": "1"},
            "device class h100.example.com",
        ),
    },
)
@pytest.mark.parametrize("unclassified_pods", list(UnclassifiedPods))
def test_by_class(
    document: JSON, want: dict[str, str], because: str, unclassified_pods: UnclassifiedPods
) -> None:
    demand = counted(document, unclassified_pods)

    assert by_class(demand.vector) == want
    assert demand.classes == tuple(sorted(want))
    assert demand.because == because
    assert demand.denials == ()


A100S = {"nvidia-a100": "2", "nvidia-a100-40gb": "2", A100: "2"}


@cases(
    ("document", "node", "family", "each"),
    {
        "the-label-of-a-family": (on("nvidia-a100", gpu_container("2")), None, {"nvidia-a100": "2"}, A100S),
        "two-of-them-at-the-most-expensive": (
            pod(gpu_container("2"), affinity=affinity(T4, "t4-shared")),
            None,
            {T4: "2"},
            {T4: "2", "t4-shared": "1/2"},
        ),
        "a-node-that-says-only-its-family": (
            pod(gpu_container("2")),
            {"accelerator": "nvidia-a100"},
            {"nvidia-a100": "2"},
            A100S,
        ),
    },
)
def test_several_classes_of_one_family(
    document: JSON, node: dict[str, str] | None, family: dict[str, str], each: dict[str, str]
) -> None:
    """It may come to any of them: whoever holds limits by class charges each one."""
    found = {
        unclassified_pods: by_class(counted(document, unclassified_pods, node).vector)
        for unclassified_pods in UnclassifiedPods
    }

    assert found == {
        TOTAL_ONLY: family,
        DENY: each,
        MOST_EXPENSIVE: each,
    }


def by_class(vector: Any) -> dict[str, str]:
    return {
        key.removeprefix("classes/"): amount
        for key, amount in texts(vector).items()
        if key.startswith("classes/")
    }


NOWHERE = pod(gpu_container("1"), nodeSelector={"accelerator": T4}, affinity=affinity(A100))
NVIDIA = ["nvidia-a100", "nvidia-a100-40gb", A100, H100, "nvidia-h200", T4]


@cases(
    ("document", "unclassified_pods", "want", "denial"),
    {
        "total-only": (pod(gpu_container("1")), TOTAL_ONLY, {}, ""),
        "denied": (pod(gpu_container("1")), DENY, {}, "counts GPUs by class: it pins no GPU class"),
        "most-expensive-is-every-class-of-the-vendor-and-its-family": (
            pod(gpu_container("1")),
            MOST_EXPENSIVE,
            {**dict.fromkeys(NVIDIA, "1"), "t4-shared": "1/4"},
            "",
        ),
        "most-expensive-of-slices-is-who-has-them": (
            pod(gpu_container("2", resource="nvidia.com/mig-1g.20gb")),
            MOST_EXPENSIVE,
            {"nvidia-a100": "1/2", A100: "1/2"},
            "",
        ),
        "most-expensive-by-the-memory-of-each": (
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
        "most-expensive-of-what-no-class-is-known-to-have-is-all": (
            pod(gpu_container("1", resource="volcano.sh/vgpu-number")),
            MOST_EXPENSIVE,
            {**dict.fromkeys([*NVIDIA, "amd-mi300x", "t4-shared"], "1")},
            "",
        ),
        "contradiction-total-only": (NOWHERE, TOTAL_ONLY, {}, ""),
        "contradiction-denied": (
            NOWHERE,
            DENY,
            {},
            "nodeSelector accelerator=nvidia-t4 and node affinity accelerator in (nvidia-a100-80gb) contradict each other "
            "and leave no GPU class",
        ),
        "contradiction-most-expensive": (
            NOWHERE,
            MOST_EXPENSIVE,
            {**dict.fromkeys(NVIDIA, "1"), "t4-shared": "1/4"},
            "",
        ),
    },
)
def test_unclassified(
    document: JSON, unclassified_pods: UnclassifiedPods, want: dict[str, str], denial: str
) -> None:
    demand = counted(document, unclassified_pods)

    assert by_class(demand.vector) == want
    assert demand.vector["gpus"] > 0
    assert bool(demand.denials) == bool(denial)
    assert denial in " ".join(each.sentence() for each in demand.denials)


@cases(
    ("document", "labels", "want"),
    {
        "the-family-becomes-the-class": (
            on("nvidia-a100", gpu_container("2")),
            {"accelerator": A100},
            {"nvidia-a100": "2", A100: "2"},
        ),
        "unclassified-has-a-class-now": (pod(gpu_container("2")), {"accelerator": T4}, {T4: "2"}),
        "a-label-of-the-vendor": (
            pod(gpu_container("2")),
            {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "zone": "a"},
            {H100: "2"},
        ),
        "the-node-decides": (
            on(T4, gpu_container("2")),
            {"accelerator": A100},
            {"nvidia-a100": "2", A100: "2"},
        ),
        "a-node-of-no-class-leaves-the-pin": (on(T4, gpu_container("2")), {"zone": "a"}, {T4: "2"}),
        "labels-that-contradict-each-other": (
            pod(gpu_container("1")),
            {"accelerator": T4, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            {T4: "1", H100: "1"},
        ),
        "memory-is-known-now": (pod(asking(gpu="1", gpumem="8192")), {"accelerator": T4}, {T4: "1/2"}),
    },
)
@pytest.mark.parametrize("unclassified_pods", list(UnclassifiedPods))
def test_bound(
    document: JSON, labels: dict[str, str], want: dict[str, str], unclassified_pods: UnclassifiedPods
) -> None:
    demand = counted(document, unclassified_pods, labels)

    assert by_class(demand.vector) == want
    assert demand.denials == ()


ANY = {**dict.fromkeys(NVIDIA, "1"), "t4-shared": "1/4"}
SELECTS = {"nodeSelector": {HOSTNAME: "node"}}


@cases(
    ("spec", "labels", "unclassified_pods", "want", "denial"),
    {
        "of-no-class-total-only": ({"nodeName": "node"}, {}, TOTAL_ONLY, {}, ""),
        "of-no-class-most-expensive": ({"nodeName": "node"}, {}, MOST_EXPENSIVE, ANY, ""),
        "of-no-class-denied": (
            {"nodeName": "node"},
            {},
            DENY,
            {},
            "its node node has no label of a GPU class",
        ),
        "hostname-of-no-class-total-only": (SELECTS, {}, TOTAL_ONLY, {}, ""),
        "hostname-of-no-class-most-expensive": (SELECTS, {}, MOST_EXPENSIVE, ANY, ""),
        "hostname-of-a-class": (SELECTS, {"accelerator": T4}, TOTAL_ONLY, {T4: "1"}, ""),
        "hostname-of-a-class-pins": (SELECTS, {"accelerator": T4}, DENY, {T4: "1"}, ""),
        "unknown-counts-every-class": ({"nodeName": "other"}, {}, TOTAL_ONLY, ANY, ""),
        "unknown-most-expensive": ({"nodeName": "other"}, {}, MOST_EXPENSIVE, ANY, ""),
        "unknown-denied-and-count-if-stored": ({"nodeName": "other"}, {}, DENY, ANY, "must name a GPU class"),
        "unknown-hostname": ({"nodeSelector": {HOSTNAME: "other"}}, {}, DENY, ANY, "node other is not known"),
    },
)
def test_what_a_node_says_of_the_class(
    spec: JSON, labels: dict[str, str], unclassified_pods: UnclassifiedPods, want: dict[str, str], denial: str
) -> None:
    demand = counted(pod(gpu_container("1"), **spec), unclassified_pods, nodes=index({"node": labels}))

    assert by_class(demand.vector) == want
    assert demand.vector["gpus"] == 1
    assert bool(demand.denials) == bool(denial)
    assert denial in " ".join(each.sentence() for each in demand.denials)


@cases(
    ("number", "want"),
    {"as-many-as-are-looked-up": (64, {T4: "1"}), "too-many-may-be-of-any-class": (65, ANY)},
)
def test_a_pod_that_names_many_nodes(number: int, want: dict[str, str]) -> None:
    names = [f"n{each}" for each in range(number)]
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": names}]}
    required = {"nodeSelectorTerms": [term]}
    spec: JSON = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}

    demand = counted(
        pod(gpu_container("1"), **spec), nodes=index({each: {"accelerator": T4} for each in names})
    )

    assert by_class(demand.vector) == want


def test_a_cluster_without_classes_counts_in_total() -> None:
    nothing = ClassCatalogue(())

    assert texts(counted(pod(gpu_container("2")), classes=nothing).vector) == {"gpus": "2", GPU: "2"}
    assert by_class(counted(pod(gpu_container("2")), MOST_EXPENSIVE, classes=nothing).vector) == {}
