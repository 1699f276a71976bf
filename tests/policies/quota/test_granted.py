"""What several quotas grant together of all GPUs, of families and of classes."""

from fractions import Fraction

from policies.gpus.classes import GPUClasses
from policies.quota.amounts import total_granted
from tests.builders import gpu_class
from tests.cases import cases

FAMILY, LARGE, SMALL = (f"classes/nvidia-a100{end}" for end in ("", "-80gb", "-40gb"))
CLASSES = GPUClasses(
    [
        gpu_class("nvidia-a100-80gb", "nvidia-a100", 80),
        gpu_class("nvidia-a100-40gb", "nvidia-a100", 40),
        gpu_class("nvidia-t4", "nvidia-t4", 16),
    ]
)
T4, MIG = "classes/nvidia-t4", "resources/nvidia.com/mig-1g.10gb"


@cases(
    ("quotas", "want"),
    none=([], {}),
    of_all_gpus=([{"gpus": 8}, {"gpus": 4}], {"gpus": 12}),
    of_a_class=([{LARGE: 8}, {LARGE: 4, "gpus": 2}], {LARGE: 12, "gpus": 10}),
    a_class_is_a_part_of_its_family=([{FAMILY: 8, LARGE: 8}], {FAMILY: 8, LARGE: 8}),
    a_family_in_one_and_its_classes_in_another=(
        [{FAMILY: 8}, {LARGE: 4, SMALL: 2}],
        {FAMILY: 14, LARGE: 4, SMALL: 2},
    ),
    classes_are_a_part_of_all_gpus=([{"gpus": 8, LARGE: 8, T4: 8}], {"gpus": 8, LARGE: 8, T4: 8}),
    without_a_limit_of_all_gpus=([{"gpus": 8}, {FAMILY: 4, LARGE: 4, T4: 1}], {"gpus": 13, FAMILY: 4, LARGE: 4, T4: 1}),
    a_family_of_its_own_name=([{T4: 2}, {T4: 1}], {T4: 3}),
    an_unknown_class=([{"classes/gone": 2}], {"classes/gone": 2}),
    resources_are_not_cards=([{MIG: 7, "gpus": 1}], {"gpus": 1}),
)  # fmt: skip
def test_granted_together(quotas: list[dict[str, int]], want: dict[str, int]) -> None:
    vectors = [{key: Fraction(amount) for key, amount in each.items()} for each in quotas]
    assert total_granted(vectors, CLASSES) == want
