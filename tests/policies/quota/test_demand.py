"""What a pod costs, case by case: plain counts, whole cards, classes and families."""

from policies.quota.amounts import amount_texts
from tests.builders import JSON, container, gpu_container, pod
from tests.cases import cases
from tests.policies.quota.charging import counted
from tests.policies.quota.demands import A100, GPU, H100, T4, asking, on

ONE, TWO = {"gpus": "1", GPU: "1"}, {"gpus": "2", GPU: "2"}


def slices(count: str, profile: str, name: str = "main") -> JSON:
    return gpu_container(count, name, f"nvidia.com/mig-{profile}")


@cases(
    ("document", "want"),
    no_gpu_counts_nothing=(pod(), {}),
    zero_counts_nothing=(pod(gpu_container("0")), {}),
    limit_is_the_request=(pod(gpu_container("2")), TWO),
    overhead=(pod(gpu_container("1"), overhead={"nvidia.com/gpu": "1", "cpu": "1"}), TWO),
    gated_counts=(pod(gpu_container("1"), schedulingGates=[{"name": "example.com/later"}]), ONE),
    a_claim_is_counted_by_itself=(
        pod(gpu_container("1"), resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]),
        ONE,
    ),
    two_vendors=(
        pod(container(resources={"limits": {"nvidia.com/gpu": "1", "amd.com/gpu": "2"}})),
        {"gpus": "3", GPU: "1", "resources/amd.com/gpu": "2"},
    ),
    what_is_no_gpu=(pod(container(resources={"limits": {"rdma/hca": "1", "cpu": "4"}})), {}),
    cores_that_no_class_weighs=(
        pod(gpu_container("2", resource="aws.amazon.com/neuroncore")),
        {"gpus": "2", "resources/aws.amazon.com/neuroncore": "2"},
    ),
    succeeded_counts_nothing=({**pod(gpu_container("2")), "status": {"phase": "Succeeded"}}, {}),
    failed_counts_nothing=({**pod(gpu_container("2")), "status": {"phase": "Failed"}}, {}),
    running_counts_all=({**pod(gpu_container("2")), "status": {"phase": "Running"}}, TWO),
)
def test_total(document: JSON, want: dict[str, str]) -> None:
    assert amount_texts(counted(document).vector) == want


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
    a_quarter_by_memory_though_a_seventh_by_compute=(on(A100, slices("4", "1g.20gb")), "1"),
    seven_sevenths=(on(A100, slices("7", "1g.10gb")), "1"),
    only_one_class_has_these_slices=(pod(slices("7", "1g.10gb")), "1"),
    a_slice_that_no_class_has_is_a_whole_card=(on(A100, slices("1", "9g.99gb")), "1"),
    cards_and_slices_add_up=(CARD_AND_SLICES, "9/7"),
    a_time_sliced_pool_says_its_weight=(on("t4-shared", gpu_container("1")), "1/4"),
    weighed_shares=(on("t4-shared", gpu_container("2", resource="nvidia.com/gpu.shared")), "1/2"),
    its_own=(on(T4, asking("a", gpu="1", gpumem="4096"), asking("b", gpu="1", gpumem="8192")), "3/4"),
    the_larger_of_memory_and_compute=(on(T4, asking(gpu="1", gpumem="4096", gpucores="60")), "3/5"),
    never_more_than_the_card=(on(T4, asking(gpu="1", gpumem="99999")), "1"),
    memory_of_an_unknown_card_is_all_of_it=(pod(asking(gpu="2", gpumem="4096")), "2"),
    a_percentage_needs_no_class=(pod(asking(gpu="1", gpumem_percentage="25")), "1/4"),
    compute_alone_leaves_all_the_memory_to_it=(pod(asking(gpu="1", gpucores="50")), "1"),
    bytes_of_an_unknown_card=(pod(INTEL), "1"),
    an_init_step_with_more_memory=(MORE_AT_FIRST, "1/2"),
    fraction_is_exact=(pod(annotations={"gpu-fraction": "0.3"}), "3/10"),
    several_devices=(pod(annotations={"gpu-fraction": "0.5", "gpu-fraction-num-devices": "3"}), "3/2"),
    memory_by_annotation_of_any_card=(pod(annotations={"gpu-memory": "4096"}), "1"),
    a_number_of_devices_alone=(pod(annotations={"gpu-fraction-num-devices": "3"}), None),
    devices_by_an_implicit_name=(on(H100, gpu_container("2", resource=DEVICES)), "2"),
    implicit_names_are_rounded_up=(on(H100, gpu_container("1500m", resource=DEVICES)), "2"),
    devices_of_a_class_that_is_no_gpu=(
        pod(gpu_container("2", resource="deviceclass.resource.kubernetes.io/nic.vendor.com")),
        None,
    ),
)
def test_whole_cards(document: JSON, gpus: str | None) -> None:
    assert amount_texts(counted(document).vector).get("gpus") == gpus


