"""Sums that are kept as objects come and go, against a count of everything that is stored."""

from fractions import Fraction

import pytest
from hypothesis import settings

from policies.placement.nodes import HOSTNAME
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.reservations import Reservation
from tests.builders import gpu_container, pod, quota_ledger
from tests.webhook.controller.counters import unknown_kind
from tests.webhook.controller.usage_changes import CATALOGUES_CONFIG_MAP, DEVICE, HARD, Changes, raw
from webhook.controller.namespace_sum import anchored_clock
from webhook.controller.usage_sums import UsageSums
from webhook.quota.counted_records import ClaimHistory

TestChanges = Changes.TestCase
TestChanges.settings = settings(stateful_step_count=30)


def test_a_claim_has_the_demand_beyond_that_of_its_live_pod() -> None:
    cluster = Changes()
    cluster.a_claim_is_there("a1", "a1", 2)
    cluster.a_claim_is_there("b1", "a1", 2)
    cluster.all_is_counted()
    for phase in ("Running", "Succeeded", "Running"):
        cluster.a_pod_is_there("a1", (DEVICE, "1"), {}, phase, "", "claim-a", late=False)
        cluster.all_is_counted()
    cluster.a_claim_goes("b1")
    cluster.a_pod_goes("a1")
    cluster.all_is_counted()


def test_the_first_claim_of_its_name_is_the_pods_until_the_pod_goes() -> None:
    cluster = Changes()
    for number, extended_pod in ((1, "a1"), (3, "")):
        cluster.a_pod_is_there("a1", (DEVICE, "1"), {}, "Running", "", "claim-a", late=False)
        cluster.a_claim_is_there(f"a{number}", "a1", 1)
        assert cluster.stored.claims[f"claim-a{number}"].extended_pod == extended_pod
    cluster.a_pod_goes("a1")
    cluster.a_claim_is_there("a3", "a1", 1)
    assert cluster.stored.claims["claim-a3"].extended_pod == "a1"


def with_an_allocated_claim(device_class: str = "gpu.nvidia.com") -> Changes:
    """Return a pending pod with a GPU of its own and a claim that was generated for it, which has a slice."""
    cluster = Changes()
    cluster.slices_change({"slice": 1})
    cluster.a_pod_is_there("a1", ONE, {}, "Pending", "", "", generated="claim-a", late=False)
    cluster.a_claim_is_there(
        "a1", "a1", 1, is_marked=False, devices=("slice",), reserved_for="a1", device_class=device_class
    )
    return cluster


def bind(cluster: Changes, phase: str = "Running") -> None:
    cluster.a_pod_is_there("a1", ONE, {"nodeName": "x"}, phase, "", "", generated="claim-a", late=False)


def test_a_claim_counts_for_its_device_from_when_its_pod_is_bound() -> None:
    cluster = with_an_allocated_claim()
    assert cluster.used("gpus") == 2
    bind(cluster)
    assert cluster.used("gpus") == 2, "its claims may be held as of before the binding"
    assert cluster.stored.sums.last_binding("team") == cluster.version
    cluster.claims_are_listed("team", 0)
    assert cluster.used("gpus") == 1 + Fraction(1, 7)
    assert cluster.stored.sums.last_binding("team") == 0
    bind(cluster, "Succeeded")
    assert cluster.used("gpus") == Fraction(1, 7), "until the claim is deleted"
    cluster.a_pod_goes("a1")
    cluster.a_claim_is_there("a1", "a1", 1, is_marked=False, devices=(), reserved_for="")
    assert cluster.used("gpus") == Fraction(1, 7), "no other pod may have it"
    cluster.a_claim_is_there("a1", "a1", 1, is_marked=False, devices=(), reserved_for="b1")
    assert cluster.used("gpus") == 1, "but another pod has it"
    cluster.a_claim_goes("a1")
    assert cluster.used("gpus") == 0


def test_a_claim_of_a_pod_that_was_not_bound_counts_as_admitted_after_its_end() -> None:
    cluster = with_an_allocated_claim()
    cluster.a_pod_goes("a1")
    assert cluster.used("gpus") == 1


def test_a_claim_counts_as_admitted_while_its_device_is_unknown() -> None:
    cluster = with_an_allocated_claim()
    bind(cluster)
    cluster.claims_are_listed("team", 0)
    cluster.slices_change({})
    assert cluster.used("gpus") == 2


def test_a_claim_that_is_gone_counts_for_its_device() -> None:
    cluster = with_an_allocated_claim()
    bind(cluster)
    cluster.claims_are_listed("team", 0)
    claim = cluster.stored.claims["claim-a1"]
    cluster.stored.sums.claim_changed(claim, None)
    used, *_ = cluster.stored.sums.sum(
        "team", UnclassifiedPods.TOTAL_ONLY, quota_ledger(hard=HARD), {claim.uid: claim}
    )
    assert used["gpus"] == 1 + Fraction(1, 7)


