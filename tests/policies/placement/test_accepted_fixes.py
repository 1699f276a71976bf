"""Which fixes of rule gpu-requests are kept: those after which no rule finds anything else."""

from typing import Any

from policies.finding import Finding
from policies.rules.gpu_requests import GPURequestsOptions, check
from tests.builders import JSON, container, context, gpu_container, pod, view
from tests.cases import cases

GPU, CORES, IMPLICIT = "nvidia.com/gpu", "nvidia.com/gpucores", "deviceclass.resource.kubernetes.io/big"
SLICE, UNKNOWN_SLICE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-9g.99gb"
LIMITED = GPURequestsOptions(max_per_container=2, max_per_pod=2)
NO_GPU_YET: JSON = {"limits": {GPU: "0"}, "requests": {GPU: "1.5"}}
A = {"zone": "a"}
RANKS = ["torchrun", "--nproc_per_node=2"]
ROUND, OF_A_SLICE = "round it up or down", "request nvidia.com/mig-1g.5gb or nvidia.com/mig-7g.80gb"


def findings(document: JSON, options: GPURequestsOptions | None = None) -> list[Finding]:
    return list(check(view(document), options or GPURequestsOptions(), context()))


def of(*limits: str, **spec: Any) -> JSON:
    """Return a pod with a container for each `amount of a resource`."""
    listed = [each.partition(" ")[::2] for each in limits]
    return pod(
        *[gpu_container(count, f"c{at}", resource=of) for at, (count, of) in enumerate(listed)], **spec
    )


def one(limits: JSON, requests: JSON | None = None, **fields: Any) -> JSON:
    return pod(container(resources={"limits": limits, "requests": requests or {}}, **fields))


@cases(
    ("document", "written", "advice"),
    rounded_up_or_down=(of(f"1.5 {GPU}"), [1, 2], f"set {GPU}: 1 or 2"),
    rounded_up_in_a_measure_of_a_part=(of(f"1.5 {CORES}"), [1, 2], f"set {CORES}: 1 or 2"),
    down_to_as_many_as_are_allowed=(of(f"2.5 {GPU}"), [2], f"set {GPU}: 2"),
    both_are_more_than_allowed=(of(f"3.5 {GPU}"), [], ROUND),
    slices_and_shares_are_left=(
        of(f"0.5 {GPU}", f"2 {GPU}"),
        [],
        "set nvidia.com/mig-3g.20gb: 1 (a slice), or nvidia.com/gpu.shared: 1 (a time-sliced share)",
    ),
    down_beside_others=(of(f"1.5 {GPU}", f"1 {GPU}"), [1], f"set {GPU}: 1"),
    too_many_beside_others=(of(f"1.5 {GPU}", f"2 {GPU}"), [], ROUND),
    half_beside_as_many_as_allowed=(of("0.5 amd.com/gpu", "2 amd.com/gpu"), [], "round it up"),
    several_slices=(of(f"1.5 {SLICE}"), [1], f"set {SLICE}: 1"),
    slices_of_two_kinds=(one({SLICE: "1.5", "nvidia.com/mig-1g.5gb": "1"}), [], ROUND),
    no_gpu_yet=(one(**NO_GPU_YET), [1, 1, 2, 2], f"set {GPU}: 1 or 2"),
    no_gpu_yet_and_variables=(one(**NO_GPU_YET, env=[{"name": "A"}]), [], ROUND),
    no_gpu_yet_and_annotations=(pod(container(resources=NO_GPU_YET), annotations={"a": "b"}), [], ROUND),
    no_gpu_yet_under_a_constraint=(pod(container(resources=NO_GPU_YET), nodeSelector=A), [], ROUND),
    limit_and_request=(one({GPU: "1.5"}, {GPU: "1.5"}), [1, 1, 2, 2], f"set {GPU}: 1 or 2"),
    an_extended_resource_needs_a_limit=(one({}, {GPU: "1.5"}), [], ROUND),
    an_implicit_one_does_not=(one({}, {IMPLICIT: "1.5"}), [1, 2], f"set {IMPLICIT}: 1 or 2"),
    the_number_of_processes_is_known=(one({GPU: "1.5"}, args=RANKS), [], ROUND),
    not_above_the_most=(of(f"5 {GPU}"), [2], f"set {GPU}: 2 or less"),
    not_where_processes_are_started=(one({GPU: "5"}, args=RANKS), [], f"set {GPU}: 2 or less"),
    the_words_stay_without_a_fix=(of("5 amd.com/gpu", "1 amd.com/gpu"), [], "set amd.com/gpu: 2 or less"),
    another_slice=(of(f"1 {UNKNOWN_SLICE}"), [None, "1"], OF_A_SLICE),
    another_slice_beside_a_gpu=(of(f"1 {UNKNOWN_SLICE}", f"1 {GPU}"), [], OF_A_SLICE),
    another_slice_that_is_there=(one({UNKNOWN_SLICE: "1", "nvidia.com/mig-1g.5gb": "1"}), [], OF_A_SLICE),
    another_slice_that_is_named=(one({UNKNOWN_SLICE: "1", "nvidia.com/mig-1g.5gb": "0"}), [], OF_A_SLICE),
    two_of_another_slice=(of(f"2 {UNKNOWN_SLICE}"), [], OF_A_SLICE),
    another_slice_under_a_constraint=(of(f"1 {UNKNOWN_SLICE}", nodeSelector=A), [], OF_A_SLICE),
)
def test_what_is_written(document: JSON, written: list[object], advice: str) -> None:
    found = findings(document, LIMITED)[0]

    assert ([edit.value for edits in found.choices for edit in edits], found.advice) == (written, advice)


def test_the_work_for_fixes_is_bounded() -> None:
    document = pod(*(gpu_container("1.5", name=f"c{number}") for number in range(20)))

    found = findings(document, GPURequestsOptions(gpus_per_node=64))

    assert [bool(each.choices) for each in found] == [True] * 16 + [False] * 4
