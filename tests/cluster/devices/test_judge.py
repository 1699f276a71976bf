"""The judge finds what it is for, in histories that nobody should ever see, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.devices import cards, meanings, slices
from tests.cluster.devices.charges import Charge, Devices
from tests.cluster.devices.facts import Device, devices_of
from tests.cluster.devices.judge import Denial, Judge, Verdict
from tests.cluster.devices.meanings import DEVICE_CLASSES, Selector
from tests.cluster.devices.worlds import CLASSES
from tests.cluster.quota.history import Event

Step = tuple[float, str, Any]
"""When something was stored, where, and what: None if it was deleted."""
ONE_G = meanings.profile("1g.10gb")
MEANINGS = {each.text: each for each in [*(each.selector for each in DEVICE_CLASSES), ONE_G]}
SLICE, CARD = "gpu-0-mig-1g10gb-19-{}", "gpu-{}"


def published(at: float, *parts: slices.Slice, node: str = "n", generation: int = 1) -> list[Step]:
    made = slices.pool(slices.NVIDIA, node, parts, generation)
    return [(at, f"/registry/resourceslices/{each['metadata']['name']}", each) for each in made]


def request(device_class: str, *chosen: Selector, **more: Any) -> JSON:
    wanted = {"deviceClassName": device_class, **more}
    if chosen:
        wanted["selectors"] = [{"cel": {"expression": each.text}} for each in chosen]
    return wanted


def spec(*requests: JSON) -> JSON:
    named = [
        {"name": f"r{index}", **({"exactly": each} if "deviceClassName" in each else each)}
        for index, each in enumerate(requests)
    ]
    return {"devices": {"requests": named}}


ANY_SLICE, ONE_SLICE = spec(request("mig.nvidia.com")), spec(request("mig.nvidia.com", ONE_G))
ONE_CARD = spec(request("gpu.nvidia.com"))


def claim(
    at: float, name: str, wanted: JSON, *got: str, pod: str = "", reserved: str = "", **more: Any
) -> Step:
    """Store a claim, of a template if it has a pod, and with the devices that it got; its name is its uid."""
    stored: JSON = {"metadata": {"uid": name}, "spec": wanted}
    if pod:
        stored["metadata"]["ownerReferences"] = [{"uid": pod, "controller": True, "kind": "Pod"}]
    if got:
        results = [{"driver": slices.NVIDIA, "pool": "n", "device": each, **more} for each in got]
        stored["status"] = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"uid": reserved or pod}],
        }
    return at, f"/registry/resourceclaims/a/{name}", stored


def pod(at: float, name: str, *, node: str = "", phase: str = "Pending", gpus: int = 0) -> Step:
    container = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}}
    stored: JSON = {
        "metadata": {"uid": name},
        "spec": {"containers": [container]},
        "status": {"phase": phase},
    }
    if node:
        stored["spec"]["nodeName"] = node
    return at, f"/registry/pods/a/{name}", stored


def row(at: float, used: str, hard: str = "1", entries: str = "") -> Step:
    ledger = {"hard": {"gpus": hard}, "used": {"gpus": used}, "reservations": entries}
    return at, "/registry/gpu-admission.dev/gpuquotaledgers/default/a", {"ledger": json.dumps(ledger)}


def gone(at: float, step: Step) -> Step:
    return at, step[1], None


def verdict(steps: list[Step], until: float) -> Verdict:
    """Judge the steps, in the order of their times."""
    ordered = sorted(steps, key=lambda each: each[0])
    events = [(Event(number, key, value), at) for number, (at, key, value) in enumerate(ordered, 1)]
    return Judge("a", CLASSES, MEANINGS).replay(events, until)


H100 = slices.partitioned(cards.H100, "n", 2)
BEFORE = -10.0
"""Slices are long known when the first claim comes."""
START = [*published(BEFORE, *H100), row(0.5, "0")]
WAITS, RUNS = pod(1, "p"), pod(2, "p", node="n")
UNBOUND = claim(1.1, "c", ANY_SLICE, pod="p")
EXACT = claim(1.9, "c", ANY_SLICE, SLICE.format(0), pod="p")
HONEST = [
    *START,
    WAITS,
    UNBOUND,
    row(1.2, "1"),
    EXACT,
    RUNS,
    row(2.4, "1/7"),
    gone(6, RUNS),
    gone(6.1, EXACT),
    row(6.3, "0"),
]
"""A slice of any profile is charged the card that 7g would be, then the seventh that it got."""


def test_an_honest_history_has_no_faults() -> None:
    found = verdict(HONEST, 10)

    assert found.faults == []
    assert (found.claims, found.allocations, found.bounds) == (1, 1, {"c": (Fraction(1), Fraction(1, 7))})
    assert [round(each, 1) for each in found.delays] == [0.4, 0.2]
    assert [round(each, 1) for each in found.after_allocations] == [0.5]


def changed(at: float, change: Callable[[Step], Step | None]) -> list[Step]:
    """Return the honest history with what was stored then changed, or left out."""
    steps = (change(each) if each[0] == at else each for each in HONEST)
    return [each for each in steps if each is not None]


SECOND = [claim(3, "d", ANY_SLICE)]


def test_an_allocation_is_counted_in_a_ledger_that_counts_what_followed_too() -> None:
    late = [*changed(2.4, lambda _: None), *SECOND, row(3.2, "8/7", "2")]

    assert [round(each, 1) for each in verdict(late, 4).after_allocations] == [1.3]


@cases(
    ("steps", "want"),
    a_second_claim_that_may_become_a_card=(
        [*HONEST, *SECOND, row(3.1, "8/7"), gone(6, SECOND[0])],
        ["admitted over hard: resourceclaims/a/d at revision 11: 8/7 of 1"],
    ),
    a_pod_beside_claims=(
        [*HONEST, pod(3, "q", gpus=1), row(3.1, "8/7"), gone(6, pod(3, "q"))],
        ["admitted over hard: pods/a/q at revision 11: 8/7 of 1"],
    ),
    a_charge_that_stays_the_bound=(
        changed(2.4, lambda _: None),
        ["charges differ: after pods/a/p at revision 9 the ledger says 1 for 4.0 s, not 1/7"],
    ),
    a_charge_that_is_exact_too_late=(
        changed(2.4, lambda _: row(4.1, "1/7")),
        ["charges differ: after pods/a/p at revision 9 the ledger says 1 for 2.1 s, not 1/7"],
    ),
    an_exact_charge_that_is_another_one=(
        changed(2.4, lambda _: row(2.4, "1/8")),
        ["charges differ: after pods/a/p at revision 9 the ledger says 1/8 for 4.0 s, not 1/7"],
    ),
    an_exact_charge_that_is_taken_back=(
        [*HONEST, row(5, "1")],
        ["charges differ: after pods/a/p at revision 9 the ledger says 1 for 4.0 s, not 1/7"],
    ),
    a_charge_that_is_exact_before_its_pod_is_bound=(
        [*START, WAITS, UNBOUND, row(1.2, "1"), EXACT, row(2, "1/7")],
        ["charges differ: after resourceclaims/a/c at revision 6 the ledger says 1/7 for 8.9 s, not 1"],
    ),
    a_claim_of_its_own_that_is_exact=(
        [
            *START,
            RUNS,
            claim(2.1, "c", ANY_SLICE, SLICE.format(0), reserved="p"),
            row(2.2, "1/7"),
        ],
        ["charges differ: after resourceclaims/a/c at revision 6 the ledger says 1/7 for 7.9 s, not 1"],
    ),
    a_claim_whose_pod_ended_and_that_is_free=(
        [*changed(6, lambda _: pod(3, "p", node="n", phase="Succeeded")), row(3.1, "0")],
        ["charges differ: after pods/a/p at revision 11 the ledger says 0 for 3.1 s, not 1/7 to 1"],
    ),
    another_pod_uses_the_claim=(
        [
            *START,
            pod(1, "q", node="n"),
            WAITS,
            claim(1.9, "c", ANY_SLICE, SLICE.format(0), pod="p", reserved="q"),
            row(2, "1/7"),
        ],
        ["charges differ: after resourceclaims/a/c at revision 7 the ledger says 1/7 for 8.1 s, not 1"],
    ),
    a_device_above_the_bound=(
        [
            *START,
            claim(1.1, "c", ONE_SLICE, pod="p"),
            row(1.2, "1/7"),
            claim(1.9, "c", ONE_SLICE, CARD.format(0), pod="p"),
            RUNS,
            row(2.4, "1"),
        ],
        ["allocated above its bound: resourceclaims/a/c at revision 7: 1 of 1/7"],
    ),
    more_in_use_than_the_quota_grants=(
        [
            *published(BEFORE, *H100),
            row(0.5, "0", "1/8"),
            RUNS,
            claim(2.1, "c", ONE_SLICE, SLICE.format(0), pod="p"),
            row(2.2, "1/7", "1/8"),
        ],
        [
            "admitted over hard: resourceclaims/a/c at revision 6: 1/7 of 1/8",
            "allocated over hard: resourceclaims/a/c at revision 6: 1/7 of 1/8",
        ],
    ),
    a_seventh_that_stays_when_all_are_gone=(
        changed(6.3, lambda _: row(6.3, "1/7")),
        [
            "charges differ: after resourceclaims/a/c at revision 12 the ledger says 1/7 for 3.9 s, not 0",
            "left: 1/7 is used",
        ],
    ),
    a_reservation_that_stays=(
        changed(6.3, lambda _: row(6.3, "0", entries="gpus=1 | c:resourceclaims/c")),
        ["left: gpus=1 | c:resourceclaims/c"],
    ),
)
def test_a_fault_is_found(steps: list[Step], want: list[str]) -> None:
    assert verdict(steps, 10).faults == want


def test_what_a_later_device_makes_of_a_claim_is_counted_apart() -> None:
    """A card is published after a slice was admitted, and the claim for any device gets it."""
    divided = slices.divided(cards.H100, "n", 1, "1g.10gb")
    anything = spec(request("any.gpu.nvidia.com"))
    steps = [
        *published(BEFORE, *divided),
        row(0.5, "0", "1/2"),
        claim(1, "c", anything, pod="p"),
        row(1.1, "1/7", "1/2"),
        *published(1.5, *slices.whole(cards.H100, "n", 2), generation=2),
        row(1.6, "1", "1/2"),
        pod(1.9, "p", node="n"),
        claim(2, "c", anything, CARD.format(1), pod="p"),
    ]
    found = verdict(steps, 5)

    assert found.faults == []
    assert found.by_changes == ["resourceclaims/a/c at revision 8: 1 of 1/7"]


def test_a_claim_whose_pod_has_ended_gets_nothing_more() -> None:
    """It is charged its bound, and what is admitted beside it is no more than the quota grants."""
    ended = pod(5, "p", node="n", phase="Succeeded")
    found = verdict([*HONEST[:-3], ended, claim(6, "d", ONE_SLICE), row(6.1, "8/7")], 7)
    assert found.admitted_over == []

    lost = claim(5, "c", ANY_SLICE, pod="p")
    found = verdict([*HONEST[:-3], lost, claim(6, "d", ONE_SLICE), row(6.1, "8/7")], 7)
    assert found.admitted_over == ["resourceclaims/a/d at revision 12: 8/7 of 1"]


@cases(
    ("wanted", "at", "want"),
    it_did_not_fit_then=(ONE_CARD, 1.5, []),
    it_did_not_fit_shortly_before=(ONE_CARD, 8.0, []),
    it_fits=(ONE_SLICE, 5.0, ["1/7 beside 1/7 of 1: no"]),
)
def test_a_denial_is_needless_if_all_fits(wanted: JSON, at: float, want: list[str]) -> None:
    ordered = sorted(HONEST[:-3], key=lambda each: each[0])
    events = [(Event(number, key, value), at) for number, (at, key, value) in enumerate(ordered, 1)]
    judge = Judge("a", CLASSES, MEANINGS)

    assert judge.replay(events, 10, [Denial(at + 3, wanted, "no")]).needless == want


@cases(
    ("reserved", "want"),
    by_a_claim_that_is_stored_after_it=("c:resourceclaims/c", []),
    by_what_is_never_stored=("other:resourceclaims/c", ["1 beside 0 of 1: no"]),
    by_nothing=("", ["1 beside 0 of 1: no"]),
)
def test_a_denial_beside_a_claim_that_is_being_created(reserved: str, want: list[str]) -> None:
    entry = row(0.9, "0", entries=f"gpus=1 | {reserved}" if reserved else "")
    ordered = sorted([*START, entry, UNBOUND], key=lambda each: each[0])
    events = [(Event(number, key, value), at) for number, (at, key, value) in enumerate(ordered, 1)]

    assert Judge("a", CLASSES, MEANINGS).replay(events, 2, [Denial(1.0, ONE_CARD, "no")]).needless == want


def of(*parts: slices.Slice) -> list[Device]:
    return list(devices_of(each["spec"] for each in slices.pool(slices.NVIDIA, "n", parts)))


def weights(*parts: slices.Slice) -> dict[str, Fraction]:
    """Return weights by profile, and of the card."""
    return {each.get("profile") or "card": each.weight for each in of(*parts)}


SEVENTH, QUARTER, HALF = Fraction(1, 7), Fraction(1, 4), Fraction(1, 2)


@cases(
    ("card", "want"),
    a100_40=(cards.A100_40, [SEVENTH, SEVENTH, QUARTER, Fraction(2, 7), HALF, Fraction(4, 7), 1]),
    a100_80=(cards.A100_80, [SEVENTH, SEVENTH, QUARTER, Fraction(2, 7), HALF, Fraction(4, 7), 1]),
    h100=(cards.H100, [SEVENTH, SEVENTH, QUARTER, Fraction(2, 7), HALF, Fraction(4, 7), 1]),
    h200=(cards.H200, [SEVENTH, SEVENTH, Fraction(35, 141), Fraction(2, 7), HALF, Fraction(4, 7), 1]),
    b200=(cards.B200, [SEVENTH, SEVENTH, QUARTER, Fraction(2, 7), HALF, Fraction(4, 7), 1]),
    by_counters=(cards.X900, [Fraction(1, 8), Fraction(1, 8), QUARTER, QUARTER, HALF, HALF, 1]),
)
def test_partitions_weigh_what_their_profiles_do(card: cards.Card, want: list[Fraction]) -> None:
    found = weights(*slices.partitioned(card, "n", 1))

    assert found == {
        **dict(zip([each.name for each in card.profiles], want, strict=True)),
        "card": Fraction(1),
    }


def test_a_pool_counts_by_its_newest_complete_generation() -> None:
    old = slices.pool(slices.NVIDIA, "n", slices.whole(cards.L4, "n", 1))
    new = slices.pool(slices.NVIDIA, "n", slices.partitioned(cards.H100, "n", 1), 2)

    def names(*parts: JSON) -> int:
        return len(list(devices_of(each["spec"] for each in parts)))

    assert (names(*old), names(*old, new[0]), names(*old, *new)) == (1, 0, 26)


PART = Fraction(-(-5040 * 5120 // 23034), 5040)
"""5 GiB of an L4's memory, rounded up."""


