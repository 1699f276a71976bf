"""On which classes something can land."""

import pytest

from policies.gpus.resource_mapping import GPUResource, Measure
from policies.placement.candidates import all_classes, candidate_classes, classes_of_node, for_resource
from tests.builders import JSON, gpu_container, pod, view
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING

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


@pytest.mark.parametrize(
    ("document", "labels", "classes", "is_known", "is_bound", "because"),
    [
        pytest.param(pod(), None, EVERYWHERE, False, False, "it pins no GPU class", id="anywhere"),
        pytest.param(
            pod(nodeSelector={"accelerator": "nvidia-t4"}),
            None,
            {"nvidia-t4"},
            True,
            False,
            "nodeSelector accelerator=nvidia-t4",
            id="pinned",
        ),
        pytest.param(
            pod(nodeSelector={"accelerator": "nvidia-a100"}),
            {"accelerator": "nvidia-a100-80gb"},
            {"nvidia-a100-80gb"},
            True,
            True,
            "its node is nvidia-a100-80gb",
            id="bound",
        ),
        pytest.param(
            pod(), {"zone": "a"}, EVERYWHERE, False, True, "it pins no GPU class", id="bound-to-no-class"
        ),
    ],
)
def test_pods(
    document: JSON,
    labels: dict[str, str] | None,
    classes: set[str],
    is_known: bool,
    is_bound: bool,
    because: str,
) -> None:
    where = candidate_classes(view(document), CLASSES, labels)

    assert {gpu_class.name for gpu_class in where.classes} == classes
    assert (where.is_known, where.is_bound, where.because) == (is_known, is_bound, because)


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
        view(pod(gpu_container(), nodeSelector={"accelerator": "nvidia-t4"})), CLASSES, None
    )
    resource = GPUResource(IMPLICIT + "h100.example.com", Measure.DEVICES)

    assert for_resource(resource, pinned, CLASSES, RESOURCE_MAPPING) == pinned
