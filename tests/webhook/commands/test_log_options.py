"""The logs of `serve` and `controller`: one format for all that the process logs, gunicorn's lines too; and the audit log."""

import contextlib
import json
import logging
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cases import cases
from webhook.commands.log_options import JsonLines, TextLines, open_audit_log
from webhook.server.settings import StartupError
from webhook.serving.audit import LONGEST_LINE

LEVELS = ("debug", "info", "warning", "error")
ROOT = Path(__file__).parents[3]
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def served(tmp_path: Path, *options: str) -> list[str]:
    """Start `serve`, stop it once it is ready, and return its lines."""
    log = tmp_path / "log"
    command = [
        *(sys.executable, "-m", "webhook", "serve", "--standalone", "--self-signed", str(tmp_path / "certs")),
        *("--host", "127.0.0.1", "--port", "0", "--metrics-host", "127.0.0.1", "--metrics-port", "0"),
        *("--audit-log", "none", "--drain-seconds", "0", *options),
    ]
    with log.open("wb") as output, subprocess.Popen(command, cwd=ROOT, stderr=output) as process:
        deadline = time.monotonic() + 60
        while "serving https://127.0.0.1:" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    return log.read_text().splitlines()


def test_every_line_of_serve_is_json(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in served(tmp_path, "--log-format", "json")]
    assert {frozenset(line) for line in lines} == {frozenset({"time", "level", "logger", "message"})}
    assert {line["logger"] for line in lines} >= {"gunicorn.error", "gpu_admission.server"}
    assert all(re.fullmatch(TIME, line["time"]) for line in lines)
    assert {line["level"] for line in lines} == {"INFO"}


def test_every_line_of_serve_is_text_in_one_format(tmp_path: Path) -> None:
    lines = served(tmp_path)
    assert [line for line in lines if not re.match(rf"{TIME} INFO [a-z_.]+: \S", line)] == []
    assert {line.split()[2] for line in lines} >= {"gunicorn.error:", "gpu_admission.server:"}


def test_an_audit_log_that_cannot_be_written() -> None:
    with pytest.raises(StartupError) as caught:
        open_audit_log("/nowhere/audit.log", lambda _: None)

    assert str(caught.value) == (
        "the audit log /nowhere/audit.log cannot be written: No such file or directory"
    )


def logged(*, exception: bool = False) -> logging.LogRecord:
    error = (ValueError, ValueError("no number"), None) if exception else None
    record = logging.LogRecord(
        "gpu_admission.server", logging.WARNING, "x.py", 1, "%s: two\nlines", ("pods",), error
    )
    record.created = 1795333200.1239
    return record


AS_JSON = (
    '{"time":"2026-11-22T07:40:00.123Z","level":"WARNING","logger":"gpu_admission.server",'
    '"message":"pods: two\\nlines"'
)


@cases(
    ("formatter", "record", "line"),
    text=(TextLines(), logged(), "2026-11-22T07:40:00.123Z WARNING gpu_admission.server: pods: two\n  lines"),
    json_in_one_line=(JsonLines(), logged(), AS_JSON + "}"),
    with_an_exception=(
        JsonLines(),
        logged(exception=True),
        AS_JSON + ',"exception":"ValueError: no number"}',
    ),
)
def test_line(formatter: logging.Formatter, record: logging.LogRecord, line: str) -> None:
    assert formatter.format(record) == line


@cases("formatter", text=TextLines(), json=JsonLines())
@cases(
    "text",
    a_long_name="x" * 250_000,
    of_characters_of_four_bytes="\N{BUG}" * 100_000,
    of_characters_that_json_escapes='"' * 100_000,
    of_line_breaks="\n" * 100_000,
    of_commands_to_a_terminal="\x1b[2J\x9b2J\u202e" * 50_000,
)
def test_no_line_is_longer_or_obeyed_whatever_a_tenant_writes(
    formatter: logging.Formatter, text: str
) -> None:
    error = ValueError(text)
    with contextlib.suppress(ValueError):
        raise error
    trace = (ValueError, error, error.__traceback__)
    line = formatter.format(logging.LogRecord("x", logging.WARNING, "x.py", 1, "%s", (text,), trace))

    assert len(line.encode()) < LONGEST_LINE
    assert all(each.startswith("  ") for each in line.splitlines()[1:])
    assert all(map(str.isprintable, line.split("\n")))
    assert "Traceback" in line


@pytest.mark.parametrize(
    ("level", "written"),
    [("debug", LEVELS), ("info", LEVELS[1:]), ("warning", LEVELS[2:]), ("error", LEVELS[3:])],
)
def test_level(level: str, written: tuple[str, ...]) -> None:
    program = (
        "import logging\nfrom webhook.commands.log_options import LEVELS, set_up_log\n"
        f"set_up_log('json', '{level}')\n"
        "for name in LEVELS: logging.getLogger('gpu_admission').log(logging.getLevelName(name.upper()), name)\n"
        "logging.getLogger('urllib3').warning('Connection pool is full')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == [*written]
