"""The judges find what they are for, in histories that nobody should ever see, and nothing else."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.mixed import amounts, denials, facts, lines
from tests.cluster.mixed.facts import OUR_GATE, TEAM, Facts
from tests.cluster.mixed.recording import Timed
from tests.cluster.quota.history import Event
from tests.cluster.quota.quotas import gpu_pod
from tests.cluster.quota.teams import LABEL

LEDGERS = "/registry/gpu-admission.dev/gpuquotaledgers/default"
GANG, QUOTA = "/registry/jobs/a/train", "/registry/gpu-admission.dev/gpuquotas/a/default"
Step = tuple[float, str, Any]
"""When something was stored, where, and what: None if it was deleted."""


def pod(at: float, name: str, gpus: int = 1, *, waits: bool = False, owner: str = "", **more: Any) -> Step:
    """Store a pod of namespace a or, if its name says so, of b; its name is its uid."""
    stored = gpu_pod(name, gpus)
    place = f"2026-11-28T10:00:{int(name.rpartition('-')[2]):02}Z"
    stored["metadata"] |= {"uid": name, "creationTimestamp": place, **more}
    if owner:
        stored["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True}]
    if waits:
        stored["spec"]["schedulingGates"] = [{"name": OUR_GATE}]
    return at, f"/registry/pods/{'b' if name.startswith('b') else 'a'}/{name}", stored


def gone(at: float, name: str) -> Step:
    return at, pod(at, name)[1], None


def gone_from(at: float, key: str) -> Step:
    return at, key, None


def gang(at: float, size: int) -> Step:
    spec = {"completionMode": "Indexed", "completions": size, "parallelism": size}
    return at, GANG, {"metadata": {"uid": "train"}, "spec": spec}


def quota(at: float, order: str, name: str = "a") -> Step:
    queue = {"order": order, "preferReplacements": False}
    return at, QUOTA.replace("/a/", f"/{name}/"), {"spec": {"queue": queue}}


def denied(at: float, name: str) -> Step:
    """Say that the gate of a pod could not be removed."""
    return at, f"/registry/events/a/{name}", {"reason": "QuotaNotStarted", "involvedObject": {"uid": name}}


def ledger(revision: int, used: int = 0, hard: int | None = 4, waiting: int = 0, **reserved: str) -> JSON:
    """Return a ledger that counted the pods of this revision. Reservations are `gpus=ids`."""
    texts = [f"gpus={gpus[1:]} | {ids}" for gpus, ids in reserved.items()]
    return {
        "hard": {} if hard is None else {"gpus": str(hard)},
        "used": {"gpus": str(used)},
        "waiting": waiting,
        "reservations": "\n".join(texts),
        "revisions": {"pods": str(revision)},
    }


def row(at: float, *given: Any, **more: Any) -> Step:
    return at, f"{LEDGERS}/a", {"ledger": json.dumps(ledger(*given, **more))}


def team(at: float, hard: int, guaranteed: JSON | None = None, leaving: str = "", **ledgers: JSON) -> Step:
    named = {name: {"gpus": str(gpus)} for name, gpus in (guaranteed or {}).items()}
    spec = {"name": "t", "hard": {"gpus": str(hard)}, "guaranteed": named}
    return (
        at,
        f"{LEDGERS}/{TEAM}t",
        {"ledger": json.dumps({"team": spec, "ledgers": ledgers, "leaving": [leaving]})},
    )


def read(*steps: Step) -> Facts:
    """Read a history. The revisions are 1, 2, 3 and so on."""
    events = [Timed(Event(number, key, value), at) for number, (at, key, value) in enumerate(steps, 1)]
    return facts.read(events)


@cases(
    ("steps", "differ", "over", "unreserved"),
    as_it_should_be=([row(1, 0), row(2, 0, _1="x-1:pods/x-1"), pod(3, "x-1"), row(4, 3, 1)], 0, 0, 0),
    a_pod_is_missing=([row(1, 0), row(2, 0, _1="x-1:pods/x-1"), pod(3, "x-1"), row(4, 3, 0)], 1, 0, 0),
    a_pod_that_waits_is_missing=([pod(1, "x-1", waits=True), row(2, 1)], 1, 0, 0),
    more_than_hard=([row(1, 0), row(2, 0, _3="x-1:pods/x-1 x-2:pods/x-2")], 0, 1, 0),
    two_of_one_name=([row(1, 0), row(2, 0, _3="x-1:pods/x x-2:pods/x")], 0, 0, 0),
    more_than_the_team_has=(
        [
            team(1, 2, a=ledger(0, hard=None), b=ledger(0, hard=None)),
            team(2, 2, a=ledger(0, hard=None, _2="x-1:pods/x-1"), b=ledger(0, hard=None)),
            team(
                3,
                2,
                a=ledger(0, hard=None, _2="x-1:pods/x-1"),
                b=ledger(0, hard=None, _1="b-1:pods/b-1"),
            ),
        ],
        0,
        1,
        0,
    ),
    what_others_are_guaranteed=(
        [
            team(1, 2, {"b": 1}, a=ledger(0, hard=None)),
            team(2, 2, {"b": 1}, a=ledger(0, hard=None, _2="x-1:pods/x-1")),
        ],
        0,
        1,
        0,
    ),
    nobody_reserved=([row(1, 0), pod(2, "x-1")], 0, 0, 1),
    it_started_and_nothing_was_held=(
        [row(1, 0), pod(2, "x-1", waits=True), row(3, 2, waiting=1), pod(4, "x-1")],
        0,
        0,
        1,
    ),
    without_a_quota=([pod(1, "x-1")], 0, 0, 0),
)
def test_amounts(steps: list[Step], differ: int, over: int, unreserved: int) -> None:
    found = read(*steps)
    seen = amounts.judge(found)

    assert (len(seen.differ), len(seen.over)) == (differ, over), seen
    assert len(list(amounts.unreserved(found))) == unreserved


FIRST, SECOND = pod(1, "x-1", 3, waits=True), pod(2, "x-2", waits=True)
WAITING = [FIRST, SECOND, row(3, 2, 2, waiting=2)]
KEPT = [row(3, 2, 1, waiting=2), row(4, 2, 0, waiting=2, _1="x-0/keep/y")]
MEMBERS = [gang(1, 2), pod(2, "x-1", waits=True, owner="train"), pod(2, "x-2", waits=True, owner="train")]


@cases(
    ("steps", "passed"),
    the_first_one=([*WAITING, row(4, 2, 0, waiting=2, _3="x-1/lift", _1="x-2/lift")], 0),
    the_second_one=([*WAITING, row(4, 2, 2, waiting=2, _1="x-2/lift")], 1),
    the_second_one_fits=(
        [quota(0, "BestEffortFIFO"), *WAITING, row(4, 3, 2, waiting=2, _1="x-2/lift")],
        0,
    ),
    the_first_one_fits_too=(
        [quota(0, "BestEffortFIFO"), *WAITING, row(4, 3, 1, waiting=2, _1="x-2/lift")],
        1,
    ),
    the_first_one_can_never_start=(
        [pod(1, "x-1", 5, waits=True), SECOND, row(3, 2, waiting=2), row(4, 2, waiting=2, _1="x-2/lift")],
        0,
    ),
    a_whole_gang=([*MEMBERS, row(3, 3, waiting=2), row(4, 3, waiting=2, _1="x-1/lift x-2/lift")], 0),
    half_a_gang=([*MEMBERS, row(3, 3, 3, waiting=2), row(4, 3, 3, waiting=2, _1="x-1/lift")], 1),
    one_that_comes_late_to_a_gang=(
        [
            pod(0, "x-0", 4, waits=True),
            *MEMBERS,
            pod(3, "x-1", owner="train"),
            row(4, 5, 1, waiting=2),
            row(5, 5, 1, waiting=2, _1="x-2/lift"),
        ],
        1,
    ),
    what_its_job_keeps_for_it=(
        [
            pod(1, "x-1", 4, waits=True),
            pod(2, "x-2", waits=True, owner="y"),
            *KEPT,
            row(5, 2, 0, waiting=2, _1="x-2/lift"),
        ],
        0,
    ),
    what_another_job_keeps=(
        [
            pod(1, "x-1", 4, waits=True),
            pod(2, "x-2", waits=True, owner="z"),
            *KEPT,
            row(5, 2, 0, waiting=2, _1="x-2/lift"),
        ],
        1,
    ),
    more_than_its_job_keeps=(
        [
            pod(1, "x-1", 4, waits=True),
            pod(2, "x-2", 2, waits=True, owner="y"),
            *KEPT,
            row(5, 2, 0, waiting=2, _2="x-2/lift"),
        ],
        1,
    ),
    who_holds_less_goes_first=(
        [
            pod(1, "x-1", waits=True),
            pod(2, "b-2", waits=True),
            team(3, 4, a=ledger(2, 3, None, waiting=1), b=ledger(2, 0, None, waiting=1)),
            team(4, 4, a=ledger(2, 3, None, waiting=1), b=ledger(2, 0, None, waiting=1, _1="b-2/lift")),
        ],
        0,
    ),
    a_gang_loses_its_job_after_the_count=(
        [
            quota(0, "BestEffortFIFO"),
            *(pod(1, f"x-{number}", gpus, waits=True) for number, gpus in ((1, 1), (2, 2), (3, 1))),
            gang(2, 2),
            *(pod(2, f"b-{number}", waits=True, owner="train") for number in (4, 5)),
            team(3, 4, a=ledger(7, 0, None, waiting=3), b=ledger(7, 0, None, waiting=2)),
            gone_from(4, GANG),
            team(
                5,
                4,
                a=ledger(7, 0, None, waiting=3, _1="x-1/lift x-3/lift"),
                b=ledger(7, 0, None, waiting=2, _1="b-4/lift b-5/lift"),
            ),
        ],
        0,
    ),
    who_holds_more_goes_first=(
        [
            pod(1, "x-1", waits=True),
            pod(2, "b-2", waits=True),
            team(3, 4, a=ledger(2, 3, None, waiting=1), b=ledger(2, 0, None, waiting=1)),
            team(4, 4, a=ledger(2, 3, None, waiting=1, _1="x-1/lift"), b=ledger(2, 0, None, waiting=1)),
        ],
        1,
    ),
)
def test_order(steps: list[Step], passed: int) -> None:
    seen = lines.order(read(*steps))

    assert seen.held > 0
    assert len(seen.passed) == passed, list(map(str, seen.passed))


OLD = pod(3, "x-0", 3, waits=True)
NEW, AGAIN = pod(4, "x-8", waits=True, owner="server"), pod(4, "x-9", waits=True, owner="server")


@cases(
    ("steps", "unearned"),
    one_ended=([pod(2, "x-7", owner="server"), gone(3, "x-7"), OLD, NEW], 0),
    one_ended_long_ago=([pod(-70, "x-7", owner="server"), gone(-60, "x-7"), OLD, NEW], 1),
    one_of_another_owner_ended=([pod(2, "x-7", owner="other"), gone(3, "x-7"), OLD, NEW], 1),
    one_ended_and_two_pass=([pod(2, "x-7", owner="server"), gone(3, "x-7"), OLD, NEW, AGAIN], 1),
)
def test_who_passes_because_a_pod_ended(steps: list[Step], unearned: int) -> None:
    waiting = len([step for step in steps if step[2] and step[2]["spec"].get("schedulingGates")])
    first, *rest = (["x-8/lift", "x-9/lift"])[: waiting - 1]
    count = len(steps)
    held = " ".join([first, *rest])
    seen = read(*steps, row(5, count, 2, waiting=waiting), row(6, count, 2, waiting=waiting, _1=held))

    assert len(lines.unearned(seen, lines.order(seen).passed)) == unearned


@cases(
    ("steps", "late"),
    at_once=([*MEMBERS, pod(3, "x-1", owner="train"), pod(4, "x-2", owner="train")], []),
    late=([*MEMBERS, pod(3, "x-1", owner="train"), pod(9, "x-2", owner="train")], ["halves"]),
    a_leader_was_killed=(
        [*MEMBERS, pod(23, "x-1", owner="train"), row(31, 4, 1), pod(32, "x-2", owner="train")],
        [],
    ),
    free_quota_is_used=([SECOND, row(3, 1, 4, waiting=1), row(4, 1, 3, waiting=1, _1="x-2/lift")], []),
    free_quota_is_not_used=([SECOND, row(3, 1, 0, waiting=1), row(9, 1, waiting=1, _1="x-2/lift")], ["idle"]),
)
def test_what_lasts_too_long(steps: list[Step], late: list[str]) -> None:
    found = read(*steps)
    spells: dict[str, Callable[[Facts], Any]] = {"halves": lines.halves, "idle": lines.idle}

    seen = [
        name for name, judge in spells.items() if lines.late(found, list(judge(found)), [(22.0, 30.0)], 2.0)
    ]
    assert seen == late


UNUSED = [SECOND, row(3, 9, 0, waiting=1)]
"""From 3 on, quota is free for the first in line."""
FULL = row(34, 9, 4)


def labelled(at: float, team: str) -> Step:
    return at, "/registry/namespaces/a", {"metadata": {"labels": {LABEL: team}}}


@cases(
    ("steps", "seconds"),
    it_starts=([*UNUSED, row(5, 9, 0, waiting=1, _1="x-2/lift")], [2.0]),
    nobody_starts_it=([*UNUSED, FULL], [31.0]),
    the_ledger_is_deleted=([*UNUSED, gone_from(4, f"{LEDGERS}/a"), FULL], [1.0]),
    the_quota_was_deleted=([gone_from(2, QUOTA), *UNUSED, FULL], []),
    the_quota_is_deleted=([*UNUSED, gone_from(4, QUOTA), row(5, 9, 0, waiting=1), FULL], [2.0]),
    the_quota_was_made_again=([gone_from(1, QUOTA), quota(2, "StrictFIFO"), *UNUSED, FULL], [31.0]),
    it_moves_into_a_team=([labelled(1, "t"), *UNUSED, team(34, 4, a=ledger(9, 4))], []),
    it_is_in_its_team=(
        [labelled(1, "t"), SECOND, team(3, 4, a=ledger(9)), team(34, 4, a=ledger(9, 4))],
        [31.0],
    ),
    another_one_leaves_its_team=(
        [SECOND, team(3, 4, leaving="b", a=ledger(9, 0), b=ledger(9, 4)), team(34, 4, a=ledger(9, 4))],
        [],
    ),
    it_has_left_its_team=([labelled(0, "t"), labelled(1, ""), *UNUSED, FULL], [31.0]),
    the_first_one_may_start_or_not=([denied(0, "x-1"), FIRST, SECOND, row(3, 9, 2, waiting=2), FULL], []),
    the_first_one_has_lost_its_job=(
        [
            gang(1, 3),
            *(pod(1, f"x-{number}", waits=True, owner="train") for number in range(3)),
            gone_from(2, GANG),
            pod(2, "x-9", waits=True),
            row(3, 9, 2, waiting=4),
            FULL,
        ],
        [],
    ),
    one_behind_it_may_start_or_not=(
        [denied(0, "x-2"), pod(1, "x-1", waits=True), SECOND, row(3, 9, 2, waiting=2), FULL],
        [31.0],
    ),
    others_may_pass_it=(
        [quota(0, "BestEffortFIFO"), denied(0, "x-1"), FIRST, SECOND, row(3, 9, 2, waiting=2), FULL],
        [31.0],
    ),
)
def test_for_how_long_quota_is_free(steps: list[Step], seconds: list[float]) -> None:
    assert [spell.seconds for spell in lines.idle(read(*steps))] == seconds


def test_what_a_busy_machine_adds_does_not_count() -> None:
    found = read(SECOND, row(3, 1, 0, waiting=1), row(9, 1, waiting=1, _1="x-2/lift"))  # six seconds
    (spell,) = lines.idle(found)

    assert lines.late(found, [spell], [], 2.0, [(4.0, 4.9)]) == [spell], "four writes of 0.9 s"
    assert lines.late(found, [spell], [], 2.0, [(4.0, 5.1)]) == []
    assert lines.late(found, [spell], [], 2.0, [(9.5, 12.0)]) == [spell], "a write of another time"


def closed(waits_for_team: bool, at: float) -> list[Step]:
    """Have a pod of b wait, for the team or for its own quota, until some time."""
    hard = None if waits_for_team else 1
    return [
        pod(1, "b-1", waits=True),
        team(2, 3, {"a": 2}, a=ledger(1, hard=None), b=ledger(1, 1, hard, waiting=1)),
        gone(at, "b-1"),
        team(at, 3, {"a": 2}, a=ledger(3, hard=None), b=ledger(3, 1, hard)),
    ]


@cases(
    ("waits_for_team", "until", "unfounded"),
    it_waits=(True, 11.0, 0),
    it_waits_for_its_own_quota=(False, 11.0, 1),
    it_has_gone=(True, 5.0, 1),
    it_has_gone_a_moment_ago=(True, 9.0, 0),
)
def test_who_closes_others(waits_for_team: bool, until: float, unfounded: int) -> None:
    found = read(*closed(waits_for_team, until))
    denial = denials.Denial("a", "t", 1, 10.0, 10.1)

    assert len(denials.unfounded(found, [denial], denials.Lookback([]))) == unfounded


def test_a_pod_within_a_guarantee_is_not_denied() -> None:
    found = read(*closed(True, 9.0))
    within, beyond = denials.Denial("a", "", 2, 9.5, 9.6), denials.Denial("a", "", 3, 9.5, 9.6)

    assert denials.broken_guarantees(found, [within, beyond], denials.Lookback([])) == [within]


@cases(
    ("steps", "unlimited"),
    never_deleted=([quota(1, "StrictFIFO")], False),
    replaced=([quota(1, "StrictFIFO"), gone_from(2, QUOTA), quota(3, "StrictFIFO")], False),
    made_again_late=([quota(1, "StrictFIFO"), gone_from(2, QUOTA), quota(9, "StrictFIFO")], True),
    never_made_again=([quota(1, "StrictFIFO"), gone_from(2, QUOTA)], True),
)
def test_whose_quota_was_perhaps_not_in_force(steps: list[Step], unlimited: bool) -> None:
    assert read(*steps).was_unlimited("a") is unlimited


def spending(until: int, spent: float, unknown: float = 0) -> JSON:
    hours = {"spent": spent, "unknown": unknown}
    said = {
        "until": until * 1000,
        **{key: {"gpus": int(value * amounts.PER_HOUR / 3600)} for key, value in hours.items()},
    }
    return {"ledger": json.dumps({**ledger(0), "spending": said})}


def test_gpu_seconds() -> None:
    begun, ended = spending(10, 0), spending(20, 11)
    found = read((10, f"{LEDGERS}/a", begun), pod(12, "x-1", 2), gone(17, "x-1"), (20, f"{LEDGERS}/a", ended))

    assert amounts.gpu_seconds(found, "a") == amounts.Spent(10.0, 11.0, 0.0, 0.0, 10.0)


def test_a_gate_that_is_removed_while_nobody_counts() -> None:
    found = read(
        pod(5, "x-1", 2, waits=True),
        (10, f"{LEDGERS}/a", spending(10, 0)),
        pod(12, "x-2", 1, waits=True),
        pod(17, "x-1", 2),
        pod(18, "x-2", 1),
        (20, f"{LEDGERS}/a", spending(20, 28)),
    )

    assert amounts.gpu_seconds(found, "a") == amounts.Spent(10.0, 28.0, 0.0, 0.0, 8.0)
    assert amounts.gpu_seconds(found, "a", [], [(8, 11)]) == amounts.Spent(10.0, 28.0, 0.0, 0.0, 8.0, 20.0)


@cases(
    ("unknown", "unwatched", "unexplained"),
    a_pod_that_ended_while_nobody_counted=(20, [(8, 11)], 0),
    more_than_that_pod_can_have_held=(25, [(8, 11)], 5),
    while_a_controller_counted=(6, [], 6),
)
def test_unknown_gpu_seconds(
    unknown: float, unwatched: list[tuple[float, float]], unexplained: float
) -> None:
    begun, ended = spending(10, 0), spending(20, 0, unknown)
    found = read((10, f"{LEDGERS}/a", begun), pod(12, "x-1", 2), gone(17, "x-1"), (20, f"{LEDGERS}/a", ended))

    spent = amounts.gpu_seconds(found, "a", [], unwatched)

    assert spent is not None
    assert spent.unexplained == pytest.approx(unexplained)
