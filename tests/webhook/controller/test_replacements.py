"""What pods that ended leave to those that replace them: what their object keeps, or a credit."""

from collections.abc import Iterable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from policies.quota.ledger.credits import owner_key
from policies.quota.ledger.keeping_objects import Keeper
from policies.quota.ledger.keeps import DemandOfObject
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservation, Reservations, keep_id, lift_id
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.waiting import QueueSpec
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.controller.lines import BY, GPU, NO_KEEPERS, a_line, owned
from webhook.cluster import errors
from webhook.controller.replacements import now_ms
from webhook.controller.usage_counter import Holding, UsageEvents
from webhook.controller.waiting_line import WaitingLine
from webhook.quota.counted_records import CountedPod

FORMER = quota_ledger(class_catalogue=str(BY), revisions=Revisions(pods=5))
COUNTED = replace(FORMER, revisions=Revisions(pods=9))
TEAM = Team(name="t", uid="t", generation=1, hard={"gpus": Fraction(3)})
IN_A_TEAM = replace(COUNTED, team_state=TeamLedgers(TEAM, {"team": COUNTED}).team_state("team"))
APP = Keeper("apps/v1", "Deployment", "app", "app", "Deployment")
KEEP = Reservation(keep_id("ended", "app"), GPU)
ROOM = DemandOfObject(1, Fraction(1))


class Objects:
    """Keepers: Deployments keep quota, Jobs do not. `live` is what was said to run."""

    def __init__(self, room: DemandOfObject | errors.ApiError | None = ROOM) -> None:
        self._room, self.live = room, list[Fraction]()

    def of(self, namespace: str, reference: Any, late: float) -> Keeper | None:
        is_kept = reference is not None and reference.kind == "Deployment"
        return APP if is_kept else NO_KEEPERS.of(namespace, reference, late)

    def room(self, _namespace: str, _keeper: Keeper, live: Iterable[Fraction]) -> DemandOfObject | None:
        self.live += live
        if isinstance(self._room, errors.ApiError):
            raise self._room
        return self._room


def line_of(
    objects: Any = None, *pods: CountedPod, queue: QueueSpec | None = None, queues: bool = True
) -> WaitingLine:
    """Return the line of these stored pods. Only where `queues` may more pods wait."""
    waiting = [each for each in pods if each.waits]
    sums = SimpleNamespace(
        waiting=lambda _: waiting, pods=lambda _: list(pods), demand_if_started=lambda *_: GPU
    )
    counter: Any = SimpleNamespace(
        synced=True, sums=sums, digest="own", pods=SimpleNamespace(changed_after=5)
    )
    cache: Any = SimpleNamespace(
        own_counter=counter, waiting=sums.waiting, of=lambda _: counter, events=UsageEvents()
    )
    return a_line(cache, queue=queue, queues=queues, keepers=objects)


def end(line: WaitingLine, kind: str, after: int = 5, *, has_succeeded: bool = False) -> None:
    line.replacements.ended(owned("ended", kind), after, has_succeeded=has_succeeded)


@cases(
    ("after", "former", "counted", "want"),
    since_the_count_before=(5, FORMER, COUNTED, True),
    the_count_before_had_it=(4, FORMER, COUNTED, False),
    the_count_did_not_show_it=(9, FORMER, COUNTED, False),
    nothing_was_counted_before=(5, replace(FORMER, revisions=Revisions()), COUNTED, False),
)
@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_an_end_is_added_by_its_first_count(
    after: int, former: QuotaLedger, counted: QuotaLedger, want: bool, kind: str
) -> None:
    line = line_of(Objects())
    end(line, kind, after)

    for _ in range(2):  # a swap that another process has won is tried again
        found = line.credited("team", former, counted)
        assert bool(found.credits or found.reservations.keeps) is want
        assert bool(found.credits) is (want and kind == "Job")


