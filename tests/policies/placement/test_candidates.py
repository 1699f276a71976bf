"""On which classes something can land."""

from typing import Any

import pytest

from policies.gpus.resource_mapping import GPUResource, Measure
from policies.placement.candidates import all_classes, candidate_classes, for_resource
from policies.placement.named_nodes import HOSTNAME, NO_NODES, NamedNode, NodeIndex
from policies.placement.pinning import classes_of_node
from tests.builders import JSON, gpu_container, pod, view
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING, index

EVERYWHERE = {gpu_class.name for gpu_class in CLASSES}
IMPLICIT = "deviceclass.resource.kubernetes.io/"


@pytest.mark.parametrize(
    ("labels", "want"),
    [
        pytest.param({}, set(), id="no-labels"),
        pytest.param({"zone": "a"}, set(), id="no-label-of-a-class"),
        pytest.param({"accelerator": "elsewhere"}, set(), id="no-value-of-a-class"),
        pytest.param({"accelerator": "nvidia-t4"}, {"nvidia-t4"}, id="class"),
        pytest.param({"accelerator": "nvidia-a100"}, {"nvidia-a100-40gb", "nvidia-a100-80gb"}, id="family"),
        pytest.param(
            {"accelerator": "nvidia-h100", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            {"nvidia-h100"},
            id="labels-that-agree",
        ),
        pytest.param(
            {"accelerator": "nvidia-t4", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            {"nvidia-t4", "nvidia-h100"},
            id="labels-that-do-not",
        ),
    ],
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
}


def requiring(**terms: Any) -> JSON:
    term = {
        kind: [dict(zip(("key", "operator", "values"), each, strict=True))] for kind, each in terms.items()
    }
    required = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def by_hostname(*names: str, operator: str = "In") -> JSON:
    return requiring(matchExpressions=(HOSTNAME, operator, names))


def by_name(*names: str, operator: str = "In") -> JSON:
    return requiring(matchFields=("metadata.name", operator, names))


def selecting(accelerator: str = "", hostname: str = "") -> JSON:
    labels = {"accelerator": accelerator, HOSTNAME: hostname}
    return {"nodeSelector": {key: value for key, value in labels.items() if value}}


T4, A100_SELECTED = selecting("nvidia-t4"), selecting("nvidia-a100")
BY_T4 = "nodeSelector accelerator=nvidia-t4"
BY_HOSTNAME = "nodeSelector kubernetes.io/hostname="
UNKNOWN = "node nowhere is not known"
ON_TWO = "node affinity kubernetes.io/hostname in (a100, ip-10-0-0-1)"


@pytest.mark.parametrize(
    ("spec", "classes", "because"),
    [
        pytest.param(T4, {"nvidia-t4"}, BY_T4, id="pinned"),
        pytest.param({"nodeName": "a100"}, {A100_80}, f"its node is {A100_80}", id="on-a-node"),
        pytest.param(
            {"nodeName": "t4", **A100_SELECTED},
            {"nvidia-t4"},
            "its node is nvidia-t4",
            id="a-node-name-counts-more-than-a-selector",
        ),
        pytest.param(
            {"nodeName": "plain", **A100_SELECTED},
            A100,
            "nodeSelector accelerator=nvidia-a100",
            id="on-a-node-of-no-class-the-selector-is-left",
        ),
        pytest.param(selecting(hostname="a100"), {A100_80}, f"{BY_HOSTNAME}a100", id="hostname"),
        pytest.param(
            selecting(hostname="ip-10-0-0-1"),
            {"nvidia-h100"},
            f"{BY_HOSTNAME}ip-10-0-0-1",
            id="hostname-that-is-not-the-name",
        ),
        pytest.param(
            selecting(hostname="t4"),
            {"nvidia-t4", "amd-mi300x"},
            f"{BY_HOSTNAME}t4",
            id="hostname-of-two-nodes",
        ),
        pytest.param(
            by_name("t4"), {"nvidia-t4"}, "node affinity metadata.name in (t4)", id="as-a-daemonset"
        ),
        pytest.param(
            by_hostname("a100", "ip-10-0-0-1"), {A100_80, "nvidia-h100"}, ON_TWO, id="one-of-two-hostnames"
        ),
        pytest.param(
            selecting("nvidia-t4", "t4"),
            {"nvidia-t4"},
            f"{BY_T4} and {BY_HOSTNAME}t4",
            id="hostname-and-class",
        ),
        pytest.param(
            selecting("nvidia-t4", "nowhere"),
            {"nvidia-t4"},
            BY_T4,
            id="the-class-holds-wherever-the-hostname-is",
        ),
    ],
)
def test_what_is_known_of_where_a_pod_can_run(spec: JSON, classes: set[str], because: str) -> None:
    where = candidate_classes(view(pod(**spec)), CLASSES, index(NODES))

    assert {gpu_class.name for gpu_class in where.classes} == classes
    assert (where.is_known, where.names_unknown_node, where.because) == (True, False, because)


@pytest.mark.parametrize(
    ("spec", "because"),
    [
        pytest.param({}, "it pins no GPU class", id="anywhere"),
        pytest.param({"nodeName": "plain"}, "its node plain has no label of a GPU class", id="no-class"),
        pytest.param(selecting(hostname="plain"), "it pins no GPU class", id="hostname-of-no-class"),
        pytest.param(by_hostname("t4", "plain"), "it pins no GPU class", id="one-hostname-of-no-class"),
        pytest.param({"nodeName": "nowhere"}, UNKNOWN, id="unknown-node"),
        pytest.param(
            {"nodeName": "nowhere", **T4}, UNKNOWN, id="an-unknown-node-counts-more-than-a-selector"
        ),
        pytest.param(selecting(hostname="nowhere"), UNKNOWN, id="unknown-hostname"),
        pytest.param(by_hostname("t4", "nowhere"), UNKNOWN, id="one-hostname-is-unknown"),
        pytest.param(by_name("nowhere"), UNKNOWN, id="a-daemonset-on-a-node-that-just-came"),
        pytest.param(by_hostname("t4", operator="NotIn"), "it pins no GPU class", id="not-that-hostname"),
        pytest.param(by_name("t4", operator="NotIn"), "it pins no GPU class", id="not-that-node"),
        pytest.param(
            requiring(matchExpressions=("metadata.name", "In", ["t4"])),
            "it pins no GPU class",
            id="a-label-called-as-the-field",
        ),
        pytest.param(
            selecting("nvidia-t4", "a100"),
            f"{BY_T4} and {BY_HOSTNAME}a100 contradict each other and leave no GPU class",
            id="hostname-against-class",
        ),
    ],
)
def test_where_a_pod_can_run_on_any_class(spec: JSON, because: str) -> None:
    where = candidate_classes(view(pod(**spec)), CLASSES, index(NODES))

    assert {gpu_class.name for gpu_class in where.classes} == EVERYWHERE
    assert (where.is_known, where.names_unknown_node, where.because) == (False, because == UNKNOWN, because)


def test_nodes_that_were_read_by_other_labels_are_not_known() -> None:
    nodes = NodeIndex(frozenset({"pool"}), [NamedNode("t4", "t4", "t4", ())])

    where = candidate_classes(view(pod(nodeName="t4")), CLASSES, nodes)

    assert (where.names_unknown_node, where.because) == (True, "node t4 is not known")


SLICE = GPUResource("nvidia.com/mig-3g.20gb", Measure.SLICES, "3g.20gb")
AMD = GPUResource("amd.com/gpu", Measure.DEVICES)
OF_H100 = GPUResource(IMPLICIT + "h100.example.com", Measure.DEVICES)
OF_NVIDIA = GPUResource(IMPLICIT + "gpu.nvidia.com", Measure.DEVICES)
OF_NOBODY = GPUResource("hygon.com/dcunum", Measure.SHARES)


@pytest.mark.parametrize(
    ("resource", "want", "is_known"),
    [
        pytest.param(AMD, {"amd-mi300x"}, False, id="vendor"),
        pytest.param(SLICE, {"nvidia-a100-40gb"}, False, id="slices"),
        pytest.param(OF_H100, {"nvidia-h100"}, True, id="device-class"),
        pytest.param(OF_NVIDIA, EVERYWHERE - {"amd-mi300x"}, False, id="device-class-of-a-vendor"),
        pytest.param(OF_NOBODY, EVERYWHERE, False, id="nobody-is-known-to-have-it"),
    ],
)
def test_resources_narrow_it(resource: GPUResource, want: set[str], is_known: bool) -> None:
    narrowed = for_resource(resource, all_classes(CLASSES, "anywhere"), CLASSES, RESOURCE_MAPPING)

    assert {gpu_class.name for gpu_class in narrowed.classes} == want
    assert narrowed.is_known is is_known


def test_a_pin_and_a_device_class_that_disagree_leave_the_pin() -> None:
    pinned = candidate_classes(view(pod(gpu_container(), **T4)), CLASSES, NO_NODES)

    assert for_resource(OF_H100, pinned, CLASSES, RESOURCE_MAPPING) == pinned
