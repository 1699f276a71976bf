"""What is tried where no choice of a finding helps: other classes first, then constraints, tolerations and fewer GPUs."""

from policies.finding import Edits, choices_text
from policies.gpus.classes import GPUClasses
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.class_options import ClassOptions
from policies.placement.nodes import Labels, NodeFacts, NodeState
from policies.placement.possible_edits import possible_edits
from policies.pods.pod import Toleration
from tests.builders import (
    CLASSES,
    JSON,
    RESOURCE_MAPPING,
    container,
    gpu_class,
    gpu_container,
    node_affinity,
    pod,
    view,
)
from tests.cases import cases

NO_CLASSES = GPUClasses(())
IN_ZONE_A = node_affinity([("zone", "In", "a")])
REMOVED_AFFINITY = "remove requiredDuringSchedulingIgnoredDuringExecution"
T4_NODE: Labels = (("accelerator", "nvidia-t4"),)
A100_NODE: Labels = (("accelerator", "nvidia-a100"),)
"""Labelled by family."""


def nodes(*label_sets: Labels, taints: tuple[Toleration, ...] = ()) -> NodeFacts:
    states = {
        labels: frozenset({NodeState(taints=taints, resources=frozenset({"nvidia.com/gpu"}))})
        for labels in label_sets
    }
    return NodeFacts(keys=CLASSES.label_keys, label_sets=frozenset(label_sets), states=states)


def tried(
    document: JSON,
    gpu_classes: GPUClasses = NO_CLASSES,
    use: ClassOptions | None = None,
    facts: NodeFacts | None = None,
    mapping: ResourceMapping = RESOURCE_MAPPING,
) -> list[Edits]:
    return list(possible_edits(view(document), mapping, gpu_classes, use or ClassOptions(), facts))


def words(found: list[Edits]) -> list[str]:
    return [choices_text([edits]) for edits in found]


@cases(
    ("use", "facts", "want"),
    every_class_of_the_vendor_where_nodes_are_not_known=(
        ClassOptions(),
        None,
        ["nvidia-a100-40gb", "nvidia-a100-80gb", "nvidia-t4"],
    ),
    those_that_the_namespace_may_use=(
        ClassOptions(allowed=("nvidia-a100", "amd-*")),
        None,
        ["nvidia-a100-40gb", "nvidia-a100-80gb"],
    ),
    those_with_nodes=(ClassOptions(), nodes(T4_NODE), ["nvidia-t4"]),
    those_with_nodes_that_carry_the_family=(
        ClassOptions(),
        nodes(A100_NODE),
        ["nvidia-a100-40gb", "nvidia-a100-80gb"],
    ),
    those_that_an_autoscaler_adds=(
        ClassOptions(autoscaled_classes=("nvidia-a100-80gb", "amd-*")),
        nodes(T4_NODE),
        ["nvidia-a100-80gb", "nvidia-t4"],
    ),
    none_of_which_the_namespace_may_use=(ClassOptions(allowed=("nvidia-h100",)), None, []),
)
def test_which_classes_are_tried(use: ClassOptions, facts: NodeFacts | None, want: list[str]) -> None:
    found = words(tried(pod(gpu_container()), CLASSES, use, facts))

    assert found == [f"set gpu-admission.dev/gpu-class: {name}" for name in want]


