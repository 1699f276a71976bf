"""What people see of the pods that wait in line: the status of the GPUQuota, Events, metrics, and a line of the audit log."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from policies.quota.amounts import Amounts
from policies.quota.ledger.quota_ledger import Holder
from policies.quota.queue_entries import Gang
from policies.quota.waiting import QueueSpec, Standing, Waiter
from tests.budgets import budget, spending
from tests.builders import quota_ledger, uid
from tests.cases import cases
from tests.webhook.controller.reported_line import AT, IDLE_SINCE, LEDGER, StoppedDate, World, pod, waiter
from webhook.cluster.objects import timestamp
from webhook.controller import waiting_reports
from webhook.controller.waiting_reports import REPEAT_SECONDS
from webhook.quota.documents import PlaceInLine, WaitingPods
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.line import line_cause


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def demand(gpus: int) -> Amounts:
    return {"gpus": Fraction(gpus)}


def test_the_status_names_the_places_in_line_and_a_gang_once(world: World) -> None:
    members = [waiter(f"train-{number}", 2, 5, gang="Job/train") for number in range(4)]

    shown = world.turn(
        waiter("first", second=1), *members, waiter("late", 1, 9), gangs={"Job/train": Gang(4)}
    )
    assert shown == WaitingPods(
        pods=6,
        since=AT.format(1),
        demand=demand(17),
        next=(
            PlaceInLine(
                name="first",
                place=1,
                since=AT.format(1),
                demand=demand(8),
                reason="Next",
                message="next in line, needs 8 GPUs, 5 of 16 free; largest holders: Job/llama 8, Deployment/chat 3",
            ),
            PlaceInLine(
                name="train-0",
                gang="Job/train",
                pods=4,
                place=2,
                since=AT.format(5),
                demand=demand(8),
                reason="Behind",
                message="2nd in line, needs 8 GPUs, 5 of 16 free; largest holders: Job/llama 8, Deployment/chat 3",
            ),
            PlaceInLine(
                name="late",
                place=3,
                since=AT.format(9),
                demand=demand(1),
                reason="Behind",
                message="3rd in line, needs 1 GPU, 5 of 16 free; largest holders: Job/llama 8, Deployment/chat 3",
            ),
        ),
    )


def test_those_that_start_come_first_and_those_without_a_place_last(world: World) -> None:
    shown = world.turn(
        waiter("gated", second=1, obstacle=Standing.OTHER_GATE), waiter("fits", 5, 2), waiter("next", 1, 3)
    )
    assert shown is not None
    assert [(each.name, each.place, each.reason) for each in shown.next] == [
        ("fits", 0, "Starting"),
        ("next", 1, "Next"),
        ("gated", 0, "OtherGate"),
    ]


def test_the_status_has_ten_places(world: World) -> None:
    shown = world.turn(*(waiter(f"pod-{number:02}", second=number) for number in range(12)))

    assert shown is not None
    assert (shown.pods, [each.place for each in shown.next]) == (12, list(range(1, 11)))


ONE = waiter("one")
IDLE = tuple(
    Holder(f"Notebook/{name}", amount, IDLE_SINCE)
    for name, amount in (("ana", "2"), ("bob", "1"), ("eve", "1"))
)
CLASS = replace(ONE, demand={"gpus": Fraction(3), "classes/nvidia-a100": Fraction(3)})


@cases(
    ("waiters", "fields", "message"),
    by_the_dimension_that_lacks_room=(
        [CLASS],
        {},
        "next in line, needs 3 GPUs (nvidia-a100), 2 of 4 nvidia-a100 free; largest holders: Deployment/chat 2",
    ),
    idle_holders_first=(
        [ONE],
        {"holders": {"gpus": (*IDLE, Holder("Job/llama", "8"))}},
        "next in line, needs 8 GPUs, 5 of 16 free; Notebook/ana holds 2 GPUs, idle for 6 h; Notebook/bob holds 1 GPU, idle "
        "for 6 h; largest holders: Job/llama 8, Notebook/ana 2, Notebook/bob 1",
    ),
    without_holders=([ONE], {"holders": {}}, "next in line, needs 8 GPUs, 5 of 16 free"),
    nothing_free_above_the_quota=(
        [ONE],
        {"holders": {}, "used": {"gpus": Fraction(20), "classes/nvidia-a100": Fraction(0)}},
        "next in line, needs 8 GPUs, 0 of 16 free",
    ),
    too_large=(
        [waiter("one", 24)],
        {},
        "it exceeds the whole quota: it needs 24 GPUs, the quota grants 16 GPUs",
    ),
    on_hold=(
        [ONE],
        {"queue": QueueSpec(hold=True)},
        "the line is on hold: spec.queue.hold of the GPUQuota is true",
    ),
    budget_spent=(
        [CLASS],
        {"budget": budget(gpus=100, t4=10), "spending": spending(spent=100, t4=10)},
        "the budget is spent: 100 of 100 GPU-hours used this month; it waits until 2026-12-01 00:00 UTC",
    ),
    other_gate=(
        [waiter("one", obstacle=Standing.OTHER_GATE)],
        {},
        "it has another scheduling gate, and joins the line when that is removed",
    ),
    incomplete_gang=(
        [waiter("one", gang="Job/train")],
        {"gangs": {"Job/train": Gang(4)}},
        "3 of the 4 pods of its gang Job/train do not exist yet",
    ),
    gang_of_unknown_size=(
        [waiter("one", gang="PodGroup/train", obstacle=Standing.UNREAD_GANG)],
        {"gangs": {"PodGroup/train": Gang(0)}},
        "how many pods its gang PodGroup/train needs could not be read yet",
    ),
    starts=([waiter("one", 1)], {}, "it starts now"),
)
def test_why_a_pod_waits(world: World, waiters: list[Waiter], fields: dict[str, Any], message: str) -> None:
    shown = world.turn(*waiters, **fields)

    assert shown is not None
    assert [each.message for each in shown.next] == [message]
    stored = msgspec.convert({"metadata": {"name": "one", "namespace": "team"}}, StoredPod)
    cause = line_cause(stored, None, shown.next[0], {}, "#gpu", datetime(2026, 11, 27, tzinfo=UTC))
    assert cause.message.partition(": ")[2] == message, "what `why` and the console say"
    world.clock.now += REPEAT_SECONDS
    world.turn(*waiters, **fields)
    events = (
        {("one", "QuotaQueued", f"waiting for quota: {message.removeprefix('next ')}")}
        if message != "it starts now"
        else set()
    )
    assert {*world.said()} == events


def test_a_pod_of_a_budget_that_is_not_known_here() -> None:
    assert waiting_reports._spent_text({}, quota_ledger()) == "it waits for the next period"


@cases(("seconds", "want"), seconds=(12.4, "12 s"), minutes=(300, "5 min"), hours=(7500, "2 h 5 min"))
def test_a_duration_in_words(seconds: float, want: str) -> None:
    assert waiting_reports._duration(seconds) == want


def test_the_numbers_of_places_are_in_the_status_and_in_no_event(world: World) -> None:
    shown = world.turn(*(waiter(f"pod-{each:02}", second=each) for each in range(1, 13)))

    assert shown is not None
    assert [each.message.partition(",")[0] for each in shown.next] == [
        "next in line",
        "2nd in line",
        "3rd in line",
        *(f"{number}th in line" for number in range(4, 11)),
    ]
    free = "5 of 16 free; largest holders: Job/llama 8, Deployment/chat 3"
    assert {message for *_, message in world.said()} == {f"waiting for quota: in line, needs 8 GPUs, {free}"}


def test_what_is_free_is_of_the_ledger_that_the_status_shows(world: World) -> None:
    """One object has both figures: `used` of the ledger now, and what a pod in line lacks of it."""
    world.turn(ONE)
    later = replace(LEDGER, used={"gpus": Fraction(16)}, holders={"gpus": (Holder("Job/late", "16"),)})

    shown = world.reports.waiting_status("team", later)

    assert shown is not None
    assert [each.message for each in shown.next] == [
        "next in line, needs 8 GPUs, 0 of 16 free; largest holders: Job/late 16"
    ]


def test_a_pod_gets_an_event_at_entry_for_a_new_reason_and_every_ten_minutes(world: World) -> None:
    ahead, behind = waiter("ahead", second=1), waiter("behind", second=2)
    world.turn(ahead, behind)
    assert [name for name, *_ in world.said()] == ["ahead", "behind"]
    world.turn(behind)
    assert world.said() == []  # it only moved up

    world.turn(replace(behind, obstacle=Standing.OTHER_GATE))
    assert [name for name, *_ in world.said()] == ["behind"]
    world.clock.now += REPEAT_SECONDS - 1
    world.turn(replace(behind, obstacle=Standing.OTHER_GATE))
    assert world.said() == []
    world.clock.now += 1
    world.turn(replace(behind, obstacle=Standing.OTHER_GATE))
    assert [name for name, *_ in world.said()] == ["behind"]


def test_an_incomplete_gang_gets_an_event_after_ten_minutes(world: World) -> None:
    first, second = (waiter(name, gang="Job/train") for name in ("first", "second"))
    gangs = {"Job/train": Gang(3)}
    world.turn(first, gangs=gangs)
    world.clock.now += REPEAT_SECONDS - 1
    world.turn(first, second, gangs=gangs)
    assert world.said() == []
    world.clock.now += 1
    world.turn(first, second, gangs=gangs)
    missing = "waiting for quota: 1 of the 3 pods of its gang Job/train do not exist yet"
    assert world.said() == [("first", "QuotaQueued", missing)]

    world.turn(first, second, waiter("third", gang="Job/train"), gangs=gangs, hard={"gpus": Fraction(24)})
    assert [message for *_, message in world.said()] == [
        "waiting for quota: in line, needs 24 GPUs, 13 of 24 free; largest holders: Job/llama 8, Deployment/chat 3"
    ] * 3


def test_a_gang_with_too_many_pods_is_told_how_many_can_start_together(world: World) -> None:
    waiters = [waiter(uid(str(number)), 1, gang="Job/train") for number in range(5000)]
    shown = world.turn(*waiters, gangs={"Job/train": Gang(5000)}, hard={"gpus": Fraction(5000)}, used={})
    assert shown is not None
    assert shown.next[0].message == (
        "its gang Job/train has 5000 pods, of which at most 4680 can start together"
    )


def test_a_status_is_due_when_it_differs(world: World) -> None:
    world.turn(ONE)
    world.turn(ONE)
    assert world.changed == ["team"]
    world.turn(replace(ONE, obstacle=Standing.OTHER_GATE))
    assert world.changed == ["team", "team"]


def test_a_removed_gate_is_an_event_a_wait_and_a_line_of_the_audit_log(world: World) -> None:
    created = StoppedDate.now(UTC) - timedelta(hours=2, minutes=5)
    world.reports.started(replace(pod("train"), since=timestamp(created)))

    assert world.said() == [
        ("train", "QuotaGranted", "waited for quota for 2 h 5 min; its scheduling gate is removed")
    ]
    assert [each.name for each in world.started] == ["train"]
    name = "gpu_admission_quota_wait_seconds"
    assert world.registry.get_sample_value(f"{name}_sum") == pytest.approx(7500, abs=20)


def test_a_denied_removal_is_an_event_a_count_and_the_reason_in_the_status(world: World) -> None:
    world.turn(waiter("one", 1))  # its turn
    world.reports.denied(pod("one"), "admission webhook x denied the request: no")
    assert world.said() == [
        (
            "one",
            "QuotaNotStarted",
            "it is its turn, but its scheduling gate could not be removed: "
            "admission webhook x denied the request: no",
        )
    ]
    labels = {"namespace": "team"}
    assert world.registry.get_sample_value("gpu_admission_quota_lifts_denied_total", labels) == 1

    shown = world.turn(replace(ONE, obstacle=Standing.DENIED))
    assert shown is not None
    assert shown.next[0].message == (
        "the removal of its scheduling gate was denied: admission webhook x denied the request: no"
    )
    world.reports.delayed(pod("one"))
    assert world.registry.get_sample_value("gpu_admission_quota_lifts_denied_total", labels) == 2


def test_a_line_that_nobody_stands_in_shows_nothing(world: World) -> None:
    world.turn(ONE)
    world.reports.nobody_waits("team")

    assert world.reports.waiting_status("team", replace(LEDGER, waiting=0)) is None
    assert world.reports.waiting_status("team", LEDGER) == WaitingPods(
        pods=1
    )  # of a count that no turn followed yet
