"""One write for the counts of all namespaces of a team that are due, whatever others write meanwhile, and whatever fails."""

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import Revisions
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.line import Turn
from policies.quota.quota_request import LedgerError
from policies.quota.team_line import TeamTurn
from tests.webhook.controller.team_moves import Controller, World, serve
from tests.webhook.controller.team_scene import NAMESPACES, OBJECT, PLACE, Scene, run
from tests.webhook.quota.ledger_api import LEDGERS
from webhook.controller.reconciler import CONTEND_SECONDS, CONTENDED_RETRY_SECONDS, MARGIN_SECONDS
from webhook.quota.documents import quota_path
from webhook.quota.team_documents import team_path


def test_all_that_are_due_are_counted_in_one_write() -> None:
    def test(scene: Scene) -> None:
        assert scene.reconcile("cv", "nlp") == {"cv": None, "nlp": None}
        assert scene.waiting() == {"cv": 7, "nlp": 7, "prod": 0}
        assert scene.reconcile("cv", "nlp", "prod") == dict.fromkeys(NAMESPACES)

    scene = run(test)
    assert scene.writes == 2
    assert scene.world.api.writes.keys() == {OBJECT}


def test_a_namespace_in_which_pods_wait_has_its_turn_with_any_other() -> None:
    turns: list[list[str]] = []
    started: list[tuple[str, tuple[str, ...]]] = []

    def take_turn(ledgers: TeamLedgers, namespaces: Iterable[str]) -> TeamTurn:
        turns.append(sorted(namespaces))
        held = replace(ledgers.ledgers["nlp"], waiting_for_team=3)
        return TeamTurn(ledgers.with_ledger("nlp", held), {"nlp": Turn(held, ("pod",), {})})

    def test(scene: Scene) -> None:
        line: Any = SimpleNamespace(
            has_waiting=lambda namespace: namespace == "nlp",
            credited=lambda _namespace, _former, counted: counted,
            take_team_turn=take_turn,
            start=lambda namespace, uids: started.append((namespace, uids)),
        )
        scene.controller.quotas.line = scene.controller.teams._line = line
        scene.controller.quotas.enforces = lambda _: True
        scene.reconcile("cv")
        found = scene.team()
        assert found.ledgers["nlp"].waiting_for_team == 3

    assert run(test).writes == 1
    assert (turns, started) == ([["cv", "nlp"]], [("nlp", ("pod",))])


def test_nobody_has_a_turn_beside_one_that_must_be_counted_again() -> None:
    """As after another process counted by a later list: the pods of the others would pass its pods."""
    turns: list[list[str]] = []

    def take_turn(ledgers: TeamLedgers, namespaces: Iterable[str]) -> TeamTurn:
        turns.append(sorted(namespaces))
        return TeamTurn(ledgers, {})

    def test(scene: Scene) -> None:
        line: Any = SimpleNamespace(
            has_waiting=lambda namespace: namespace in {"cv", "nlp"},
            credited=lambda _namespace, _former, counted: counted,
            take_team_turn=take_turn,
            start=lambda *_: None,
        )
        quotas = scene.controller.quotas
        quotas.line = scene.controller.teams._line = line
        quotas.enforces, quotas.list_again = lambda _: True, lambda *_: Revisions(pods=1)
        quotas.seconds_until_next = lambda *_: 300.0
        scene.refused = ["nlp"]
        assert scene.reconcile("cv") == {"cv": 300.0, "nlp": 300.0}
        assert scene.waiting() == {"cv": 7, "nlp": 7, "prod": 0}

    run(test)
    assert [each for each in turns if each] == [["cv", "nlp"]]


def test_what_others_did_not_change_meanwhile_is_not_counted_again() -> None:
    def test(scene: Scene) -> None:
        scene.during = [lambda: None, lambda: serve(scene.world, "pod", "cv", 1)]
        assert scene.reconcile(*NAMESPACES) == dict.fromkeys(NAMESPACES)

    scene = run(test)
    assert scene.counted == [*NAMESPACES, "cv"]
    assert scene.world.admitted["cv"] == {"pod-0"}
    assert scene.writes == 2, "that of the replica, and the counts"


def test_what_was_counted_of_a_namespace_that_left_meanwhile_does_not_come_back() -> None:
    """As after a leader was stopped: another one moved the ledger, which would be decided on in two places."""

    def leave(scene: Scene) -> None:
        scene.world.belongs["cv"] = ""
        other = Controller(scene.world, crashes=False)
        for name in (PLACE, "cv"):
            other.reconcile(name)
        assert "cv" not in scene.team().ledgers

    def test(scene: Scene) -> None:
        scene.during = [lambda: leave(scene)]
        scene.reconcile("cv")
        assert sorted(scene.team().ledgers) == ["nlp", "prod"]

    run(test)


