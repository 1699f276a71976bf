"""Lines about what is held: only the leader writes them, at once when it begins to lead, and in portions for the log."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cases import cases
from tests.cluster.controllers import eventually
from webhook.cluster.collection import Subscribers
from webhook.controller import usage_log
from webhook.controller.usage_counter import Holding, UsageEvents
from webhook.controller.usage_log import UsageLog
from webhook.quota.counted_records import Blueprint, CountedPod, CountedRecord

LINE = dict[str, Any]


def holding(name: str) -> Holding:
    record = CountedRecord(
        uid=name,
        namespace="team",
        name=name,
        holder="Job/train",
        version=1,
        since="2026-11-21T00:00:00Z",
        blueprint=Blueprint(b"", {}),
    )
    return Holding("Pod", record, {"demand": {"gpus": "1"}, "class": "nvidia-l4"})


class Elections:
    def __init__(self) -> None:
        self.leads = False
        self.asked_since_it_lost = False

    def __call__(self) -> bool:
        self.asked_since_it_lost = not self.leads
        return self.leads


class Lines(list[LINE]):
    """Keeps the lines about objects, and apart from them those that say who counts."""

    def __init__(self) -> None:
        super().__init__()
        self.counting: list[LINE] = []

    def append(self, line: LINE) -> None:
        if line["verdict"] == "counting":
            self.counting.append(line)
        else:
            super().append(line)


OWN, OLDER = "own", "older"


class Counters:
    """The counters of two catalogues, and pods that wait: what they report, and what is held by our own catalogue."""

    def __init__(self, *, synced: bool = True) -> None:
        self.events, self.gate_removed = UsageEvents(), Subscribers[[CountedPod]]("waiting pods")
        self.held: list[Holding] = []
        self.own_counter = SimpleNamespace(digest=OWN, synced=synced, holdings=lambda: self.held)


def usage_log_of(
    lines: Lines,
    leads: Callable[[], bool],
    team_of: Callable[[str], str] = lambda _namespace: "",
    counters: Counters | None = None,
) -> UsageLog:
    found: Any = counters or Counters()
    return UsageLog(lines.append, found, found, leads, team_of, replica="controller-1")


@contextmanager
def running(log: UsageLog, holdings: list[Holding]) -> Iterator[None]:
    stopping = threading.Event()
    log._usage_cache.own_counter.holdings = lambda: iter(holdings)  # type: ignore[method-assign]
    thread = threading.Thread(target=log.run, args=(stopping,))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "POLL_SECONDS", 0.01)


def test_what_is_released_is_a_line_of_the_leader_alone() -> None:
    lines = Lines()
    elected = Elections()
    log = usage_log_of(lines, elected)

    log.ended(OWN, holding("before"))
    elected.leads = True
    log.ended(OWN, holding("train-0"))

    (line,) = lines
    assert line.pop("time").endswith("Z")
    assert line == {
        "phase": "count",
        "kind": "Pod",
        "namespace": "team",
        "name": "train-0",
        "verdict": "released",
        "replica": "controller-1",
        "objectUid": "train-0",
        "owner": "Job/train",
        "since": "2026-11-21T00:00:00Z",
        "demand": {"gpus": "1"},
        "class": "nvidia-l4",
    }


@cases(("team", "want"), of_a_team=("team-vision", {"team": "team-vision"}), of_none=("", {}))
def test_a_line_names_the_team_of_the_namespace(team: str, want: LINE) -> None:
    lines = Lines()
    log = usage_log_of(lines, lambda: True, {"team": team}.__getitem__)

    log.ended(OWN, holding("a"))

    assert {key: lines[0][key] for key in ("team",) if key in lines[0]} == want


def test_what_is_held_is_written_whenever_a_process_begins_to_lead() -> None:
    lines = Lines()
    elected = Elections()
    with running(usage_log_of(lines, elected), [holding("a"), holding("b")]):
        elected.leads = True
        assert eventually(lambda: len(lines) == 2)
        elected.leads = False
        assert eventually(lambda: elected.asked_since_it_lost), "until it has seen that"
        elected.leads = True
        assert eventually(lambda: len(lines) == 4)

    assert [(line["name"], line["verdict"]) for line in lines] == [(each, "held") for each in "abab"]


def test_what_is_held_is_written_once_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "HELD_SECONDS", 0.05)
    lines = Lines()
    log = usage_log_of(lines, lambda: True)
    with running(log, [holding("a")]):
        assert eventually(lambda: len(lines) >= 3)


def test_what_begins_is_written_soon_and_once_and_by_the_leader_alone() -> None:
    lines = Lines()
    elected = Elections()
    log = usage_log_of(lines, elected)
    with running(log, []):
        log.began(OWN, holding("before"))
        elected.leads = True
        log.began(OWN, holding("train-0"))
        assert eventually(lambda: len(lines) == 1)
        sleep(0.05)

    assert [(line["name"], line["verdict"], line["first"]) for line in lines] == [("train-0", "held", True)]


@cases("begin_at_once", that_begin_at_once=25, that_are_held=0)
def test_many_lines_are_handed_over_in_portions(monkeypatch: pytest.MonkeyPatch, begin_at_once: int) -> None:
    monkeypatch.setattr(usage_log, "AT_ONCE", 10)
    monkeypatch.setattr(usage_log, "PAUSE_SECONDS", 60.0)
    lines = Lines()
    log = usage_log_of(lines, lambda: True)
    many = [holding(str(number)) for number in range(25)]
    for each in many[:begin_at_once]:
        log.began(OWN, each)
    with running(log, many[begin_at_once:]):
        assert eventually(lambda: len(lines) == 10)
        sleep(0.1)
        assert len(lines) == 10, "the rest waits for the log"

    assert len(lines) == 25, "nothing is left out at the end"


def test_a_pod_that_waited_for_quota_has_a_line_when_it_starts_and_without_demand() -> None:
    lines = Lines()
    record = holding("a").record
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    waiting = CountedPod(**fields, node_name="", is_terminal=False, extended_claim="")
    usage_log_of(lines, lambda: True).started(waiting)

    (line,) = lines
    assert line.pop("time") > "2026"
    assert line == {
        "phase": "count",
        "kind": "Pod",
        "namespace": "team",
        "name": "a",
        "verdict": "started",
        "replica": "controller-1",
        "objectUid": "a",
        "owner": "Job/train",
        "since": "2026-11-21T00:00:00Z",
    }


@cases(
    ("digest", "own_is_synced", "released", "held"),
    by_the_catalogue_in_force=(OWN, True, True, True),
    by_another_catalogue=(OLDER, True, False, False),
    # Our own counter never saw what ended before its first list.
    by_another_catalogue_before_our_first_list=(OLDER, False, True, False),
)
def test_what_ends_or_begins_is_logged_once(
    digest: str, own_is_synced: bool, released: bool, held: bool
) -> None:
    lines, counters = Lines(), Counters(synced=own_is_synced)
    log = usage_log_of(lines, lambda: True, counters=counters)

    counters.events.ended(digest, holding("a"))
    counters.events.began(digest, holding("b"))
    with running(log, []):
        assert eventually(lambda: len(lines.counting) == 1)

    assert [(line["name"], line["verdict"]) for line in lines] == [("a", "released")] * released + [
        ("b", "held")
    ] * held


def seconds(line: LINE) -> tuple[float, float]:
    since, at = (datetime.fromisoformat(line[key]).timestamp() for key in ("since", "time"))
    return since, at


def test_who_leads_says_so_all_the_time_without_any_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "COUNTING_SECONDS", 0.05)
    lines = Lines()
    with running(usage_log_of(lines, lambda: True), []):
        assert eventually(lambda: len(lines.counting) >= 3)

    first, *others = lines.counting
    assert {key: first[key] for key in ("phase", "kind", "name", "verdict", "replica")} == {
        "phase": "count",
        "kind": "Controller",
        "name": "controller-1",
        "verdict": "counting",
        "replica": "controller-1",
    }
    ends = [seconds(line)[1] for line in lines.counting]
    assert [seconds(line)[0] for line in others] == pytest.approx(ends[:-1], abs=0.01), "no time is left out"
    assert seconds(first)[0] == ends[0], "from when it began to lead"


def test_who_leads_says_so_once_more_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "COUNTING_SECONDS", 3600)
    lines = Lines()
    with running(usage_log_of(lines, lambda: True), []):
        assert eventually(lambda: len(lines.counting) == 1)

    assert len(lines.counting) == 2


def test_what_is_between_two_times_of_leading_is_not_said() -> None:
    lines, elected = Lines(), Elections()
    with running(usage_log_of(lines, elected), []):
        elected.leads = True
        assert eventually(lambda: len(lines.counting) == 1)
        elected.leads = False
        assert eventually(lambda: elected.asked_since_it_lost)
        elected.leads = True
        assert eventually(lambda: len(lines.counting) == 2)
        since, at = seconds(lines.counting[1])

    assert since == at


def test_a_clock_that_jumps_is_not_taken_for_time_in_which_somebody_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Later":
            return super().now(tz) + (timedelta(days=3) if lines.counting else timedelta())

    lines = Lines()
    monkeypatch.setattr(usage_log, "COUNTING_SECONDS", 0.05)
    monkeypatch.setattr(usage_log, "datetime", Later)
    with running(usage_log_of(lines, lambda: True), []):
        assert eventually(lambda: len(lines.counting) >= 2)

    since, at = seconds(lines.counting[1])
    assert at - since < 10
