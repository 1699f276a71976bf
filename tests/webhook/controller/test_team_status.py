"""What the status of a ClusterGPUQuota says of the ledgers of its namespaces, and which Events and series there are."""

from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from policies.quota.amounts import GPUS
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.controller.informers import unstarted
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.controller import team_status
from webhook.controller.metrics import Scraped, team_gauges
from webhook.controller.team_status import TeamStatusWriter
from webhook.quota.ledger_objects import LedgerRecord, VersionedTeamLedgers, team_object_name
from webhook.quota.team_documents import TeamRecord, decode_team, team_path
from webhook.tools.status.teams import namespace_ledger_from_status

PLACE = team_object_name("vision")
MEMBERS = ("vision-cv", "vision-nlp", "vision-prod")


def ledger(gpus: int | None, *reserved: int) -> QuotaLedger:
    reservations = (Reservation(f"r{number}", {GPUS: Fraction(each)}) for number, each in enumerate(reserved))
    return quota_ledger(*reservations, used=None if gpus is None else {GPUS: Fraction(gpus)})


class World:
    """A ClusterGPUQuota, its object, and an API server that stores its status."""

    def __init__(self, ledgers: dict[str, QuotaLedger], hard: int = 10) -> None:
        metadata = {"name": "vision", "uid": "u", "resourceVersion": "1", "generation": 2}
        guaranteed = {"vision-prod": {"gpus": 4}}
        spec = {"namespaces": {"names": ["vision-*"]}, "hard": {"gpus": hard}, "guaranteed": guaranteed}
        self.document: dict[str, Any] = {"metadata": metadata, "spec": spec}
        self.members = list(MEMBERS)
        team = self.record.team
        assert team is not None
        self.ledgers = TeamLedgers(team, {f"vision-{name}": each for name, each in ledgers.items()})
        self.ledger_object: LedgerRecord | None = LedgerRecord(
            "o", PLACE, team=VersionedTeamLedgers(self.ledgers, "1")
        )
        self.left_out: list[str] = []
        self.happened: list[tuple[str, str, str]] = []
        self.writes = 0
        quota = SimpleNamespace(hard={GPUS: Fraction(8)})
        informers: Any = unstarted()
        informers.membership.records = SimpleNamespace(get=lambda _name: self.record)
        informers.membership.members = lambda _name: self.members
        informers.quotas.items = lambda name: (quota,) if name == "vision-cv" else ()
        informers.ledger_objects.items = lambda name: filter(
            None, (self.ledger_object,) if name == PLACE else ()
        )
        informers.why_stale = str
        sizes: Any = SimpleNamespace(left_out=lambda _team, _members: self.left_out)
        events: Any = SimpleNamespace(
            put=lambda each: self.happened.append((each.kind, each.reason, each.message))
        )
        self.writer = TeamStatusWriter(
            cast(ApiClient, self),
            informers,
            sizes,
            is_ready_leader=lambda: True,
            events=events,
        )

    @property
    def record(self) -> TeamRecord:
        return decode_team(msgspec.json.encode(self.document))

    def put(self, path: str, body: bytes, **_: Any) -> None:
        assert path == team_path("vision", "status")
        self.document["status"] = msgspec.json.decode(body)["status"]
        self.writes += 1

    def show(self) -> dict[str, Any]:
        self.writer.write("vision")
        return dict(self.document["status"])

    def conditions(self) -> dict[str, tuple[str, str, str]]:
        self.writer.write("vision")
        found = self.record.status.conditions
        return {each.type: (each.status, each.reason, each.message) for each in found}


ALL = {"cv": ledger(5, 1), "nlp": ledger(0), "prod": ledger(1)}


def test_the_status_sums_up_the_namespaces() -> None:
    shown = World(ALL).show()

    assert {key: shown[key] for key in ("hard", "used", "reserved", "granted", "guaranteedIdle")} == {
        "hard": {"gpus": "10"},
        "used": {"gpus": "6"},
        "reserved": {"gpus": "1"},
        "granted": {"gpus": "8"},
        "guaranteedIdle": {"gpus": "3"},
    }
    assert shown["namespaces"] == {
        "count": 3,
        "largest": [
            {"name": "vision-cv", "used": {"gpus": "6"}},
            {"name": "vision-prod", "used": {"gpus": "1"}, "guaranteed": {"gpus": "4"}},
            {"name": "vision-nlp", "used": {"gpus": "0"}},
        ],
    }
    assert shown["shown"]["guaranteedIdle"] == {"gpus": "3"}
    assert shown["observedGeneration"] == 2


