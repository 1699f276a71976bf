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


A100 = {"nvidia-a100-40gb", "nvidia-a100-80gb"}
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
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def by_hostname(*names: str, operator: str = "In") -> JSON:
    return {"affinity": requiring(matchExpressions=(HOSTNAME, operator, names))}


def by_name(*names: str, operator: str = "In") -> JSON:
    return {"affinity": requiring(matchFields=("metadata.name", operator, names))}


@pytest.mark.parametrize(
    ("spec", "classes", "because"),
    [
        pytest.param(
            {"nodeSelector": {"accelerator": "nvidia-t4"}},
            {"nvidia-t4"},
            "nodeSelector accelerator=nvidia-t4",
            id="pinned",
        ),
        pytest.param(
            {"nodeName": "a100"}, {"nvidia-a100-80gb"}, "its node is nvidia-a100-80gb", id="on-a-node"
        ),
        pytest.param(
            {"nodeName": "t4", "nodeSelector": {"accelerator": "nvidia-a100"}},
            {"nvidia-t4"},
            "its node is nvidia-t4",
            id="a-node-name-counts-more-than-a-selector",
        ),
        pytest.param(
            {"nodeName": "plain", "nodeSelector": {"accelerator": "nvidia-a100"}},
            A100,
            "nodeSelector accelerator=nvidia-a100",
            id="on-a-node-of-no-class-the-selector-is-left",
        ),
        pytest.param(
            {"nodeSelector": {HOSTNAME: "a100"}},
            {"nvidia-a100-80gb"},
            "nodeSelector kubernetes.io/hostname=a100",
            id="hostname",
        ),
        pytest.param(
            {"nodeSelector": {HOSTNAME: "ip-10-0-0-1"}},
            {"nvidia-h100"},
            "nodeSelector kubernetes.io/hostname=ip-10-0-0-1",
            id="hostname-that-is-not-the-name",
        ),
        pytest.param(
            {"nodeSelector": {HOSTNAME: "t4"}},
            {"nvidia-t4", "amd-mi300x"},
            "nodeSelector kubernetes.io/hostname=t4",
            id="hostname-of-two-nodes",
        ),
        pytest.param(
            by_name("t4"), {"nvidia-t4"}, "node affinity metadata.name in (t4)", id="as-a-daemonset"
        ),
        pytest.param(
            by_hostname("a100", "ip-10-0-0-1"),
            {"nvidia-a100-80gb", "nvidia-h100"},
            "node affinity kubernetes.io/hostname in (a100, ip-10-0-0-1)",
            id="one-of-two-hostnames",
        ),
        pytest.param(
            {"nodeSelector": {HOSTNAME: "t4", "accelerator": "nvidia-t4"}},
            {"nvidia-t4"},
            "nodeSelector accelerator=nvidia-t4 and nodeSelector kubernetes.io/hostname=t4",
            id="hostname-and-class",
        ),
        pytest.param(
            {"nodeSelector": {HOSTNAME: "nowhere", "accelerator": "nvidia-t4"}},
            {"nvidia-t4"},
            "nodeSelector accelerator=nvidia-t4",
            id="the-class-holds-wherever-the-hostname-is",
        ),
    ],
)
def test_what_is_known_of_where_a_pod_can_run(spec: JSON, classes: set[str], because: str) -> None:
    where = candidate_classes(view(pod(**spec)), CLASSES, index(NODES))

    assert {gpu_class.name for gpu_class in where.classes} == classes
    assert (where.is_known, where.names_unknown_node, where.because) == (True, False, because)


