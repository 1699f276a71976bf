"""Work of a charge is bounded by what a pod or claim may name: ratios of CPU time, taken side by side in one run."""

from collections.abc import Callable
from fractions import Fraction
from time import process_time

import msgspec
import pytest

from policies.gpus.cards import MAX_RESOURCES
from policies.gpus.claimed_devices import decode_claim
from policies.gpus.mapping_spec import DerivedMappingSpec
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Pod
from policies.quota.catalogue import PublishedCatalogue
from policies.quota.claim_demand import claim_demand
from policies.quota.demand import Demand, UnclassifiedPods, pod_demand
from tests.builders import JSON, container, gpu_container, pod, view
from tests.cases import cases
from tests.oracle.selected import GPU, KINDS
from tests.policies.gpus.slices import slices
from webhook.configuration.loader import load_directory

BUILT_IN = load_directory(None)
CLASSES, MAPPING = BUILT_IN.classes, BUILT_IN.resource_mapping
ROUNDS = 5


def of_slices(number: int) -> Pod:
    return view(pod(container(resources={"limits": slices(number), "requests": slices(number)})))


def counted(a_pod: Pod, mode: UnclassifiedPods = UnclassifiedPods.MOST_EXPENSIVE) -> Demand:
    return pod_demand(a_pod, PublishedCatalogue(CLASSES, MAPPING), mode)


def seconds(*works: Callable[[], object]) -> list[float]:
    """Return the least CPU time of each, taken in turns, so that a busy machine is equally busy for all."""
    least = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for index, work in enumerate(works):
            began = process_time()
            work()
            least[index] = min(least[index], process_time() - began)
    return least


@pytest.mark.parametrize("mode", list(UnclassifiedPods))
def test_eight_times_the_names_are_not_sixty_four_times_the_work(mode: UnclassifiedPods) -> None:
    few, many = of_slices(MAX_RESOURCES // 8), of_slices(MAX_RESOURCES)

    of_few, of_many = seconds(lambda: counted(few, mode), lambda: counted(many, mode))

    assert of_many < 20 * of_few


def test_thirty_names_of_whole_cards_are_not_thirty_times_the_work() -> None:
    one, many = (
        view(pod(container(resources={"limits": {f"nvidia.com/x{n}": "1" for n in range(number)}})))
        for number in (1, 30)
    )

    of_one, of_many = seconds(lambda: counted(one), lambda: counted(many))

    assert of_many < 10 * of_one


@pytest.mark.parametrize(("amounts", "cards"), [(256, 256 * Fraction(8, 80)), (257, 257)])
def test_of_too_many_amounts_of_memory_each_is_a_card(amounts: int, cards: Fraction) -> None:
    of_memory = [
        gpu_container("8192", f"c{number}", resource="nvidia.com/gpumem") for number in range(amounts)
    ]
    on_a100 = view(pod(*of_memory, nodeSelector={"accelerator": "nvidia-a100-80gb"}))

    assert counted(on_a100).vector["gpus"] == cards


def test_a_stored_pod_with_more_names_costs_no_more_work_for_each_of_them() -> None:
    most, stored = of_slices(MAX_RESOURCES), of_slices(8 * MAX_RESOURCES)

    of_most, of_stored = seconds(lambda: counted(most), lambda: counted(stored))

    assert of_stored < 8 * of_most


def test_a_stored_pod_with_more_names_is_counted_no_less_than_by_name() -> None:
    in_two = [
        counted(view(pod(container(resources={"limits": slices(20, first)})))).vector for first in (0, 20)
    ]

    whole = counted(view(pod(container(resources={"limits": slices(40)})))).vector

    for key in in_two[0].keys() | in_two[1].keys():
        assert whole[key] >= sum(each.get(key, 0) for each in in_two), key
    assert whole["gpus"] == 40
    assert {key for key in whole if key.startswith("resources/")} == {
        f"resources/{name}" for name in slices(40)
    }


def claim(requests: int, alternatives: int) -> JSON:
    def devices(name: str) -> JSON:
        return {"name": name, "deviceClassName": f"{name}.nvidia.com", "count": 1}

    listed = [
        {"name": f"r{n}", "firstAvailable": [devices(f"d{n}-{m}") for m in range(alternatives)]}
        for n in range(requests)
    ]
    return {"spec": {"devices": {"requests": listed}}}


def counted_claim(document: JSON) -> Demand:
    decoded = decode_claim(msgspec.json.encode(document))
    return claim_demand(decoded, PublishedCatalogue(CLASSES, MAPPING), UnclassifiedPods.MOST_EXPENSIVE)


@cases(
    ("requests", "alternatives", "want"),
    the_most=(32, 8, []),
    requests=(33, 1, ["spec.devices.requests: split the claim; must have at most 32 items"]),
    alternatives=(
        1,
        9,
        ["spec.devices.requests[0].firstAvailable: remove some; must have at most 8 items"],
    ),
)
def test_claims_that_no_api_server_stores(requests: int, alternatives: int, want: list[str]) -> None:
    demand = counted_claim(claim(requests, alternatives))

    assert [each.sentence() for each in demand.denials] == want
    assert bool(demand.vector) is not bool(want)


def test_selectors_of_a_claim_are_evaluated_up_to_a_bound_and_once() -> None:
    """As long as allowed, and longer: the longer claim counts without its selectors, which takes no evaluation."""
    kinds = DerivedMappingSpec(device_types=KINDS, types_by_class={GPU: tuple(range(len(KINDS.types)))})
    catalogue = PublishedCatalogue(CLASSES, ResourceMapping((kinds, *MAPPING.specs)))
    text = f'device.attributes["{GPU}"].productName.matches("({"a|" * 400}x)*")'

    def work(*texts: str) -> Callable[[], object]:
        selectors = [{"cel": {"expression": each}} for each in texts]
        request = {"exactly": {"deviceClassName": GPU, "selectors": selectors}}
        document = decode_claim(msgspec.json.encode({"spec": {"devices": {"requests": [request]}}}))
        return lambda: claim_demand(document, catalogue, UnclassifiedPods.MOST_EXPENSIVE)

    first = work(text)
    began = process_time()
    first()
    unseen = process_time() - began
    again, beyond = seconds(first, work(text, f"{text} "))

    assert again < unseen
    assert beyond < unseen


def test_a_claim_without_end_costs_less_work_than_the_largest() -> None:
    largest, endless = claim(32, 8), claim(1000, 1)

    of_largest, of_endless = seconds(lambda: counted_claim(largest), lambda: counted_claim(endless))

    assert of_endless < of_largest