@cases(
    ("parts", "wanted", "least", "most"),
    a_slice_of_any_profile=(H100, ANY_SLICE, 1, 1),
    a_slice_of_one_profile=(H100, ONE_SLICE, SEVENTH, SEVENTH),
    three=(H100, spec(request("mig.nvidia.com", ONE_G, count=3)), 3 * SEVENTH, 3 * SEVENTH),
    no_device_fits=(H100, spec(request("gpu.amd.com", count=3)), 3, 3),
    alternatives_that_fit=(
        H100,
        spec({"firstAvailable": [request("gpu.amd.com", count=9), request("mig.nvidia.com", ONE_G)]}),
        SEVENTH,
        SEVENTH,
    ),
    the_dearest_alternative=(
        H100,
        spec({"firstAvailable": [request("mig.nvidia.com", ONE_G), request("gpu.nvidia.com", count=2)]}),
        2,
        2,
    ),
    all_cards_of_a_node=(H100, spec(request("gpu.nvidia.com", allocationMode="All")), 2, 2),
    administrative=(H100, spec(request("gpu.nvidia.com", adminAccess=True)), 0, 0),
    two_requests=(
        H100,
        spec(request("gpu.nvidia.com"), request("mig.nvidia.com", ONE_G)),
        1 + SEVENTH,
        1 + SEVENTH,
    ),
    a_capacity_that_only_large_slices_have=(
        H100,
        spec(request("mig.nvidia.com", ONE_G, capacity={"requests": {"memory": "10Gi"}})),
        1,
        1,
    ),
    memory_of_a_shared_card=(
        slices.shared(cards.L4, "n", 1, "memory"),
        spec(request("gpu.nvidia.com", capacity={"requests": {"memory": "5Gi"}})),
        PART,
        PART,
    ),
    a_shared_card_without_an_amount=(slices.shared(cards.L4, "n", 1, "memory"), ONE_CARD, 1, 1),
    a_share_that_consumes_no_memory=(slices.shared(cards.L4, "n", 1, "4"), ONE_CARD, 1, 1),
    an_unlimited_share=(slices.shared(cards.L4, "n", 1, "unlimited"), ONE_CARD, 1, 1),
)
def test_the_bound_of_a_claim(
    parts: list[slices.Slice], wanted: JSON, least: Fraction, most: Fraction
) -> None:
    known = Devices(CLASSES, MEANINGS)
    known.add(of(*parts))

    assert known.bound(wanted) == Charge(Fraction(least), Fraction(most))


def test_a_selector_of_one_device_may_be_of_any_of_its_kind() -> None:
    address = meanings.at_address("0000:40:00.0")
    known = Devices(CLASSES, {**MEANINGS, address.text: address})
    known.add(of(*H100))

    assert known.bound(spec(request("gpu.nvidia.com", address))) == Charge(Fraction(0), Fraction(1))


def test_an_amount_is_rounded_as_the_policy_says() -> None:
    (device,) = of(*slices.shared(cards.L4, "n", 1, "memory"))

    assert device.consumption({"memory": str(2**20 + 1)}) == {"gpu.nvidia.com/memory": Fraction(2 * 2**20)}
    assert device.consumption({"memory": "30Gi"}) is None
    assert device.consumption({"bandwidth": "1"}) is None


@pytest.mark.processes
def test_the_judge_imports_nothing_of_what_it_judges() -> None:
    text = (
        "import sys, tests.cluster.devices.judge\n"
        "print([each for each in sys.modules if each.split('.')[0] in {'policies', 'webhook'}])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