def test_who_writes_all_the_time_delays_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now: Iterator[int] = iter(range(0, 1000, 3))
    monkeypatch.setattr("webhook.controller.team_reconciler.monotonic", lambda: next(now))

    def test(scene: Scene) -> None:
        scene.during = [lambda: serve(scene.world, "pod", "cv", 1)] * 9
        assert scene.reconcile("cv") == {"cv": CONTENDED_RETRY_SECONDS}

    run(test)


def test_one_that_cannot_be_counted_delays_no_other_one() -> None:
    failure = LedgerError("no answer", transient=True)

    def test(scene: Scene) -> None:
        scene.fails["nlp"] = failure
        assert scene.reconcile(*NAMESPACES) == {"cv": None, "nlp": failure, "prod": None}
        assert scene.waiting() == {"cv": 7, "nlp": 0, "prod": 7}

    run(test)


def test_a_changed_quota_is_written_before_the_counts() -> None:
    def test(scene: Scene) -> None:
        quota = scene.world.api._objects[quota_path("cv")]
        quota["spec"], quota["metadata"]["generation"] = {"hard": {"gpus": 3}}, 2
        del scene.world.api._objects[quota_path("prod")]
        scene.fails |= dict.fromkeys(NAMESPACES, LedgerError("no answer", transient=True))
        scene.reconcile(*NAMESPACES)
        found = scene.team()
        ledgers = found.ledgers
        assert {name: dict(ledger.hard) for name, ledger in ledgers.items()} == {
            "cv": {"gpus": 3},
            "nlp": {},
            "prod": {},
        }
        assert ledgers["prod"].quota_uid == ""

    assert run(test).writes == 1


def test_a_namespace_whose_quota_cannot_be_read_is_counted_for_its_team() -> None:
    def test(scene: Scene) -> None:
        quota = scene.world.api._objects[quota_path("cv")]
        quota["spec"], quota["metadata"]["generation"] = {"hard": {"gpus": "many"}}, 2
        assert scene.reconcile(*NAMESPACES) == dict.fromkeys(NAMESPACES)
        found = scene.team()
        assert found.ledgers["cv"].hard == {"gpus": 1000}, "what was in force stays"
        assert scene.waiting() == dict.fromkeys(NAMESPACES, 7)

    run(test)


def test_changed_limits_of_the_team_are_in_force_before_the_counts() -> None:
    def test(scene: Scene) -> None:
        team = scene.world.api._objects[team_path("a")]
        team["spec"]["hard"], team["metadata"]["generation"] = {"gpus": 3, "classes": {"nvidia-t4": 1}}, 2
        scene.reconcile(PLACE)
        assert scene.counted == []
        found = scene.team()
        assert found.team.hard == {"gpus": 3, "classes/nvidia-t4": 1}
        cv = found.of("cv")
        assert cv is not None
        assert cv.uncounted == ("classes/nvidia-t4",)

    assert run(test).writes == 1


def test_a_limit_that_comes_during_a_count_is_counted() -> None:
    def test(scene: Scene) -> None:
        def changes() -> None:
            team = scene.world.api._objects[team_path("a")]
            team["spec"]["hard"], team["metadata"]["generation"] = {"resources": {"example.com/x": 1}}, 2
            Controller(scene.world, crashes=False).reconcile(PLACE)

        scene.during = [changes]
        assert scene.reconcile("cv") == {"cv": None}
        found = scene.team()
        cv = found.of("cv")
        assert cv is not None
        assert cv.uncounted == ()

    run(test)


def test_a_watch_that_is_behind_brings_back_no_former_limits_and_delays_no_count() -> None:
    def test(scene: Scene) -> None:
        membership = scene.controller.teams._membership
        former = membership.desired("a")
        team = scene.world.api._objects[team_path("a")]
        team["spec"]["hard"], team["metadata"]["generation"] = {"gpus": 3}, 2
        scene.reconcile(PLACE)
        membership.desired = lambda _team: former  # type: ignore[assignment,method-assign]
        assert scene.reconcile("cv") == {"cv": None}
        found = scene.team()
        assert found.team.hard == {"gpus": 3}
        assert scene.waiting()["cv"] == 7

    assert run(test).writes == 2, "the limits, and the count"


