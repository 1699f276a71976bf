"""Reports on pods that wait for the quota of their team, and on objects whose pods start in stages."""

from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.line_findings import IN_STAGES
from policies.quota.queue_entries import InLine
from policies.quota.team_line import next_to_start_in_team
from policies.quota.waiting import Waiter
from tests.builders import quota_ledger, uid
from tests.cases import cases
from tests.webhook.controller.reported_line import LEDGER, World, pod, waiter
from webhook.cluster.events import Regarding
from webhook.controller.waiting_reports import REPEAT_SECONDS


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


OTHER = quota_ledger(used={"gpus": Fraction(40)}, class_catalogue="c")


@cases(
    ("hard", "first", "ahead", "want"),
    no_room=(
        56,
        waiter("first", second=1),
        (),
        "next in line of its namespace, needs 8 GPUs, 5 of 56 of ClusterGPUQuota vision free; "
        "largest namespaces: prod 40, team 11",
    ),
    room_that_is_for_another_namespace=(
        56,
        waiter("first", 2, second=1),
        (waiter("ahead", 6, second=0),),
        "next in line of its namespace, needs 2 GPUs, 5 of 56 of ClusterGPUQuota vision free; "
        "another namespace goes first; largest namespaces: prod 40, team 11",
    ),
    never=(
        10,
        waiter("first", 11),
        (),
        "it exceeds the whole quota: it needs 11 GPUs, ClusterGPUQuota vision grants its namespace at most 10 GPUs",
    ),
    never_whatever_kueue_admits_beyond_its_own_quota=(
        10,
        waiter("first", 65, beyond={"gpus": Fraction(65)}),
        (),
        "it exceeds the whole quota: it needs 65 GPUs, ClusterGPUQuota vision grants its namespace at most 10 GPUs",
    ),
)
def test_a_pod_that_waits_for_the_team_reads_so(
    hard: int, first: Waiter, ahead: tuple[Waiter, ...], want: str, world: World
) -> None:
    quota = Team(name="vision", uid="t", generation=1, hard={"gpus": Fraction(hard)})
    empty = quota_ledger(used={"gpus": Fraction(0)}, class_catalogue="c")
    own = replace(LEDGER, hard={"gpus": Fraction(64)})
    ledgers = TeamLedgers(quota, {"team": own, "prod": OTHER, "cv": empty})
    found = next_to_start_in_team(ledgers, {"team": InLine([first], {}), "cv": InLine(ahead, {})})
    world.reports.turn("team", [pod("first")], {"first": first.demand}, found.turns["team"])

    assert [message for *_, message in world.said()] == [f"waiting for quota: {want.removeprefix('next ')}"]


def test_an_object_whose_pods_start_in_stages_has_one_event(world: World) -> None:
    one, other = (Regarding("v1", "JobSet", name, uid(name), "team") for name in ("one", "other"))
    for each in (one, one, other, one):
        world.reports.staged(each)
    assert world.said() == [(name, "QuotaQueued", IN_STAGES) for name in ("one", "other")]


def test_no_number_of_objects_that_start_in_stages_repeats_their_events(world: World) -> None:
    """All that have pods are read within REPEAT_SECONDS. What was not is forgotten."""
    objects = [Regarding("v1", "JobSet", f"set-{number}", f"{number}", "team") for number in range(2000)]
    for _ in range(3):
        for each in objects:
            world.reports.staged(each)
        world.clock.now += REPEAT_SECONDS / 2
    assert len(world.events) == len(objects)
    world.clock.now += REPEAT_SECONDS
    world.reports.staged(objects[-1])
    assert len(world.reports._staged) == 1
