"""What a pod costs, case by case: plain counts, whole cards, classes and families."""

from typing import Any

import pytest

from policies.gpus.classes import ClassCatalogue
from policies.placement.named_nodes import HOSTNAME
from policies.quota.amounts import texts
from policies.quota.demand import UnclassifiedPods
from tests.builders import JSON, container, gpu_container, pod
from tests.policies.quota.charging import counted, index

A100, T4, H100 = "nvidia-a100-80gb", "nvidia-t4", "nvidia-h100"


def on(gpu_class: str, *containers: JSON, **more: Any) -> JSON:
    return pod(*containers, nodeSelector={"accelerator": gpu_class}, **more)


def sidecar(*arguments: Any) -> JSON:
    return gpu_container(*arguments, restartPolicy="Always")


def asking(name: str = "main", **amounts: str) -> JSON:
    """Return a container with several resources of NVIDIA's prefix: `gpu="1", gpumem="8000"`."""
    limits = {f"nvidia.com/{key.replace('_', '-')}": amount for key, amount in amounts.items()}
    return container(name, resources={"limits": limits})


def affinity(*values: str) -> JSON:
    term = {"matchExpressions": [{"key": "accelerator", "operator": "In", "values": list(values)}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


GPU, SHARED = "resources/nvidia.com/gpu", "resources/nvidia.com/gpu.shared"


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(), {}, id="no-gpu-costs-nothing"),
        pytest.param(pod(gpu_container("0")), {}, id="zero-costs-nothing"),
        pytest.param(pod(gpu_container("2")), {"gpus": "2", GPU: "2"}, id="limit-is-the-request"),
        pytest.param(pod(gpu_container("2000m")), {"gpus": "2", GPU: "2"}, id="another-spelling-of-two"),
        pytest.param(
            pod(gpu_container("1", "a"), gpu_container("1", "b")),
            {"gpus": "2", GPU: "2"},
            id="two-containers",
        ),
        pytest.param(
            pod(gpu_container("2"), initContainers=[gpu_container("3", "i"), gpu_container("1", "j")]),
            {"gpus": "3", GPU: "3"},
            id="largest-init-step",
        ),
        pytest.param(
            pod(gpu_container("2"), initContainers=[sidecar("1", "s"), gpu_container("4", "i")]),
            {"gpus": "5", GPU: "5"},
            id="init-step-beside-the-sidecar-before-it",
        ),
        pytest.param(
            pod(gpu_container("2"), initContainers=[gpu_container("4", "i"), sidecar("1", "s")]),
            {"gpus": "4", GPU: "4"},
            id="later-sidecar-is-not-there-yet",
        ),
        pytest.param(
            pod(gpu_container("1"), overhead={"nvidia.com/gpu": "1", "cpu": "1"}),
            {"gpus": "2", GPU: "2"},
            id="overhead",
        ),
        pytest.param(
            pod(gpu_container("1"), schedulingGates=[{"name": "example.com/later"}]),
            {"gpus": "1", GPU: "1"},
            id="gated-counts",
        ),
        pytest.param(
            pod(gpu_container("1"), resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]),
            {"gpus": "1", GPU: "1"},
            id="a-claim-is-charged-by-itself",
        ),
        pytest.param(
            pod(container(resources={"limits": {"nvidia.com/gpu": "1", "amd.com/gpu": "2"}})),
            {"gpus": "3", GPU: "1", "resources/amd.com/gpu": "2"},
            id="two-vendors",
        ),
        pytest.param(
            pod(container(resources={"limits": {"rdma/hca": "1", "cpu": "4"}})), {}, id="what-is-no-gpu"
        ),
        pytest.param(
            pod(gpu_container("2", resource="aws.amazon.com/neuroncore")),
            {"gpus": "2", "resources/aws.amazon.com/neuroncore": "2"},
            id="cores-that-no-class-weighs",
        ),
        pytest.param(
            {**pod(gpu_container("2")), "status": {"phase": "Succeeded"}}, {}, id="succeeded-costs-nothing"
        ),
        pytest.param(
            {**pod(gpu_container("2")), "status": {"phase": "Failed"}}, {}, id="failed-costs-nothing"
        ),
        pytest.param(
            {**pod(gpu_container("2")), "status": {"phase": "Running"}},
            {"gpus": "2", GPU: "2"},
            id="running-costs-all",
        ),
    ],
)
def test_total(document: JSON, want: dict[str, str]) -> None:
    assert texts(counted(document).vector) == want


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(
            on(A100, gpu_container("4", resource="nvidia.com/mig-1g.20gb")),
            {"gpus": "1", "resources/nvidia.com/mig-1g.20gb": "4"},
            id="a-quarter-by-memory-though-a-seventh-by-compute",
        ),
        pytest.param(
            on(A100, gpu_container("1", resource="nvidia.com/mig-3g.40gb")),
            {"gpus": "1/2", "resources/nvidia.com/mig-3g.40gb": "1"},
            id="half-by-memory-though-three-sevenths-by-compute",
        ),
        pytest.param(
            on(A100, gpu_container("7", resource="nvidia.com/mig-1g.10gb")),
            {"gpus": "1", "resources/nvidia.com/mig-1g.10gb": "7"},
            id="seven-sevenths",
        ),
        pytest.param(
            pod(gpu_container("7", resource="nvidia.com/mig-1g.10gb")),
            {"gpus": "1", "resources/nvidia.com/mig-1g.10gb": "7"},
            id="only-one-class-has-these-slices",
        ),
        pytest.param(
            on(A100, gpu_container("1", resource="nvidia.com/mig-9g.99gb")),
            {"gpus": "1", "resources/nvidia.com/mig-9g.99gb": "1"},
            id="a-slice-that-no-class-has-is-a-whole-card",
        ),
        pytest.param(
            on(A100, asking(gpu="1", mig_1g_10gb="0"), gpu_container("2", "b", "nvidia.com/mig-1g.10gb")),
            {"gpus": "9/7", GPU: "1", "resources/nvidia.com/mig-1g.10gb": "2"},
            id="cards-and-slices-add-up",
        ),
        pytest.param(
            on("t4-shared", gpu_container("1")),
            {"gpus": "1/4", GPU: "1"},
            id="a-time-sliced-pool-says-its-weight",
        ),
        pytest.param(
            on("t4-shared", gpu_container("2", resource="nvidia.com/gpu.shared")),
            {"gpus": "1/2", SHARED: "2"},
            id="shares-that-a-class-weighs",
        ),
        pytest.param(
            on(A100, gpu_container("2", resource="nvidia.com/gpu.shared")),
            {"gpus": "2", SHARED: "2"},
            id="shares-that-no-class-weighs",
        ),
        pytest.param(
            on(T4, asking(gpu="2", gpumem="4096")),
            {"gpus": "1/2", GPU: "2", "resources/nvidia.com/gpumem": "4096"},
            id="memory-is-of-each-of-the-gpus",
        ),
        pytest.param(
            on(T4, asking("a", gpu="1", gpumem="4096"), asking("b", gpu="1", gpumem="8192")),
            {"gpus": "3/4", GPU: "2", "resources/nvidia.com/gpumem": "12288"},
            id="memory-belongs-to-its-own-container",
        ),
        pytest.param(
            on(T4, asking(gpu="1", gpumem="4096", gpucores="60")),
            {
                "gpus": "3/5",
                GPU: "1",
                "resources/nvidia.com/gpucores": "60",
                "resources/nvidia.com/gpumem": "4096",
            },
            id="the-larger-of-memory-and-compute",
        ),
        pytest.param(
            on(T4, asking(gpumem="4096")),
            {"gpus": "1/4", "resources/nvidia.com/gpumem": "4096"},
            id="memory-alone-is-of-one-gpu",
        ),
        pytest.param(
            on(T4, asking(gpu="1", gpumem="99999")),
            {"gpus": "1", GPU: "1", "resources/nvidia.com/gpumem": "99999"},
            id="never-more-than-the-card",
        ),
        pytest.param(
            pod(asking(gpu="2", gpumem="4096")),
            {"gpus": "2", GPU: "2", "resources/nvidia.com/gpumem": "4096"},
            id="memory-of-an-unknown-card-is-all-of-it",
        ),
        pytest.param(
            pod(asking(gpu="1", gpumem_percentage="25")),
            {"gpus": "1/4", GPU: "1", "resources/nvidia.com/gpumem-percentage": "25"},
            id="a-percentage-needs-no-class",
        ),
        pytest.param(
            pod(asking(gpu="1", gpucores="50")),
            {"gpus": "1", GPU: "1", "resources/nvidia.com/gpucores": "50"},
            id="compute-alone-leaves-all-the-memory-to-it",
        ),
        pytest.param(
            pod(
                container(
                    resources={
                        "limits": {
                            "gpu.intel.com/i915": "1",
                            "gpu.intel.com/millicores": "300",
                            "gpu.intel.com/memory.max": "1Gi",
                        }
                    }
                )
            ),
            {
                "gpus": "1",
                "resources/gpu.intel.com/i915": "1",
                "resources/gpu.intel.com/memory.max": "1073741824",
                "resources/gpu.intel.com/millicores": "300",
            },
            id="bytes-of-an-unknown-card",
        ),
        pytest.param(
            on(T4, asking(gpu="1", gpumem="4096"), initContainers=[asking("i", gpu="1", gpumem="8192")]),
            {"gpus": "1/2", GPU: "1", "resources/nvidia.com/gpumem": "8192"},
            id="an-init-step-with-more-memory",
        ),
        pytest.param(pod(annotations={"gpu-fraction": "0.3"}), {"gpus": "3/10"}, id="fraction-is-exact"),
        pytest.param(
            pod(annotations={"gpu-fraction": "0.000000001"}), {"gpus": "1/100"}, id="no-less-than-a-hundredth"
        ),
        pytest.param(
            pod(annotations={"gpu-fraction": "0.5", "gpu-fraction-num-devices": "3"}),
            {"gpus": "3/2"},
            id="fraction-of-several-devices",
        ),
        pytest.param(on(T4, annotations={"gpu-memory": "4096"}), {"gpus": "1/4"}, id="memory-by-annotation"),
        pytest.param(
            pod(annotations={"gpu-memory": "4096"}), {"gpus": "1"}, id="memory-by-annotation-of-any-card"
        ),
        pytest.param(pod(annotations={"gpu-fraction-num-devices": "3"}), {}, id="a-number-of-devices-alone"),
        pytest.param(
            on(H100, gpu_container("2", resource="deviceclass.resource.kubernetes.io/gpu.nvidia.com")),
            {"gpus": "2", "resources/deviceclass.resource.kubernetes.io/gpu.nvidia.com": "2"},
            id="devices-by-an-implicit-name",
        ),
        pytest.param(
            on(H100, gpu_container("1500m", resource="deviceclass.resource.kubernetes.io/gpu.nvidia.com")),
            {"gpus": "2", "resources/deviceclass.resource.kubernetes.io/gpu.nvidia.com": "2"},
            id="implicit-names-are-rounded-up-as-the-scheduler-does",
        ),
        pytest.param(
            pod(gpu_container("2", resource="deviceclass.resource.kubernetes.io/nic.vendor.com")),
            {},
            id="devices-of-a-class-that-is-no-gpu",
        ),
    ],
)
def test_whole_cards(document: JSON, want: dict[str, str]) -> None:
    vector = texts(counted(document).vector)

    assert {key: amount for key, amount in vector.items() if not key.startswith("classes/")} == want


