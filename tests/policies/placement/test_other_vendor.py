"""A resource of another vendor than that of the classes to which the pod is pinned."""

from policies.gpus.classes import GPUClasses
from policies.placement.availability import Availability
from policies.placement.class_options import ClassOptions
from policies.placement.nodes import Labels, NodeFacts, NodeState
from tests.builders import CLASSES, gpu_class, gpu_container, node_affinity, pod, view
from tests.cases import cases
from tests.policies.placement.availabilities import (
    ANYWHERE,
    T4,
    Said,
    availability,
    denial,
    resource,
    said,
)


@cases(
    ("selector", "name", "want"),
    pinned_to_nothing=(ANYWHERE, "amd.com/gpu", None),
    own_vendor=(T4, "nvidia.com/gpu", None),
    a_scheduler_s_name_belongs_to_no_vendor=(T4, "volcano.sh/vgpu-number", None),
    another_vendor=(
        T4,
        "amd.com/gpu",
        denial(
            "must be nvidia.com/gpu: the pod is pinned to nvidia-t4 (nodeSelector accelerator=nvidia-t4)",
            "request nvidia.com/gpu, or pin the pod to amd-mi300x, which has amd.com/gpu",
        ),
    ),
)
def test_the_other_vendor_s_resource(selector: dict[str, str], name: str, want: Said | None) -> None:
    assert said(availability(selector).other_vendor(resource(name))) == want


def test_one_of_the_other_vendor_beside_one_of_its_own_goes() -> None:
    both = gpu_container(resources={"limits": {"nvidia.com/gpu": "1", "amd.com/gpu": "1"}})

    found = Availability(view(pod(both, nodeSelector=T4)), CLASSES).other_vendor(resource("amd.com/gpu"))

    assert said(found) == denial(
        "must be nvidia.com/gpu: the pod is pinned to nvidia-t4 (nodeSelector accelerator=nvidia-t4)",
        "remove {name}",
    )


def test_a_pod_that_is_pinned_twice_to_classes_of_two_vendors() -> None:
    gpu_classes = GPUClasses(
        (
            gpu_class("a", "mixed", 16),
            gpu_class("b", "mixed", 16, resource="amd.com/gpu"),
            gpu_class("c", "neuron", 16, resource="aws.amazon.com/neuroncore"),
        )
    )
    document = pod(
        nodeSelector={"accelerator": "mixed"}, affinity=node_affinity([("accelerator", "In", "mixed")])
    )

    found = Availability(view(document), gpu_classes).other_vendor(resource("aws.amazon.com/neuroncore"))

    assert said(found) == denial(
        "must be amd.com/gpu or nvidia.com/gpu: the pod is pinned to a or b (nodeSelector accelerator=mixed and node affinity "
        "accelerator in (mixed))",
        "request amd.com/gpu or nvidia.com/gpu, or pin the pod to c, which has aws.amazon.com/neuroncore",
    )


@cases(
    ("resources", "is_suggested"),
    whole_card_resources=(frozenset({"amd.com/gpu"}), True),
    only_slices=(frozenset({"amd.com/mig-1g.5gb"}), False),
    unknown=(None, True),
)
def test_a_class_is_suggested_where_its_nodes_have_the_resource(
    resources: frozenset[str] | None, is_suggested: bool
) -> None:
    labels: Labels = (("accelerator", "amd-mi300x"),)
    states = {} if resources is None else {labels: frozenset({NodeState(resources=resources)})}
    facts = NodeFacts(keys=CLASSES.label_keys, label_sets=frozenset({labels}), states=states)
    found = Availability(view(pod(nodeSelector=T4)), CLASSES, nodes=facts).other_vendor(
        resource("amd.com/gpu")
    )
    assert found is not None
    assert ("or pin the pod to amd-mi300x" in found.remedy) is is_suggested


@cases(
    ("nodes", "use", "is_suggested"),
    its_nodes_are_there=("amd-mi300x", ClassOptions(), True),
    only_nodes_of_others_are_there=("nvidia-t4", ClassOptions(), False),
    made_on_demand=("nvidia-t4", ClassOptions(autoscaled_classes=("amd-mi300x",)), True),
)
def test_a_class_is_suggested_where_it_has_nodes(nodes: str, use: ClassOptions, is_suggested: bool) -> None:
    facts = NodeFacts(keys=CLASSES.label_keys, label_sets=frozenset({(("accelerator", nodes),)}))
    found = Availability(view(pod(nodeSelector=T4)), CLASSES, use, facts).other_vendor(
        resource("amd.com/gpu")
    )

    assert found
    assert ("amd-mi300x" in found.remedy) is is_suggested


def test_the_other_vendor_s_slices_are_complained_of_once() -> None:
    pinned = availability({"accelerator": "amd-mi300x"})

    assert pinned.other_vendor(resource("nvidia.com/mig-1g.10gb")) is not None
    assert pinned.unknown_slice(resource("nvidia.com/mig-1g.10gb")) is None


def test_contradictory_constraints_pin_nothing_here() -> None:
    affinity = node_affinity([("accelerator", "In", "nvidia-a100-80gb")])
    contradictory = Availability(view(pod(nodeSelector=T4, affinity=affinity)), CLASSES)

    assert contradictory.unknown_slice(resource("nvidia.com/mig-1g.10gb")) is None
    assert contradictory.other_vendor(resource("amd.com/gpu")) is None