@cases(
    ("shown", "namespace", "free", "really"),
    of_one_that_is_named=(3, "vision-cv", 0, 0),
    of_another_one=(3, "vision-nlp", 0, 0),
    of_a_guaranteed_one=(3, "vision-prod", 3, 3),
    of_one_that_is_not_named=(1, "vision-nlp", 0, 0),
    what_a_guaranteed_one_holds_is_not_known_then=(1, "vision-prod", 4, 3),
)
def test_what_a_status_says_that_a_namespace_can_still_have(
    shown: int, namespace: str, free: int, really: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_status, "MAX_MEMBERS_SHOWN", shown)
    world = World(ALL)
    world.show()
    stated, share = namespace_ledger_from_status(world.record, namespace), world.ledgers.team_state(namespace)

    assert stated is not None
    assert stated.left == {GPUS: free}
    held = world.ledgers.ledgers[namespace].held.get(GPUS, Fraction(0))
    assert share.free(GPUS, held) == really
    assert stated.team_state is not None
    assert stated.team_state.largest(GPUS) == [
        ("vision-cv", Fraction(6), False),
        ("vision-prod", Fraction(4), True),
    ]


COUNTED = "every stored pod and claim of its namespaces is counted"


@cases(
    ("hard", "ledgers", "want"),
    counted=(10, ALL, ("True", "Ready", COUNTED)),
    one_is_not_there_yet=(
        10,
        {"cv": ledger(5)},
        ("False", "NotCounted", "not counted for the team yet: vision-nlp, vision-prod"),
    ),
    one_was_never_counted=(
        10,
        {**ALL, "nlp": ledger(None)},
        ("False", "NotCounted", "not counted for the team yet: vision-nlp"),
    ),
    above_the_limits=(5, ALL, ("True", "Exceeded", "gpus: 6 used of 5, 1 too many")),
)
def test_ready_says_whether_all_are_counted_and_what_is_wrong(
    hard: int, ledgers: dict[str, QuotaLedger], want: tuple[str, str, str]
) -> None:
    assert World(ledgers, hard).conditions()["Ready"] == want


def test_namespaces_beyond_the_most_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_status, "MAX_NAMESPACES", 2)
    world = World({"cv": ledger(1), "nlp": ledger(1)})

    why = "3 namespaces belong to it, and a team has at most 2: all GPUs are denied in vision-prod"
    assert world.conditions()["TooManyNamespaces"] == ("True", "BeyondLimit", why)
    assert world.conditions()["Ready"][:2] == ("True", "TooManyNamespaces")
    assert world.happened[1:] == [("Warning", "TooManyNamespaces", why)]


def test_a_team_within_its_limits() -> None:
    found = World(ALL).conditions()
    assert found["TooManyNamespaces"] == ("False", "WithinLimit", "at most 500 namespaces belong to it")
    assert found["Exceeded"] == ("False", "WithinQuota", "used by all namespaces is within spec.hard")


def test_what_has_no_room_in_the_object_is_named() -> None:
    world = World(ALL)
    assert world.conditions()["TooLarge"] == ("False", "Fits", "all ledgers of the team fit one object")
    world.left_out = ["the spec", "the GPUQuota of vision-cv"]
    why = (
        "not in force: the spec, the GPUQuota of vision-cv; "
        "the object with the ledgers of the team has no more room"
    )
    assert world.conditions()["TooLarge"] == ("True", "NoRoom", why)
    assert world.conditions()["Ready"] == ("True", "TooLarge", why)
    assert ("Warning", "TooLarge", why) in world.happened
    world.members.append("vision-new")
    assert world.conditions()["Ready"] == (
        "False",
        "NotCounted",
        f"not counted for the team yet: vision-new; {why}",
    )


