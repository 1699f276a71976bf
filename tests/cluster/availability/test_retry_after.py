"""When kube-apiserver repeats a call to a webhook, and when it gives up: what shedding and draining are built on."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import pytest

from tests.cases import cases
from tests.controlplane import ControlPlane
from tests.controlplane.fake_webhook import Call, FakeWebhook, Reply

NAME = "scripted"

TIMEOUT_SECONDS = 15
"""Of a script that does not wait for its end."""


def later(status: int, when: str) -> Reply:
    return Reply(status=status, headers={"Retry-After": when})


class Script(NamedTuple):
    """What is said to the first calls, one after another, None closing the connection; `last` to all others."""

    first: tuple[Reply | None, ...]
    last: Reply = Reply()
    timeout_seconds: int = TIMEOUT_SECONDS


class Called(NamedTuple):
    at: float
    query: str


class ScriptedWebhook(FakeWebhook):
    """Registered for ConfigMaps that carry the label `script`, with the name of the script, for a `with` block."""

    def __init__(self, plane: ControlPlane, scripts: dict[str, Script]) -> None:
        super().__init__(plane, NAME, self._next, host=31)
        self._scripts = scripts
        self._lock = threading.Lock()
        self.calls: dict[str, list[Called]] = defaultdict(list)

    def __enter__(self) -> Self:
        super().__enter__()
        entries = [
            self.entry(
                f"{name}.{NAME}.example.com",
                "configmaps",
                path=f"/{name}",
                objectSelector={"matchLabels": {"script": name}},
                failurePolicy="Fail",
                timeoutSeconds=script.timeout_seconds,
            )
            for name, script in self._scripts.items()
        ]
        self.registration.enter_context(self.registered("validating", NAME, *entries))
        return self

    def _next(self, call: Call) -> Reply | None:
        name, _, query = call.path.strip("/").partition("?")
        with self._lock:
            number = len(self.calls[name])
            self.calls[name].append(Called(time.monotonic(), query))
        script = self._scripts[name]
        return script.first[number] if number < len(script.first) else script.last


SCRIPTS = {
    "unavailable": Script((later(503, "1"),)),
    "too-many": Script((later(429, "1"),)),
    "defect": Script((later(500, "1"),)),
    "at-once": Script((later(503, "0"),)),
    "silent-about-when": Script((Reply(status=503),)),
    "by-date": Script((later(503, "Wed, 21 Oct 2099 07:28:00 GMT"),)),
    "forbidden": Script((later(403, "1"),)),
    "closed": Script((None,)),
    "never": Script((), last=later(503, "1"), timeout_seconds=5),
    "never-at-once": Script((), last=later(503, "0")),
    "too-late": Script((), last=later(503, "30"), timeout_seconds=3),
}


class Outcome(NamedTuple):
    status: int
    answer: Any
    seconds: float
    calls: list[Called]


@pytest.fixture(scope="module")
def outcomes(plane: ControlPlane) -> Iterator[dict[str, Outcome]]:
    """Create one ConfigMap for each script, all at once."""
    client = plane.client()
    with ScriptedWebhook(plane, SCRIPTS) as webhook:

        def create(script: str) -> Outcome:
            body = {"metadata": {"generateName": "scripted-", "labels": {"script": script}}}
            while True:
                began = time.monotonic()
                status, answer = client.post("/api/v1/namespaces/default/configmaps", body)
                if webhook.calls[script]:  # else the API server has not heard of the webhook yet
                    return Outcome(status, answer, time.monotonic() - began, webhook.calls[script])

        with ThreadPoolExecutor(len(SCRIPTS)) as pool:
            yield dict(zip(SCRIPTS, pool.map(create, SCRIPTS), strict=True))


@cases("script", {"503": "unavailable", "429": "too-many", "500": "defect", "503-after-0-seconds": "at-once"})
def test_repeated_where_told_when(outcomes: dict[str, Outcome], script: str) -> None:
    status, answer, seconds, calls = outcomes[script]
    assert (status, len(calls)) == (201, 2), answer
    assert calls[1].at - calls[0].at >= (0 if script == "at-once" else 1)
    assert seconds < TIMEOUT_SECONDS


UNABLE = "the server is currently unable to handle the request"


@cases(
    ("script", "want"),
    {
        "503-without-retry-after": ("silent-about-when", UNABLE),
        "503-with-a-date": ("by-date", UNABLE),
        "403": ("forbidden", "forbidden"),
        "closed-without-an-answer": ("closed", "EOF"),
    },
)
def test_not_repeated(outcomes: dict[str, Outcome], script: str, want: str) -> None:
    status, answer, _, calls = outcomes[script]
    assert (status, len(calls)) == (500, 1), answer
    assert f'failed calling webhook "{script}.scripted.example.com"' in answer["message"]
    assert want in answer["message"]


def test_repeated_until_the_webhooks_timeout(outcomes: dict[str, Outcome]) -> None:
    status, answer, seconds, calls = outcomes["never"]
    assert status == 500
    assert 2 <= len(calls) <= 5  # at 0, 1, 2, 3 and 4 s of 5
    assert seconds < 10  # which ten repetitions would take
    # Nothing of what we said: an operator finds overload in gpu_admission_requests_shed_total, not in this message.
    assert answer["message"].endswith('/never?timeout=5s": context deadline exceeded')


def test_repeated_ten_times_at_most(outcomes: dict[str, Outcome]) -> None:
    assert len(outcomes["never-at-once"].calls) == 11
    assert outcomes["never-at-once"].status == 500


def test_a_wait_beyond_the_timeout_is_in_vain(outcomes: dict[str, Outcome]) -> None:
    status, _, seconds, calls = outcomes["too-late"]
    assert (status, len(calls)) == (500, 1)
    assert seconds < 15  # of the 30 that it was asked to wait


def test_a_repeated_call_says_the_same_timeout_though_less_is_left(outcomes: dict[str, Outcome]) -> None:
    assert {call.query for call in outcomes["unavailable"].calls} == {f"timeout={TIMEOUT_SECONDS}s"}
