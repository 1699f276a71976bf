"""Which documents of a cluster are in force, for a process that has run for a while and for one that has just started."""

from typing import Any

import msgspec

from tests.cases import cases
from webhook.configuration.cluster_source import DocumentStatus, Record, choose
from webhook.configuration.documents import Document, is_pause
from webhook.configuration.loader import load_directory

GOOD = {"rules": {"gpu-requests": {"maxPerPod": 1}}}
BAD = {"rules": {"gpu-requests": {"maxPerPod": -1}}}
UNTIL = "2027-01-31T18:00:00Z"


def policy(name: str, spec: dict[str, Any]) -> Document:
    return Document("GPUPolicy", name, spec)


def record(document: Document, accepted: dict[str, Any] | None = None) -> Record:
    return Record(document.title, 1, document, DocumentStatus(accepted=accepted))


def in_force(records: list[Record], last_good: tuple[Document, ...] | None = None) -> dict[str, Any]:
    return {document.name: document.spec for document in choose(records, last_good).documents}


def test_what_is_stored_holds_if_all_of_it_is_good() -> None:
    chosen = choose([record(policy("b", GOOD)), record(policy("a", {}))], (policy("old", {}),))

    assert [each.name for each in chosen.configuration.policies.policies] == ["a", "b"]
    assert chosen.problems == ()


def test_nothing_stored_is_the_built_in_configuration() -> None:
    assert choose([], None).configuration.version == load_directory(None).version


def test_one_bad_document_holds_everything_back() -> None:
    last_good = (policy("a", GOOD), policy("gone", {}))

    chosen = choose([record(policy("a", BAD)), record(policy("new", {}))], last_good)

    assert chosen.documents == last_good
    assert [str(problem) for problem in chosen.problems] == [
        "GPUPolicy/a spec.rules.gpu-requests.maxPerPod: must be 0 or more, or null for no limit, not -1"
    ]


@cases(
    ("records", "want"),
    what_the_controller_wrote_down=(
        [record(policy("a", BAD), accepted=GOOD), record(policy("b", {}), accepted={})],
        {"a": GOOD, "b": {}},
    ),
    not_what_was_never_in_force=(
        [record(policy("a", BAD), accepted=GOOD), record(policy("new", {}))],
        {"a": GOOD},
    ),
    without_a_controller_what_is_good=([record(policy("a", BAD)), record(policy("b", GOOD))], {"b": GOOD}),
    what_was_written_down_has_to_be_good_too=(
        [record(policy("a", BAD), accepted=BAD), record(policy("b", {}), accepted=GOOD)],
        {"b": GOOD},
    ),
    what_hangs_on_a_bad_one_goes_with_it=(
        [
            record(policy("a", {"rules": {"gpu-class": {"default": "card"}}})),
            record(Document("GPUClass", "card", {"memoryGiB": 0})),
        ],
        {},
    ),
)
def test_a_process_that_has_just_started(records: list[Record], want: dict[str, Any]) -> None:
    assert in_force(records) == want


def test_old_and_new_processes_come_to_the_same_version() -> None:
    records = [record(policy("a", BAD), accepted=GOOD), record(policy("b", GOOD), accepted={})]

    started = choose(records, None)
    running = choose(records, (policy("b", {}), policy("a", GOOD)))

    assert started.configuration.version == running.configuration.version


@cases(
    ("stored", "want"),
    paused=({**BAD, "pausedUntil": UNTIL}, {**GOOD, "pausedUntil": UNTIL}),
    resumed=(BAD, GOOD),
    no_moment=({**BAD, "pausedUntil": "soon"}, {**GOOD, "pausedUntil": "2026-01-01T00:00:00Z"}),
)  # fmt: skip
def test_a_pause_holds_whatever_else_is_wrong(stored: dict[str, Any], want: dict[str, Any]) -> None:
    last_good = (policy("a", {**GOOD, "pausedUntil": "2026-01-01T00:00:00Z"}),)

    assert in_force([record(policy("a", stored))], last_good) == {"a": want}


@cases(
    ("value", "want"),
    none=(None, True),
    moment=(UNTIL, True),
    no_time_zone=("2027-01-31T18:00:00", False),
    number=(5, False),
)
def test_what_a_pause_may_be(value: Any, want: bool) -> None:
    assert is_pause(value) is want


def test_the_version_does_not_depend_on_the_order() -> None:
    first, second = record(policy("a", {})), record(Document("GPUClass", "card", {"memoryGiB": 8}))

    versions = {choose(records, None).configuration.version for records in ([first, second], [second, first])}
    changed = msgspec.structs.replace(first, document=policy("a", GOOD))

    assert len(versions) == 1
    assert choose([changed, second], None).configuration.version not in versions