@cases(
    ("document", "want"),
    all_that_pins_it_goes_with_a_new_class=(
        pod(gpu_container(), nodeSelector={"accelerator": "nvidia-a100-80gb", "zone": "a"}),
        [
            "remove accelerator and set gpu-admission.dev/gpu-class: nvidia-t4",
            "remove accelerator",
            "remove zone",
        ],
    ),
    a_required_affinity_goes_with_a_new_class_or_alone=(
        pod(gpu_container(), affinity=IN_ZONE_A),
        [f"{REMOVED_AFFINITY} and set gpu-admission.dev/gpu-class: nvidia-t4", REMOVED_AFFINITY],
    ),
    one_constraint_at_a_time=(
        pod(gpu_container(), nodeSelector={"disk": "ssd", "zone": "a"}, affinity=IN_ZONE_A),
        [
            f"{REMOVED_AFFINITY} and set gpu-admission.dev/gpu-class: nvidia-t4",
            "remove disk",
            "remove zone",
            REMOVED_AFFINITY,
        ],
    ),
)
def test_constraints_are_removed(document: JSON, want: list[str]) -> None:
    only_t4 = ClassOptions(allowed=("nvidia-t4",))

    assert words(tried(document, CLASSES, only_t4)) == want


@cases(
    ("taint", "want"),
    with_a_value=(
        Toleration(key="dedicated", value="ml", effect="NoSchedule"),
        "add {key: dedicated, operator: Equal, value: ml, effect: NoSchedule} to spec.tolerations",
    ),
    without_a_value=(
        Toleration(key="nvidia.com/gpu", effect="NoExecute"),
        "add {key: nvidia.com/gpu, operator: Exists, effect: NoExecute} to spec.tolerations",
    ),
)
def test_a_taint_of_nodes_is_tolerated_and_named_once(taint: Toleration, want: str) -> None:
    assert words(tried(pod(gpu_container()), facts=nodes(T4_NODE, A100_NODE, taints=(taint,)))) == [want]


@cases(
    ("document", "want"),
    several=(
        pod(gpu_container("6")),
        ["set nvidia.com/gpu: 4", "set nvidia.com/gpu: 2", "set nvidia.com/gpu: 1"],
    ),
    as_many_as_the_largest_that_is_tried=(
        pod(gpu_container("8")),
        ["set nvidia.com/gpu: 4", "set nvidia.com/gpu: 2", "set nvidia.com/gpu: 1"],
    ),
    one=(pod(gpu_container("1")), []),
    of_each_container_alone=(
        pod(gpu_container("4", "a"), gpu_container("2", "b")),
        ["set nvidia.com/gpu: 2", "set nvidia.com/gpu: 1", "set nvidia.com/gpu: 1"],
    ),
    memory_is_no_count=(pod(gpu_container("4000", resource="nvidia.com/gpumem")), []),
    no_gpu=(pod(container()), []),
)
def test_fewer_gpus(document: JSON, want: list[str]) -> None:
    assert words(tried(document)) == want


def test_a_constraint_is_not_in_the_way_where_no_node_has_the_resource() -> None:
    document = pod(gpu_container(resource="amd.com/gpu"), nodeSelector={"zone": "a"})

    assert words(tried(document, facts=nodes(T4_NODE))) == []


def test_requests_and_limits_change_together() -> None:
    amounts = {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}

    (edits,) = tried(pod(container(resources=amounts)))

    assert {(edit.path, edit.value) for edit in edits} == {
        ("spec.containers[0].resources.requests[nvidia.com/gpu]", 1),
        ("spec.containers[0].resources.limits[nvidia.com/gpu]", 1),
    }


MANY = 20


@cases(
    ("document", "gpu_classes", "facts", "most"),
    classes=(
        pod(),
        GPUClasses(tuple(gpu_class(f"c{number}", f"c{number}", 16) for number in range(MANY))),
        None,
        8,
    ),
    keys_of_the_node_selector=(
        pod(nodeSelector={f"k{number}": "v" for number in range(MANY)}),
        NO_CLASSES,
        None,
        4,
    ),
    taints=(
        pod(),
        NO_CLASSES,
        nodes(
            T4_NODE, taints=tuple(Toleration(key=f"t{number}", effect="NoSchedule") for number in range(MANY))
        ),
        4,
    ),
)
def test_what_is_tried_is_bounded(
    document: JSON, gpu_classes: GPUClasses, facts: NodeFacts | None, most: int
) -> None:
    assert len(tried(document, gpu_classes, facts=facts)) == most
