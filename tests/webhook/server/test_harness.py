"""A server that does not come up must not outlive the test that wanted it."""

from pathlib import Path

import psutil
import pytest

from tests.webhook.server import harness


def test_server_whose_start_fails_is_ended(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(server: harness.Server, _text: str, within: float = 60) -> str:  # noqa: ARG001 - as the method
        started.append(server)
        raise AssertionError("it took too long")

    started: list[harness.Server] = []
    monkeypatch.setattr(harness.Server, "wait_for", give_up)
    with pytest.raises(AssertionError, match="it took too long"):
        harness.Server(directory)
    [server] = started
    assert not psutil.pid_exists(server.process.pid)
