"""When a reservation has been observed for long enough, by the clock of this process and never too early."""

import itertools
from fractions import Fraction
from math import inf
from typing import Any

import pytest

from policies.quota.ledger.quota_ledger import JOINING_SECONDS
from policies.quota.ledger.reservations import Reservation, Reservations
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.controller.clock import Clock
from webhook.controller import observed_ledgers
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.quota.store import VersionedLedger

EXPIRY, NO_QUOTA = 40.0, 2.0

_versions = itertools.count(1)


def ledger_object(
    *ids: str,
    ledger_object: str = "ledger",
    uid: str = "quota",
    generation: int = 1,
    lines: str = "",
    version: int = 0,
) -> VersionedLedger:
    """Return a ledger with these reservations, newer than all before unless `version` says otherwise."""
    entries = Reservations.of(*(Reservation(each, {"gpus": Fraction(1)}) for each in ids))
    held = Reservations.parse(lines) if lines else entries
    ledger = quota_ledger(ledger_uid=ledger_object, quota_uid=uid, generation=generation, reservations=held)
    return VersionedLedger(ledger, str(version or next(_versions)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(observed_ledgers, "monotonic", clock)
    return clock


@pytest.fixture
def ledger_objects(clock: Clock) -> ObservedLedgers:  # noqa: ARG001 - it goes by that clock
    return ObservedLedgers(expiry=EXPIRY, no_quota=NO_QUOTA)


def test_a_creation_of_a_pod_that_will_wait_expires_sooner(
    ledger_objects: ObservedLedgers, clock: Clock
) -> None:
    ledger_objects.observe("team", ledger_object(lines="waiting | pod:pods/train\ngpus=1 | other"))

    assert ledger_objects.expired("team", clock.now + JOINING_SECONDS - 0.1) == frozenset()
    assert ledger_objects.expired("team", clock.now + JOINING_SECONDS) == {"pod"}
    assert ledger_objects.next_expiry("team") == JOINING_SECONDS


@cases(
    ("observed", "want"),
    a_reservation=({"ids": ("pod",)}, "pod"),
    an_unreadable_line=({"lines": "gpus=1 | x x"}, "unreadable gpus=1 | x x"),
)
def test_a_reservation_expires_after_the_bound(
    ledger_objects: ObservedLedgers, clock: Clock, observed: dict[str, Any], want: str
) -> None:
    ledger_objects.observe("team", ledger_object(*observed.pop("ids", ()), **observed))

    assert ledger_objects.expired("team", clock.now + EXPIRY - 0.1) == frozenset()
    assert ledger_objects.expired("team", clock.now + EXPIRY) == {want}
    assert ledger_objects.next_expiry("team") == EXPIRY


@pytest.mark.parametrize("uid", ["quota", "another quota"])
def test_observing_a_reservation_again_changes_no_age(
    ledger_objects: ObservedLedgers, clock: Clock, uid: str
) -> None:
    ledger_objects.observe("team", ledger_object("pod"))
    seen = clock.now
    clock.now += 2
    ledger_objects.observe("team", ledger_object("pod", "other", uid=uid))

    assert ledger_objects.expired("team", seen + EXPIRY) == {"pod"}
    assert ledger_objects.next_expiry("team") == EXPIRY - 2


@cases(("ids", "uid"), gone_in_between=([], "ledger"), another_ledger=(["pod"], "another"))
def test_what_came_back_waits_the_whole_bound_again(
    ledger_objects: ObservedLedgers, clock: Clock, ids: list[str], uid: str
) -> None:
    ledger_objects.observe("team", ledger_object("pod"))
    seen = clock.now
    clock.now += 2
    ledger_objects.observe("team", ledger_object(*ids, ledger_object=uid))
    ledger_objects.observe("team", ledger_object("pod"))

    assert ledger_objects.expired("team", seen + EXPIRY) == frozenset()


@cases(
    ("changed", "rest"),
    another_spec_of_the_same_ledger=({"generation": 2}, NO_QUOTA - 1),
    another_quota_of_the_same_ledger=({"uid": "another quota"}, NO_QUOTA - 1),
    a_ledger_that_is_made_again=({"ledger_object": "another"}, inf),
)
def test_a_changed_spec_is_observed_from_its_change_on(
    ledger_objects: ObservedLedgers, clock: Clock, changed: dict[str, Any], rest: float
) -> None:
    ledger_objects.observe("team", ledger_object())
    ledger_objects.raised.append((clock.now, clock.now))
    clock.now += 1
    ledger_objects.observe("team", ledger_object(**changed))

    assert ledger_objects.spec_since("team") == clock.now
    assert ledger_objects.initialization_wait("team") == rest


def test_what_was_never_seen_waits(ledger_objects: ObservedLedgers, clock: Clock) -> None:
    assert ledger_objects.initialization_wait("team") == inf
    assert ledger_objects.spec_since("team") == clock.now
    assert ledger_objects.expired("team", clock.now + 60) == frozenset()
    assert ledger_objects.next_expiry("team") is None


def test_an_older_version_that_arrives_later_is_not_recorded(ledger_objects: ObservedLedgers) -> None:
    old, new = ledger_object("pod", version=9), ledger_object(version=10)
    ledger_objects.observe("team", new)
    ledger_objects.observe("team", old)

    assert ledger_objects.get("team") == new
    assert ledger_objects.next_expiry("team") is None


def test_a_deletion_forgets_that_ledger_and_not_the_one_in_its_place(ledger_objects: ObservedLedgers) -> None:
    ledger_objects.observe("team", ledger_object())
    made_again = ledger_object(ledger_object="another")
    ledger_objects.observe("team", made_again)
    ledger_objects.forget("team", "ledger")
    assert ledger_objects.ledgers() == {"team": made_again.ledger}

    ledger_objects.forget("team", "another")
    assert (ledger_objects.get("team"), ledger_objects.ledgers()) == (None, {})
