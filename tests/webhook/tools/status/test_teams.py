"""What the status of GPUQuotas and ClusterGPUQuotas says of teams, and what follows from it for those who read no ledger."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec

from policies.quota.spec import NAME
from tests.cases import cases
from tests.policies.quota.team_denials import IDLE, LAB, LEADS, OWN, PROD, USED, amounts, team_ledger
from tests.webhook.commands.statuses import plain
from webhook.cluster.objects import Condition
from webhook.quota.documents import QuotaStatus, TeamView, decode_quota, encode_status, quota_reference
from webhook.quota.team_documents import Member, Members, TeamStatus, decode_team, team_reference
from webhook.tools.status.quotas import quota_ledger_from_status, quota_status
from webhook.tools.status.summaries import QuotaHolder, QuotaState
from webhook.tools.status.team_text import team_notes, team_view_text
from webhook.tools.status.teams import team_ledgers_from_status, team_summary

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)


def stored(own: dict[str, int], status: QuotaStatus) -> Any:
    """Return the GPUQuota of vision-cv as the API server has it."""
    document = {
        "metadata": {"name": NAME, "namespace": OWN, "uid": "q", "resourceVersion": "1", "generation": 1},
        "spec": {"hard": own},
    }
    written = encode_status(quota_reference(OWN, "q"), "1", status)
    document["status"] = msgspec.json.decode(written)["status"]
    return decode_quota(msgspec.json.encode(document))


LEDGER = team_ledger(USED, {LAB: {"gpus": 16}}, own={"gpus": 100})


def test_a_status_says_what_the_namespace_sees_of_its_team() -> None:
    assert plain(TeamView.of(LEDGER)) == {
        "name": "team-vision",
        "hard": {"gpus": "64"},
        "free": {"gpus": "1"},
        "guaranteedToOthers": {"gpus": "16"},
        "largest": {
            "gpus": (
                {"name": PROD, "amount": "40"},
                {"name": LAB, "amount": "16", "guaranteed": True},
                {"name": OWN, "amount": "7"},
            )
        },
        "contact": LEADS,
    }
    assert TeamView.of(msgspec.structs.replace(LEDGER, team_state=None)) is None


def test_what_a_namespace_reads_of_its_team() -> None:
    share = TeamView.of(LEDGER)

    assert share is not None
    assert team_view_text(share) == (
        f"ClusterGPUQuota team-vision has 1 of 64 GPUs free; largest: {PROD} 40, {LAB} 16 (guaranteed), {OWN} 7; contact: {LEADS}"
    )
    assert team_view_text(msgspec.structs.replace(share, largest={}, contact="")) == (
        "ClusterGPUQuota team-vision has 1 of 64 GPUs free"
    )


def test_an_exceeded_team_has_nothing_free() -> None:
    share = TeamView.of(team_ledger({OWN: {"gpus": 7}, PROD: {"gpus": 60}}))

    assert share is not None
    assert share.free == {"gpus": 0}


def test_a_tenant_computes_as_the_ledger_does() -> None:
    """Of the ledger, what is free and what the namespace can have at most come back from the status."""
    status = QuotaStatus(hard=LEDGER.hard, used=LEDGER.used, team=TeamView.of(LEDGER))
    record = stored({"gpus": 100}, status)

    ledger = quota_ledger_from_status(record, NOW)

    assert ledger is not None
    assert ledger.team_state is not None
    assert LEDGER.team_state is not None
    assert (ledger.maximum_hard, ledger.left) == (amounts({"gpus": 48}), amounts({"gpus": 1}))
    assert ledger.team_state.taken_by_others == LEDGER.team_state.taken_by_others
    assert ledger.team_state.largest("gpus") == LEDGER.team_state.largest("gpus")
    assert quota_status(record, None).team == status.team


def test_a_quota_without_a_team_is_as_before() -> None:
    ledger = quota_ledger_from_status(stored({"gpus": 8}, QuotaStatus(hard=amounts({"gpus": 8}))), NOW)

    assert ledger is not None
    assert (ledger.team_state, ledger.maximum_hard) == (None, amounts({"gpus": 8}))


def team(status: TeamStatus | None = None, **spec: Any) -> Any:
    document: dict[str, Any] = {
        "metadata": {"name": "team-vision", "uid": "t", "resourceVersion": "1", "generation": 1},
        "spec": {"namespaces": {"names": ["vision-*"]}, "hard": {"gpus": 64}, "contact": LEADS, **spec},
    }
    if status is not None:
        written = encode_status(team_reference("team-vision", "t"), "1", status)
        document["status"] = msgspec.json.decode(written)["status"]
    return decode_team(msgspec.json.encode(document))


def ready(reason: str = "Ready", status: str = "True", message: str = "") -> Condition:
    return Condition("Ready", status, reason, message, "2027-01-01T12:00:00Z", 1)


COUNTED = TeamStatus(
    hard=amounts({"gpus": 64}),
    used=amounts({"gpus": 47}),
    reserved=amounts({"gpus": 1}),
    granted=amounts({"gpus": 120}),
    guaranteed_idle=amounts({"gpus": 16, "classes/nvidia-a100": 0}),
    namespaces=Members(
        count=3,
        largest=(
            Member(name=LAB, used={}, guaranteed=amounts({"gpus": 16})),
            Member(name=PROD, used=amounts({"gpus": 40})),
            Member(name="vision-new"),
        ),
    ),
    conditions=(ready(),),
    observed_generation=1,
)


def test_what_is_shown_of_a_team() -> None:
    found = team_summary(team(COUNTED))

    assert (found.state, found.namespaces, found.contact) == (QuotaState.READY, 3, LEADS)
    assert [(row.key, row.hard, row.used, row.reserved) for row in found.rows] == [
        ("gpus", Fraction(64), Fraction(47), Fraction(1))
    ]
    assert found.largest == (
        QuotaHolder(name=PROD, held={"gpus": Fraction(40)}),
        QuotaHolder(name=LAB, held={"gpus": Fraction(16)}, guaranteed=True),
    )
    assert [each.amount for each in found.largest] == ["40", "16 (guaranteed)"]
    assert (found.granted, found.guaranteed_idle) == (amounts({"gpus": 120}), amounts({"gpus": 16}))
    assert team_notes(found) == [
        "16 GPUs guaranteed and not used",
        "its namespaces are granted 120 of 64 GPUs: first come, first served",
    ]
    ledgers = team_ledgers_from_status(team(COUNTED))
    assert ledgers is not None
    assert list(ledgers.ledgers) == [LAB, PROD, "vision-new", "other namespaces"]


def true(kind: str, message: str) -> TeamStatus:
    """Return a status that is Ready and has that condition, with the reason of Ready."""
    condition = Condition(kind, "True", kind, message, "2027-01-01T12:00:00Z", 1)
    return TeamStatus(conditions=(ready(kind), condition))


@cases(
    ("record", "state", "message"),
    never_counted=(team(), QuotaState.NOT_COUNTED, "not counted yet: GPU pods are denied"),
    not_ready=(
        team(TeamStatus(conditions=(ready("NotCounted", "False", "1 namespace is not counted"),))),
        QuotaState.NOT_COUNTED,
        "1 namespace is not counted",
    ),
    with_ledgers_that_cannot_be_read=(
        team(TeamStatus(conditions=(ready("Unreadable", "False", "the GPUQuotaLedger cannot be read"),))),
        QuotaState.UNREADABLE,
        "the GPUQuotaLedger cannot be read",
    ),
    exceeded=(
        team(true("Exceeded", "gpus: 70 used of 64")),
        QuotaState.EXCEEDED,
        "gpus: 70 used of 64",
    ),
    with_too_many_namespaces=(
        team(true("TooManyNamespaces", "501 namespaces belong to it")),
        QuotaState.TOO_MANY_NAMESPACES,
        "501 namespaces belong to it",
    ),
    too_large=(
        team(true("TooLarge", "not in force: the spec")),
        QuotaState.TOO_LARGE,
        "not in force: the spec",
    ),
)
def test_the_state_of_a_team(record: Any, state: QuotaState, message: str) -> None:
    found = team_summary(record)

    assert (found.state, found.message, found.has_problem) == (state, message, True)


def test_a_team_that_cannot_be_read_shows_no_limits() -> None:
    found = team_summary(team(hard={"gpus": "many"}))

    assert (found.state, found.rows) == (QuotaState.UNREADABLE, ())
    assert found.message.startswith("the ClusterGPUQuota cannot be read: ")


def test_an_idle_guarantee_is_among_the_largest() -> None:
    share = TeamView.of(team_ledger(IDLE, {LAB: {"gpus": 16}}))

    assert share is not None
    assert [each.name for each in share.largest["gpus"]] == [PROD, LAB, OWN]