@cases(
    ("kind", "counted", "queue", "queues", "succeeded", "want"),
    an_object_that_makes_them_again=("Deployment", COUNTED, QueueSpec(), True, False, "keep"),
    also_in_a_team=("Deployment", IN_A_TEAM, QueueSpec(), True, False, "keep"),
    a_pod_that_succeeded_gives_back_at_once=("Deployment", COUNTED, QueueSpec(), True, True, "credit"),
    one_that_makes_none_again=("Job", COUNTED, QueueSpec(), True, False, "credit"),
    whose_pods_would_keep_other_namespaces_out=("Job", IN_A_TEAM, QueueSpec(), True, False, ""),
    where_nobody_ever_waits=("Deployment", COUNTED, QueueSpec(), False, False, ""),
    where_replacements_are_as_others=(
        "Deployment",
        COUNTED,
        QueueSpec(prefer_replacements=False),
        True,
        False,
        "",
    ),
)
def test_what_an_end_leaves(
    kind: str, counted: QuotaLedger, queue: QueueSpec, queues: bool, succeeded: bool, want: str
) -> None:
    line = line_of(Objects(), queue=queue, queues=queues)
    end(line, kind, has_succeeded=succeeded)

    found = line.credited("team", FORMER, counted)
    assert list(found.reservations.keeps) == ([KEEP] if want == "keep" else [])
    assert [(each.owner, each.demand) for each in found.credits] == (
        [(owner_key(f"{kind}/app", "app" if succeeded else "1"), GPU)] if want == "credit" else []
    )


def test_a_pod_whose_replacement_waits_in_no_line_leaves_nothing_that_would_deny_it() -> None:
    line = line_of(Objects())
    line.replacements.ended(replace(owned("ended", "Deployment"), never_waits=True), 5)

    assert not line.credited("team", FORMER, COUNTED).reservations.keeps


@cases(
    ("room", "want"),
    asks_for_it=(DemandOfObject(1, Fraction(1)), True),
    was_made_smaller=(DemandOfObject(0, Fraction(0)), False),
    is_gone=(None, False),
    could_not_be_read=(errors.Unavailable("busy"), True),
)
def test_an_object_keeps_as_long_as_it_asks(
    room: DemandOfObject | errors.ApiError | None, want: bool
) -> None:
    before = replace(COUNTED, reservations=Reservations.of(KEEP), keepers=(replace(APP, at=now_ms()),))

    found = line_of(Objects(room)).credited("team", COUNTED, before)
    assert bool(found.reservations.keeps) is want


def test_the_live_pods_of_an_object_are_those_that_hold_quota() -> None:
    pods = [
        replace(owned("runs", "Deployment"), is_terminal=False),
        replace(owned("terminates", "Deployment"), is_terminal=False, is_deleted=True),
        owned("failed", "Deployment"),
        owned("waits", "Deployment", waits=True),
        owned("starts", "Deployment", waits=True),
        replace(owned("of-another", "Job"), is_terminal=False),
    ]
    objects, starting = Objects(), Reservation(lift_id("starts"), GPU)
    before = replace(
        COUNTED, reservations=Reservations.of(KEEP, starting), keepers=(replace(APP, at=now_ms()),)
    )

    line_of(objects, *pods).credited("team", COUNTED, before)
    assert len(objects.live) == 3


def test_an_owner_that_is_gone_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NO_KEEPERS, "of", lambda *_: None)
    line = line_of()
    end(line, "Job")
    assert not line.credited("team", FORMER, COUNTED).credits


def test_a_pod_of_another_object_of_that_name_replaces_none() -> None:
    line = line_of()
    end(line, "Job")
    counted = line.credited("team", FORMER, COUNTED)
    owner_of = line.replacements.credited_owner("team", counted)

    assert owner_of(owned("a", "Job")) == counted.credits[0].owner
    assert owner_of(owned("a", "Job", of="made again")) not in {"", counted.credits[0].owner}
    assert line.replacements.credited_owner("team", COUNTED)(owned("a", "Job")) == ""


def test_the_object_of_a_pod_is_read_while_its_owner_exists() -> None:
    """The Job of a JobSet that restarts is deleted before its pods."""
    read = list[str]()
    objects: Any = SimpleNamespace(of=lambda _namespace, reference, _late: read.append(reference.uid))
    line = line_of(objects, replace(owned("runs", "Job", of="old"), is_terminal=False))

    line.credited("team", FORMER, COUNTED)
    assert read == ["old"]
    line._usage_cache.events.began("own", Holding("Pod", owned("new", "Job", of="new"), {}))
    line.credited("team", FORMER, COUNTED)
    line.credited("team", FORMER, COUNTED)
    assert read == ["old", "new"]
