"""What a pod costs, case by case: plain counts, whole cards, classes and families."""

from typing import Any

import pytest

from policies.gpus.classes import ClassCatalogue
from policies.placement.named_nodes import HOSTNAME
from policies.quota.amounts import texts
from policies.quota.demand import UnclassifiedPods
from tests.builders import JSON, container, gpu_container, pod
from tests.cases import cases
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


@cases(
    ("document", "want"),
    {
        "no-gpu-costs-nothing": (pod(), {}),
        "zero-costs-nothing": (pod(gpu_container("0")), {}),
        "limit-is-the-request": (pod(gpu_container("2")), {"gpus": "2", GPU: "2"}),
        "another-spelling-of-two": (pod(gpu_container("2000m")), {"gpus": "2", GPU: "2"}),
        "two-containers": (pod(gpu_container("1", "a"), gpu_container("1", "b")), {"gpus": "2", GPU: "2"}),
        "largest-init-step": (
            pod(gpu_container("2"), initContainers=[gpu_container("3", "i"), gpu_container("1", "j")]),
            {"gpus": "3", GPU: "3"},
        ),
        "init-step-beside-the-sidecar-before-it": (
            pod(gpu_container("2"), initContainers=[sidecar("1", "s"), gpu_container("4", "i")]),
            {"gpus": "5", GPU: "5"},
        ),
        "later-sidecar-is-not-there-yet": (
            pod(gpu_container("2"), initContainers=[gpu_container("4", "i"), sidecar("1", "s")]),
            {"gpus": "4", GPU: "4"},
        ),
        "overhead": (
            pod(gpu_container("1"), overhead={"nvidia.com/gpu": "1", "cpu": "1"}),
            {"gpus": "2", GPU: "2"},
        ),
        "gated-counts": (
            pod(gpu_container("1"), schedulingGates=[{"name": "example.com/later"}]),
            {"gpus": "1", GPU: "1"},
        ),
        "a-claim-is-charged-by-itself": (
            pod(gpu_container("1"), resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]),
            {"gpus": "1", GPU: "1"},
        ),
        "two-vendors": (
            pod(container(resources={"limits": {"nvidia.com/gpu": "1", "amd.com/gpu": "2"}})),
            {"gpus": "3", GPU: "1", "resources/amd.com/gpu": "2"},
        ),
        "what-is-no-gpu": (pod(container(resources={"limits": {"rdma/hca": "1", "cpu": "4"}})), {}),
        "cores-that-no-class-weighs": (
            pod(gpu_container("2", resource="aws.amazon.com/neuroncore")),
            {"gpus": "2", "resources/aws.amazon.com/neuroncore": "2"},
        ),
        "succeeded-costs-nothing": ({**pod(gpu_container("2")), "status": {"phase": "Succeeded"}}, {}),
        "failed-costs-nothing": ({**pod(gpu_container("2")), "status": {"phase": "Failed"}}, {}),
        "running-costs-all": (
            {**pod(gpu_container("2")), "status": {"phase": "Running"}},
            {"gpus": "2", GPU: "2"},
        ),
    },
)
def test_total(document: JSON, want: dict[str, str]) -> None:
    assert texts(counted(document).vector) == want


