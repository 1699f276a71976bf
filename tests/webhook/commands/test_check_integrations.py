"""`check` where others run it: the hook of pre-commit and the GitHub Action that this repository defines."""

import os
import subprocess
import sys
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
    the_current_directory=({}, 1, "2 objects: 1 refused, 1 would change, 0 ok"),
    a_file=({"files": "good.yaml"}, 0, "1 object: 0 refused, 1 would change"),
    a_file_and_a_directory=({"files": "good.yaml\na dir\n"}, 1, "2 objects: 1 refused"),
    ignored=({"ignore": "a dir\n"}, 0, "1 object: 0 refused"),
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
