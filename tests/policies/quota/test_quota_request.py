"""What a review demands of a ledger, by each of the catalogue versions of the ledger: key by key the larger amount."""

from typing import Any

import msgspec
import pytest

from policies.gpus.claimed_devices import decode_claim
from policies.gpus.classes import GPUClasses
from policies.gpus.mapping_spec import Measure, ResourceMappingSpec, ResourcePattern
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.fingerprint import Fingerprints
from policies.quota.amounts import amount_texts
from policies.quota.catalogue import CatalogueVersion, PublishedCatalogue, catalogue_digest
from policies.quota.demand import Catalogue, Demand, UnclassifiedPods
from policies.quota.ledger.decide import Line, VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import (
    QuotaRequest,
    decide_alone,
    demand_input,
    quota_request_for_claim,
    quota_request_for_pod,
)
from policies.quota.waiting import GATE
from tests.builders import JSON, gpu_container, pod, quota_ledger, view
from tests.cases import cases
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING

T4 = "nvidia-t4"
OLD = PublishedCatalogue(CLASSES, RESOURCE_MAPPING)
_SPOT = ResourceMappingSpec(resources=(ResourcePattern(pattern="example.com/spot", measure=Measure.DEVICES),))
_SHARED_T4 = msgspec.structs.replace(CLASSES.named([T4])[0], equivalents={"nvidia.com/gpu": "1/2"})
_SPECS = (_SPOT, *RESOURCE_MAPPING.specs)
NEW = PublishedCatalogue(GPUClasses([*CLASSES, _SHARED_T4]), ResourceMapping(_SPECS))
"""A T4 weighs half as much, and there is one more resource."""
PUBLISHED = {catalogue_digest(each): each for each in (OLD, NEW)}


def catalogue_version(of: Catalogue, mode: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY) -> str:
    return str(CatalogueVersion(catalogue_digest(of), mode))


def ledger(now: str | None, following: str | None = None) -> QuotaLedger:
    return quota_ledger(used={}, class_catalogue=now, next_catalogue=following)


def asking(own: Catalogue, amounts: dict[str, str], before: JSON | None = None) -> QuotaRequest:
    stored = None if before is None else view(before)
    return quota_request_for_pod("review", view(requested(amounts)), stored, own)


def requested(amounts: dict[str, str]) -> JSON:
    return pod(gpu_container(resources={"limits": amounts}), nodeSelector={"accelerator": T4})


CARDS = {"nvidia.com/gpu": "2"}
MOVING = ledger(catalogue_version(OLD), catalogue_version(NEW))
SPOT = {"example.com/spot": "3"}


@cases("own", at_an_old_replica=OLD, at_a_new_one=NEW)
@cases(
    ("now", "following", "amounts", "want"),
    cards_by_the_old_one=(OLD, None, CARDS, "2"),
    cards_by_the_new_one=(NEW, None, CARDS, "1"),
    cards_while_it_moves=(OLD, NEW, CARDS, "2"),
    cards_while_it_moves_back=(NEW, OLD, CARDS, "2"),
    a_new_name_by_the_old_one=(OLD, None, SPOT, None),
    a_new_name_while_it_moves=(OLD, NEW, SPOT, "3"),
)
def test_every_replica_computes_demand_by_the_catalogue_versions_of_the_ledger(
    own: Catalogue, now: Catalogue, following: Catalogue | None, amounts: dict[str, str], want: str | None
) -> None:
    ledger_object = ledger(
        catalogue_version(now), None if following is None else catalogue_version(following)
    )

    counted = asking(own, amounts).for_ledger(ledger_object, PUBLISHED)

    assert amount_texts(counted.reservation.demand).get("gpus") == want
    assert counted.catalogue_versions == ledger_object.catalogue_versions


def test_a_change_is_counted_by_what_grows_under_either_catalogue_version() -> None:
    ledger_object, before = MOVING, requested({**CARDS, **SPOT})
    grown = {"nvidia.com/gpu": "3", "example.com/spot": "5"}

    counted = asking(OLD, grown, before).for_ledger(ledger_object, PUBLISHED)

    # A card more is half a card by the new catalogue version, which also counts two of the new name: 1 by the old version,
    # 2 1/2 by the new one.
    assert amount_texts(counted.reservation.demand)["gpus"] == "5/2"


