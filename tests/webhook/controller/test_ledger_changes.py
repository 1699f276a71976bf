"""Which namespaces are counted and shown after a change of a ledger object, and when."""

from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import quota_ledger
from tests.cases import cases
from tests.policies.quota.ledger.teams import team
from tests.webhook.controller.informers import unstarted
from webhook.cluster.collection import Subscribers
from webhook.controller.ledger_changes import LedgerChanges
from webhook.controller.quota_status import QuotaStatusWriter
from webhook.controller.status_writer import EVERY_SECONDS
from webhook.controller.team_status import TeamStatusWriter
from webhook.controller.work_queue import WorkQueue
from webhook.quota.ledger_objects import LedgerRecord, VersionedTeamLedgers, team_object_name
from webhook.quota.store import VersionedLedger

TEAM = team({"gpus": 4})
PLACE = team_object_name(TEAM.name)


class World:
    """What a change of a ledger object leads to: names to be reconciled with the seconds until then, and statuses likewise."""

    def __init__(self) -> None:
        self.informers = unstarted()
        self.observed = self.informers.observed
        self.added, self.shown = dict[str, int](), dict[str, float]()
        self.teams_shown, self.forgotten = list[str](), list[str]()
        gone: Any = SimpleNamespace(forget=self.forgotten.append)
        LedgerChanges(self.informers, None, cast("WorkQueue", self), gone)
        nothing: Any = None
        parts: Any = SimpleNamespace(changed=Subscribers("a part"))
        statuses: Any = QuotaStatusWriter(
            nothing, self.informers, parts, parts, None, is_ready_leader=nothing, events=nothing
        )
        team_statuses: Any = TeamStatusWriter(
            nothing, self.informers, nothing, is_ready_leader=nothing, events=nothing
        )
        statuses.changed, team_statuses.changed = self._show, self.teams_shown.append

    def _show(self, namespace: str, within: float = EVERY_SECONDS) -> None:
        self.shown[namespace] = within

    def add(self, name: str, delay: float = 0.0) -> None:
        self.added[name] = round(delay)

    def change(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        self.informers.ledger_objects._changed(None, before)
        for each in (self.added, self.shown, self.teams_shown, self.forgotten):
            each.clear()
        self.informers.ledger_objects._changed(before, after)


def ledger(*uids: str, **changes: Any) -> QuotaLedger:
    reservations = (Reservation(each, {"gpus": Fraction(1)}) for each in uids)
    return quota_ledger(*reservations, ledger_uid="ledger", **changes)


def own(version: int, *uids: str, **changes: Any) -> LedgerRecord:
    return LedgerRecord("ledger", "team", VersionedLedger(ledger(*uids, **changes), str(version)))


UNREADABLE = LedgerRecord("ledger", "team", problem="no")


@cases(
    ("before", "after", "want"),
    new=(None, own(1), {"team": 0}),
    another_spec=(own(1), own(2, generation=2), {"team": 0}),
    a_reservation_more=(own(1, "a"), own(2, "a", "b"), {"team": 1}),
    a_reservation_less=(own(1, "a", "b"), own(2, "a"), {"team": 40}),
    nothing_left=(own(1, "a"), own(2), {}),
    deleted=(own(1, "a"), None, {"team": 0}),
    unreadable=(own(1), UNREADABLE, {"team": 0}),
    unreadable_from_the_first=(None, UNREADABLE, {"team": 0}),
    never_seen=(None, None, {}),
)
def test_a_ledger_that_changed_is_reconciled_in_time(
    before: LedgerRecord | None, after: LedgerRecord | None, want: dict[str, int]
) -> None:
    world = World()
    world.change(before, after)

    assert world.added == want
    assert world.observed.get("team") == (after and after.versioned)
    assert world.forgotten == (["team"] if before and not after else [])
    assert world.shown == ({"team": 1.0} if before or after else {})


def test_a_ledger_that_moved_is_looked_for_in_the_object_of_its_team() -> None:
    world = World()
    world.change(own(1), own(2, moved_to=PLACE))

    assert world.added == {"team": 0}
    assert world.observed.get("team") == own(2, moved_to=PLACE).versioned, "until the team's object shows it"


CV, PROD = ledger("a"), ledger("b")


def of_team(
    version: int, *, leaving: frozenset[str] = frozenset(), spec: Any = TEAM, **ledgers: QuotaLedger
) -> LedgerRecord:
    found = TeamLedgers(spec, {f"vision-{name}": each for name, each in ledgers.items()}, leaving)
    return LedgerRecord("of-team", PLACE, team=VersionedTeamLedgers(found, str(version)))


@cases(
    ("before", "after", "added", "shown"),
    new=(
        None,
        of_team(1, cv=CV, prod=PROD),
        {PLACE: 0, "vision-cv": 0, "vision-prod": 0},
        {"vision-cv": 1, "vision-prod": 1},
    ),
    one_changed=(
        of_team(1, cv=CV, prod=PROD),
        of_team(2, cv=ledger("a", "c"), prod=PROD),
        {"vision-cv": 1},
        {"vision-cv": 1, "vision-prod": 15},
    ),
    another_spec=(
        of_team(1, cv=CV),
        of_team(2, cv=CV, spec=msgspec.structs.replace(TEAM, generation=9)),
        {"vision-cv": 0},
        {"vision-cv": 1},
    ),
    one_joined=(
        of_team(1, cv=CV),
        of_team(2, cv=CV, prod=PROD),
        {PLACE: 0, "vision-prod": 0},
        {"vision-cv": 15, "vision-prod": 1},
    ),
    one_is_leaving=(
        of_team(1, cv=CV, prod=PROD),
        of_team(2, cv=CV, prod=PROD, leaving=frozenset({"vision-cv"})),
        {PLACE: 0},
        {"vision-cv": 15, "vision-prod": 15},
    ),
    deleted=(of_team(1, cv=CV), None, {PLACE: 0, "vision-cv": 0}, {"vision-cv": 1}),
    unreadable=(
        of_team(1, cv=CV),
        LedgerRecord("of-team", PLACE, problem="no"),
        {PLACE: 0, "vision-cv": 0},
        {"vision-cv": 1},
    ),
)
def test_of_a_team_only_what_changed_is_counted(
    before: LedgerRecord | None, after: LedgerRecord | None, added: dict[str, int], shown: dict[str, float]
) -> None:
    world = World()
    world.change(before, after)

    assert world.added == added
    assert world.shown == pytest.approx(shown)
    assert (world.teams_shown, world.forgotten) == ([TEAM.name], [])