@cases(
    ("has_object", "want"),
    limits_in_force=(True, "what was in force before stays in force"),
    never_in_force=(False, "it limits nothing"),
)
def test_a_spec_that_cannot_be_read_is_said(has_object: bool, want: str) -> None:
    world = World(ALL)
    world.show()
    world.document["spec"]["hard"]["classes"] = {f"nvidia-{'x' * 40}-{number}": 1 for number in range(30)}
    if not has_object:
        world.ledger_object = None
    found = world.conditions()
    status, reason, message = found["Ready"]
    assert (status, reason) == ("False", "Unreadable")
    assert message.startswith("the ClusterGPUQuota cannot be read: must be shorter: 2168 characters")
    assert message.endswith(f"at most 1280 - at `$.hard`: {want}")
    assert found["Exceeded"][0] == "False", "the other conditions stay"


def test_a_team_without_namespaces_says_so() -> None:
    world = World({})
    world.members = []
    assert world.conditions()["Ready"] == ("True", "Ready", "no namespace belongs to it")
    assert world.show()["used"] == {"gpus": "0"}


def test_a_status_is_written_only_if_it_differs_and_limits_in_force_are_told_once() -> None:
    world = World(ALL)
    for _ in range(3):
        world.show()

    assert world.writes == 1
    assert world.happened == [("Normal", "InForce", "generation 2 of its spec is in force")]


def test_an_object_that_cannot_be_read_leaves_what_was_shown() -> None:
    world = World(ALL)
    before = world.show()
    world.ledger_object = LedgerRecord("o", PLACE, problem="the GPUQuotaLedger of a team cannot be read")

    assert world.conditions()["Ready"] == (
        "False",
        "Unreadable",
        "the GPUQuotaLedger of a team cannot be read: requests are denied until GPUQuotaLedger "
        "clustergpuquota.vision is deleted",
    )
    assert world.show()["used"] == before["used"]


BROKEN = "the ClusterGPUQuota cannot be read: must not exceed hard in sum: gpus is 4, and hard has 2 - at `$.guaranteed`"


@cases(
    ("has_ledgers", "want"),
    before_it_was_ever_in_force=(False, f"{BROKEN}: it limits nothing"),
    after_its_last_valid_version=(True, f"{BROKEN}: what was in force before stays in force"),
)
def test_one_that_is_not_valid_says_what_is_wrong(has_ledgers: bool, want: str) -> None:
    world = World(ALL)
    world.ledger_object = world.ledger_object if has_ledgers else None
    world.document["spec"]["hard"] = {"gpus": 2}

    assert world.conditions()["Ready"] == ("False", "Unreadable", want)
    assert not world.writer.write("vision"), "it is written once"


def test_one_that_is_new_has_no_status_yet() -> None:
    world = World(ALL)
    world.ledger_object = None
    assert not world.writer.write("vision")


def test_ledgers_of_the_one_before_say_nothing_of_this_one() -> None:
    world = World(ALL)
    world.document["metadata"]["uid"] = "another"

    assert not world.writer.write("vision")
    assert "status" not in world.document


def test_a_team_that_was_deleted_has_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ALL)

    def gone(*_: Any, **__: Any) -> None:
        raise errors.NotFound("it is gone")

    monkeypatch.setattr(world, "put", gone)
    assert not world.writer.write("vision")
    assert world.happened == []


def test_limits_and_usage_of_teams_are_series() -> None:
    registry = CollectorRegistry()
    world = World(ALL)
    classes = replace(world.ledgers.team, hard={**world.ledgers.team.hard, "classes/nvidia-t4": Fraction(2)})
    registry.register(Scraped(lambda: team_gauges({"vision": world.ledgers.with_team(classes)})))

    samples = {
        (sample.name.removeprefix("gpu_admission_team_"), sample.labels.get("dimension"), sample.value)
        for family in registry.collect()
        for sample in family.samples
        if sample.labels["team"] == "vision"
    }
    assert samples == {
        ("namespaces", None, 3),
        *(
            (name, GPUS, value)
            for name, value in {"used": 6, "reserved": 1, "hard": 10, "guaranteed": 4}.items()
        ),
        *((name, "classes/nvidia-t4", 0) for name in ("used", "reserved", "guaranteed")),
        ("hard", "classes/nvidia-t4", 2),
    }