@cases(
    ("ledger_object", "want"),
    {
        "the-ledger's-is-not-published": (ledger(catalogue_version(NEW)), VerdictReason.OTHER_CATALOGUE),
        "the-next-is-not-published": (MOVING, VerdictReason.OTHER_CATALOGUE),
        "of-a-later-release": (ledger(f"{catalogue_digest(OLD)}/Later"), VerdictReason.OTHER_CATALOGUE),
        "our-own": (ledger(catalogue_version(OLD)), VerdictReason.RESERVED),
    },
)
def test_what_cannot_be_counted_by_the_ledger_is_denied(
    ledger_object: QuotaLedger, want: VerdictReason
) -> None:
    counted = asking(OLD, CARDS).for_ledger(ledger_object, {})

    verdict = decide_alone(ledger_object, counted).verdict
    assert verdict is not None
    assert verdict.reason is want


@cases(
    ("now", "following", "denied"),
    from_now_on_denied=(UnclassifiedPods.TOTAL_ONLY, UnclassifiedPods.DENY, True),
    not_denied_any_more=(UnclassifiedPods.DENY, UnclassifiedPods.TOTAL_ONLY, False),
)
def test_the_next_catalogue_version_decides_what_is_denied(
    now: UnclassifiedPods, following: UnclassifiedPods, denied: bool
) -> None:
    unclassified_pods = quota_request_for_pod("review", view(pod(gpu_container("1"))), None, OLD)

    counted = unclassified_pods.for_ledger(
        ledger(catalogue_version(OLD, now), catalogue_version(OLD, following)), {}
    )

    assert bool(counted.denials) is denied


GPU, PART = {"nvidia.com/gpu": "8"}, {"nvidia.com/gpumem-percentage": "1"}


def on_node(*containers: dict[str, str]) -> JSON:
    return pod(*(gpu_container(resources={"limits": each}) for each in containers), nodeName="n")


@cases(
    ("document", "before", "denied"),
    parts_of_whole_cards=(on_node(GPU | PART), None, True),
    parts_in_another_container=(on_node(GPU, GPU | PART), None, True),
    limit_of_no_card_beside_it=(on_node(GPU, PART), None, False),
    whole_card_resources=(on_node(GPU | {"amd.com/gpu": "1"}), None, False),
    compute=(on_node({"gpu.intel.com/millicores": "1", "gpu.intel.com/i915": "8"}), None, False),
    its_scheduler_places_it=(requested(GPU | PART), None, False),
    its_scheduler_has_placed_it=(on_node(GPU | PART), on_node(GPU | PART), False),
)  # fmt: skip
def test_a_pod_that_names_its_node_gets_no_parts(document: JSON, before: JSON | None, denied: bool) -> None:
    stored = None if before is None else view(before)

    request = quota_request_for_pod("review", view(document), stored, OLD)

    demand = request.for_ledger(ledger(catalogue_version(OLD)), {})
    assert [each.sentence() for each in demand.denials] == [
        'spec.nodeName = "n": set nodeSelector kubernetes.io/hostname, or remove the limit; must be omitted beside a limit of '
        "GPU memory: only the scheduler that shares GPUs holds a pod to its part"
    ] * denied


MAIN = {"name": "main"}


@cases(
    ("after", "before", "takes_nothing"),
    no_extended_resource=(pod({**MAIN, "resources": {"limits": {"cpu": "4"}}}), None, True),
    a_change_of_labels=(
        {**requested(CARDS), "metadata": {"name": "p", "labels": {"a": "b"}}},
        {**requested(CARDS), "metadata": {"name": "p"}},
        True,
    ),
    a_name_that_another_catalogue_may_know=(requested(SPOT), None, False),
    an_annotation_that_may_be_a_fraction=(pod(MAIN, annotations={"gpu-part": "0.5"}), None, False),
    a_pod_without_gpus_that_waits=(pod(MAIN, schedulingGates=[{"name": GATE}]), None, False),
    an_overhead=(pod(MAIN, overhead={"nvidia.com/gpu": "1"}), None, False),
    a_node_selector=(requested(CARDS), pod(gpu_container(resources=requested(CARDS)["spec"])), False),
)
def test_what_is_free_is_known_without_demand(after: JSON, before: JSON | None, takes_nothing: bool) -> None:
    stored = None if before is None else view(before)

    assert quota_request_for_pod("review", view(after), stored, OLD).takes_nothing is takes_nothing


WAITING: JSON = {"schedulingGates": [{"name": GATE}]}
OTHER_GATE: JSON = {"schedulingGates": [{"name": "example.com/other"}]}
STORED = {"metadata": {"name": "p", "uid": "u", "resourceVersion": "7"}}


def gpu_pod(gpus: str = "2", **spec: Any) -> JSON:
    return {**pod(gpu_container(gpus), **{"nodeSelector": {"accelerator": T4}, **spec}), **STORED}