@cases(
    ("document", "want"),
    {
        "a-quarter-by-memory-though-a-seventh-by-compute": (
            on(A100, gpu_container("4", resource="nvidia.com/mig-1g.20gb")),
            {"gpus": "1", "resources/nvidia.com/mig-1g.20gb": "4"},
        ),
        "half-by-memory-though-three-sevenths-by-compute": (
            on(A100, gpu_container("1", resource="nvidia.com/mig-3g.40gb")),
            {"gpus": "1/2", "resources/nvidia.com/mig-3g.40gb": "1"},
        ),
        "seven-sevenths": (
            on(A100, gpu_container("7", resource="nvidia.com/mig-1g.10gb")),
            {"gpus": "1", "resources/nvidia.com/mig-1g.10gb": "7"},
        ),
        "only-one-class-has-these-slices": (
            pod(gpu_container("7", resource="nvidia.com/mig-1g.10gb")),
            {"gpus": "1", "resources/nvidia.com/mig-1g.10gb": "7"},
        ),
        "a-slice-that-no-class-has-is-a-whole-card": (
            on(A100, gpu_container("1", resource="nvidia.com/mig-9g.99gb")),
            {"gpus": "1", "resources/nvidia.com/mig-9g.99gb": "1"},
        ),
        "cards-and-slices-add-up": (
            on(A100, asking(gpu="1", mig_1g_10gb="0"), gpu_container("2", "b", "nvidia.com/mig-1g.10gb")),
            {"gpus": "9/7", GPU: "1", "resources/nvidia.com/mig-1g.10gb": "2"},
        ),
        "a-time-sliced-pool-says-its-weight": (
            on("t4-shared", gpu_container("1")),
            {"gpus": "1/4", GPU: "1"},
        ),
        "shares-that-a-class-weighs": (
            on("t4-shared", gpu_container("2", resource="nvidia.com/gpu.shared")),
            {"gpus": "1/2", SHARED: "2"},
        ),
        "shares-that-no-class-weighs": (
            on(A100, gpu_container("2", resource="nvidia.com/gpu.shared")),
            {"gpus": "2", SHARED: "2"},
        ),
        "memory-is-of-each-of-the-gpus": (
            on(T4, asking(gpu="2", gpumem="4096")),
            {"gpus": "1/2", GPU: "2", "resources/nvidia.com/gpumem": "4096"},
        ),
        "memory-belongs-to-its-own-container": (
            on(T4, asking("a", gpu="1", gpumem="4096"), asking("b", gpu="1", gpumem="8192")),
            {"gpus": "3/4", GPU: "2", "resources/nvidia.com/gpumem": "12288"},
        ),
        "the-larger-of-memory-and-compute": (
            on(T4, asking(gpu="1", gpumem="4096", gpucores="60")),
            {
                "gpus": "3/5",
                GPU: "1",
                "resources/nvidia.com/gpucores": "60",
                "resources/nvidia.com/gpumem": "4096",
            },
        ),
        "memory-alone-is-of-one-gpu": (
            on(T4, asking(gpumem="4096")),
            {"gpus": "1/4", "resources/nvidia.com/gpumem": "4096"},
        ),
        "never-more-than-the-card": (
            on(T4, asking(gpu="1", gpumem="99999")),
            {"gpus": "1", GPU: "1", "resources/nvidia.com/gpumem": "99999"},
        ),
        "memory-of-an-unknown-card-is-all-of-it": (
            pod(asking(gpu="2", gpumem="4096")),
            {"gpus": "2", GPU: "2", "resources/nvidia.com/gpumem": "4096"},
        ),
        "a-percentage-needs-no-class": (
            pod(asking(gpu="1", gpumem_percentage="25")),
            {"gpus": "1/4", GPU: "1", "resources/nvidia.com/gpumem-percentage": "25"},
        ),
        "compute-alone-leaves-all-the-memory-to-it": (
            pod(asking(gpu="1", gpucores="50")),
            {"gpus": "1", GPU: "1", "resources/nvidia.com/gpucores": "50"},
        ),
        "bytes-of-an-unknown-card": (
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
        ),
        "an-init-step-with-more-memory": (
            on(T4, asking(gpu="1", gpumem="4096"), initContainers=[asking("i", gpu="1", gpumem="8192")]),
            {"gpus": "1/2", GPU: "1", "resources/nvidia.com/gpumem": "8192"},
        ),
        "fraction-is-exact": (pod(annotations={"gpu-fraction": "0.3"}), {"gpus": "3/10"}),
        "no-less-than-a-hundredth": (pod(annotations={"gpu-fraction": "0.000000001"}), {"gpus": "1/100"}),
        "fraction-of-several-devices": (
            pod(annotations={"gpu-fraction": "0.5", "gpu-fraction-num-devices": "3"}),
            {"gpus": "3/2"},
        ),
        "memory-by-annotation": (on(T4, annotations={"gpu-memory": "4096"}), {"gpus": "1/4"}),
        "memory-by-annotation-of-any-card": (pod(annotations={"gpu-memory": "4096"}), {"gpus": "1"}),
        "a-number-of-devices-alone": (pod(annotations={"gpu-fraction-num-devices": "3"}), {}),
        "devices-by-an-implicit-name": (
            on(H100, gpu_container("2", resource="deviceclass.resource.kubernetes.io/gpu.nvidia.com")),
            {"gpus": "2", "resources/deviceclass.resource.kubernetes.io/gpu.nvidia.com": "2"},
        ),
        "implicit-names-are-rounded-up-as-the-scheduler-does": (
            on(H100, gpu_container("1500m", resource="deviceclass.resource.kubernetes.io/gpu.nvidia.com")),
            {"gpus": "2", "resources/deviceclass.resource.kubernetes.io/gpu.nvidia.com": "2"},
        ),
        "devices-of-a-class-that-is-no-gpu": (
            pod(gpu_container("2", resource="deviceclass.resource.kubernetes.io/nic.vendor.com")),
            {},
        ),
    },
)
def test_whole_cards(document: JSON, want: dict[str, str]) -> None:
    vector = texts(counted(document).vector)

    assert {key: amount for key, amount in vector.items() if not key.startswith("classes/")} == want


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
        "another-vendors-class-is-charged-all-the-same": (
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
        "two-of-them-at-the-dearest": (
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


@cases(
    ("document", "unclassified_pods", "want", "denial"),
    {
        "total-only": (pod(gpu_container("1")), UnclassifiedPods.TOTAL_ONLY, {}, ""),
        "refuse": (
            pod(gpu_container("1")),
            UnclassifiedPods.DENY,
            {},
            "counts GPUs by class: it pins no GPU class",
        ),
        "dearest-is-every-class-of-the-vendor-and-its-family": (
            pod(gpu_container("1")),
            UnclassifiedPods.MOST_EXPENSIVE,
            {**dict.fromkeys(NVIDIA, "1"), "t4-shared": "1/4"},
            "",
        ),
        "dearest-of-slices-is-who-has-them": (
            pod(gpu_container("2", resource="nvidia.com/mig-1g.20gb")),
            UnclassifiedPods.MOST_EXPENSIVE,
            {"nvidia-a100": "1/2", A100: "1/2"},
            "",
        ),
        "dearest-by-the-memory-of-each": (
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
        ),
        "dearest-of-what-no-class-is-known-to-have-is-all": (
            pod(gpu_container("1", resource="volcano.sh/vgpu-number")),
            UnclassifiedPods.MOST_EXPENSIVE,
            {**dict.fromkeys([*NVIDIA, "amd-mi300x", "t4-shared"], "1")},
            "",
        ),
        "contradiction-total-only": (NOWHERE, UnclassifiedPods.TOTAL_ONLY, {}, ""),
        "contradiction-refuse": (
            NOWHERE,
            UnclassifiedPods.DENY,
            {},
            "nodeSelector accelerator=nvidia-t4 and node affinity accelerator in (nvidia-a100-80gb) contradict each other "
            "and leave no GPU class",
        ),
        "contradiction-dearest": (
            NOWHERE,
            UnclassifiedPods.MOST_EXPENSIVE,
            {**dict.fromkeys(NVIDIA, "1"), "t4-shared": "1/4"},
            "",
        ),
    },
)
def test_unpinned(
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
        "unpinned-has-a-class-now": (pod(gpu_container("2")), {"accelerator": T4}, {T4: "2"}),
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
        "of-no-class-total-only": ({"nodeName": "node"}, {}, UnclassifiedPods.TOTAL_ONLY, {}, ""),
        "of-no-class-dearest": ({"nodeName": "node"}, {}, UnclassifiedPods.MOST_EXPENSIVE, ANY, ""),
        "of-no-class-refuse": (
            {"nodeName": "node"},
            {},
            UnclassifiedPods.DENY,
            {},
            "its node node has no label of a GPU class",
        ),
        "hostname-of-no-class-total-only": (SELECTS, {}, UnclassifiedPods.TOTAL_ONLY, {}, ""),
        "hostname-of-no-class-dearest": (SELECTS, {}, UnclassifiedPods.MOST_EXPENSIVE, ANY, ""),
        "hostname-of-a-class": (SELECTS, {"accelerator": T4}, UnclassifiedPods.TOTAL_ONLY, {T4: "1"}, ""),
        "hostname-of-a-class-pins": (SELECTS, {"accelerator": T4}, UnclassifiedPods.DENY, {T4: "1"}, ""),
        "unknown-costs-every-class": ({"nodeName": "other"}, {}, UnclassifiedPods.TOTAL_ONLY, ANY, ""),
        "unknown-dearest": ({"nodeName": "other"}, {}, UnclassifiedPods.MOST_EXPENSIVE, ANY, ""),
        "unknown-refuse-and-charge-if-stored": (
            {"nodeName": "other"},
            {},
            UnclassifiedPods.DENY,
            ANY,
            "must name a GPU class",
        ),
        "unknown-hostname": (
            {"nodeSelector": {HOSTNAME: "other"}},
            {},
            UnclassifiedPods.DENY,
            ANY,
            "node other is not known",
        ),
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
    ("document", "vector", "sentence"),
    {
        "no-number": (
            pod(gpu_container("many")),
            {},
            (
                'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "many": set a whole number '
                "such as 1; must be a quantity that a quota can count [gpu-quota]"
            ),
        ),
        "negative-takes-nothing-away": (
            pod(gpu_container("-1"), gpu_container("2", "b")),
            {"gpus": "2", GPU: "2"},
            'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "-1"',
        ),
        "more-than-can-be-counted": (
            pod(container(resources={"requests": {"nvidia.com/gpu": "1e99"}})),
            {},
            "spec.containers[0].resources.requests[nvidia.com/gpu]",
        ),
        "in-an-init-container": (
            pod(initContainers=[gpu_container("x", "i")]),
            {},
            'spec.initContainers[0].resources.limits[nvidia.com/gpu] (container "i") = "x"',
        ),
        "in-the-overhead": (pod(overhead={"nvidia.com/gpu": "x"}), {}, 'spec.overhead[nvidia.com/gpu] = "x"'),
        "fraction-that-is-none-is-a-whole-card": (
            pod(annotations={"gpu-fraction": "half"}),
            {"gpus": "1"},
            'metadata.annotations[gpu-fraction] = "half": set the part of one GPU, such as "0.5", or request',
        ),
        "number-of-devices-that-is-none": (
            pod(annotations={"gpu-fraction": "0.5", "gpu-fraction-num-devices": "two"}),
            {"gpus": "1/2"},
            'metadata.annotations[gpu-fraction-num-devices] = "two"',
        ),
    },
)
def test_what_cannot_be_read_is_a_denial(document: JSON, vector: dict[str, str], sentence: str) -> None:
    demand = counted(document)

    assert texts(demand.vector) == vector
    assert len(demand.denials) == 1
    assert sentence in demand.denials[0].sentence()


def test_what_is_no_gpu_may_be_unreadable() -> None:
    assert counted(pod(gpu_container("x", resource="example.com/dongle"))).denials == ()


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
    assert (
        by_class(counted(pod(gpu_container("2")), UnclassifiedPods.MOST_EXPENSIVE, classes=nothing).vector)
        == {}
    )
