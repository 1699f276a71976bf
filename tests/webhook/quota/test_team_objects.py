"""The object of a team as JSON: every version is read as it was written, and only what changed is written and read again."""

import random
from fractions import Fraction

import msgspec
import pytest
from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import Holder
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import quota_ledger
from tests.calls import calls
from tests.policies.quota.ledger.teams import team
from webhook.quota import ledger_objects
from webhook.quota.ledger_objects import LedgerObjectError, TeamObjects

TEAM = team({"gpus": 9}, {"a": {"gpus": 2}})
LEDGER = quota_ledger(
    ledger_uid="l",
    hard={"gpus": Fraction(8)},
    used={"gpus": Fraction(1)},
    holders={"gpus": (Holder("Job/train", "1"),)},
    stored_names={"pods/train-0": {"gpus": Fraction(1)}},
)


def stored(body: bytes, version: str = "1") -> bytes:
    document = msgspec.json.decode(body)
    document["metadata"] |= {"uid": "object", "resourceVersion": version}
    return msgspec.json.encode(document)


def test_an_object_that_cannot_be_read() -> None:
    with pytest.raises(LedgerObjectError) as raised:
        TeamObjects().decode(b"<")
    assert str(raised.value) == (
        "the GPUQuotaLedger of a team cannot be read: JSON is malformed: invalid character (byte 0)"
    )


@pytest.mark.parametrize("seed", range(10))
def test_every_version_is_read_as_it_was_written(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    writer, reader = TeamObjects(), TeamObjects()
    found = TeamLedgers(TEAM)
    for number in range(30):
        name = chance.choice("abcd")
        match chance.choice(("with", "with", "leave", "without", "spec")):
            case "with":
                found = found.with_ledger(name, replace(LEDGER, waiting=chance.randrange(3)))
            case "leave" if name in found.ledgers:
                found = found.leave(name)
            case "without" if name in found.leaving:
                found = found.without(name)
            case "spec":
                found = found.with_team(replace(TEAM, generation=number))
            case _:
                pass
        read = reader.decode(stored(writer.encode("", found), f"{number}"))
        assert (read.team_ledgers, read.version) == (found, f"{number}")
        if chance.random() < 0.3:  # a version that another process wrote
            found = read.team_ledgers


def test_a_version_costs_as_much_with_many_namespaces_as_with_few() -> None:
    def of(number: int) -> tuple[TeamObjects, bytes, TeamLedgers]:
        objects, found = TeamObjects(), TeamLedgers(TEAM, {f"n{each}": LEDGER for each in range(number)})
        first = objects.decode(stored(objects.encode("", found))).team_ledgers
        changed = first.with_ledger("n1", replace(LEDGER, waiting=1))
        return objects, stored(TeamObjects().encode("1", changed), "2"), changed.with_ledger("n2", LEDGER)

    def reads_and_writes(objects: TeamObjects, document: bytes, after: TeamLedgers) -> None:
        assert objects.decode(document).team_ledgers.ledgers["n1"].waiting == 1
        objects.encode("2", after)

    small, large = of(4), of(400)
    assert calls(lambda: reads_and_writes(*large)) == calls(lambda: reads_and_writes(*small))


@pytest.mark.parametrize(("room", "is_left_out"), [(0, False), (-1, True)])
def test_an_object_that_is_too_long_is_written_without_what_is_for_people(
    monkeypatch: pytest.MonkeyPatch, room: int, is_left_out: bool
) -> None:
    objects, found = TeamObjects(), TeamLedgers(TEAM, {"a": LEDGER, "b": LEDGER})
    monkeypatch.setattr(ledger_objects, "LONGEST_BODY", len(objects.encode("", found)) + room)

    for _ in range(2):
        read = objects.decode(stored(objects.encode("", found))).team_ledgers.ledgers["b"]
        assert read == (replace(LEDGER, holders={}, stored_names={}) if is_left_out else LEDGER)