@pytest.mark.parametrize(
    ("document", "want", "because"),
    [
        pytest.param(
            on(A100, gpu_container("2")),
            {"nvidia-a100-80gb": "2", "nvidia-a100": "2"},
            "nodeSelector accelerator=nvidia-a100-80gb",
            id="a-class-and-its-family",
        ),
        pytest.param(
            on(T4, gpu_container("2")),
            {"nvidia-t4": "2"},
            "nodeSelector accelerator=nvidia-t4",
            id="one-name-once",
        ),
        pytest.param(
            on("nvidia-a100", gpu_container("4", resource="nvidia.com/mig-1g.20gb")),
            {"nvidia-a100": "1", "nvidia-a100-80gb": "1"},
            "nodeSelector accelerator=nvidia-a100",
            id="the-one-class-of-the-family-that-has-these-slices",
        ),
        pytest.param(
            pod(gpu_container("1"), affinity=affinity(A100, "t4-shared")),
            {"nvidia-a100": "1", "nvidia-a100-80gb": "1", "nvidia-t4": "1/4", "t4-shared": "1/4"},
            "node affinity accelerator in (nvidia-a100-80gb, t4-shared)",
            id="several-families-each-at-its-own",
        ),
        pytest.param(
            pod(gpu_container("1"), affinity=affinity(T4, "amd-mi300x")),
            {"nvidia-t4": "1"},
            "node affinity accelerator in (nvidia-t4, amd-mi300x)",
            id="only-the-vendor-that-has-the-resource",
        ),
        pytest.param(
            on("amd-mi300x", gpu_container("1")),
            {"amd-mi300x": "1"},
            "nodeSelector accelerator=amd-mi300x",
            id="another-vendors-class-is-charged-all-the-same",
        ),
        pytest.param(
            on(H100, annotations={"gpu-fraction": "0.5"}),
            {"nvidia-h100": "1/2"},
            "nodeSelector accelerator=nvidia-h100",
            id="a-fraction-on-its-class",
        ),
        pytest.param(
            pod(gpu_container("1", resource="deviceclass.resource.kubernetes.io/h100.example.com")),
            {"nvidia-h100": "1"},
            "device class h100.example.com",
            id="a-device-class-tells-the-class",
        ),
    ],
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


@pytest.mark.parametrize(
    ("document", "node", "family", "each"),
    [
        pytest.param(
            on("nvidia-a100", gpu_container("2")),
            None,
            {"nvidia-a100": "2"},
            A100S,
            id="the-label-of-a-family",
        ),
        pytest.param(
            pod(gpu_container("2"), affinity=affinity(T4, "t4-shared")),
            None,
            {T4: "2"},
            {T4: "2", "t4-shared": "1/2"},
            id="two-of-them-at-the-dearest",
        ),
        pytest.param(
            pod(gpu_container("2")),
            {"accelerator": "nvidia-a100"},
            {"nvidia-a100": "2"},
            A100S,
            id="a-node-that-says-only-its-family",
        ),
    ],
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
        UnclassifiedPods.TOTAL_ONLY: family,
        UnclassifiedPods.DENY: each,
        UnclassifiedPods.MOST_EXPENSIVE: each,
    }


def by_class(vector: Any) -> dict[str, str]:
    return {
        key.removeprefix("classes/"): amount
        for key, amount in texts(vector).items()
        if key.startswith("classes/")
    }


NOWHERE = pod(gpu_container("1"), nodeSelector={"accelerator": T4}, affinity=affinity(A100))
NVIDIA = ["nvidia-a100", "nvidia-a100-40gb", A100, H100, "nvidia-h200", T4]


@pytest.mark.parametrize(
    ("document", "unclassified_pods", "want", "denial"),
    [
        pytest.param(pod(gpu_container("1")), UnclassifiedPods.TOTAL_ONLY, {}, "", id="total-only"),
        pytest.param(
            pod(gpu_container("1")),
            UnclassifiedPods.DENY,
            {},
            "counts GPUs by class: it pins no GPU class",
            id="refuse",
        ),
        pytest.param(
            pod(gpu_container("1")),
            UnclassifiedPods.MOST_EXPENSIVE,
            {**dict.fromkeys(NVIDIA, "1"), "t4-shared": "1/4"},
            "",
            id="dearest-is-every-class-of-the-vendor-and-its-family",
        ),
        pytest.param(
            pod(gpu_container("2", resource="nvidia.com/mig-1g.20gb")),
            UnclassifiedPods.MOST_EXPENSIVE,
            {"nvidia-a100": "1/2", A100: "1/2"},
            "",
            id="dearest-of-slices-is-who-has-them",
        ),
        pytest.param(
            pod(asking(gpu="1", gpumem="8192")),
            UnclassifiedPods.MOST_EXPENSIVE,
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
            id="dearest-by-the-memory-of-each",
        ),
        pytest.param(
            pod(gpu_container("1", resource="volcano.sh/vgpu-number")),
            UnclassifiedPods.MOST_EXPENSIVE,
            {**dict.fromkeys([*NVIDIA, "amd-mi300x", "t4-shared"], "1")},
            "",
            id="dearest-of-what-no-class-is-known-to-have-is-all",
        ),
        pytest.param(NOWHERE, UnclassifiedPods.TOTAL_ONLY, {}, "", id="contradiction-total-only"),
        pytest.param(
            NOWHERE,
            UnclassifiedPods.DENY,
            {},
            "nodeSelector accelerator=nvidia-t4 and node affinity accelerator in (nvidia-a100-80gb) contradict each other "
            "and leave no GPU class",
            id="contradiction-refuse",
        ),
        pytest.param(
            NOWHERE,
            UnclassifiedPods.MOST_EXPENSIVE,
            {**dict.fromkeys(NVIDIA, "1"), "t4-shared": "1/4"},
            "",
            id="contradiction-dearest",
        ),
    ],
)
def test_unpinned(
    document: JSON, unclassified_pods: UnclassifiedPods, want: dict[str, str], denial: str
) -> None:
    demand = counted(document, unclassified_pods)

    assert by_class(demand.vector) == want
    assert demand.vector["gpus"] > 0
    assert bool(demand.denials) == bool(denial)
    assert denial in " ".join(each.sentence() for each in demand.denials)


@pytest.mark.parametrize(
    ("document", "labels", "want"),
    [
        pytest.param(
            on("nvidia-a100", gpu_container("2")),
            {"accelerator": A100},
            {"nvidia-a100": "2", A100: "2"},
            id="the-family-becomes-the-class",
        ),
        pytest.param(pod(gpu_container("2")), {"accelerator": T4}, {T4: "2"}, id="unpinned-has-a-class-now"),
        pytest.param(
            pod(gpu_container("2")),
            {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "zone": "a"},
            {H100: "2"},
            id="a-label-of-the-vendor",
        ),
        pytest.param(
            on(T4, gpu_container("2")),
            {"accelerator": A100},
            {"nvidia-a100": "2", A100: "2"},
            id="the-node-decides",
        ),
        pytest.param(
            on(T4, gpu_container("2")), {"zone": "a"}, {T4: "2"}, id="a-node-of-no-class-leaves-the-pin"
        ),
        pytest.param(
            pod(gpu_container("1")),
            {"accelerator": T4, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            {T4: "1", H100: "1"},
            id="labels-that-contradict-each-other",
        ),
        pytest.param(
            pod(asking(gpu="1", gpumem="8192")), {"accelerator": T4}, {T4: "1/2"}, id="memory-is-known-now"
        ),
    ],
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


@pytest.mark.parametrize(
    ("spec", "labels", "unclassified_pods", "want", "denial"),
    [
        pytest.param(
            {"nodeName": "node"}, {}, UnclassifiedPods.TOTAL_ONLY, {}, "", id="of-no-class-total-only"
        ),
        pytest.param(
            {"nodeName": "node"}, {}, UnclassifiedPods.MOST_EXPENSIVE, ANY, "", id="of-no-class-dearest"
        ),
        pytest.param(
            {"nodeName": "node"},
            {},
            UnclassifiedPods.DENY,
            {},
            "its node node has no label of a GPU class",
            id="of-no-class-refuse",
        ),
        pytest.param(SELECTS, {}, UnclassifiedPods.TOTAL_ONLY, {}, "", id="hostname-of-no-class-total-only"),
        pytest.param(
            SELECTS, {}, UnclassifiedPods.MOST_EXPENSIVE, ANY, "", id="hostname-of-no-class-dearest"
        ),
        pytest.param(
            SELECTS, {"accelerator": T4}, UnclassifiedPods.TOTAL_ONLY, {T4: "1"}, "", id="hostname-of-a-class"
        ),
        pytest.param(
            SELECTS, {"accelerator": T4}, UnclassifiedPods.DENY, {T4: "1"}, "", id="hostname-of-a-class-pins"
        ),
        pytest.param(
            {"nodeName": "other"}, {}, UnclassifiedPods.TOTAL_ONLY, ANY, "", id="unknown-costs-every-class"
        ),
        pytest.param(
            {"nodeName": "other"}, {}, UnclassifiedPods.MOST_EXPENSIVE, ANY, "", id="unknown-dearest"
        ),
        pytest.param(
            {"nodeName": "other"},
            {},
            UnclassifiedPods.DENY,
            ANY,
            "must name a GPU class",
            id="unknown-refuse-and-charge-if-stored",
        ),
        pytest.param(
            {"nodeSelector": {HOSTNAME: "other"}},
            {},
            UnclassifiedPods.DENY,
            ANY,
            "node other is not known",
            id="unknown-hostname",
        ),
    ],
)
def test_what_a_node_says_of_the_class(
    spec: JSON, labels: dict[str, str], unclassified_pods: UnclassifiedPods, want: dict[str, str], denial: str
) -> None:
    demand = counted(pod(gpu_container("1"), **spec), unclassified_pods, nodes=index({"node": labels}))

    assert by_class(demand.vector) == want
    assert demand.vector["gpus"] == 1
    assert bool(demand.denials) == bool(denial)
    assert denial in " ".join(each.sentence() for each in demand.denials)


@pytest.mark.parametrize(
    ("document", "vector", "sentence"),
    [
        pytest.param(
            pod(gpu_container("many")),
            {},
            (
                'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "many": set a whole number '
                "such as 1; must be a quantity that a quota can count [gpu-quota]"
            ),
            id="no-number",
        ),
        pytest.param(
            pod(gpu_container("-1"), gpu_container("2", "b")),
            {"gpus": "2", GPU: "2"},
            'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "-1"',
            id="negative-takes-nothing-away",
        ),
        pytest.param(
            pod(container(resources={"requests": {"nvidia.com/gpu": "1e99"}})),
            {},
            "spec.containers[0].resources.requests[nvidia.com/gpu]",
            id="more-than-can-be-counted",
        ),
        pytest.param(
            pod(initContainers=[gpu_container("x", "i")]),
            {},
            'spec.initContainers[0].resources.limits[nvidia.com/gpu] (container "i") = "x"',
            id="in-an-init-container",
        ),
        pytest.param(
            pod(overhead={"nvidia.com/gpu": "x"}),
            {},
            'spec.overhead[nvidia.com/gpu] = "x"',
            id="in-the-overhead",
        ),
        pytest.param(
            pod(annotations={"gpu-fraction": "half"}),
            {"gpus": "1"},
            'metadata.annotations[gpu-fraction] = "half": set the part of one GPU, such as "0.5", or request',
            id="fraction-that-is-none-is-a-whole-card",
        ),
        pytest.param(
            pod(annotations={"gpu-fraction": "0.5", "gpu-fraction-num-devices": "two"}),
            {"gpus": "1/2"},
            'metadata.annotations[gpu-fraction-num-devices] = "two"',
            id="number-of-devices-that-is-none",
        ),
    ],
)
def test_what_cannot_be_read_is_a_denial(document: JSON, vector: dict[str, str], sentence: str) -> None:
    demand = counted(document)

    assert texts(demand.vector) == vector
    assert len(demand.denials) == 1
    assert sentence in demand.denials[0].sentence()


def test_what_is_no_gpu_may_be_unreadable() -> None:
    assert counted(pod(gpu_container("x", resource="example.com/dongle"))).denials == ()


@pytest.mark.parametrize(
    ("number", "want"),
    [
        pytest.param(64, {T4: "1"}, id="as-many-as-are-looked-up"),
        pytest.param(65, ANY, id="too-many-may-be-of-any-class"),
    ],
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
    assert (
        by_class(counted(pod(gpu_container("2")), UnclassifiedPods.MOST_EXPENSIVE, classes=nothing).vector)
        == {}
    )
