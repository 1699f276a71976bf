"""A policy's limits of GPU resources: which one decides, and what makes no sense."""

from policies.gpus.resource_limits import (
    ResourceLimits,
    limit_for,
    limit_problems,
    limits_by_pattern,
    unknown_names,
)
from tests.builders import CLASSES, RESOURCE_MAPPING
from tests.cases import cases

OF_ONE_CLASS = {"nvidia-a100": 8, "nvidia.com/mig-*": 1}
LIMITS = {
    "*": 2,
    "nvidia.com/gpu": 8,
    "nvidia.com/mig-*": 4,
    "aws.amazon.com/neuron*": 16,
    "nvidia-a100": 6,
    "nvidia-a100-80gb": 4,
}


@cases(
    ("most", "resource", "gpu_class"),
    by_name=(8, "nvidia.com/gpu", ""),
    by_pattern=(4, "nvidia.com/mig-1g.10gb", ""),
    by_the_longest_pattern=(16, "aws.amazon.com/neuroncore", ""),
    all_others=(2, "amd.com/gpu", ""),
    by_class=(4, "nvidia.com/gpu", "nvidia-a100-80gb"),
    by_family=(6, "nvidia.com/gpu", "nvidia-a100-40gb"),
    the_largest_of_the_classes=(6, "nvidia.com/gpu", "nvidia-a100"),
    a_class_without_a_limit_of_its_own=(8, "nvidia.com/gpu", "nvidia-t4"),
    a_class_limits_whole_cards=(4, "nvidia.com/mig-1g.10gb", "nvidia-a100-80gb"),
)
def test_the_most_specific_limit_decides(most: int, resource: str, gpu_class: str) -> None:
    found = RESOURCE_MAPPING.resource(resource)
    assert found is not None
    assert limit_for(LIMITS, found, CLASSES.resolve(gpu_class)) == most


@cases(
    ("limits", "resource", "gpu_class"),
    no_limits=(None, "nvidia.com/gpu", ""),
    another_resource=(OF_ONE_CLASS, "amd.com/gpu", ""),
    another_class=(OF_ONE_CLASS, "nvidia.com/gpu", "nvidia-t4"),
    no_class=(OF_ONE_CLASS, "nvidia.com/gpu", ""),
    one_of_two_classes=({"nvidia-a100-80gb": 8}, "nvidia.com/gpu", "nvidia-a100"),
)
def test_no_name_fits(limits: ResourceLimits, resource: str, gpu_class: str) -> None:
    found = RESOURCE_MAPPING.resource(resource)
    assert found is not None
    assert limit_for(limits, found, CLASSES.resolve(gpu_class)) is None


def test_of_patterns_of_one_length_the_first_by_name_decides() -> None:
    limits = {"nvidia.com/g*": 1, "nvidia.com/*u": 2, "*": 0, "nvidia.com/gpu": 3}

    assert [most for _, most in limits_by_pattern(limits)] == [3, 2, 1, 0]


@cases(
    ("limits", "want"),
    valid=(LIMITS, []),
    negative=({"nvidia.com/gpu": -1}, [("maxPerPod[nvidia.com/gpu]", "must be 0 or more, not -1")]),
    no_resource=(
        {"*/gpu": 1, "nvidia.com/*g*": 1},
        [
            (
                f"maxPerPod[{name}]",
                "must be a resource name such as example.com/gpu, with at most one * after the /",
            )
            for name in ("*/gpu", "nvidia.com/*g*")
        ],
    ),
    no_class=(
        {"nvidia-a1000": 1, "what": 1},
        [
            (
                "maxPerPod[nvidia-a1000]",
                "must be a resource, a class or a family: did you mean nvidia-a100?",
            ),
            ("maxPerPod[what]", "must be a resource, a class or a family"),
        ],
    ),
)
def test_problems(limits: ResourceLimits, want: list[tuple[str, str]]) -> None:
    found = [*limit_problems(limits, "maxPerPod"), *unknown_names(limits, CLASSES, "maxPerPod")]
    assert found == want
