"""What a pod costs, case by case: plain counts, whole cards, classes and families."""

from typing import Any

from policies.quota.amounts import texts
from tests.builders import JSON, container, gpu_container, pod
from tests.cases import cases
from tests.policies.quota.charging import counted

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
ONE, TWO = {"gpus": "1", GPU: "1"}, {"gpus": "2", GPU: "2"}


def slices(count: str, profile: str, name: str = "main") -> JSON:
    return gpu_container(count, name, f"nvidia.com/mig-{profile}")


@cases(
    ("document", "want"),
    {
        "no-gpu-counts-nothing": (pod(), {}),
        "zero-counts-nothing": (pod(gpu_container("0")), {}),
        "limit-is-the-request": (pod(gpu_container("2")), TWO),
        "another-spelling-of-two": (pod(gpu_container("2000m")), TWO),
        "two-containers": (pod(gpu_container("1", "a"), gpu_container("1", "b")), TWO),
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
        "overhead": (pod(gpu_container("1"), overhead={"nvidia.com/gpu": "1", "cpu": "1"}), TWO),
        "gated-counts": (pod(gpu_container("1"), schedulingGates=[{"name": "example.com/later"}]), ONE),
        "a-claim-is-counted-by-itself": (
            pod(gpu_container("1"), resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]),
            ONE,
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
        "succeeded-counts-nothing": ({**pod(gpu_container("2")), "status": {"phase": "Succeeded"}}, {}),
        "failed-counts-nothing": ({**pod(gpu_container("2")), "status": {"phase": "Failed"}}, {}),
        "running-counts-all": ({**pod(gpu_container("2")), "status": {"phase": "Running"}}, TWO),
    },
)
def test_total(document: JSON, want: dict[str, str]) -> None:
    assert texts(counted(document).vector) == want


INTEL = container(
    resources={
        "limits": {
            "gpu.intel.com/i915": "1",
            "gpu.intel.com/millicores": "300",
            "gpu.intel.com/memory.max": "1Gi",
        }
    }
)
CARD_AND_SLICES = on(A100, asking(gpu="1", mig_1g_10gb="0"), slices("2", "1g.10gb", "b"))
MORE_AT_FIRST = on(T4, asking(gpu="1", gpumem="4096"), initContainers=[asking("i", gpu="1", gpumem="8192")])
DEVICES = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"


@cases(
    ("document", "gpus"),
    {
        "a-quarter-by-memory-though-a-seventh-by-compute": (on(A100, slices("4", "1g.20gb")), "1"),
        "half-by-memory-though-three-sevenths-by-compute": (on(A100, slices("1", "3g.40gb")), "1/2"),
        "seven-sevenths": (on(A100, slices("7", "1g.10gb")), "1"),
        "only-one-class-has-these-slices": (pod(slices("7", "1g.10gb")), "1"),
        "a-slice-that-no-class-has-is-a-whole-card": (on(A100, slices("1", "9g.99gb")), "1"),
        "cards-and-slices-add-up": (CARD_AND_SLICES, "9/7"),
        "a-time-sliced-pool-says-its-weight": (on("t4-shared", gpu_container("1")), "1/4"),
        "shares-that-a-class-weighs": (
            on("t4-shared", gpu_container("2", resource="nvidia.com/gpu.shared")),
            "1/2",
        ),
        "shares-that-no-class-weighs": (on(A100, gpu_container("2", resource="nvidia.com/gpu.shared")), "2"),
        "memory-is-of-each-of-the-gpus": (on(T4, asking(gpu="2", gpumem="4096")), "1/2"),
        "memory-belongs-to-its-own-container": (
            on(T4, asking("a", gpu="1", gpumem="4096"), asking("b", gpu="1", gpumem="8192")),
            "3/4",
        ),
        "the-larger-of-memory-and-compute": (on(T4, asking(gpu="1", gpumem="4096", gpucores="60")), "3/5"),
        "memory-alone-is-of-one-gpu": (on(T4, asking(gpumem="4096")), "1/4"),
        "never-more-than-the-card": (on(T4, asking(gpu="1", gpumem="99999")), "1"),
        "memory-of-an-unknown-card-is-all-of-it": (pod(asking(gpu="2", gpumem="4096")), "2"),
        "a-percentage-needs-no-class": (pod(asking(gpu="1", gpumem_percentage="25")), "1/4"),
        "compute-alone-leaves-all-the-memory-to-it": (pod(asking(gpu="1", gpucores="50")), "1"),
        "bytes-of-an-unknown-card": (pod(INTEL), "1"),
        "an-init-step-with-more-memory": (MORE_AT_FIRST, "1/2"),
        "fraction-is-exact": (pod(annotations={"gpu-fraction": "0.3"}), "3/10"),
        "no-less-than-a-hundredth": (pod(annotations={"gpu-fraction": "0.000000001"}), "1/100"),
        "fraction-of-several-devices": (
            pod(annotations={"gpu-fraction": "0.5", "gpu-fraction-num-devices": "3"}),
            "3/2",
        ),
        "memory-by-annotation": (on(T4, annotations={"gpu-memory": "4096"}), "1/4"),
        "memory-by-annotation-of-any-card": (pod(annotations={"gpu-memory": "4096"}), "1"),
        "a-number-of-devices-alone": (pod(annotations={"gpu-fraction-num-devices": "3"}), None),
        "devices-by-an-implicit-name": (on(H100, gpu_container("2", resource=DEVICES)), "2"),
        "implicit-names-are-rounded-up-as-the-scheduler-does": (
            on(H100, gpu_container("1500m", resource=DEVICES)),
            "2",
        ),
        "devices-of-a-class-that-is-no-gpu": (
            pod(gpu_container("2", resource="deviceclass.resource.kubernetes.io/nic.vendor.com")),
            None,
        ),
    },
)
def test_whole_cards(document: JSON, gpus: str | None) -> None:
    assert texts(counted(document).vector).get("gpus") == gpus


@cases(
    ("document", "want"),
    {
        "memory-and-compute-in-their-own-units": (
            on(T4, asking("a", gpu="1", gpumem="4096", gpucores="60"), asking("b", gpu="1", gpumem="8192")),
            {GPU: "2", "resources/nvidia.com/gpucores": "60", "resources/nvidia.com/gpumem": "12288"},
        ),
        "bytes": (
            pod(INTEL),
            {
                "resources/gpu.intel.com/i915": "1",
                "resources/gpu.intel.com/memory.max": "1073741824",
                "resources/gpu.intel.com/millicores": "300",
            },
        ),
        "slices-and-cards": (CARD_AND_SLICES, {GPU: "1", "resources/nvidia.com/mig-1g.10gb": "2"}),
        "the-largest-init-step": (MORE_AT_FIRST, {GPU: "1", "resources/nvidia.com/gpumem": "8192"}),
        "whole-devices-by-an-implicit-name": (
            on(H100, gpu_container("1500m", resource=DEVICES)),
            {f"resources/{DEVICES}": "2"},
        ),
        "nothing-of-annotations": (on(T4, annotations={"gpu-memory": "4096"}), {}),
    },
)
def test_plain_counts(document: JSON, want: dict[str, str]) -> None:
    vector = texts(counted(document).vector)

    assert {key: amount for key, amount in vector.items() if key.startswith("resources/")} == want


@cases(
    ("document", "vector", "sentence"),
    {
        "no-number": (
            pod(gpu_container("many")),
            {},
            'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "many": set a whole number '
            "such as 1; must be a quantity that a quota can count [gpu-quota]",
        ),
        "negative-takes-nothing-away": (
            pod(gpu_container("-1"), gpu_container("2", "b")),
            TWO,
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
