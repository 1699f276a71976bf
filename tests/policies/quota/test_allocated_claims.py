"""What a ResourceClaim costs by the devices that the scheduler chose for it."""

from fractions import Fraction

import msgspec

from policies.gpus.claimed_devices import decode_claim
from policies.quota.amounts import GPUS, ZERO, Amounts, amount_texts
from policies.quota.claim_demand import AllocatedDevice, allocated_demand, beyond_pod, claim_demand
from policies.quota.demand import UnclassifiedPods
from tests.builders import JSON
from tests.cases import cases
from tests.policies.quota.claims import GPU, claim, devices
from tests.policies.quota.known_device_types import (
    CATALOGUE,
    KINDS,
    MIG,
    PREFIX,
    SHARED,
    product,
    selected,
)

TOTAL_ONLY, _, MOST_EXPENSIVE = UnclassifiedPods
CARD, SLICE, LARGE_SLICE, A100, A100_80, UNCLASSIFIED, SHARE = range(len(KINDS))
MEMORY = "gpu.nvidia.com/memory"


def exact(document: JSON, *allocated: AllocatedDevice, mode: UnclassifiedPods = TOTAL_ONLY) -> Amounts | None:
    return allocated_demand(decode_claim(msgspec.json.encode(document)), allocated, CATALOGUE, mode)


def request(name: str, device_class: str, **more: object) -> JSON:
    return {"name": name, "exactly": devices(device_class, **more)}


FIRST = {"name": "r", "firstAvailable": [{"name": "small", **devices(MIG)}, {"name": "card", **devices(GPU)}]}


@cases(
    ("document", "allocated", "want"),
    the_smaller_of_two_slices=(
        claim(request("r", MIG)),
        [AllocatedDevice("r", SLICE)],
        {"classes/nvidia-h100": "1/7", "gpus": "1/7", PREFIX + MIG: "1"},
    ),
    the_alternative_that_was_chosen=(
        claim(FIRST),
        [AllocatedDevice("r/small", LARGE_SLICE)],
        {"classes/nvidia-h100": "1/2", "gpus": "1/2", PREFIX + MIG: "1"},
    ),
    all_that_there_were=(
        claim(request("r", MIG, allocationMode="All")),
        [AllocatedDevice("r", SLICE)] * 7,
        {"classes/nvidia-h100": "1", "gpus": "1", PREFIX + MIG: "7"},
    ),
    a_share_of_a_shared_device=(
        claim(request("r", SHARED)),
        [AllocatedDevice("r", SHARE, ((MEMORY, "20Gi"),))],
        {
            "classes/nvidia-a100": "1/4",
            "classes/nvidia-a100-80gb": "1/4",
            "gpus": "1/4",
            PREFIX + SHARED: "1",
        },
    ),
    administrative_access_is_free=(
        claim(request("r", MIG), request("admin", GPU, adminAccess=True)),
        [AllocatedDevice("r", SLICE)],
        {"classes/nvidia-h100": "1/7", "gpus": "1/7", PREFIX + MIG: "1"},
    ),
    devices_that_are_no_gpus_are_free=(
        claim(request("r", MIG), request("nic", "nic.vendor.com")),
        [AllocatedDevice("r", SLICE), AllocatedDevice("nic", None)],
        {"classes/nvidia-h100": "1/7", "gpus": "1/7", PREFIX + MIG: "1"},
    ),
    a_device_of_no_known_kind=(claim(request("r", MIG)), [AllocatedDevice("r", None)], None),
    one_device_of_two=(claim(request("r", MIG, count=2)), [AllocatedDevice("r", SLICE)], None),
    devices_of_one_request_of_two=(
        claim(request("r", MIG), request("s", GPU)),
        [AllocatedDevice("r", SLICE)],
        None,
    ),
    no_alternative_has_a_device=(claim(FIRST), [AllocatedDevice("s", SLICE)], None),
)
def test_an_allocated_claim_counts_for_its_devices(
    document: JSON, allocated: list[AllocatedDevice], want: dict[str, str] | None
) -> None:
    counted = exact(document, *allocated)
    assert (None if counted is None else amount_texts(counted)) == want


def test_a_claim_made_for_a_pod_counts_for_its_dearest_devices_beyond_the_pod() -> None:
    name = "deviceclass.resource.kubernetes.io/" + MIG
    document = decode_claim(msgspec.json.encode(claim(request("r", MIG, count=2))))
    left = beyond_pod(document, {name: Fraction(1)}, CATALOGUE.resource_mapping)
    allocated = [AllocatedDevice("r", SLICE), AllocatedDevice("r", LARGE_SLICE)]
    assert amount_texts(allocated_demand(left, allocated, CATALOGUE, TOTAL_ONLY) or {})["gpus"] == "1/2"


@cases(
    ("requested", "kinds"),
    any_card=(devices(GPU), (CARD, A100, A100_80, UNCLASSIFIED)),
    a_product=(selected(GPU, product("H100")), (CARD,)),
    any_slice=(devices(MIG), (SLICE, LARGE_SLICE)),
    two_slices=(devices(MIG, count=2), (SLICE, LARGE_SLICE)),
    a_share=(devices(SHARED), (SHARE,)),
)
def test_what_was_chosen_is_never_more_than_was_admitted(requested: JSON, kinds: tuple[int, ...]) -> None:
    """By class that holds where nothing is unclassified."""
    document = claim({"name": "r", "exactly": requested})
    admitted = claim_demand(decode_claim(msgspec.json.encode(document)), CATALOGUE, MOST_EXPENSIVE).vector
    for kind in kinds:
        allocated = [AllocatedDevice("r", kind)] * requested.get("count", 1)
        chosen = exact(document, *allocated, mode=MOST_EXPENSIVE) or {}
        assert chosen[GPUS] > 0
        assert {key for key, amount in chosen.items() if amount > admitted.get(key, ZERO)} == set()
