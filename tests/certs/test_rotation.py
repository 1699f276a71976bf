"""One step of a rotation after the other, and what is no step."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from certs.check import carried_names
from certs.issue import KeyPair, issue_ca, issue_server
from certs.rotation import (
    Renewal,
    RotationPhase,
    RotationSettings,
    RotationState,
    adopt,
    advance,
    new_state,
    remaining_wait,
)
from tests.cases import cases

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
DAY, SECOND = dt.timedelta(days=1), dt.timedelta(seconds=1)
NAME = "gpu-admission.gpu-admission.svc"
TERMS = RotationSettings(
    names=(NAME,),
    ca_lifetime=300 * DAY,
    leaf_lifetime=90 * DAY,
    propagation=60 * SECOND,
    retirement=600 * SECOND,
)
FOUNDED = new_state(TERMS, NOW)
OTHER = issue_ca(common_name="other", now=NOW, lifetime=300 * DAY)


def changed(**fields: Any) -> RotationState:
    return dataclasses.replace(FOUNDED, **fields)


def advanced(
    state: RotationState, *, carried: bool = True, served: bool = True, after: dt.timedelta = dt.timedelta(0)
) -> RotationState:
    published = [state.bundle(), state.bundle() if carried else b""]
    return advance(state, published, NOW + after, TERMS, serving_secret_is_current=served)


def test_a_whole_rotation() -> None:
    state = changed(requested=Renewal.CA)
    assert state.leaf is not None

    published = advanced(state)
    assert (published.phase, published.requested) == (RotationPhase.PUBLISHING, None)
    assert published.leaf == state.leaf
    assert published.authorities[0] == state.authority.certificate
    assert advanced(published, carried=False) is published, "one caBundle lacks it: that is waited for"

    propagating = advanced(published)
    assert (propagating.phase, propagating.since) == (RotationPhase.PROPAGATING, NOW)
    assert advanced(propagating, after=59 * SECOND) is propagating
    assert remaining_wait(propagating, TERMS, NOW + 59 * SECOND) == SECOND

    switched = advanced(propagating, after=60 * SECOND)
    assert switched.phase is RotationPhase.RETIRING
    assert switched.authorities == (published.authorities[1], published.authorities[0])
    assert switched.leaf is not None
    switched.leaf.certificate.verify_directly_issued_by(switched.authority.certificate)

    assert advanced(switched, served=False, after=61 * SECOND) is switched, "servers cannot load the leaf yet"
    retiring = advanced(switched, after=61 * SECOND)
    assert retiring.since == NOW + 61 * SECOND
    assert advanced(retiring, after=660 * SECOND) is retiring
    done = advanced(retiring, after=661 * SECOND)
    assert (done.phase, done.leaf) == (RotationPhase.STEADY, switched.leaf)
    assert done.authorities == (switched.authority.certificate,)
    assert advanced(done, after=661 * SECOND) is done


def with_leaf(
    days: int = 90, *, of: KeyPair = FOUNDED.authority, name: str = NAME, after: int = 0
) -> RotationState:
    leaf = issue_server(of, names=[name], now=NOW + after * DAY, lifetime=days * DAY)
    return changed(leaf=leaf)


RETIRED = (OTHER.certificate,)


@cases(
    ("state", "after", "want"),
    nothing_is_due=(FOUNDED, 0 * DAY, []),
    before_two_thirds=(FOUNDED, 59 * DAY, []),
    leaf_after_two_thirds=(FOUNDED, 61 * DAY, ["leaf"]),
    authority_after_two_thirds=(with_leaf(after=190), 201 * DAY, ["upcoming"]),
    authority_expired=(FOUNDED, 301 * DAY, ["authority", "leaf"]),
    leaf_requested=(changed(requested=Renewal.LEAF), 0 * DAY, ["leaf", "requested"]),
    authority_requested=(changed(requested=Renewal.CA), 0 * DAY, ["upcoming", "requested"]),
    leaf_lost=(changed(leaf=None), 0 * DAY, ["leaf"]),
    leaf_of_another_authority=(with_leaf(1, of=OTHER), 0 * DAY, ["leaf"]),
    leaf_for_other_names=(with_leaf(name="other"), 0 * DAY, ["leaf"]),
    leaf_that_lives_as_long_as_its_authority=(with_leaf(200, after=190), 199 * DAY, []),
    authority_requested_during_a_rotation_waits=(
        changed(upcoming=OTHER, since=NOW, requested=Renewal.CA),
        59 * SECOND,
        [],
    ),
    leaf_requested_during_a_rotation=(
        changed(upcoming=OTHER, since=NOW, requested=Renewal.LEAF),
        0 * DAY,
        ["leaf", "requested"],
    ),
    begun_by_a_clock_that_was_wrong=(changed(upcoming=OTHER, since=NOW + DAY), 0 * DAY, ["since"]),
    nothing_to_load_while_another_retired=(
        changed(retired=RETIRED, since=NOW, leaf=None),
        600 * SECOND,
        ["leaf", "since"],
    ),
    retired_long_enough=(changed(retired=RETIRED, since=NOW), 600 * SECOND, ["retired", "since"]),
)
def test_what_is_due(state: RotationState, after: dt.timedelta, want: list[str]) -> None:
    result = advanced(state, after=after)
    names = [field.name for field in dataclasses.fields(RotationState)]
    differing = [name for name in names if getattr(result, name) != getattr(state, name)]
    assert sorted(differing) == sorted(want)


@pytest.mark.parametrize(
    "fields", [{"upcoming": OTHER}, {"retired": (OTHER.certificate,)}], ids=["upcoming", "retired"]
)
def test_a_bundle_that_goes_missing_begins_the_wait_again(fields: dict[str, Any]) -> None:
    waiting = changed(**fields, since=NOW)
    missed = advanced(waiting, carried=False, after=3600 * SECOND)
    assert missed.since is None
    assert advanced(missed, after=3601 * SECOND).since == NOW + 3601 * SECOND


def test_an_authority_that_expires_while_its_successor_is_published_gives_way_at_once() -> None:
    successor = issue_ca(common_name="next", now=NOW, lifetime=400 * DAY)
    result = advanced(changed(upcoming=successor), carried=False, after=300 * DAY)
    assert result.authority == successor
    assert result.leaf is not None
    result.leaf.certificate.verify_directly_issued_by(successor.certificate)


def test_without_configurations_a_rotation_goes_on() -> None:
    assert (
        advance(changed(upcoming=OTHER), [], NOW, TERMS, serving_secret_is_current=True).phase
        is RotationPhase.PROPAGATING
    )


def test_controllers_that_want_different_names_do_not_take_turns() -> None:
    others = dataclasses.replace(TERMS, names=("another", "more"))
    merged = advance(FOUNDED, [FOUNDED.bundle()], NOW, others, serving_secret_is_current=True)
    assert merged.leaf is not None
    assert carried_names(merged.leaf.certificate) == ["another", "more", NAME]
    assert advanced(merged) is merged
    renewed = advanced(merged, after=61 * DAY)
    assert renewed.leaf is not None
    assert carried_names(renewed.leaf.certificate) == [NAME], "what nobody wants goes with the next renewal"


@cases(
    ("authorities", "want"),
    unknown_once=([OTHER.certificate, OTHER.certificate], [OTHER.certificate]),
    known=([FOUNDED.authority.certificate], []),
    expired=([issue_ca(common_name="x", now=NOW - 9 * DAY, lifetime=DAY).certificate], []),
)
def test_adopted_authorities_retire(authorities: list[Any], want: list[Any]) -> None:
    assert list(adopt(FOUNDED, authorities, NOW).retired) == want