def test_a_device_that_slices_made_larger_counts_as_it_is_and_is_told() -> None:
    cluster = with_an_allocated_claim("slice.nvidia.com")
    bind(cluster)
    cluster.claims_are_listed("team", 0)
    assert cluster.used("gpus") == 1 + Fraction(1, 7)
    assert cluster.stored.sums.grown_claims("team", UnclassifiedPods.TOTAL_ONLY) == 0
    cluster.slices_change({"slice": 0})
    assert cluster.used("gpus") == 2
    assert cluster.stored.sums.grown_claims("team", UnclassifiedPods.TOTAL_ONLY) == 1


T4, L4 = (("accelerator", "nvidia-t4"),), (("accelerator", "nvidia-l4"),)
ONE = ("nvidia.com/gpu", "1")
SELECTS_X = {"nodeSelector": {HOSTNAME: "x"}}


def with_a_pod_on_a_t4() -> Changes:
    cluster = Changes()
    cluster.a_node_is_there("x", 1, T4, "x")
    cluster.a_pod_is_there("a1", ONE, {"nodeName": "x"}, "Running", "", "", late=False)
    return cluster


def assert_on_an_l4(cluster: Changes) -> None:
    assert cluster.used("classes/nvidia-t4") == 0
    assert cluster.used("classes/nvidia-l4") == 1


def test_a_claim_is_found_by_the_name_of_its_reservation() -> None:
    cluster = Changes()
    cluster.a_claim_is_there("a1", "", 1)
    reserved = quota_ledger(
        Reservation("new", {"gpus": Fraction(1)}, name="resourceclaims/claim-a"), hard=HARD
    )

    _, _, found = cluster.stored.sums.sum("team", UnclassifiedPods.MOST_EXPENSIVE, reserved)

    assert {uid: each.name for uid, each in found.items()} == {"claim-a1": "resourceclaims/claim-a"}


def test_a_deleted_node_is_forgotten_with_its_last_pod() -> None:
    cluster = with_a_pod_on_a_t4()
    cluster.a_pod_is_there("b1", ONE, SELECTS_X, "Pending", "", "", late=False)
    cluster.a_node_goes("x")
    assert cluster.used("classes/nvidia-t4") == 2
    cluster.a_pod_goes("a1")
    assert cluster.used("classes/nvidia-l4") == 1, "it may be of any class"
    cluster.a_node_is_there("x", 2, L4, "x")
    assert_on_an_l4(cluster)


def test_a_deleted_node_is_forgotten_with_the_last_pod_that_leaves_it() -> None:
    """No API server lets a pod leave its node, but sums take whatever comes."""
    cluster = with_a_pod_on_a_t4()
    cluster.a_node_goes("x")
    cluster.a_pod_is_there("a1", ONE, SELECTS_X, "Pending", "", "", late=False)
    assert cluster.used("classes/nvidia-l4") == 1, "it may be of any class"


def test_a_node_that_comes_back_is_what_its_labels_say() -> None:
    cluster = with_a_pod_on_a_t4()
    cluster.a_node_goes("x")
    cluster.a_node_is_there("x", 2, L4, "x")
    assert_on_an_l4(cluster)


def test_a_pod_follows_the_node_that_it_is_on_now() -> None:
    cluster = Changes()
    for name in "xy":
        cluster.a_node_is_there(name, 1, T4, name)
    cluster.a_pod_is_there("a1", ONE, SELECTS_X, "Pending", "", "", late=False)
    cluster.a_pod_is_there("a1", ONE, {**SELECTS_X, "nodeName": "y"}, "Running", "", "", late=False)
    cluster.a_node_is_there("y", 1, L4, "y")
    assert_on_an_l4(cluster)


def test_a_full_count_puts_right_what_the_sums_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Changes()
    assert cluster.used("gpus") == 0
    with monkeypatch.context() as missed:
        missed.setattr(UsageSums, "_count", lambda *_: None)
        cluster.a_pod_is_there("a1", ONE, {}, "Running", "", "", late=False)

    assert not cluster.stored.sums.recount("team")
    assert cluster.used("gpus") == 1


def test_idle_holders_come_first_and_others_are_not_cut_off_for_them() -> None:
    sums = UsageSums(CATALOGUES_CONFIG_MAP, ClaimHistory(), unknown_kind, anchored_clock())
    for number in range(1, 13):
        document = pod(gpu_container(str(number)))
        document["metadata"] = {"name": f"p{number}", "namespace": "team", "uid": f"u{number}"}
        sums.pod_changed(None, sums.reader.read_pod(raw(document)))
    idle = {f"Pod/p{number}": f"2027-01-{number:02}T00:00:00Z" for number in (1, 2, 3, 4, 5, 12, 13)}

    ledger = quota_ledger(hard={"gpus": Fraction(99)})
    _, holders, _ = sums.sum("team", UnclassifiedPods.TOTAL_ONLY, ledger, idle=idle)

    assert [(each.name, each.amount, each.idle_since[:10]) for each in holders["gpus"]] == [
        *((f"Pod/p{number}", str(number), f"2027-01-{number:02}") for number in (12, 5, 4, 3, 2)),
        *((f"Pod/p{number}", str(number), "") for number in (11, 10, 9, 8, 7)),
    ]