def test_a_team_is_told_who_leaves_and_who_joins() -> None:
    told: list[tuple[str, str, str]] = []

    def test(scene: Scene) -> None:
        events: Any = scene.controller.moves._events
        events.put = lambda event: told.append((event.regarding.uid, event.reason, event.message))
        for team in ("", "a"):
            scene.world.belongs["cv"] = team
            scene.controller.reconcile("cv")

    run(test)
    assert told == [
        ("uid-a", "NamespaceLeft", "namespace cv is no longer counted for the team"),
        ("uid-a", "NamespaceJoined", "namespace cv is counted for the team from now on"),
    ]


def test_the_object_of_a_team_goes_when_nobody_is_in_it() -> None:
    def test(scene: Scene) -> None:
        del scene.world.api._objects[team_path("a")]
        assert scene.reconcile("cv") == {"cv": None}
        assert scene.waiting()["cv"] == 7, "counted by the last limits, until its watch shows that it is gone"
        scene.world.belongs |= dict.fromkeys(NAMESPACES, "")
        assert scene.reconcile(PLACE) == {PLACE: None}, "namespaces are left"
        assert scene.reconcile("cv", "nlp") == {
            "cv": MARGIN_SECONDS,
            "nlp": MARGIN_SECONDS,
            PLACE: MARGIN_SECONDS,
        }
        assert OBJECT in scene.world.api._objects
        assert scene.reconcile("prod") == {"prod": MARGIN_SECONDS, PLACE: MARGIN_SECONDS}
        assert OBJECT not in scene.world.api._objects
        scene.controller.reconcile("nlp")
        assert {name: scene.world.decides(name) for name in NAMESPACES} == {
            "cv": "cv",
            "nlp": "",
            "prod": "prod",
        }

    run(test)


def apart(scene: Scene) -> None:
    """Have the ledgers of the namespaces in their own objects, and let them join."""
    scene.world.belongs |= dict.fromkeys(NAMESPACES, "")
    for namespace in NAMESPACES:
        scene.controller.reconcile(namespace)
    scene.reconcile(PLACE)
    scene.world.belongs |= dict.fromkeys(NAMESPACES, "a")
    scene.world.api.writes.clear()


def test_those_that_join_in_one_turn_meet_no_writes_of_each_other() -> None:
    def test(scene: Scene) -> None:
        apart(scene)
        assert scene.reconcile("cv", "prod") == {"cv": None, "prod": None}
        assert {name: scene.world.decides(name) for name in ("cv", "prod")} == {"cv": PLACE, "prod": PLACE}

    scene = run(test)
    assert scene.world.api.writes == {f"{LEDGERS}/cv": 1, f"{LEDGERS}/prod": 1, OBJECT: 2}
    assert scene.controller.quotas.metrics.conflicts._value.get() == 0


def test_one_that_cannot_join_delays_no_other_one() -> None:
    def test(scene: Scene) -> None:
        apart(scene)
        scene.fails = {"cv": LedgerError("away", transient=True)}
        assert scene.reconcile("cv", "prod") == {"cv": scene.fails["cv"], "prod": None}
        assert {name: scene.world.decides(name) for name in ("cv", "prod")} == {"cv": "cv", "prod": PLACE}

    run(test)


def test_joins_that_take_long_are_continued_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("webhook.controller.team_reconciler.monotonic", lambda: now[0])

    def passes() -> None:
        now[0] += CONTEND_SECONDS + 1

    def test(scene: Scene) -> None:
        apart(scene)
        scene.during = [passes]
        assert scene.reconcile("cv", "prod") == {"cv": None, "prod": MARGIN_SECONDS}
        assert {name: scene.world.decides(name) for name in ("cv", "prod")} == {"cv": PLACE, "prod": "prod"}

    run(test)


