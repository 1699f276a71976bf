"""A webhook that answers as a table says, to learn from a real API server what it makes of it."""

import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple, Self

from tests.controlplane import ControlPlane
from tests.controlplane.fake_webhook import Call, FakeWebhook, Reply

NAME = "scripted"


class Say(NamedTuple):
    """One answer: an HTTP status and the value of Retry-After, if any. Status 0 closes the connection instead."""

    status: int
    retry_after: str | None = None


ALLOW = Say(200)
TIMEOUT_SECONDS = 15
"""Of a script that does not wait for its end."""


class Script(NamedTuple):
    """What is said to the first calls, one after another; `last` to all others."""

    first: tuple[Say, ...]
    last: Say = ALLOW
    timeout_seconds: int = TIMEOUT_SECONDS


class Called(NamedTuple):
    at: float
    query: str


class ScriptedWebhook(FakeWebhook):
    """Registered for ConfigMaps that carry the label `script`, with the name of the script, for a `with` block."""

    def __init__(self, plane: ControlPlane, scripts: dict[str, Script], *, host: int = 31) -> None:
        super().__init__(plane, NAME, self._next, host=host)
        self._scripts = scripts
        self._lock = threading.Lock()
        self._registration = ExitStack()
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
        self._registration.enter_context(self.registered("validating", NAME, *entries))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._registration.close()
        super().__exit__(kind, error, trace)

    def _next(self, call: Call) -> Reply | None:
        name, _, query = call.path.strip("/").partition("?")
        with self._lock:
            number = len(self.calls[name])
            self.calls[name].append(Called(time.monotonic(), query))
        script = self._scripts[name]
        say = script.first[number] if number < len(script.first) else script.last
        if not say.status:
            return None
        return Reply(
            status=say.status, headers={} if say.retry_after is None else {"Retry-After": say.retry_after}
        )
