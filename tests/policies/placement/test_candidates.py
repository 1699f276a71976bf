"""On which classes something can land."""

from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import GPUResource
from policies.placement.nodes import HOSTNAME, NO_NODES, NamedNode, NodeIndex
from policies.placement.pinning import (
    all_classes,
    candidate_classes,
    candidates_for_resource,
    classes_of_node,
)
from tests.builders import JSON, gpu_container, node_affinity, pod, view
from tests.cases import cases
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING, index

EVERYWHERE = {gpu_class.name for gpu_class in CLASSES}
IMPLICIT = "deviceclass.resource.kubernetes.io/"


@cases(
    ("labels", "want"),
    {
        "no-labels": ({}, set()),
        "no-label-of-a-class": ({"zone": "a"}, set()),
        "no-value-of-a-class": ({"accelerator": "elsewhere"}, set()),
        "class": ({"accelerator": "nvidia-t4"}, {"nvidia-t4"}),
        "family": ({"accelerator": "nvidia-a100"}, {"nvidia-a100-40gb", "nvidia-a100-80gb"}),
        "labels-that-agree": (
            {"accelerator": "nvidia-h100", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            {"nvidia-h100"},
        ),
        "labels-that-do-not": (
            {"accelerator": "nvidia-t4", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            {"nvidia-t4", "nvidia-h100"},
        ),
    },
)
def test_nodes(labels: dict[str, str], want: set[str]) -> None:
    assert classes_of_node(labels, CLASSES) == want


A100_80 = "nvidia-a100-80gb"
A100 = {"nvidia-a100-40gb", A100_80}
NODES = {
    "t4": {"accelerator": "nvidia-t4"},
    "a100": {"accelerator": "nvidia-a100-80gb"},
    "plain": {},
    # Renamed, as some clouds do; and one that has no other name than that of t4.
    "ip-10-0-0-1.example.com": {"accelerator": "nvidia-h100", HOSTNAME: "ip-10-0-0-1"},
    "impostor": {"accelerator": "amd-mi300x", HOSTNAME: "t4"},
    "family": {"accelerator": "nvidia-a100"},
}


def by_hostname(*names: str, operator: str = "In") -> JSON:
    return {"affinity": node_affinity([(HOSTNAME, operator, *names)])}


def by_name(*names: str, operator: str = "In") -> JSON:
    field = {"key": "metadata.name", "operator": operator, "values": list(names)}
    return {"affinity": node_affinity({"matchFields": [field]})}


def selecting(accelerator: str = "", hostname: str = "") -> JSON:
    labels = {"accelerator": accelerator, HOSTNAME: hostname}
    return {"nodeSelector": {key: value for key, value in labels.items() if value}}


T4, A100_SELECTED = selecting("nvidia-t4"), selecting("nvidia-a100")
BY_T4 = "nodeSelector accelerator=nvidia-t4"
BY_HOSTNAME = "nodeSelector kubernetes.io/hostname="
UNKNOWN = "node nowhere is not known"
ON_TWO = "node affinity kubernetes.io/hostname in (a100, ip-10-0-0-1)"


@cases(
    ("spec", "classes", "because"),
    pinned=(T4, {"nvidia-t4"}, BY_T4),
    on_a_node=({"nodeName": "a100"}, {A100_80}, f"its node is {A100_80}"),
    on_a_node_of_a_family=({"nodeName": "family"}, A100, "its node is nvidia-a100-40gb or nvidia-a100-80gb"),
    name_before_selector=({"nodeName": "t4", **A100_SELECTED}, {"nvidia-t4"}, "its node is nvidia-t4"),
    on_a_node_of_no_class_the_selector_is_left=(
        {"nodeName": "plain", **A100_SELECTED},
        A100,
        "nodeSelector accelerator=nvidia-a100",
    ),
    hostname=(selecting(hostname="a100"), {A100_80}, f"{BY_HOSTNAME}a100"),
    not_the_name=(selecting(hostname="ip-10-0-0-1"), {"nvidia-h100"}, f"{BY_HOSTNAME}ip-10-0-0-1"),
    hostname_of_two_nodes=(selecting(hostname="t4"), {"nvidia-t4", "amd-mi300x"}, f"{BY_HOSTNAME}t4"),
    as_a_daemonset=(by_name("t4"), {"nvidia-t4"}, "node affinity metadata.name in (t4)"),
    one_of_two_hostnames=(by_hostname("a100", "ip-10-0-0-1"), {A100_80, "nvidia-h100"}, ON_TWO),
    hostname_and_class=(selecting("nvidia-t4", "t4"), {"nvidia-t4"}, f"{BY_T4} and {BY_HOSTNAME}t4"),
    the_class_holds_wherever_the_hostname_is=(selecting("nvidia-t4", "nowhere"), {"nvidia-t4"}, BY_T4),
)
def test_what_is_known_of_where_a_pod_can_run(spec: JSON, classes: set[str], because: str) -> None:
    where = candidate_classes(view(pod(**spec)), CLASSES, index(NODES))

    assert {gpu_class.name for gpu_class in where.classes} == classes
    assert (where.is_narrowed, where.names_unknown_node, where.because) == (True, False, because)


@cases(
    ("spec", "because"),
    anywhere=({}, "it pins no GPU class"),
    no_class=({"nodeName": "plain"}, "its node plain has no label of a GPU class"),
    hostname_of_no_class=(selecting(hostname="plain"), "it pins no GPU class"),
    one_hostname_of_no_class=(by_hostname("t4", "plain"), "it pins no GPU class"),
    unknown_node=({"nodeName": "nowhere"}, UNKNOWN),
    an_unknown_node_counts_more_than_a_selector=({"nodeName": "nowhere", **T4}, UNKNOWN),
    unknown_hostname=(selecting(hostname="nowhere"), UNKNOWN),
    one_hostname_is_unknown=(by_hostname("t4", "nowhere"), UNKNOWN),
    a_daemonset_on_a_node_that_just_came=(by_name("nowhere"), UNKNOWN),
    as_many_nodes_as_are_looked_up=(by_hostname(*map(str, range(64))), "node 0 is not known"),
    one_more=(by_hostname(*map(str, range(65))), "node (one of more than 64) is not known"),
    not_that_hostname=(by_hostname("t4", operator="NotIn"), "it pins no GPU class"),
    not_that_node=(by_name("t4", operator="NotIn"), "it pins no GPU class"),
    a_label=({"affinity": node_affinity([("metadata.name", "In", "t4")])}, "it pins no GPU class"),
    hostname_against_class=(
        selecting("nvidia-t4", "a100"),
        f"{BY_T4} and {BY_HOSTNAME}a100 contradict each other and leave no GPU class",
    ),
)
def test_where_a_pod_can_run_on_any_class(spec: JSON, because: str) -> None:
    where = candidate_classes(view(pod(**spec)), CLASSES, index(NODES))

    assert {gpu_class.name for gpu_class in where.classes} == EVERYWHERE
    is_unknown = because.endswith(" is not known")
    assert (where.is_narrowed, where.names_unknown_node, where.because) == (False, is_unknown, because)


def test_nodes_that_were_read_by_other_labels_are_not_known() -> None:
    nodes = NodeIndex(frozenset({"pool"}), [NamedNode("t4", "t4", "t4", ())])

    where = candidate_classes(view(pod(nodeName="t4")), CLASSES, nodes)

    assert (where.names_unknown_node, where.because) == (True, "node t4 is not known")


SLICE = GPUResource("nvidia.com/mig-3g.20gb", Measure.SLICES, "3g.20gb")
AMD = GPUResource("amd.com/gpu", Measure.DEVICES)
OF_H100 = GPUResource(IMPLICIT + "h100.example.com", Measure.DEVICES)
OF_NVIDIA = GPUResource(IMPLICIT + "gpu.nvidia.com", Measure.DEVICES)
OF_NOBODY = GPUResource("hygon.com/dcunum", Measure.SHARES)


@cases(
    ("resource", "want", "is_known"),
    vendor=(AMD, {"amd-mi300x"}, False),
    slices=(SLICE, {"nvidia-a100-40gb"}, False),
    device_class=(OF_H100, {"nvidia-h100"}, True),
    device_class_of_a_vendor=(OF_NVIDIA, EVERYWHERE - {"amd-mi300x"}, False),
    nobody_is_known_to_have_it=(OF_NOBODY, EVERYWHERE, False),
)
def test_resources_narrow_it(resource: GPUResource, want: set[str], is_known: bool) -> None:
    narrowed = candidates_for_resource(resource, all_classes(CLASSES, "anywhere"), CLASSES, RESOURCE_MAPPING)

    assert {gpu_class.name for gpu_class in narrowed.classes} == want
    assert narrowed.is_narrowed is is_known


def test_a_pin_and_a_device_class_that_disagree_leave_the_pin() -> None:
    pinned = candidate_classes(view(pod(gpu_container(), **T4)), CLASSES, NO_NODES)

    assert candidates_for_resource(OF_H100, pinned, CLASSES, RESOURCE_MAPPING) == pinned
