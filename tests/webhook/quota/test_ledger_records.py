"""The ledger of a namespace in its own object or in that of its team, and what of a team's object is read again."""

from fractions import Fraction
from typing import Any

import msgspec

from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import quota_ledger
from tests.cases import cases
from tests.policies.quota.ledger.teams import team
from webhook.quota.ledger_objects import (
    LedgerRecord,
    TeamObjects,
    encode_ledger_object,
    ledger_of,
    ledger_record,
    team_object_name,
)

TEAM = team({"gpus": 4})
PLACE = team_object_name(TEAM.name)
HELD = {name: quota_ledger(ledger_uid=f"uid-{name}", hard={"gpus": Fraction(8)}) for name in ("cv", "nlp")}


def raw(body: bytes, version: int = 1) -> msgspec.Raw:
    document: dict[str, Any] = msgspec.json.decode(body)
    document["metadata"] |= {"uid": f"uid-{document['metadata']['name']}", "resourceVersion": str(version)}
    return msgspec.Raw(msgspec.json.encode(document))


def own(teams: TeamObjects, **changes: Any) -> LedgerRecord:
    return ledger_record(
        teams, raw(encode_ledger_object("cv", "", msgspec.structs.replace(HELD["cv"], **changes)))
    )


def of_team(teams: TeamObjects, version: int = 1, **changes: Any) -> LedgerRecord:
    ledgers = TeamLedgers(TEAM, {**HELD, "cv": msgspec.structs.replace(HELD["cv"], **changes)})
    return ledger_record(teams, raw(TeamObjects().encode("", ledgers), version))


def test_of_a_team_only_the_ledgers_that_changed_are_read_again() -> None:
    teams = TeamObjects()
    first, second, third = (
        of_team(teams, version, waiting=waiting) for version, waiting in ((1, 0), (2, 7), (3, 7))
    )
    assert first.team
    assert second.team
    assert third.team

    held = [each.team.team_ledgers.ledgers for each in (first, second, third) if each.team]
    assert held[0]["nlp"] is held[1]["nlp"]
    assert (held[0]["cv"].waiting, held[1]["cv"].waiting) == (0, 7)
    assert held[1]["cv"] is held[2]["cv"]
    assert [each.team.version for each in (first, second, third) if each.team] == ["1", "2", "3"]
    assert held[0]["cv"].ledger_uid == "uid-cv"


UNREADABLE = LedgerRecord("uid", PLACE, problem="the GPUQuotaLedger of a team cannot be read: it is too new")


@cases(
    ("moved_to", "in_team", "want"),
    its_own=("", True, 0),
    in_the_object_of_its_team=(PLACE, True, 7),
    the_object_is_not_there_yet=(PLACE, False, f"the ledger is moving into or out of {PLACE}"),
    the_object_cannot_be_read=(PLACE, UNREADABLE, UNREADABLE.problem),
)
def test_the_ledger_of_a_namespace_is_found_where_it_is(
    moved_to: str, in_team: bool | LedgerRecord, want: int | str
) -> None:
    teams = TeamObjects()
    objects = {"cv": own(teams, moved_to=moved_to)}
    if in_team:
        objects[PLACE] = in_team if isinstance(in_team, LedgerRecord) else of_team(teams, 3, waiting=7)

    found = ledger_of("cv", objects.get)

    assert found is not None
    assert found.namespace == "cv"
    if isinstance(want, str):
        assert (found.ledger, found.problem) == (None, want)
        return
    assert found.ledger is not None
    assert found.ledger.waiting == want
    assert (found.ledger.team_state is not None) == bool(moved_to)


def test_a_namespace_without_an_object_has_no_ledger() -> None:
    assert ledger_of("cv", lambda _name: None) is None
