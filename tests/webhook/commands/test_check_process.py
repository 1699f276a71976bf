"""`check` as a process of its own: its exit status, its pipes, and what it loads."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.cases import cases
from tests.webhook.commands.checking import GOOD, HALF


def run(*command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment, input=stdin
    )


def test_process_ends_quietly_when_nobody_reads_on(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("---\n".join([HALF] * 600))  # twice what a pipe holds

    finished = run("sh", "-c", f"{sys.executable} -m webhook check -f {path} | head -n 1")

    assert finished.stdout == f"refused  {path}:1  Pod default/train\n"
    assert finished.stderr == ""


def test_check_does_not_load_the_server() -> None:
    program = (
        "import sys; from webhook.commands import main\n"
        "try: main(['check', '-f', '-'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'flask', 'gunicorn', 'kubernetes', 'cryptography'} & set(sys.modules)), file=sys.stderr)"
    )

    finished = run(sys.executable, "-c", program, stdin=GOOD)

    assert (finished.returncode, finished.stderr.strip()) == (0, "[]")


def read_all(terminal: int) -> str:
    """Return what was written to a terminal whose other end is closed: a read may return a part, and Linux ends with EIO."""
    parts = []
    with suppress(OSError):
        while part := os.read(terminal, 65536):
            parts.append(part)
    return b"".join(parts).decode()


@cases(("answer", "status", "after"), no=("n", 1, HALF), yes=("y", 0, HALF.replace("500m", "1")))
def test_fixes_are_written_once_a_terminal_confirms(
    tmp_path: Path, answer: str, status: int, after: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(HALF)
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "webhook", "check", "--fix", str(path)]

    finished = subprocess.run(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, timeout=120, check=False
    )

    os.close(theirs)
    shown = read_all(ours)
    assert (finished.returncode, path.read_text()) == (status, after)
    assert shown.index("+      limits: {amd.com/gpu: ") < shown.index("Write 1 file? [y/N]: ")
    os.close(ours)
