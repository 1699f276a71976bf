"""How a ledger moves into the object of a team and out of it: one step after the other, whoever takes it."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from msgspec.structs import replace

from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.quota_request import LedgerError
from tests.builders import quota_ledger
from tests.cases import cases
from tests.policies.quota.ledger.teams import team
from tests.webhook.controller.team_moves import (
    SECONDS,
    TEAMS,
    Controller,
    World,
    controllers,
    people,
    serve,
)
from tests.webhook.quota.quota_and_ledger_object import NO_TEAMS
from webhook.cluster.api import api_path
from webhook.controller.moves import Step, next_step
from webhook.quota.ledger_objects import NO_LEDGER_OBJECT, team_object_name
from webhook.quota.store import LedgerConflict, VersionedLedger
from webhook.quota.team_documents import team_path

NAMESPACE, PLACE, ELSEWHERE = "cv", "clustergpuquota.vision", "clustergpuquota.other"
ABSENT, THERE, LEAVING = "absent", "there", "leaving"


@cases(
    ("moved_to", "in_team", "belongs", "want"),
    it_belongs_to_no_team=("", ABSENT, False, None),
    it_is_to_join=("", ABSENT, True, Step.SEND),
    it_is_on_its_way=(PLACE, ABSENT, True, Step.ADD),
    nobody_wants_it_any_more_on_its_way=(PLACE, ABSENT, False, Step.ADD),
    it_is_there=(PLACE, THERE, True, None),
    it_is_to_leave=(PLACE, THERE, False, Step.FREEZE),
    it_leaves=(PLACE, LEAVING, False, Step.RETURN),
    it_leaves_and_is_wanted_again=(PLACE, LEAVING, True, Step.RETURN),
    it_has_left=("", LEAVING, False, Step.REMOVE),
    it_has_left_and_is_wanted_again=("", LEAVING, True, Step.REMOVE),
    it_is_in_another_team=(ELSEWHERE, ABSENT, True, None),
    it_went_to_another_team=(ELSEWHERE, LEAVING, False, Step.REMOVE),
    its_own_object_was_deleted=(None, THERE, True, Step.FREEZE),
    its_own_object_was_deleted_while_it_left=(None, LEAVING, False, Step.REMOVE),
    it_has_no_ledger_yet=(None, ABSENT, True, None),
)
def test_the_next_step(moved_to: str | None, in_team: str, belongs: bool, want: Step | None) -> None:
    own = None if moved_to is None else VersionedLedger(quota_ledger(moved_to=moved_to), "1")
    ledgers = {} if in_team == ABSENT else {NAMESPACE: quota_ledger()}
    leaving = frozenset({NAMESPACE} if in_team == LEAVING else ())

    assert (
        next_step(NAMESPACE, PLACE, own, TeamLedgers(team({}), ledgers, leaving), should_be_in_team=belongs)
        is want
    )


@pytest.mark.parametrize("crash", [0.0, 0.15])
@pytest.mark.parametrize("seed", range(15))
def test_while_a_ledger_moves_one_place_decides_and_nothing_is_lost(seed: int, crash: float) -> None:
    world = World(seed, crash=crash, quotas={"own": True, "alone": False})
    world.turns.run(
        partial(people, world, 12),
        partial(controllers, world, 8),
        partial(controllers, world, 8),
        *(
            partial(serve, world, f"{name}-{number}", name, 12)
            for name in world.belongs
            for number in range(2)
        ),
    )
    assert world.broken == []

    world.turns.run(lambda: settle(world))
    for namespace, belongs in world.belongs.items():
        want = team_object_name(belongs) if belongs else {"own": namespace, "alone": ""}[namespace]
        assert world.decides(namespace) == want
    assert world.broken == []


def settle(world: World) -> None:
    """Reconcile everything as one process that does not end."""
    last = Controller(world, crashes=False)
    for _ in range(2):
        for name in (*map(team_object_name, TEAMS), *world.belongs):
            last.reconcile(name)


class Late:
    """A controller that takes a step late: the ledger was on its way, and has been somewhere else meanwhile."""

    def __init__(self, world: World) -> None:
        self.world, self.place = world, team_object_name("a")
        self.other = Controller(world, crashes=False)
        self.store = world.store(crashes=False)
        world.belongs["own"] = "a"

    def is_sent(self) -> None:
        """Take the first step into the team."""
        self.world.belongs["own"] = ""
        self.other.reconcile("own")
        own = self.store.read_own("own", SECONDS)
        assert own is not None
        self.store.compare_and_swap("own", own, replace(own.ledger, moved_to=self.place), SECONDS)
        self.world.belongs["own"] = "a"

    def leaves(self) -> None:
        """Join the team, and take the first step out of it."""
        self.world.belongs["own"] = "a"
        self.joins()
        serve(self.world, "first", "own", 1)
        self.freezes()

    def freezes(self) -> None:
        found = self.store.read_team("a", SECONDS)
        assert found is not None
        self.store.swap_team(found.version, found.team_ledgers.leave("own"), SECONDS)

    def joins(self) -> None:
        self.other.reconcile(self.place)
        self.other.reconcile("own")
        assert self.world.decides("own") == self.place

    def returns(self) -> None:
        self.world.belongs["own"] = ""
        self.other.moves.leave("own", self.place)
        assert self.world.decides("own") == "own"

    def goes_round_and_returns(self) -> None:
        self.joins()
        self.returns()
        serve(self.world, "meanwhile", "own", 1)

    def goes_round_and_the_team_goes(self) -> None:
        self.goes_round_and_returns()
        del self.world.api._objects[team_path("a")]
        self.other.reconcile(self.place)
        assert self.store.read_team("a", SECONDS) is None

    def goes_round_and_leaves(self) -> None:
        self.returns()
        self.world.belongs["own"] = "a"
        self.joins()
        serve(self.world, "meanwhile", "own", 1)
        self.freezes()

    def joins_late(self) -> None:
        late = Controller(self.world, crashes=False)
        with suppress(LedgerConflict):
            joining = late.moves.prepare_join("own", self.place)
            if joining is not None:
                late.moves.join("own", joining, joining.ledger)

    def leaves_late(self) -> None:
        Controller(self.world, crashes=False).moves.leave("own", self.place)


@pytest.mark.parametrize("call", range(4))
@cases(
    ("before", "meanwhile", "late"),
    a_ledger_that_was_on_its_way_is_added_late=(Late.is_sent, Late.goes_round_and_returns, Late.joins_late),
    and_its_team_is_gone=(Late.is_sent, Late.goes_round_and_the_team_goes, Late.joins_late),
    a_ledger_that_left_is_returned_late=(Late.leaves, Late.goes_round_and_leaves, Late.leaves_late),
)
def test_a_step_that_comes_late_is_not_taken(
    before: Callable[[Late], None],
    meanwhile: Callable[[Late], None],
    late: Callable[[Late], None],
    call: int,
) -> None:
    world = World(0, crash=0.0, quotas={"own": True})
    history = Late(world)

    def run() -> None:
        before(history)
        world.before_calls += [*[lambda: None] * call, lambda: meanwhile(history)]
        late(history)

    world.turns.run(run)

    assert world.broken == []
    assert "meanwhile-0" in world.admitted["own"]


def test_what_keeps_a_ledger_out_of_its_team(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0, crash=0.0, quotas={"own": True})
    controller, place = Controller(world, crashes=False), team_object_name("a")
    moves = controller.moves

    said: list[str] = []

    def run() -> None:
        world.belongs["own"] = ""
        controller.reconcile("own")
        world.belongs["own"] = "a"
        steps = (
            partial(moves.prepare_join, "own", place),
            partial(moves.prepare_join, "own", place),
            partial(moves._create_team_object, "a"),
        )
        for step in steps:
            with pytest.raises((LedgerConflict, LedgerError)) as raised:
                step()
            said.append(str(raised.value))
            monkeypatch.setattr(moves._sizes, "fits", lambda *_: False)
            monkeypatch.setattr(moves._membership, "is_unreadable", lambda _: bool(said[1:]))

    world.turns.run(run)

    assert said == [
        "the object of the team was created",
        "the ledgers of ClusterGPUQuota a would be too large for one object",
        "ClusterGPUQuota a cannot be read",
    ]


def test_a_ledger_that_others_keep_writing_stays_in_its_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.controller.moves.MOVE_SECONDS", 0.0)
    moves = Controller(World(0, crash=0.0, quotas={}), crashes=False).moves

    with pytest.raises(LedgerError) as refused:
        moves.leave("own", team_object_name("a"))

    assert str(refused.value) == "too many others write to the ledger of the team"


def test_what_belongs_to_a_team_stays_there_though_a_controller_believed_it_on_its_way_out() -> None:
    world = World(0, crash=0.0, quotas={"own": True})
    history = Late(world)

    def run() -> None:
        history.joins()
        world.api.writes.clear()
        history.leaves_late()

    world.turns.run(run)

    assert world.api.writes == {}
    assert world.decides("own") == history.place


@cases(
    ("is_there", "want"),
    while_its_team_is_not_in_the_watch=(True, "alone"),
    with_its_namespace=(False, ""),
)
def test_when_a_ledger_without_a_quota_is_deleted(is_there: bool, want: str) -> None:
    world = World(0, crash=0.0, quotas={"alone": False})

    def run() -> None:
        world.belongs["alone"] = "a"
        store, late = world.store(crashes=False), Controller(world, crashes=False)
        new = VersionedLedger(quota_ledger(quota_uid=""), NO_LEDGER_OBJECT)
        store.compare_and_swap("alone", new, new.ledger, SECONDS)
        if not is_there:
            del world.api._objects[api_path("/api/v1", "namespaces", "alone")]
        late.moves._membership = late.quotas.membership = NO_TEAMS
        late.reconcile("alone")

    world.turns.run(run)

    assert world.decides("alone") == want


def test_many_are_admitted_while_ledgers_move() -> None:
    """So the law above is one about something."""
    admitted = moved = 0
    for seed in range(10):
        world = World(seed, crash=0.0, quotas={"own": True})
        bodies = (
            partial(people, world, 12),
            partial(controllers, world, 12),
            partial(serve, world, "s", "own", 30),
        )
        world.turns.run(*bodies)
        admitted += len(world.admitted["own"])
        moved += len([path for path in world.api.writes if "clustergpuquota" in path])
    assert admitted > 50
    assert moved > 10
