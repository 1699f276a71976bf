"""Removals of the gates of pods that wait in line, when the API server rejects them, and gangs that have started."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from policies.quota.queue_entries import Gang
from policies.quota.waiting import GATE, Standing
from tests import builders
from tests.cases import cases
from tests.webhook.controller.clock import Clock
from tests.webhook.controller.lines import member, no_replacements
from webhook.cluster import errors
from webhook.controller import waiting_line
from webhook.controller.gangs import KnownGang
from webhook.controller.usage_counter import UsageEvents
from webhook.controller.waiting_line import FIRST_PAUSE, LONGEST_PAUSE, WaitingLine
from webhook.quota.counted_records import CountedPod

DENIED = errors.Invalid("ValidatingAdmissionPolicy denied the request")
BY_WEBHOOK = errors.Forbidden('admission webhook "pods.example.com" denied the request')
WITH_A_LIST = errors.Invalid("ValidatingAdmissionPolicy denied the request:\n- set a team\n- set a project")
WITHOUT_ROLES = errors.Forbidden('pods "train" is forbidden: User "controller" cannot patch resource "pods"')
POD: Any = SimpleNamespace(
    uid="a", namespace="team", name="train", version=7, waiting=SimpleNamespace(gate=0, has_other_gate=False)
)
LATER: Any = SimpleNamespace(**{**vars(POD), "version": 8})


class World:
    """A line whose pods the API server rejects to change."""

    def __init__(self) -> None:
        self.again: list[float] = []
        self.denials: list[str] = []
        self.refusal: errors.ApiError = DENIED
        reports: Any = SimpleNamespace(denied=lambda _pod, problem: self.denials.append(problem))
        api: Any = SimpleNamespace(patch=self._refuse)
        nothing: Any = None
        usage_cache: Any = SimpleNamespace(events=UsageEvents())
        self.line = WaitingLine(
            api,
            nothing,
            no_replacements(usage_cache, lambda _namespace, seconds: self.again.append(seconds)),
            nothing,
            reports,
        )

    def _refuse(self, *_: object, **__: object) -> None:
        raise self.refusal


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(waiting_line, "monotonic", Clock())
    return World()


def test_a_pod_that_has_changed_meanwhile_is_tried_again(world: World) -> None:
    for pod in (POD, LATER):
        world.line._remove_gate(pod)
        assert world.line._standing_against(pod, None) is None
    assert (world.denials, world.again) == ([], [FIRST_PAUSE, FIRST_PAUSE])


def test_a_pod_keeps_its_place_when_the_api_server_has_not_read_the_roles_yet(world: World) -> None:
    world.refusal = WITHOUT_ROLES
    world.line._remove_gate(POD)
    assert world.line._standing_against(POD, None) is None
    assert (world.denials, world.again) == ([], [FIRST_PAUSE])


@pytest.mark.parametrize("refusal", [DENIED, BY_WEBHOOK, WITH_A_LIST], ids=["policy", "webhook", "list"])
def test_a_pod_that_admission_denies_stands_aside(world: World, refusal: errors.ApiError) -> None:
    world.refusal = refusal
    for _ in range(3):
        world.line._remove_gate(POD)
    assert world.line._standing_against(POD, None) is Standing.DENIED
    assert world.denials == 2 * [str(refusal)]
    passing = 0.0
    assert world.again == [FIRST_PAUSE, passing, passing, 2 * FIRST_PAUSE]
    assert world.line._standing_against(LATER, None) is None


def test_a_pod_whose_gate_is_put_back_stands_aside(world: World) -> None:
    stored = msgspec.json.encode(builders.pod(schedulingGates=[{"name": GATE}]))
    world.line._api = cast("Any", SimpleNamespace(patch=lambda *_, **__: stored))

    world.line._remove_gate(POD)

    assert world.denials == [
        "run the controller as ServiceAccount gpu-admission-controller of the webhook's namespace, or remove the mutating "
        "webhook that adds gpu-admission.dev/quota: the API server called one that put the gate back"
    ]


def test_what_a_mutating_webhook_would_change_is_said(world: World) -> None:
    world.refusal = errors.Invalid(
        'Pod "train" is invalid: spec: Forbidden: pod updates may not change fields other than …\n'
        '  ],\n  "RestartPolicy": "Always",\n-  "TerminationGracePeriodSeconds": 30,\n+  "TerminationGracePeriodSeconds": 77,\n'
    )
    for _ in range(2):
        world.line._remove_gate(POD)
    assert world.denials == [
        "limit the mutating webhook that changes pods to their creation: one that exists must keep its fields; it wrote "
        '- "TerminationGracePeriodSeconds": 30 + "TerminationGracePeriodSeconds": 77'
    ]


def test_a_bug_is_logged_and_the_pod_is_tried_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def bug() -> bool:
        raise KeyError("a bug")

    world.line._remove_gate(POD, bug)
    assert world.again == [LONGEST_PAUSE]
    assert caplog.messages == ["team/train: its scheduling gate was not removed"]
    assert 'raise KeyError("a bug")' in caplog.text


@cases(
    ("pods", "running"),
    all_wait=([member("a", waits=True), member("b", waits=True)], 0),
    one_runs=([member("a", "Running"), member("b", waits=True)], 1),
    the_rest_has_succeeded=([member("a", "Succeeded"), member("b", "Failed"), member("c", waits=True)], 1),
    all_are_deleted_and_come_again=([member("a", "Running", deleted=True), member("b", waits=True)], 0),
    all_failed_and_come_again=([member("a", "Failed"), member("b", waits=True)], 0),
    another_job_succeeded=([member("a", "Succeeded", job="0"), member("b", waits=True)], 0),
    another_job_with_that_pod_group_succeeded=(
        [member("a", "Succeeded", job="0", group="g"), member("b", waits=True, group="g")],
        0,
    ),
)
def test_how_many_pods_of_a_gang_have_started(pods: list[CountedPod], running: int) -> None:
    cache: Any = SimpleNamespace(
        own_counter=SimpleNamespace(sums=SimpleNamespace(pods=lambda _: pods)), events=UsageEvents()
    )
    gangs: Any = SimpleNamespace(
        find=lambda _, sources: {each: KnownGang("Job/train", 2) for each in sources}
    )
    nothing: Any = None
    line = WaitingLine(nothing, gangs, no_replacements(cache), nothing, nothing)
    waiting = [each for each in pods if each.waits]
    keys, found = line._known_gangs("team", waiting)
    assert {keys[each.uid] for each in waiting} == {"Job/train"}
    assert found == {"Job/train": Gang(2, running)}