@cases(
    ("document", "want"),
    memory_and_compute_in_their_own_units=(
        on(T4, asking("a", gpu="1", gpumem="4096", gpucores="60"), asking("b", gpu="1", gpumem="8192")),
        {GPU: "2", "resources/nvidia.com/gpucores": "60", "resources/nvidia.com/gpumem": "12288"},
    ),
    bytes=(
        pod(INTEL),
        {
            "resources/gpu.intel.com/i915": "1",
            "resources/gpu.intel.com/memory.max": "1073741824",
            "resources/gpu.intel.com/millicores": "300",
        },
    ),
    slices_and_cards=(CARD_AND_SLICES, {GPU: "1", "resources/nvidia.com/mig-1g.10gb": "2"}),
    the_largest_init_step=(MORE_AT_FIRST, {GPU: "1", "resources/nvidia.com/gpumem": "8192"}),
    implicit_name=(on(H100, gpu_container("1500m", resource=DEVICES)), {f"resources/{DEVICES}": "2"}),
    nothing_of_annotations=(on(T4, annotations={"gpu-memory": "4096"}), {}),
)
def test_plain_counts(document: JSON, want: dict[str, str]) -> None:
    vector = amount_texts(counted(document).vector)

    assert {key: amount for key, amount in vector.items() if key.startswith("resources/")} == want


@cases(
    ("document", "vector", "sentence"),
    no_number=(
        pod(gpu_container("many")),
        {},
        'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "many": set a whole number '
        "such as 1; must be a quantity that a quota can count",
    ),
    negative_takes_nothing_away=(
        pod(gpu_container("-1"), gpu_container("2", "b")),
        TWO,
        'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "-1"',
    ),
    more_than_can_be_counted=(
        pod(container(resources={"requests": {"nvidia.com/gpu": "1e99"}})),
        {},
        "spec.containers[0].resources.requests[nvidia.com/gpu]",
    ),
    in_an_init_container=(
        pod(initContainers=[gpu_container("x", "i")]),
        {},
        'spec.initContainers[0].resources.limits[nvidia.com/gpu] (container "i") = "x"',
    ),
    in_the_overhead=(pod(overhead={"nvidia.com/gpu": "x"}), {}, 'spec.overhead[nvidia.com/gpu] = "x"'),
    fraction_that_is_none_is_a_whole_card=(
        pod(annotations={"gpu-fraction": "half"}),
        {"gpus": "1"},
        'metadata.annotations[gpu-fraction] = "half": set the part of one GPU, such as "0.5", or remove',
    ),
    number_of_devices_that_is_none=(
        pod(annotations={"gpu-fraction": "0.5", "gpu-fraction-num-devices": "two"}),
        {"gpus": "1/2"},
        'metadata.annotations[gpu-fraction-num-devices] = "two"',
    ),
)
def test_what_cannot_be_read_is_a_denial(document: JSON, vector: dict[str, str], sentence: str) -> None:
    demand = counted(document)

    assert amount_texts(demand.vector) == vector
    assert len(demand.denials) == 1
    assert sentence in demand.denials[0].sentence()


def test_what_is_no_gpu_may_be_unreadable() -> None:
    assert counted(pod(gpu_container("x", resource="example.com/dongle"))).denials == ()
