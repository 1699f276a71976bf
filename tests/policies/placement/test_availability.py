"""Whether the classes on which a pod can land have what it asks for."""

from fractions import Fraction

import pytest

from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import GPUResource
from policies.placement.availability import Availability, Complaint
from tests.builders import CLASSES, JSON, RESOURCE_MAPPING, gpu_class, pod, view

A100_80 = {"accelerator": "nvidia-a100-80gb"}
A100_40 = {"accelerator": "nvidia-a100-40gb"}
A100 = {"accelerator": "nvidia-a100"}
T4 = {"accelerator": "nvidia-t4"}
ANYWHERE: dict[str, str] = {}


def resource(name: str) -> GPUResource:
    found = RESOURCE_MAPPING.resource(name)
    assert found is not None
    return found


def availability(selector: dict[str, str], catalogue: ClassCatalogue = CLASSES) -> Availability:
    return Availability(view(pod(nodeSelector=selector)), catalogue)


@pytest.mark.parametrize(
    ("selector", "profile", "want"),
    [
        pytest.param(ANYWHERE, "1g.10gb", None, id="some-class-has-it"),
        pytest.param(A100_80, "1g.10gb", None, id="the-pinned-class-has-it"),
        pytest.param(A100, "1g.5gb", None, id="one-of-the-pinned-family-has-it"),
        pytest.param(A100_40, "1g.5gb.me", None, id="resource-names-have-no-plus"),
        pytest.param({"accelerator": "unknown"}, "1g.10gb", None, id="a-selector-that-pins-nothing"),
        pytest.param(
            ANYWHERE,
            "1g.11gb",
            Complaint(
                "must be a slice that some GPU class has: none has 1g.11gb",
                "request nvidia.com/mig-1g.10gb or nvidia.com/mig-1g.5gb",
            ),
            id="nobody-has-it",
        ),
        pytest.param(
            A100_80,
            "1g.5gb",
            Complaint(
                "must be a slice of nvidia-a100-80gb (nodeSelector accelerator=nvidia-a100-80gb), to which the pod "
                "is pinned: it has no 1g.5gb",
                "request nvidia.com/mig-1g.20gb or nvidia.com/mig-1g.10gb, "
                "or pin the pod to a class that has them, such as nvidia-a100-40gb",
            ),
            id="another-class-has-it",
        ),
        pytest.param(
            A100_80,
            "9g.99gb",
            Complaint(
                "must be a slice of nvidia-a100-80gb (nodeSelector accelerator=nvidia-a100-80gb), to which the pod "
                "is pinned: it has no 9g.99gb",
                "request nvidia.com/mig-7g.80gb or nvidia.com/mig-3g.40gb",
            ),
            id="pinned-and-nobody-has-it",
        ),
        pytest.param(
            T4,
            "1g.5gb",
            Complaint(
                "must be a slice of nvidia-t4 (nodeSelector accelerator=nvidia-t4), to which the pod is pinned: it "
                "has no 1g.5gb",
                "request whole GPUs (nvidia.com/gpu), "
                "or pin the pod to a class that has them, such as nvidia-a100-40gb",
            ),
            id="pinned-to-a-card-without-slices",
        ),
    ],
)
def test_slices_that_no_class_has(selector: dict[str, str], profile: str, want: Complaint | None) -> None:
    assert availability(selector).unknown_slice(resource(f"nvidia.com/mig-{profile}")) == want


def test_a_catalogue_that_knows_no_slices_judges_none() -> None:
    catalogue = ClassCatalogue((gpu_class("nvidia-x1", "nvidia-x", 80),))

    assert availability(ANYWHERE, catalogue).unknown_slice(resource("nvidia.com/mig-1g.99gb")) is None


def test_whole_cards_are_no_slices() -> None:
    assert availability(T4).unknown_slice(resource("nvidia.com/gpu")) is None
    assert availability(T4).too_many_slices(resource("nvidia.com/gpu"), 10**9, 8) is None


