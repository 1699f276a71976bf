"""Completion in bash, and help behind kubectl; the single file behind kubectl: tests/deploy/test_plugin.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import cases
from webhook.commands import run


@pytest.mark.processes
def test_bash_completes_by_the_script(tmp_path: Path) -> None:
    """The function that the script defines, as bash calls it at a TAB behind `gpu-admission class`."""
    program = tmp_path / "gpu-admission"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m webhook "$@"\n')
    program.chmod(0o755)
    script = f"""
        PATH={tmp_path}:$PATH
        eval "$(_GPU_ADMISSION_COMPLETE=bash_source gpu-admission)"
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