@pytest.mark.parametrize(
    ("spec", "names_unknown_node", "because"),
    [
        pytest.param({}, False, "it pins no GPU class", id="anywhere"),
        pytest.param(
            {"nodeName": "plain"}, False, "its node plain has no label of a GPU class", id="no-class"
        ),
        pytest.param(
            {"nodeSelector": {HOSTNAME: "plain"}}, False, "it pins no GPU class", id="hostname-of-no-class"
        ),
        pytest.param(
            by_hostname("t4", "plain"), False, "it pins no GPU class", id="one-hostname-of-no-class"
        ),
        pytest.param({"nodeName": "nowhere"}, True, "node nowhere is not known", id="unknown-node"),
        pytest.param(
            {"nodeName": "nowhere", "nodeSelector": {"accelerator": "nvidia-t4"}},
            True,
            "node nowhere is not known",
            id="an-unknown-node-counts-more-than-a-selector",
        ),
        pytest.param(
            {"nodeSelector": {HOSTNAME: "nowhere"}}, True, "node nowhere is not known", id="unknown-hostname"
        ),
        pytest.param(
            by_hostname("t4", "nowhere"), True, "node nowhere is not known", id="one-hostname-is-unknown"
        ),
        pytest.param(
            by_name("nowhere"), True, "node nowhere is not known", id="a-daemonset-on-a-node-that-just-came"
        ),
        pytest.param(
            by_hostname("t4", operator="NotIn"), False, "it pins no GPU class", id="not-that-hostname"
        ),
        pytest.param(by_name("t4", operator="NotIn"), False, "it pins no GPU class", id="not-that-node"),
        pytest.param(
            {"affinity": requiring(matchExpressions=("metadata.name", "In", ["t4"]))},
            False,
            "it pins no GPU class",
            id="a-label-called-as-the-field",
        ),
        pytest.param(
            {"nodeSelector": {HOSTNAME: "a100", "accelerator": "nvidia-t4"}},
            False,
            "nodeSelector accelerator=nvidia-t4 and nodeSelector kubernetes.io/hostname=a100 contradict each other and leave "
            "no GPU class",
            id="hostname-against-class",
        ),
    ],
)
def test_where_a_pod_can_run_on_any_class(spec: JSON, names_unknown_node: bool, because: str) -> None:
    where = candidate_classes(view(pod(**spec)), CLASSES, index(NODES))

    assert {gpu_class.name for gpu_class in where.classes} == EVERYWHERE
    assert (where.is_known, where.names_unknown_node, where.because) == (False, names_unknown_node, because)


def test_nodes_that_were_read_by_other_labels_are_not_known() -> None:
    nodes = NodeIndex(frozenset({"pool"}), [NamedNode("t4", "t4", "t4", ())])

    where = candidate_classes(view(pod(nodeName="t4")), CLASSES, nodes)

    assert (where.names_unknown_node, where.because) == (True, "node t4 is not known")


@pytest.mark.parametrize(
    ("resource", "want", "is_known"),
    [
        pytest.param(GPUResource("amd.com/gpu", Measure.DEVICES), {"amd-mi300x"}, False, id="vendor"),
        pytest.param(
            GPUResource("nvidia.com/mig-3g.20gb", Measure.SLICES, "3g.20gb"),
            {"nvidia-a100-40gb"},
            False,
            id="slices",
        ),
        pytest.param(
            GPUResource(IMPLICIT + "h100.example.com", Measure.DEVICES),
            {"nvidia-h100"},
            True,
            id="device-class",
        ),
        pytest.param(
            GPUResource(IMPLICIT + "gpu.nvidia.com", Measure.DEVICES),
            EVERYWHERE - {"amd-mi300x"},
            False,
            id="device-class-of-a-vendor",
        ),
        pytest.param(
            GPUResource("hygon.com/dcunum", Measure.SHARES),
            EVERYWHERE,
            False,
            id="nobody-is-known-to-have-it",
        ),
    ],
)
def test_resources_narrow_it(resource: GPUResource, want: set[str], is_known: bool) -> None:
    narrowed = for_resource(resource, all_classes(CLASSES, "anywhere"), CLASSES, RESOURCE_MAPPING)

    assert {gpu_class.name for gpu_class in narrowed.classes} == want
    assert narrowed.is_known is is_known


def test_a_pin_and_a_device_class_that_disagree_leave_the_pin() -> None:
    pinned = candidate_classes(
        view(pod(gpu_container(), nodeSelector={"accelerator": "nvidia-t4"})), CLASSES, NO_NODES
    )
    resource = GPUResource(IMPLICIT + "h100.example.com", Measure.DEVICES)

    assert for_resource(resource, pinned, CLASSES, RESOURCE_MAPPING) == pinned