@cases(
    ("after", "before", "line", "want"),
    created_under_the_gate=(gpu_pod(**WAITING), None, Line.BEHIND, ("u", None, Line.JOINS)),
    whoever_creates_it=(gpu_pod(**WAITING), None, Line.NEVER_WAITS, ("u", None, Line.JOINS)),
    under_another_gate=(gpu_pod(**OTHER_GATE), None, Line.BEHIND, ("u", "2", Line.BEHIND)),
    one_that_never_waits=(gpu_pod(), None, Line.NEVER_WAITS, ("u", "2", Line.NEVER_WAITS)),
    the_controller_removes_the_gate=(gpu_pod(), gpu_pod(**WAITING), Line.LIFTS, ("u/lift/review", "2", Line.LIFTS)),
    its_owner_does=(gpu_pod(), gpu_pod(**WAITING), Line.BEHIND, ("u/review", "2", Line.BEHIND)),
    the_controller_changes_something_else=(
        gpu_pod("3"), gpu_pod("2"), Line.LIFTS, ("u/review", "1", Line.BEHIND)
    ),
    it_grows_under_the_gate=(gpu_pod("3", **WAITING), gpu_pod(**WAITING), Line.BEHIND, ("u/review", None, Line.BEHIND)),
    it_grows_as_the_gate_goes=(gpu_pod("3"), gpu_pod(**WAITING), Line.LIFTS, ("u/lift/review", "3", Line.LIFTS)),
)  # fmt: skip
def test_a_pod_under_our_gate_demands_nothing_until_the_gate_is_removed(
    after: JSON, before: JSON | None, line: Line, want: tuple[str, str | None, Line]
) -> None:
    stored = None if before is None else view(before)
    asked = quota_request_for_pod("review", view(after), stored, OLD, line=line)

    found = asked.for_ledger(ledger(catalogue_version(OLD)), {})

    assert (found.reservation.id, amount_texts(found.reservation.demand).get("gpus"), found.line) == want
    assert found.reservation.version == (7 if before else 0)


@cases(
    ("document", "mode"),
    no_class=(gpu_pod(nodeSelector={}, **WAITING), UnclassifiedPods.DENY),
    parts_on_its_own_node=(on_node(GPU | PART), UnclassifiedPods.TOTAL_ONLY),
)
def test_what_is_denied_is_denied_under_our_gate_too(document: JSON, mode: UnclassifiedPods) -> None:
    document = {**document, "spec": {**document["spec"], **WAITING}}

    found = quota_request_for_pod("review", view(document), None, OLD).for_ledger(
        ledger(catalogue_version(OLD, mode)), {}
    )

    assert found.denials
    assert found.reservation.demand == {}


@cases(
    ("one", "other", "is_same"),
    our_gate=(gpu_pod(), gpu_pod(**WAITING), False),
    another_gate=(gpu_pod(), gpu_pod(**OTHER_GATE), True),
)
def test_our_gate_is_part_of_what_demand_depends_on(one: JSON, other: JSON, is_same: bool) -> None:
    assert (demand_input(view(one)) == demand_input(view(other))) is is_same
    assert quota_request_for_pod("review", view(one), view(other), OLD).takes_nothing is is_same
    seen = Fingerprints(["*"])
    assert seen.of(view(one)) != seen.of(view(other))


@cases(
    ("metadata", "want"),
    uid_and_name=({"uid": "c", "name": "train"}, ("c", "resourceclaims/train")),
    no_uid_so_each_review_is_another_object=({"name": "train"}, ("review", "resourceclaims/train")),
    a_name_that_no_object_can_have=({"uid": "c", "name": "a b"}, ("c", "")),
    no_metadata=(None, ("review", "")),
)
def test_a_claim_is_reserved_by_uid_and_name(metadata: JSON | None, want: tuple[str, str]) -> None:
    claim = decode_claim(msgspec.json.encode({"metadata": metadata, "spec": {"devices": {"requests": []}}}))

    found = quota_request_for_claim("review", claim, "somebody", OLD).for_ledger(
        ledger(catalogue_version(OLD)), {}
    )

    assert (found.reservation.id, found.reservation.name) == want


def test_nothing_is_counted_before_a_ledger_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    demands: list[Any] = []

    def demand(*requested: Any, **_: Any) -> Demand:
        demands.append(requested)
        return Demand({})

    monkeypatch.setattr("policies.quota.quota_request.pod_demand", demand)
    monkeypatch.setattr("policies.quota.quota_request.claim_demand", demand)
    claim = decode_claim(msgspec.json.encode({"spec": {"devices": {"requests": []}}}))
    requests = [asking(OLD, CARDS), quota_request_for_claim("review", claim, "somebody", OLD)]
    assert [request.takes_nothing for request in requests] == [False, False]
    assert not demands, "only a ledger says by what to charge"

    for request in requests * 2:
        request.for_ledger(ledger(catalogue_version(OLD)), {})
    assert len(demands) == 2, "each is charged once by each catalogue version"
