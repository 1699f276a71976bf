"""`check` where others run it: as a process, in the hook of pre-commit, and in the GitHub Action of this repository."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.cases import cases
from tests.webhook.commands.checking import GOOD, HALF
from webhook.commands import main

ROOT = Path(__file__).parents[3]


def action() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return read


def test_the_hook_runs_check_on_the_files_of_a_commit(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, *arguments = hook["entry"].split()
    for name, text in (("good.yaml", GOOD), ("values.yaml", "gpus: 1\n"), ("half.yaml", HALF)):
        (tmp_path / name).write_text(text)

    def run(*files: str) -> int:
        # pre-commit appends `args` of the user and the names of the files.
        paths = (f"{tmp_path}/{each}" for each in files)
        return CliRunner().invoke(main, [*arguments, "-n", "ml", *paths]).exit_code

    assert program == "gpu-admission"
    assert hook["language"] == "python"
    assert [run("values.yaml"), run("good.yaml", "values.yaml"), run("good.yaml", "half.yaml")] == [0, 0, 1]


def test_inputs_of_the_action_are_those_of_check() -> None:
    inputs, steps = action()["inputs"], action()["runs"]["steps"]
    passed = {name.removeprefix("${{ inputs.").removesuffix(" }}") for name in steps[1]["env"].values()}

    assert passed == set(inputs)
    assert not [step["name"] for step in steps if "${{" in step["run"]]


@pytest.mark.processes
@cases(
    ("inputs", "want", "said"),
    the_current_directory=({}, 1, "2 objects: 1 denied, 1 would change, 0 ok"),
    a_file=({"files": "good.yaml"}, 0, "1 object: 0 denied, 1 would change"),
    a_file_and_a_directory=({"files": "good.yaml\na dir\n"}, 1, "2 objects: 1 denied"),
    ignored=({"ignore": "a dir\n"}, 0, "1 object: 0 denied"),
    configuration=({"config": "a dir"}, 2, "1 problem; nothing was done"),
    namespace_and_format=({"namespace": "ml", "format": "json"}, 1, '"namespace": "ml"'),
    file=({"format": "sarif", "output": "out file"}, 1, '"level": "error"'),
    no_injection=({"files": "$(touch intruder)"}, 2, "$(touch intruder): No such file"),
)  # fmt: skip
def test_the_action_checks(tmp_path: Path, inputs: dict[str, str], want: int, said: str) -> None:
    (tmp_path / "a dir").mkdir()
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "a dir" / "half.yaml").write_text(HALF)
    defaults = {name: each["default"] for name, each in action()["inputs"].items()}
    given = {name.upper(): value for name, value in {**defaults, **inputs}.items()}

    finished = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", action()["runs"]["steps"][1]["run"]],
        cwd=tmp_path,
        env={**os.environ, **given, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    output = tmp_path / inputs.get("output", "-")
    shown = output.read_text() if output.exists() else finished.stdout + finished.stderr
    assert finished.returncode == want
    assert said in " ".join(shown.split())
    assert not (tmp_path / "intruder").exists()


def run(*command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment, input=stdin
    )


def test_process_ends_quietly_when_nobody_reads_on(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("---\n".join([HALF] * 600))  # twice what a pipe holds

    finished = run("sh", "-c", f"{sys.executable} -m webhook check -f {path} | head -n 1")

    assert finished.stdout == f"denied   {path}:1  Pod default/train\n"
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
