"""The object with all ledgers of a team has room for 500 namespaces, and what has no room is known."""

import pytest
from msgspec.structs import replace

from policies.quota.amounts import Hard
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.team_spec import (
    LONGEST_GUARANTEED,
    LONGEST_LIMITS,
    MAX_NAMESPACES,
    TeamNamespaces,
    TeamSpec,
)
from tests.budgets import budget
from tests.builders import quota_ledger
from tests.cases import cases
from tests.policies.quota.ledger.creations import amounts
from tests.policies.quota.ledger.teams import counted, team
from webhook.controller import teams
from webhook.controller.teams import SPEC_PARTS, THE_SPEC, TeamSizes
from webhook.quota.ledger_objects import TeamObjects

CLASSES = [f"nvidia-class-{number:05}" for number in range(32)]
NAMES = [f"n{'x' * 59}{number:03}" for number in range(MAX_NAMESPACES)]
SPEC = TeamSpec(
    namespaces=TeamNamespaces(names=("*",)),
    hard=Hard(classes=dict.fromkeys(CLASSES, 4000)),
    guaranteed={
        name: Hard(classes=dict.fromkeys(CLASSES[: 5 if number < 314 else 4], 8))
        for number, name in enumerate(NAMES)
    },
    contact="c" * 256,
)
FULL = quota_ledger(
    ledger_uid="0" * 36,
    quota_uid="0" * 36,
    generation=1000,
    waiting=1000,
    waiting_for_team=1000,
    unclassified_pods=UnclassifiedPods.MOST_EXPENSIVE,
    used=SPEC.amounts,
    revisions=Revisions(10**10, 10**10, 10**10),
    class_catalogue="0123456789abcdef/MostExpensive",
    next_catalogue="fedcba9876543210/MostExpensive",
)


@cases(
    ("more", "want"),
    as_it_is=({}, []),
    one_more_limit=(
        {"hard": Hard(gpus=9, classes=SPEC.hard.classes)},
        [
            (
                "hard",
                f"must be shorter: 1298 characters (names and 14 for each amount), at most {LONGEST_LIMITS}",
            )
        ],
    ),
    one_more_guarantee=(
        {"guaranteed": {**SPEC.guaranteed, NAMES[-1]: SPEC.guaranteed[NAMES[0]]}},
        [
            (
                "guaranteed",
                f"must be shorter: 131100 characters (names and 14 for each amount), at most {LONGEST_GUARANTEED}",
            )
        ],
    ),
)
def test_the_largest_spec_has_no_more(more: dict[str, object], want: list[tuple[str, str]]) -> None:
    assert [*replace(SPEC, **more).problems()] == want


def test_it_fits_with_as_many_namespaces_as_a_team_may_have() -> None:
    limits = Team(
        name="t" * 237,
        uid="0" * 36,
        generation=1000,
        hard=SPEC.amounts,
        guaranteed=SPEC.guarantees,
        unclassified_pods=UnclassifiedPods.MOST_EXPENSIVE,
        contact=SPEC.contact,
    )
    found = TeamLedgers(limits, dict.fromkeys(NAMES, FULL))
    assert TeamSizes().fits(TeamLedgers(limits), found, THE_SPEC, "the spec")


SMALL = counted({"gpus": 1}, {"gpus": 8})


def large(**changes: object) -> QuotaLedger:
    return replace(SMALL, **changes)


@cases(
    ("ledger", "fits"),
    no_larger=(SMALL, True),
    more_limits=(large(hard=amounts(gpus=8, another_class=1)), False),
    a_budget=(large(budget=budget(gpus=5)), False),
    stored_names_go_first=(large(hard=amounts(gpus=9), stored_names={"pods/train-0": {}}), True),
    reservations_have_room_of_their_own=(
        counted({"gpus": 1}, {"gpus": 8}, Reservation("uid", amounts(gpus=1), name="pods/train-0")),
        True,
    ),
)
def test_what_has_no_room_is_known_until_it_has(
    monkeypatch: pytest.MonkeyPatch, ledger: QuotaLedger, fits: bool
) -> None:
    before = TeamLedgers(team({"gpus": 9}), {"cv": SMALL, "nlp": SMALL})
    size = len(TeamObjects().encode("", before)) + 30
    monkeypatch.setattr(teams, "LONGEST_BODY", size * SPEC_PARTS // (SPEC_PARTS - 1))
    sizes = TeamSizes()

    assert sizes.fits(before, before.with_ledger("cv", ledger), "cv", "the GPUQuota of cv") is fits
    assert sizes.left_out("team-vision", ["cv"]) == ([] if fits else ["the GPUQuota of cv"])
    assert sizes.fits(before, before.with_ledger("cv", SMALL), "cv", "the GPUQuota of cv")
    assert sizes.left_out("team-vision", ["cv"]) == []


def test_an_object_that_is_too_large_may_not_grow_but_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "LONGEST_BODY", 10)
    before = TeamLedgers(team({"gpus": 9}), {"cv": SMALL, "nlp": SMALL})
    sizes = TeamSizes()
    assert sizes.fits(before, before.without("nlp"), THE_SPEC, "the spec")
    assert not sizes.fits(before, before.with_ledger("prod", SMALL), "prod", "namespace prod")
    assert not sizes.fits(before, before.with_team(team({"gpus": 9, "a": 1})), THE_SPEC, "the spec")
    assert sizes.left_out("team-vision", ["prod"]) == ["the spec", "namespace prod"]
    assert sizes.left_out("team-vision", []) == ["the spec"], "a namespace that has gone is forgotten"
    assert sizes.left_out("team-vision", ["prod"]) == ["the spec"]


@cases(("namespaces", "fits"), few=(1, True), many=(10, False))
def test_a_dimension_that_the_team_gains_takes_room_in_every_ledger(
    monkeypatch: pytest.MonkeyPatch, namespaces: int, fits: bool
) -> None:
    before = TeamLedgers(team({"gpus": 9}), {f"n{number}": SMALL for number in range(namespaces)})
    monkeypatch.setattr(teams, "LONGEST_BODY", len(TeamObjects().encode("", before)) + 100)
    after = before.with_team(team({"gpus": 9, "another_class": 1}))
    assert TeamSizes().fits(before, after, THE_SPEC, "the spec") is fits


def test_quotas_of_its_namespaces_leave_room_for_a_change_of_the_spec() -> None:
    """Else a lead could fill the object, and keep a limit that an administrator adds from being in force."""
    sizes, found = TeamSizes(), TeamLedgers(team({"gpus": 9}), {f"n{number}": SMALL for number in range(30)})
    for number in range(300):
        namespace = f"n{number % 30}"
        more_limits = amounts(**{f"{'x' * 250}-{number}-{each}": 1 for each in range(8)})
        hard = {**found.ledgers[namespace].hard, **more_limits}
        after = found.with_ledger(namespace, large(hard=hard))
        if not sizes.fits(found, after, namespace, f"the GPUQuota of {namespace}"):
            break
        found = after
    assert 100 < number < 299, "the object is full"
    assert sizes.left_out("team-vision", [*found.ledgers]) == [f"the GPUQuota of n{number % 30}"]
    more = found.with_team(team({"gpus": 8, **{f"another-class-{number}": 1 for number in range(32)}}))
    assert sizes.fits(found, more, THE_SPEC, "the spec")
    assert sizes.fits(found, found.with_ledger("new", replace(SMALL, quota_uid="", hard={})), "new", "new")
