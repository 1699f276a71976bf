"""Annotations for fraction schedulers: what they would refuse is found."""

import pytest

from policies.gpus.fraction_annotations import FRACTION_CONTAINER, fraction_container, fraction_problems
from tests.builders import JSON, RESOURCE_MAPPING, container, pod, view
from tests.cases import cases

NO_FRACTION = (
    'must be a decimal number between 0 and 1; set the part of one GPU, such as "0.5", or remove it and request whole GPUs in '
    "resources.limits"
)

ALONE = "write the number of MiB alone"


def found(annotations: dict[str, str]) -> list[tuple[str, str]]:
    problems = fraction_problems(view(pod(annotations=annotations)), RESOURCE_MAPPING)
    return [(bad.key, f"{bad.message}; {bad.finding().advice}") for bad in problems]


@pytest.mark.parametrize("text", ["0.5", ".5", "0.25", "0.999", "00.1"])
def test_a_part_of_a_gpu(text: str) -> None:
    assert found({"gpu-fraction": text}) == []


NUMBERS_OUT_OF_RANGE = ["0", "0.0", "1", "1.0", "1.5", "-0.5"]
NO_NUMBERS = ["", ".", "half", "500m", "0,5", "NaN", "1e-1", "0_1.5", "\u0660.\u0665", "0." + "1" * 40]


@pytest.mark.parametrize("text", NUMBERS_OUT_OF_RANGE + NO_NUMBERS)
def test_no_part_of_a_gpu(text: str) -> None:
    assert found({"gpu-fraction": text}) == [("gpu-fraction", NO_FRACTION)]


@cases(
    ("text", "advice"),
    megabytes=("2000mb", 'set gpu-memory: "2000"'),
    a_quantity=("2Gi", 'set gpu-memory: "2048"'),
    a_part_of_a_gigabyte=("1.5 GB", 'set gpu-memory: "1536"'),
    bytes=("1048577 bytes", 'set gpu-memory: "2"'),
    a_fraction=("7.5", 'set gpu-memory: "8"'),
    nothing=("0", ALONE),
    another_unit=("2 cards", ALONE),
    more_than_there_is=("1000000000001", ALONE),
)
def test_memory_is_a_whole_number_of_mebibytes(text: str, advice: str) -> None:
    assert found({"gpu-memory": text}) == [
        ("gpu-memory", f"must be a whole number of MiB from 1 to 1000000000000; {advice}")
    ]


def test_the_largest_memory() -> None:
    assert found({"gpu-memory": "1000000000000"}) == []


def test_a_fraction_and_memory_at_once() -> None:
    assert found({"gpu-fraction": "0.5", "gpu-memory": "2000"}) == [
        (
            "gpu-memory",
            "must not be set beside gpu-fraction: a GPU is shared by a fraction or by memory; remove it, or gpu-fraction",
        )
    ]


KAI, HALF = {"schedulerName": "kai-scheduler"}, {"gpu-fraction": "0.5"}


@cases(
    ("annotations", "spec", "want"),
    the_first=(HALF, KAI, "main"),
    the_one_by_annotation=({**HALF, FRACTION_CONTAINER: "other"}, KAI, "other"),
    without_a_part=({}, KAI, None),
    of_another_scheduler=(HALF, {}, None),
    on_a_node_already=(HALF, {**KAI, "nodeName": "n"}, None),
)
def test_the_container_that_gets_the_part(annotations: dict[str, str], spec: JSON, want: str | None) -> None:
    document = pod(container(), container("other"), annotations=annotations, **spec)
    assert fraction_container(view(document), RESOURCE_MAPPING) == want


def test_other_annotations_are_not_looked_at() -> None:
    assert found({"gpu-fractions": "many"}) == []
