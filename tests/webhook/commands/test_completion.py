"""`gpu-admission completion`, as bash and kubectl use it; the single file behind kubectl: tests/deploy/test_plugin.py."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cases import cases
from webhook.commands import COMMANDS, main, run


def completion(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["completion", *arguments])


STANDALONE = "Work without a cluster: documents come from --config or are the built-in ones."


@cases(
    ("words", "want"),
    a_command=(["class"], ["classes\tList the GPU classes, what is allowed and...", ":4"]),
    values_of_an_option=(["classes", "-o", ""], ["text", "json", ":4"]),
    an_option=(["classes", "--stand"], [f"--standalone\t{STANDALONE}", ":4"]),
    a_path_is_left_to_the_shell=(["classes", "--config", "exa"], [":0"]),
    an_argument_of_which_nothing_is_known=(["rules", ""], [":4"]),
)
def test_words_for_kubectl(words: list[str], want: list[str]) -> None:
    assert completion("kubectl", "--", *words).stdout.splitlines() == want


def test_all_commands_are_offered() -> None:
    lines = completion("kubectl", "--", "").stdout.splitlines()

    assert [line.split("\t")[0] for line in lines[:-1]] == sorted(COMMANDS)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_script_asks_this_program(shell: str) -> None:
    shown = completion(shell)

    assert shown.exit_code == 0
    assert f"_GPU_ADMISSION_COMPLETE={shell}_complete" in shown.stdout


def test_words_are_for_kubectl() -> None:
    shown = completion("fish", "--", "class")

    assert (shown.exit_code, shown.stderr.splitlines()[-1]) == (2, "Error: WORDS are for kubectl")


@pytest.mark.processes
def test_bash_completes_by_the_script(tmp_path: Path) -> None:
    """The function that the script defines, as bash calls it at a TAB behind `gpu-admission class`."""
    program = tmp_path / "gpu-admission"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m webhook "$@"\n')
    program.chmod(0o755)
    script = f"""
        PATH={tmp_path}:$PATH
        source <(gpu-admission completion bash)
        COMP_WORDS=(gpu-admission class); COMP_CWORD=1
        _gpu_admission_completion gpu-admission
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "classes\n"


@cases(
    ("called", "want"),
    by_its_name=("/usr/bin/gpu-admission", "Usage: gpu-admission "),
    as_a_plugin=("/usr/bin/kubectl-gpu_admission", "Usage: kubectl gpu-admission "),
)
def test_help_says_how_it_was_called(
    called: str, want: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [called, "--help"])
    with pytest.raises(SystemExit):
        run()

    assert capsys.readouterr().out.startswith(want)
