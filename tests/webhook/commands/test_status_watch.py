"""`gpu-admission status` of audit logs, and with `--watch`: what is printed of one reading after another, and how often."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from tests.webhook.commands.statuses import WHOLE, status
from webhook.cluster import errors
from webhook.commands import status as command
from webhook.tools.status.reading import status_reader
from webhook.tools.status.report import ClusterStatus


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.commands.status.time.sleep", lambda _: None)


def readings(*found: ClusterStatus | errors.ApiError) -> Iterator[ClusterStatus]:
    left = iter(found)

    def read() -> ClusterStatus:
        each = next(left)
        if isinstance(each, errors.ApiError):
            raise each
        return each

    return islice(command.readings(read, 5.0), sum(isinstance(each, ClusterStatus) for each in found))


LATER = status(at=datetime(2026, 11, 22, 8, 1, tzinfo=UTC))
CHANGED = msgspec.structs.replace(LATER, configuration="def")


def test_only_changes_are_printed_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """All times differ; a status that differs in nothing else is not printed again."""
    found = readings(status(), LATER, errors.Unreachable("no answer"), LATER, CHANGED)
    assert list(command.changes(found)) == [status(), CHANGED]
    assert capsys.readouterr().err == "error: no answer\n"


def test_on_a_terminal_the_status_is_drawn_in_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cleared: list[None] = []
    monkeypatch.setattr("webhook.commands.status.click.clear", lambda: cleared.append(None))
    command.redraw(readings(status(), errors.Unreachable("no answer"), status()))
    assert capsys.readouterr() == (WHOLE * 2, "error: no answer\n")
    assert len(cleared) == 2


def test_the_checks_are_not_made_with_every_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[ClusterStatus | None] = []
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr("webhook.tools.status.reading.monotonic", lambda: float(next(clock)))

    def read(before: ClusterStatus | None) -> ClusterStatus:
        requested.append(before)
        return status()

    found = command.readings(status_reader(read), 5.0)
    for _ in range(7):
        next(found)
    assert [each is None for each in requested] == [True, False, False, True, False, False, True]


def test_lines_of_audit_logs_that_cannot_be_read_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "audit.log"
    log.write_text(
        '{"time":"2026-11-22T08:00:00Z","phase":"validate","kind":"Pod","verdict":"allowed"}\ncut off\nby a restart\n'
    )
    assert command._read_logs((str(log),), (), status().at) == ((), None)
    assert capsys.readouterr().err == "2 lines of the audit logs could not be read\n"
