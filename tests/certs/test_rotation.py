"""One step of a rotation after the other, and what is no step."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from certs.check import carried_names
from certs.issue import issue_authority, issue_server
from certs.rotation import (
    Rotation,
    RotationPhase,
    RotationState,
    Terms,
    adopt,
    advance,
    new_state,
    remaining_wait,
)
from tests.cases import cases

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
DAY, SECOND = dt.timedelta(days=1), dt.timedelta(seconds=1)
NAME = "gpu-admission.gpu-admission.svc"
TERMS = Terms(
    names=(NAME,),
    authority_lifetime=300 * DAY,
    leaf_lifetime=90 * DAY,
    propagation=60 * SECOND,
    retirement=600 * SECOND,
)
FOUNDED = new_state(TERMS, NOW)
OTHER = issue_authority(common_name="other", now=NOW, lifetime=300 * DAY)


def changed(**fields: Any) -> RotationState:
    return dataclasses.replace(FOUNDED, **fields)


def advanced(
    state: RotationState, *, carried: bool = True, served: bool = True, after: dt.timedelta = dt.timedelta(0)
) -> RotationState:
    published = [state.bundle(), state.bundle() if carried else b""]
    return advance(state, published, NOW + after, TERMS, is_served=served)


def test_a_whole_rotation() -> None:
    state = changed(requested=Rotation.CA)
    assert state.leaf is not None

    published = advanced(state)
    assert (published.phase, published.requested, published.leaf) == (
        RotationPhase.PUBLISHING,
        None,
        state.leaf,
    )
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
    assert (done.phase, done.authorities, done.leaf) == (
        RotationPhase.STEADY,
        (switched.authority.certificate,),
        switched.leaf,
    )
    assert advanced(done, after=661 * SECOND) is done


@cases(
    ("state", "after", "want"),
    {
        "nothing-is-due": (FOUNDED, 0 * DAY, []),
        "before-two-thirds": (FOUNDED, 59 * DAY, []),
        "leaf-after-two-thirds": (FOUNDED, 61 * DAY, ["leaf"]),
        "authority-after-two-thirds": (
            changed(
                leaf=issue_server(FOUNDED.authority, names=[NAME], now=NOW + 190 * DAY, lifetime=90 * DAY)
            ),
            201 * DAY,
            ["upcoming"],
        ),
        "authority-expired": (FOUNDED, 301 * DAY, ["authority", "leaf"]),
        "leaf-requested": (changed(requested=Rotation.LEAF), 0 * DAY, ["leaf", "requested"]),
        "authority-requested": (changed(requested=Rotation.CA), 0 * DAY, ["upcoming", "requested"]),
        "leaf-lost": (changed(leaf=None), 0 * DAY, ["leaf"]),
        "leaf-of-another-authority": (
            changed(leaf=issue_server(OTHER, names=[NAME], now=NOW, lifetime=DAY)),
            0 * DAY,
            ["leaf"],
        ),
        "leaf-for-other-names": (
            changed(leaf=issue_server(FOUNDED.authority, names=["other"], now=NOW, lifetime=90 * DAY)),
            0 * DAY,
            ["leaf"],
        ),
        "leaf-that-lives-as-long-as-its-authority": (
            changed(
                leaf=issue_server(FOUNDED.authority, names=[NAME], now=NOW + 190 * DAY, lifetime=200 * DAY)
            ),
            199 * DAY,
            [],
        ),
        "authority-requested-during-a-rotation-waits": (
            changed(upcoming=OTHER, since=NOW, requested=Rotation.CA),
            59 * SECOND,
            [],
        ),
        "leaf-requested-during-a-rotation": (
            changed(upcoming=OTHER, since=NOW, requested=Rotation.LEAF),
            0 * DAY,
            ["leaf", "requested"],
        ),
        "begun-by-a-clock-that-was-wrong": (changed(upcoming=OTHER, since=NOW + DAY), 0 * DAY, ["since"]),
        "nothing-to-load-while-another-retired": (
            changed(retired=(OTHER.certificate,), since=NOW, leaf=None),
            600 * SECOND,
            ["leaf", "since"],
        ),
        "retired-long-enough": (
            changed(retired=(OTHER.certificate,), since=NOW),
            600 * SECOND,
            ["retired", "since"],
        ),
    },
)
def test_what_is_due(state: RotationState, after: dt.timedelta, want: list[str]) -> None:
    result = advanced(state, after=after)
    names = [field.name for field in dataclasses.fields(RotationState)]
    differing = [name for name in names if getattr(result, name) != getattr(state, name)]
    assert sorted(differing) == sorted(want)


@pytest.mark.parametrize(
    "fields", [{"upcoming": OTHER}, {"retired": (OTHER.certificate,)}], ids=["upcoming", "retired"]
)
def test_a_bundle_that_goes_missing_begins_the_wait_anew(fields: dict[str, Any]) -> None:
    waiting = changed(**fields, since=NOW)
    missed = advanced(waiting, carried=False, after=3600 * SECOND)
    assert missed.since is None
    assert advanced(missed, after=3601 * SECOND).since == NOW + 3601 * SECOND


def test_an_authority_that_expires_while_its_successor_is_published_gives_way_at_once() -> None:
    successor = issue_authority(common_name="next", now=NOW, lifetime=400 * DAY)
    result = advanced(changed(upcoming=successor), carried=False, after=300 * DAY)
    assert result.authority == successor
    assert result.leaf is not None
    result.leaf.certificate.verify_directly_issued_by(successor.certificate)


def test_without_configurations_a_rotation_goes_on() -> None:
    assert advance(changed(upcoming=OTHER), [], NOW, TERMS, is_served=True).phase is RotationPhase.PROPAGATING


def test_controllers_that_want_different_names_do_not_take_turns() -> None:
    others = dataclasses.replace(TERMS, names=("another", "more"))
    merged = advance(FOUNDED, [FOUNDED.bundle()], NOW, others, is_served=True)
    assert merged.leaf is not None
    assert carried_names(merged.leaf.certificate) == ["another", "more", NAME]
    assert advanced(merged) is merged
    renewed = advanced(merged, after=61 * DAY)
    assert renewed.leaf is not None
    assert carried_names(renewed.leaf.certificate) == [NAME], "what nobody wants goes with the next renewal"


@cases(
    ("authorities", "want"),
    {
        "unknown-once": ([OTHER.certificate, OTHER.certificate], [OTHER.certificate]),
        "known": ([FOUNDED.authority.certificate], []),
        "expired": ([issue_authority(common_name="x", now=NOW - 9 * DAY, lifetime=DAY).certificate], []),
    },
)
def test_adopted_authorities_retire(authorities: list[Any], want: list[Any]) -> None:
    assert list(adopt(FOUNDED, authorities, NOW).retired) == want