def test_what_takes_long_is_continued_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is busy with one team for minutes would count as hung, and the process would be restarted."""
    now = [0.0]
    monkeypatch.setattr("webhook.controller.team_reconciler.monotonic", lambda: now[0])

    def passes() -> None:
        now[0] += CONTEND_SECONDS + 1

    def test(scene: Scene) -> None:
        scene.during = [passes]
        assert scene.reconcile("cv", "nlp", "prod") == {
            "cv": None,
            "nlp": CONTENDED_RETRY_SECONDS,
            "prod": CONTENDED_RETRY_SECONDS,
        }
        assert scene.waiting() == {"cv": 7, "nlp": 0, "prod": 0}
        scene.world.belongs |= dict.fromkeys(NAMESPACES, "")
        leave = scene.controller.moves.leave

        def leaves_late(namespace: str, team_object: str) -> None:
            passes()
            leave(namespace, team_object)

        scene.controller.moves.leave = leaves_late  # type: ignore[method-assign]
        assert scene.reconcile("cv", "nlp") == {
            "cv": MARGIN_SECONDS,
            "nlp": MARGIN_SECONDS,
            PLACE: MARGIN_SECONDS,
        }
        assert scene.waiting().keys() == {"nlp", "prod"}

    run(test)


def test_a_team_that_could_never_be_read_does_not_let_its_namespaces_go_unlimited() -> None:
    world = World(0, crash=0.0, quotas={"cv": True, "nlp": False})

    def body() -> None:
        world.api._objects[team_path("a")]["spec"]["hard"] = {"gpus": "many"}
        world.belongs |= {"cv": "a", "nlp": "a"}
        controller = Controller(world, crashes=False)
        controller.moves._membership.is_unreadable = lambda _team: True  # type: ignore[assignment,method-assign]
        for name in ("cv", "nlp", PLACE):
            controller.reconcile(name)

    world.turns.run(body)

    assert OBJECT not in world.api._objects
    assert world.decides("cv") == "cv"


LARGE = {"resources": {f"example.com/{'x' * 200}-{number}": 1 for number in range(64)}}


def _left_out(scene: Scene) -> list[str]:
    return scene.controller.sizes.left_out("a", [*NAMESPACES])


def _bytes(scene: Scene) -> int:
    return len(scene.world.api._objects[OBJECT]["ledger"])


def test_a_quota_that_is_too_large_for_the_object_of_its_team_delays_no_other_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def test(scene: Scene) -> None:
        monkeypatch.setattr("webhook.controller.teams.LONGEST_BODY", 2 * _bytes(scene))
        quota = scene.world.api._objects[quota_path("cv")]
        quota["spec"], quota["metadata"]["generation"] = {"hard": LARGE}, 2
        assert scene.reconcile(*NAMESPACES) == dict.fromkeys(NAMESPACES)
        assert scene.waiting() == dict.fromkeys(NAMESPACES, 7)
        found = scene.team()
        assert found.ledgers["cv"].hard == {"gpus": 1000}, "what was in force stays"
        assert _left_out(scene) == ["the GPUQuota of cv"]
        quota["spec"], quota["metadata"]["generation"] = {"hard": {"gpus": 3}}, 3
        scene.reconcile("cv")
        assert _left_out(scene) == []
        monkeypatch.setattr("webhook.controller.teams.LONGEST_BODY", 1)
        quota["spec"], quota["metadata"]["generation"] = {"hard": {"gpus": 4}}, 4
        scene.reconcile("cv")
        found = scene.team()
        assert found.ledgers["cv"].hard == {"gpus": 4}, "it does not grow"

    run(test)


def test_a_spec_that_is_too_large_for_the_object_of_its_team_delays_no_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledgers repeat its dimensions once they are counted, and the object could not be written any more."""

    def test(scene: Scene) -> None:
        monkeypatch.setattr("webhook.controller.teams.LONGEST_BODY", 2 * _bytes(scene))
        before = scene.team()
        team = scene.world.api._objects[team_path("a")]
        limits = {f"example.com/{'x' * 90}-{number}": 1 for number in range(8)}
        team["spec"]["hard"], team["metadata"]["generation"] = {"resources": limits}, 99
        assert scene.reconcile(PLACE, *NAMESPACES) == dict.fromkeys((PLACE, *NAMESPACES))
        assert scene.waiting() == dict.fromkeys(NAMESPACES, 7)
        found = scene.team()
        assert found.team == before.team, "what was in force stays"
        assert _left_out(scene) == ["the spec"]

    run(test)


def test_a_ledger_that_is_too_large_for_the_object_of_its_team_denies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a user could keep it out of its team by a large GPUQuota."""

    def test(scene: Scene) -> None:
        scene.world.belongs["cv"] = ""
        scene.reconcile("cv")
        assert scene.world.decides("cv") == "cv"
        monkeypatch.setattr("webhook.controller.teams.LONGEST_BODY", 3 * _bytes(scene))
        quota = scene.world.api._objects[quota_path("cv")]
        quota["spec"], quota["metadata"]["generation"] = {"hard": LARGE}, 2
        scene.world.belongs["cv"] = "a"
        scene.controller.reconcile("cv")
        own, teams = scene.world.objects()
        assert scene.world.decides("cv") == "cv"
        assert own["cv"].used is None
        assert teams[PLACE].ledgers.keys() == {"nlp", "prod"}
        assert _left_out(scene) == ["namespace cv"]
        quota["spec"], quota["metadata"]["generation"] = {"hard": {"gpus": 3}}, 3
        scene.controller.reconcile("cv")
        assert scene.world.decides("cv") == PLACE

    run(test)
