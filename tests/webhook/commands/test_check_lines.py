"""`check -o lines`, `--strict`, positional files, and text in a pipe: what editors, CI systems and grep are given."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.commands.checking import GPU_POD as POD
from tests.webhook.commands.checking import configuration
from webhook.commands import main

VISIBLE = "    env: [{name: CUDA_VISIBLE_DEVICES, value: all}]\n"


def check(*arguments: object, columns: str | None = None) -> Result:
    return CliRunner(env={"COLUMNS": columns}).invoke(main, ["check", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, count, more in (
        ("half", "500m", ""),
        ("whole", "1", ""),
        ("warned", "1", VISIBLE),
        ("open", "$N", ""),
    ):
        (tmp_path / f"{name}.yaml").write_text(
            POD.replace("train}", f"{name}}}").replace("COUNT", count) + more
        )
    (tmp_path / "broken.yaml").write_text("kind: Pod\nmetadata: [\n")
    (tmp_path / "twice.yaml").write_text(POD.replace("COUNT", "1, nvidia.com/gpu: 1"))
    (tmp_path / "audit").mkdir()
    configuration(tmp_path / "audit", "{rules: {gpu-requests: {mode: audit}}}")
    return tmp_path


@pytest.mark.usefixtures("folder")
@cases(
    ("arguments", "begins"),
    denied=(["half.yaml"], ["half.yaml:9: error: spec.containers[0].resources"]),
    warned_about=(["warned.yaml"], ["warned.yaml:10: warning: spec.containers[0].env[0]"]),
    audited=(["half.yaml", "--config", "audit"], ["half.yaml:9: note: spec.containers[0]."]),
    to_be_rendered_first=(["open.yaml"], ["open.yaml:9: note: "]),
    no_yaml=(["broken.yaml"], ["broken.yaml:2: error: while parsing"]),
    a_key_that_stands_twice=(["twice.yaml"], ["twice.yaml:9: warning: "]),
    nothing_to_say=(["whole.yaml"], []),
    several=(
        ["half.yaml", "whole.yaml", "warned.yaml"],
        ["half.yaml:9: error: ", "warned.yaml:10: warning: "],
    ),
)
def test_lines(arguments: list[str], begins: list[str]) -> None:
    lines = check(*arguments, "-o", "lines").stdout.splitlines()

    assert len(lines) == len(begins), lines
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True)), lines


@pytest.mark.usefixtures("folder")
@cases(
    ("arguments", "code", "strict"),
    nothing_to_say=(["whole.yaml"], 0, 0),
    warned_about=(["warned.yaml"], 0, 1),
    warned_about_the_input=(["twice.yaml"], 0, 1),
    audited=(["half.yaml", "--config", "audit"], 0, 0),
    denied=(["half.yaml"], 1, 1),
    no_yaml=(["broken.yaml", "warned.yaml"], 2, 2),
)
def test_exit_code(arguments: list[str], code: int, strict: int) -> None:
    assert (check(*arguments).exit_code, check(*arguments, "--strict").exit_code) == (code, strict)


@pytest.mark.usefixtures("folder")
def test_files_and_directories_go_without_an_option(folder: Path) -> None:
    (folder / "pods").mkdir()
    (folder / "half.yaml").rename(folder / "pods" / "half.yaml")

    assert check("whole.yaml", "pods", "-o", "lines").stdout.startswith("pods/half.yaml:9: error: ")


@pytest.mark.usefixtures("folder")
def test_a_finding_is_one_line_in_a_pipe() -> None:
    piped, narrow = (check("half.yaml", columns=columns).stdout for columns in (None, "80"))

    assert len([line for line in piped.splitlines() if line.endswith("[gpu-requests]")]) == 1
    assert [line for line in piped.splitlines() if len(line) > 80] != []
    assert [line for line in narrow.splitlines() if len(line) > 80] == []
    assert piped.split() == narrow.split()
