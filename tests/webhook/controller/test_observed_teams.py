"""Where the ledger of a namespace is, by the newest object that was observed to have it, and what is known of it after a move."""

from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import quota_ledger
from tests.cases import cases
from tests.policies.quota.ledger.teams import team
from tests.webhook.controller.clock import Clock
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.quota.ledger_objects import VersionedTeamLedgers, team_object_name
from webhook.quota.store import VersionedLedger

TEAM = team({"gpus": 4})
PLACE = team_object_name(TEAM.name)
EXPIRY = 10.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("webhook.controller.observed_ledgers.monotonic", clock)
    return clock


@pytest.fixture
def observed(clock: Clock) -> ObservedLedgers:  # noqa: ARG001 - it goes by that clock
    return ObservedLedgers(expiry=EXPIRY, no_quota=5.0)


LEDGER = quota_ledger(Reservation("pod", {"gpus": Fraction(1)}), ledger_uid="ledger")


def own(version: int, **changes: Any) -> VersionedLedger:
    return VersionedLedger(replace(LEDGER, **changes), str(version))


def of_team(
    version: int, *leaving: str, spec: Any = TEAM, has: bool = True, **changes: Any
) -> VersionedTeamLedgers:
    ledgers = {"cv": replace(LEDGER, **changes)} if has else {}
    return VersionedTeamLedgers(TeamLedgers(spec, ledgers, frozenset(leaving)), str(version))


Seen = VersionedLedger | VersionedTeamLedgers


def observe(observed: ObservedLedgers, *seen: Seen) -> None:
    for each in seen:
        if isinstance(each, VersionedTeamLedgers):
            observed.observe_team(each)
        else:
            observed.observe("cv", each)


@cases(
    ("seen", "place", "version"),
    its_own=([own(1)], "cv", "1"),
    on_its_way=([own(1), own(2, moved_to=PLACE)], "cv", "2"),
    in_the_team=([own(1), own(2, moved_to=PLACE), of_team(3)], PLACE, "3"),
    in_the_team_from_the_first=([of_team(3), own(2, moved_to=PLACE)], PLACE, "3"),
    an_older_version_of_its_own_comes_late=([of_team(3), own(1)], PLACE, "3"),
    another_ledger_of_the_team_is_written=([of_team(3), of_team(4)], PLACE, "4"),
    and_an_older_one_of_its_own_comes_late=([of_team(3), of_team(5), own(4)], PLACE, "5"),
    an_older_version_of_the_team_comes_late=([of_team(4), of_team(3, waiting=7)], PLACE, "4"),
    it_leaves=([of_team(3), of_team(4, "cv")], PLACE, None),
    it_has_left=([of_team(3), of_team(4, "cv"), own(5)], "cv", "5"),
    it_has_left_and_the_team_comes_late=([of_team(3), own(5), of_team(4)], "cv", "5"),
    it_is_removed_there=([of_team(3), own(5), of_team(6, has=False)], "cv", "5"),
    it_is_there_again=([of_team(3), own(5), of_team(6, has=False), of_team(8)], PLACE, "8"),
)
def test_the_newest_object_that_has_a_ledger_is_where_it_is(
    observed: ObservedLedgers, seen: list[Seen], place: str, version: str | None
) -> None:
    observe(observed, *seen)

    found = observed.get("cv")
    assert observed.object_name("cv") == place
    assert (found and found.version) == version
    assert (found and found.ledger.team_state is not None) == (version and place == PLACE)


def test_what_is_known_of_reservations_survives_a_move(observed: ObservedLedgers, clock: Clock) -> None:
    observe(observed, own(1))
    seen = clock.now
    observed.raised.append((seen, seen))
    clock.now += 6
    observe(observed, own(2, moved_to=PLACE), of_team(3))
    clock.now += 1
    observe(observed, of_team(4, "cv"), own(5))

    assert observed.expired("cv", seen + EXPIRY) == {"pod"}
    assert observed.initialization_wait("cv") == 0.0


def test_that_the_epoch_was_raised_counts_on_its_way(observed: ObservedLedgers, clock: Clock) -> None:
    """Else a controller that starts between two steps would wait forever."""
    observe(observed, own(2, moved_to=PLACE, used=None))
    observed.raised.append((clock.now, clock.now))
    clock.now += 5

    assert observed.initialization_wait("cv") == 0.0


@cases(
    ("later", "is_new"),
    another_ledger_was_written=(of_team(4), False),
    a_count=(of_team(4, waiting=1), False),
    limits_of_the_team=(of_team(4, spec=replace(TEAM, generation=2)), True),
    a_quota_of_its_own=(of_team(4, generation=9), True),
)
def test_a_spec_is_that_of_the_namespace_and_of_its_team(
    observed: ObservedLedgers, clock: Clock, later: VersionedTeamLedgers, is_new: bool
) -> None:
    observe(observed, of_team(3))
    since = clock.now
    clock.now += 1
    observe(observed, later)

    assert observed.spec_since("cv") == (clock.now if is_new else since)


def test_the_ledgers_of_a_team_s_deleted_object_are_looked_for(observed: ObservedLedgers) -> None:
    observe(observed, of_team(3))
    observed.forget_team(PLACE)

    assert (observed.get("cv"), observed.teams()) == (None, {})
    assert list(observed.ledgers()) == ["cv"], "its catalogue is still needed"


@cases(
    ("seen", "want"),
    never_counted=(own(1), 1),
    counted=(own(1, used={"gpus": Fraction(1)}), 0),
    its_quota_gained_a_dimension=(own(1, hard={"a": Fraction(1)}, used={"gpus": Fraction(1)}), 1),
    in_a_team=(of_team(1, used={"gpus": Fraction(1)}), 0),
    never_counted_there=(of_team(1), 1),
    the_team_gained_a_dimension=(of_team(1, spec=team({"gpus": 4, "a": 1}), used={"gpus": Fraction(1)}), 1),
)
def test_how_many_ledgers_were_never_counted_in_full(
    observed: ObservedLedgers, seen: Seen, want: int
) -> None:
    observe(observed, seen)
    assert observed.uncounted() == want
