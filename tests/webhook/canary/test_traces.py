"""The mark on the answer to a canary: written on a dry run only, read back as it was written, never in the way of a rule."""

from typing import Any

import msgspec
import pytest

from policies.pods.annotations import CANARY, CANARY_ANSWER
from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from tests.webhook.serving.served import admission, request
from webhook.canary.traces import MUTATE, PREFIX, VALIDATE, CanaryTrace, read_canary_traces
from webhook.configuration.loader import load_directory
from webhook.serving.admission_review import WARNING_BRIEF
from webhook.serving.deadline import deadline_of
from webhook.serving.dispatch import Admission

NONCE = "0123456789abcdef"


@pytest.fixture(scope="module")
def built_in() -> Admission:
    return admission()


def canary(amount: str = "1", **annotations: str) -> JSON:
    return pod(gpu_container(amount), annotations={CANARY: NONCE, **annotations})


def marks(response: Any) -> list[CanaryTrace]:
    return read_canary_traces(response.warnings or (), NONCE)


def test_a_trace_in_words() -> None:
    trace = CanaryTrace(
        nonce="0a", phase=MUTATE, patched=True, enforces=("a", "b"), injects=("c",), version="1", replica="r"
    )
    want = "gpu-admission canary nonce=0a phase=mutate patched=yes injects=c enforces=a,b version=1 replica=r"
    assert trace.text() == want


def test_the_mutating_answer_tells_who_answered_and_proves_the_patch(built_in: Admission) -> None:
    response = built_in.mutate(request(canary(), dryRun=True), deadline_of(None))
    (mark,) = marks(response)
    patch = msgspec.json.decode(response.patch or b"[]")

    assert (mark.phase, mark.patched, mark.version) == (MUTATE, False, "0.1.0")
    assert mark.injects == ("gpu-toleration",)
    assert {"gpu-requests", "gpu-toleration"} <= set(mark.enforces)
    assert patch[-1] == {
        "op": "add",
        "path": "/metadata/annotations/gpu-admission.dev~1canary-answer",
        "value": NONCE,
    }


def test_a_second_call_patches_nothing_more(built_in: Admission) -> None:
    tolerated = canary(**{CANARY_ANSWER: NONCE})
    tolerated["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    response = built_in.mutate(request(tolerated, dryRun=True), deadline_of(None))

    assert response.patch is None
    assert [mark.patched for mark in marks(response)] == [True]


def test_the_validating_answer_says_whether_the_patch_came_through(built_in: Admission) -> None:
    with_it = built_in.validate(request(canary(**{CANARY_ANSWER: NONCE}), dryRun=True), deadline_of(None))
    without = built_in.validate(request(canary(), dryRun=True), deadline_of(None))

    assert [(mark.phase, mark.patched) for mark in marks(with_it)] == [(VALIDATE, True)]
    assert [(mark.phase, mark.patched) for mark in marks(without)] == [(VALIDATE, False)]
    assert with_it.patch is None


def test_a_refusal_is_marked_and_stays_one(built_in: Admission) -> None:
    response = built_in.mutate(request(canary("500m"), dryRun=True), deadline_of(None))

    assert (response.allowed, response.patch) == (False, None)
    assert response.status is not None
    assert "[gpu-requests]" in response.status.message
    assert [mark.phase for mark in marks(response)] == [MUTATE]


@cases(
    ("document", "dry_run"),
    what_is_to_be_stored=(canary(), False),
    a_request_that_says_nothing_of_it=(canary(), None),
    no_canary=(pod(gpu_container()), True),
    a_word_of_ones_own=(pod(gpu_container(), annotations={CANARY: "yes"}), True),
    characters_of_ones_own=(pod(gpu_container(), annotations={CANARY: NONCE + '" evil'}), True),
)
def test_nothing_else_is_marked(built_in: Admission, document: JSON, dry_run: bool | None) -> None:
    response = built_in.mutate(request(document, dryRun=dry_run), deadline_of(None))

    assert not any(warning.startswith(PREFIX) for warning in response.warnings or ())
    assert b"canary-answer" not in (response.patch or b"")


def test_a_mark_is_read_as_it_was_written() -> None:
    mark = CanaryTrace(
        nonce=NONCE,
        phase=MUTATE,
        patched=True,
        enforces=("gpu-requests", "gpu-class"),
        injects=("gpu-class",),
        version="0.1.0",
        replica="webhook-7d9f",
    )

    assert read_canary_traces(["something else", mark.text()], NONCE) == [mark]
    assert read_canary_traces([mark.text()], "fedcba9876543210") == []


def test_a_mark_says_whether_the_patch_of_the_earlier_call_was_there() -> None:
    mark = CanaryTrace(nonce=NONCE, phase=VALIDATE)

    assert " patched=no " in mark.text()
    assert " patched=yes " in msgspec.structs.replace(mark, patched=True).text()


def test_what_matters_of_a_mark_survives_the_cutting_of_long_warnings() -> None:
    rules = tuple(bound.rule.id for bound in load_directory(None).policies.for_namespace("x").bound_rules)
    mark = CanaryTrace(nonce=NONCE, phase=VALIDATE, patched=True, enforces=rules, replica="x" * 253)
    (read,) = read_canary_traces([mark.text()[:WARNING_BRIEF]], NONCE)

    assert (read.phase, read.patched, read.enforces) == (VALIDATE, True, rules)
