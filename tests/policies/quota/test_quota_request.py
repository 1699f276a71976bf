"""What a review demands of a ledger, by each of the catalogue versions of the ledger: key by key the larger amount."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from policies.gpus.claims import decode_claim
from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import Measure, ResourceMapping, ResourceMappingSpec, ResourcePattern
from policies.quota.amounts import texts
from policies.quota.catalogue import CatalogueVersion, PublishedCatalogue, catalogue_digest
from policies.quota.demand import Catalogues, Demand, UnclassifiedPods
from policies.quota.ledger.decide import Reason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import (
    QuotaRequest,
    decide_alone,
    quota_request_for_claim,
    quota_request_for_pod,
)
from tests.builders import JSON, gpu_container, pod, quota_ledger, view
from tests.cases import cases
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING

T4 = "nvidia-t4"
OLD = PublishedCatalogue(CLASSES, RESOURCE_MAPPING)
_SPOT = ResourceMappingSpec(resources=(ResourcePattern(pattern="example.com/spot", measure=Measure.DEVICES),))
_SHARED_T4 = msgspec.structs.replace(CLASSES.named([T4])[0], equivalents={"nvidia.com/gpu": "1/2"})
NEW = PublishedCatalogue(
    ClassCatalogue([*CLASSES, _SHARED_T4]), ResourceMapping([_SPOT, *RESOURCE_MAPPING.specs])
)
"""A T4 weighs half as much, and there is one more resource."""
PUBLISHED = {catalogue_digest(each): each for each in (OLD, NEW)}


def catalogue_version(
    of: Catalogues, unclassified_pods: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY
) -> str:
    return str(CatalogueVersion(catalogue_digest(of), unclassified_pods))


def ledger(now: str | None, following: str | None = None) -> QuotaLedger:
    return quota_ledger(used={}, class_catalogue=now, next_catalogue=following)


def asking(own: Catalogues, amounts: dict[str, str], before: JSON | None = None) -> QuotaRequest:
    stored = None if before is None else view(before)
    return quota_request_for_pod("review", view(requested(amounts)), stored, own)


def requested(amounts: dict[str, str]) -> JSON:
    return pod(gpu_container(resources={"limits": amounts}), nodeSelector={"accelerator": T4})


CARDS = {"nvidia.com/gpu": "2"}
MOVING = ledger(catalogue_version(OLD), catalogue_version(NEW))
SPOT = {"example.com/spot": "3"}


@cases("own", {"at-an-old-replica": OLD, "at-a-new-one": NEW})
@cases(
    ("now", "following", "amounts", "want"),
    {
        "cards-by-the-old-one": (OLD, None, CARDS, "2"),
        "cards-by-the-new-one": (NEW, None, CARDS, "1"),
        "cards-while-it-moves": (OLD, NEW, CARDS, "2"),
        "cards-while-it-moves-back": (NEW, OLD, CARDS, "2"),
        "a-new-name-by-the-old-one": (OLD, None, SPOT, None),
        "a-new-name-while-it-moves": (OLD, NEW, SPOT, "3"),
    },
)
def test_every_replica_computes_demand_by_the_catalogue_versions_of_the_ledger(
    own: Catalogues, now: Catalogues, following: Catalogues | None, amounts: dict[str, str], want: str | None
) -> None:
    ledger_object = ledger(
        catalogue_version(now), None if following is None else catalogue_version(following)
    )

    counted = asking(own, amounts).on(ledger_object, PUBLISHED)

    assert texts(counted.reservation.demand).get("gpus") == want
    assert counted.catalogues == ledger_object.catalogue_versions


@cases(
    ("changes", "is_anew"),
    {
        "another-catalogue": ({"class_catalogue": catalogue_version(NEW)}, True),
        "moving-to-another-one": ({"next_catalogue": catalogue_version(NEW)}, True),
        "other-unclassified-pods": ({"unclassified_pods": UnclassifiedPods.DENY}, True),
        "another-amount": ({"hard": {"gpus": Fraction(1)}, "used": {"gpus": Fraction(1)}}, False),
    },
)
def test_demand_is_computed_anew_where_the_ledger_names_something_else(changes: JSON, is_anew: bool) -> None:
    before = ledger(catalogue_version(OLD))

    assert (replace(before, **changes).demand_key != before.demand_key) is is_anew


def test_a_change_is_counted_by_what_grows_under_either_catalogue_version() -> None:
    ledger_object, before = MOVING, requested({**CARDS, **SPOT})
    grown = {"nvidia.com/gpu": "3", "example.com/spot": "5"}

    counted = asking(OLD, grown, before).on(ledger_object, PUBLISHED)

    # A card more is half a one by the new basis, which also counts two of the new name: 1 by the old, 2 1/2 by the new.
    assert texts(counted.reservation.demand)["gpus"] == "5/2"


@cases(
    ("ledger_object", "want"),
    {
        "the-ledger's-is-not-published": (ledger(catalogue_version(NEW)), Reason.OTHER_CATALOGUE),
        "the-next-is-not-published": (MOVING, Reason.OTHER_CATALOGUE),
        "of-a-later-release": (ledger(f"{catalogue_digest(OLD)}/Later"), Reason.OTHER_CATALOGUE),
        "our-own": (ledger(catalogue_version(OLD)), Reason.RESERVED),
    },
)
def test_what_cannot_be_counted_by_the_ledger_is_denied(ledger_object: QuotaLedger, want: Reason) -> None:
    counted = asking(OLD, CARDS).on(ledger_object, {})

    verdict = decide_alone(ledger_object, counted).verdict
    assert verdict is not None
    assert verdict.reason is want


@cases(
    ("now", "following", "denied"),
    {
        "from-now-on-denied": (UnclassifiedPods.TOTAL_ONLY, UnclassifiedPods.DENY, True),
        "not-denied-any-more": (UnclassifiedPods.DENY, UnclassifiedPods.TOTAL_ONLY, False),
    },
)
def test_the_next_catalogue_version_decides_what_is_denied(
    now: UnclassifiedPods, following: UnclassifiedPods, denied: bool
) -> None:
    unclassified_pods = quota_request_for_pod("review", view(pod(gpu_container("1"))), None, OLD)

    counted = unclassified_pods.on(ledger(catalogue_version(OLD, now), catalogue_version(OLD, following)), {})

    assert bool(counted.denials) is denied


GPU, PART = {"nvidia.com/gpu": "8"}, {"nvidia.com/gpumem-percentage": "1"}


def on_node(*containers: dict[str, str]) -> JSON:
    return pod(*(gpu_container(resources={"limits": each}) for each in containers), nodeName="n")


@cases(
    ("document", "before", "denied"),
    {
        "parts-of-whole-cards": (on_node(GPU | PART), None, True),
        "parts-in-another-container": (on_node(GPU, GPU | PART), None, True),
        "limit-of-no-card-beside-it": (on_node(GPU, PART), None, False),
        "whole-cards": (on_node(GPU | {"amd.com/gpu": "1"}), None, False),
        "compute": (on_node({"gpu.intel.com/millicores": "1", "gpu.intel.com/i915": "8"}), None, False),
        "its-scheduler-places-it": (requested(GPU | PART), None, False),
        "its-scheduler-has-placed-it": (on_node(GPU | PART), on_node(GPU | PART), False),
    },
)  # fmt: skip
def test_a_new_pod_that_names_its_node_gets_no_parts(
    document: JSON, before: JSON | None, denied: bool
) -> None:
    stored = None if before is None else view(before)

    request = quota_request_for_pod("review", view(document), stored, OLD)

    demand = request.on(ledger(catalogue_version(OLD)), {})
    assert [(each.path, each.value) for each in demand.denials] == [("spec.nodeName", "n")] * denied


MAIN = {"name": "main"}


@cases(
    ("after", "before", "is_free"),
    {
        "no-extended-resource": (pod({**MAIN, "resources": {"limits": {"cpu": "4"}}}), None, True),
        "a-change-of-labels": (
            {**requested(CARDS), "metadata": {"name": "p", "labels": {"a": "b"}}},
            {**requested(CARDS), "metadata": {"name": "p"}},
            True,
        ),
        "a-name-that-another-catalogue-may-know": (requested(SPOT), None, False),
        "an-annotation-that-may-be-a-fraction": (pod(MAIN, annotations={"gpu-part": "0.5"}), None, False),
        "an-overhead": (pod(MAIN, overhead={"nvidia.com/gpu": "1"}), None, False),
        "a-change-of-the-node-selector": (
            requested(CARDS),
            pod(gpu_container(resources=requested(CARDS)["spec"])),
            False,
        ),
    },
)
def test_what_is_free_by_every_catalogue_is_known_without_demand(
    after: JSON, before: JSON | None, is_free: bool
) -> None:
    stored = None if before is None else view(before)

    assert quota_request_for_pod("review", view(after), stored, OLD).is_free is is_free


@cases(
    ("metadata", "want"),
    {
        "uid-and-name": ({"uid": "c", "name": "train"}, ("c", "resourceclaims/train")),
        "no-uid-so-each-review-is-another-object": ({"name": "train"}, ("review", "resourceclaims/train")),
        "a-name-that-no-object-can-have": ({"uid": "c", "name": "a b"}, ("c", "")),
        "no-metadata": (None, ("review", "")),
    },
)
def test_a_claim_is_reserved_by_uid_and_name(metadata: JSON | None, want: tuple[str, str]) -> None:
    claim = decode_claim(msgspec.json.encode({"metadata": metadata, "spec": {"devices": {"requests": []}}}))

    found = quota_request_for_claim("review", claim, "somebody", OLD).on(ledger(catalogue_version(OLD)), {})

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
    assert [request.is_free for request in requests] == [False, False]
    assert not demands, "only a ledger says by what to charge"

    for request in requests * 2:
        request.on(ledger(catalogue_version(OLD)), {})
    assert len(demands) == 2, "each is charged once by each basis"
