"""What the status of each document says: whether it is in force, and else why not."""

from datetime import UTC, datetime

import msgspec

from tests.webhook.configuration.written import record
from webhook.cluster.objects import Condition
from webhook.configuration.cluster_source import (
    DocumentStatus,
    Record,
    decode_record,
    documents_in_force,
    statuses,
)
from webhook.configuration.documents import Document

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOD, BAD = {"priority": 1}, {"priority": 1, "rules": {"gpu-class": {"default": "none"}}}


def reported(*records: Record, last_good: tuple[Document, ...] | None = None) -> dict[str, DocumentStatus]:
    evaluated = documents_in_force(records, last_good)
    return {record.document.name: status for record, status in statuses(evaluated, NOW)}


def condition(status: DocumentStatus) -> tuple[str, str, str]:
    [found] = status.conditions
    assert (found.type, found.observed_generation, status.observed_generation) == ("InForce", 3, 3)
    return found.status, found.reason, found.message


def test_in_force() -> None:
    status = reported(record("a", GOOD))["a"]

    assert condition(status) == ("True", "Accepted", "admission decides by it")
    assert status.accepted == GOOD
    assert status.conditions[0].last_transition_time == "2026-11-21T12:00:00Z"


def test_invalid_with_every_problem_and_the_documents_it_holds_back() -> None:
    last_good = (Document("GPUPolicy", "a", GOOD), Document("GPUPolicy", "same", GOOD))
    bad = {**BAD, "templates": "audit"}

    found = reported(
        record("a", bad), record("new", GOOD), record("same", GOOD), record("worse", BAD), last_good=last_good
    )

    assert condition(found["a"]) == (
        "False",
        "Invalid",
        "the previous version stays in force; 2 problems:\n"
        'spec.rules.gpu-class.default: must be a class or a family, not "none"\n'
        'spec.templates: Unsupported value: "audit": must be one of warn, enforce',
    )
    assert found["a"].accepted == GOOD
    assert condition(found["worse"])[2] == (
        'it is not in force:\nspec.rules.gpu-class.default: must be a class or a family, not "none"'
    )
    assert found["worse"].accepted is None
    assert condition(found["new"]) == (
        "False",
        "HeldBack",
        "valid, but the documents take effect together: correct GPUPolicy/a, GPUPolicy/worse",
    )
    assert condition(found["same"])[:2] == ("True", "Accepted")


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    at = "2026-01-01T00:00:00Z"
    before = DocumentStatus(conditions=(Condition("InForce", "True", "Accepted", "older words", at),))
    after = DocumentStatus(conditions=(Condition("InForce", "False", "Invalid", "", at),))

    found = reported(record("kept", GOOD, before), record("corrected", GOOD, after))

    assert found["kept"].conditions[0].last_transition_time == at
    assert found["corrected"].conditions[0].last_transition_time == "2026-11-21T12:00:00Z"


def test_what_was_written_is_read_back_the_same() -> None:
    status = reported(record("a", {}))["a"]
    raw = {"metadata": {"name": "a", "uid": "a", "generation": 3}, "spec": {}, "status": status}

    seen = decode_record("GPUPolicy", msgspec.Raw(msgspec.json.encode(raw)))

    assert seen.status == status
    assert seen.accepted == seen.document


def test_a_stored_policy_with_an_option_of_earlier_versions_stays_in_force() -> None:
    spec = {"rules": {"gpu-quota": {"required": True, "trustKueue": False}, "unknown": None}}
    raw = {"metadata": {"name": "a", "uid": "a"}, "spec": spec, "status": {"accepted": spec}}

    seen = decode_record("GPUPolicy", msgspec.Raw(msgspec.json.encode(raw)))

    assert seen.document.spec == {"rules": {"gpu-quota": {"required": True}, "unknown": None}}
    assert seen.accepted == seen.document


def test_an_unreadable_status_is_none() -> None:
    raw = b'{"metadata": {"name": "a", "uid": "a"}, "spec": {}, "status": {"accepted": "text"}}'

    assert decode_record("GPUPolicy", msgspec.Raw(raw)).status == DocumentStatus()
