"""Kinds of devices that selectors may select, compared with what the scheduler's own package selects (selectors/main.go).

A kind of which the scheduler selects a device must be possible: else a claim would count less than what it gets.
"""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from policies.gpus.device_selectors import possible_types, unevaluated
from tests.oracle.selected import KINDS, Scheduler, Selected, devices, expression, scheduler
from tests.seed import SAID, SEED

pytestmark = pytest.mark.processes
OTHERS = [
    each["expression"] for each in yaml.safe_load(Path(__file__).with_name("selectors.yaml").read_text())
]


@pytest.fixture(scope="module", name="kubernetes")
def started() -> Iterator[Scheduler]:
    running = scheduler(devices()[1])
    yield running
    running.close()


def kinds_of(answer: Selected, value: bool | None) -> set[int]:
    return {index for index, each in zip(devices()[0], answer.selected, strict=True) if each is value}


def compared(expressions: list[str], kubernetes: Scheduler) -> Counter[str]:
    """Return how often the bound was exact, above, …; asserts that it was never below."""
    counts: Counter[str] = Counter()
    for each in expressions:
        answer, possible = kubernetes.ask(each), possible_types([each], KINDS)
        if answer.error:
            counts["refused by the API server"] += 1
            continue
        selected = kinds_of(answer, True)
        assert selected <= possible, f"{each}: {sorted(selected - possible)}; {SAID}"
        if unevaluated([each]):
            counts["not evaluated"] += 1
        elif selected == possible:
            counts["exact"] += 1
        elif possible <= selected | kinds_of(answer, None):
            counts["above by kinds at which the scheduler stops"] += 1
        else:
            counts["above"] += 1
    return counts


def test_every_kind_of_which_the_scheduler_selects_a_device_is_possible(kubernetes: Scheduler) -> None:
    draw = random.Random(SEED)  # noqa: S311  # draws cases, no secrets
    counts = compared([expression(draw) for _ in range(3_000)], kubernetes)

    assert counts["exact"] > 1_000, f"{counts}; {SAID}"


def test_most_selectors_of_others_are_bound_exactly(kubernetes: Scheduler) -> None:
    counts = compared(OTHERS, kubernetes)

    # The scheduler stops at devices without an attribute that other alternatives (`||`) read; these count.
    assert counts["exact"] >= 58, counts


NVIDIA = 'device.attributes["gpu.nvidia.com"]'


@pytest.mark.parametrize(
    "expression",
    [
        f'{NVIDIA}.type == "mig" || !has(device.attributes["a/b"].c)',
        f'{NVIDIA}.type == "mig" || !device.attributes["a/b"].?c.hasValue()',
        'device.attributes["a/b"].?c.orValue("x") == "x"',
        '!has(device.attributes["a/b"].c)',
        f'!({NVIDIA}.zzz == "x" && quantity("1e30").isLessThan(quantity("1")))',
        f'({NVIDIA}.zzz == "x" && semver("9999999999999999999.0.0").isLessThan(semver("1.0.0"))) == false',
        f'[{NVIDIA}.zzz == "x" && quantity("1e30").isLessThan(quantity("1"))] == [false]',
        f'{NVIDIA}.profile.startsWith("1g") || !has({NVIDIA}.brand.foo)',
        f'{NVIDIA}.profile == "x" || !{NVIDIA}.?type.?foo.hasValue()',
        f'{NVIDIA}.zzz == "x" || has({NVIDIA}.driverVersion.foo) == false',
        f'!({NVIDIA}.zzz == "x" && has({NVIDIA}.type.foo))',
        f'{NVIDIA}.zzz == "x" ? false : true',
        "!('zzz' in device.attributes['a/b'])",
        "!('a/b' in device.attributes)",
        "!('gpu.nvidia.com' in device.capacity) && !(\"resource.kubernetes.io\" in device.attributes)",
        "'none.example.com' in device.attributes || size(device.attributes['none.example.com']) == 0",
        f'{NVIDIA}.type == "mig" || !"\ufb05".matches("(?i)\ufb06")',
        f'{NVIDIA}.type == "mig" || !"\\ufb05".matches("(?i)\\ufb06")',
    ],
)
def test_no_error_of_ours_hides_a_value_of_kubernetes(kubernetes: Scheduler, expression: str) -> None:
    compared([expression], kubernetes)