@pytest.mark.parametrize(
    ("selector", "count", "want"),
    [
        pytest.param(A100_80, 16, None, id="as-many-as-a-node-holds"),
        pytest.param(
            A100_80,
            17,
            Complaint(
                "must be at most 16, for a pod runs on one node: 2 on each nvidia-a100-80gb, 8 GPUs in a node",
                "request 16 or fewer, and spread the work over several pods",
            ),
            id="one-more",
        ),
        pytest.param(A100_40, 17, None, id="a-class-without-the-profile-is-complained-of-elsewhere"),
    ],
)
def test_more_slices_than_a_node_has(selector: dict[str, str], count: int, want: Complaint | None) -> None:
    assert availability(selector).too_many_slices(resource("nvidia.com/mig-3g.40gb"), count, 8) == want


@pytest.mark.parametrize(
    ("selector", "name", "want"),
    [
        pytest.param(ANYWHERE, "amd.com/gpu", None, id="pinned-to-nothing"),
        pytest.param(T4, "nvidia.com/gpu", None, id="own-vendor"),
        pytest.param(T4, "volcano.sh/vgpu-number", None, id="a-scheduler-s-name-belongs-to-no-vendor"),
        pytest.param(
            T4,
            "amd.com/gpu",
            Complaint(
                "must be nvidia.com/gpu: the pod is pinned to nvidia-t4 (nodeSelector accelerator=nvidia-t4)",
                "request nvidia.com/gpu, or pin the pod to a class that has amd.com/gpu, such as amd-mi300x",
            ),
            id="another-vendor",
        ),
    ],
)
def test_the_other_vendor_s_resource(selector: dict[str, str], name: str, want: Complaint | None) -> None:
    assert availability(selector).other_vendor(resource(name)) == want


def test_the_other_vendor_s_slices_are_complained_of_once() -> None:
    pinned = availability({"accelerator": "amd-mi300x"})

    assert pinned.other_vendor(resource("nvidia.com/mig-1g.10gb")) is not None
    assert pinned.unknown_slice(resource("nvidia.com/mig-1g.10gb")) is None


def test_contradictory_constraints_pin_nothing_here() -> None:
    affinity: JSON = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "accelerator", "operator": "In", "values": ["nvidia-a100-80gb"]}
                        ]
                    }
                ]
            }
        }
    }
    contradictory = Availability(view(pod(nodeSelector=T4, affinity=affinity)), CLASSES)

    assert contradictory.unknown_slice(resource("nvidia.com/mig-1g.10gb")) is None
    assert contradictory.other_vendor(resource("amd.com/gpu")) is None


SHARE = "a time-sliced share (nvidia.com/gpu.shared)"


@pytest.mark.parametrize(
    ("selector", "name", "part", "want"),
    [
        pytest.param(
            A100_80,
            "nvidia.com/gpu",
            Fraction(1, 4),
            ["a slice of a GPU such as nvidia.com/mig-1g.20gb", SHARE],
            id="quarter",
        ),
        pytest.param(
            A100_80,
            "nvidia.com/gpu",
            Fraction(1, 10),
            ["a slice of a GPU such as nvidia.com/mig-1g.10gb", SHARE],
            id="tenth",
        ),
        pytest.param(
            A100_40,
            "nvidia.com/gpu",
            Fraction(1, 100),
            ["a slice of a GPU such as nvidia.com/mig-1g.5gb", SHARE],
            id="no-variants",
        ),
        pytest.param(A100_40, "nvidia.com/gpu", Fraction(3, 4), [SHARE], id="no-slice-is-so-large"),
        pytest.param(T4, "nvidia.com/gpu", Fraction(1, 2), [SHARE], id="no-slices-at-all"),
        pytest.param(ANYWHERE, "amd.com/gpu", Fraction(1, 2), [], id="a-vendor-without-either"),
    ],
)
def test_ways_to_get_a_part_of_a_gpu(
    selector: dict[str, str], name: str, part: Fraction, want: list[str]
) -> None:
    assert availability(selector).smaller_than(resource(name), part, RESOURCE_MAPPING) == want
