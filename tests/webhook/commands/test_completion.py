"""Completion of commands, options and names, and help behind kubectl; the single file there: tests/deploy/test_plugin.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from tests.cases import cases
from tests.deploy.plugin import COMPLETION
from tests.webhook.cluster.apiserver import Answer, ApiServer, answering
from tests.webhook.commands.checked_cluster import FORBIDDEN, POD_KINDS
from webhook.commands import COMPLETE_VAR, PROGRAM, main, run


def completions(*words: str) -> list[str]:
    """Return what a shell gets at a TAB in the last of the words."""
    found = ShellComplete(main, {}, PROGRAM, COMPLETE_VAR).get_completions(list(words[:-1]), words[-1])
    return [each.value for each in found]


NAMESPACES = [{"metadata": {"name": name}} for name in ("ml", "ml-dev", "web")]
POLICIES = [{"metadata": {"name": name}} for name in ("default", "strict")]
OBJECTS = {
    "/api/v1/namespaces": NAMESPACES,
    "/apis/gpu-admission.dev/v1alpha1/gpupolicies": POLICIES,
    "/api": POD_KINDS,
    "/apis": {"items": []},
}


@cases(
    ("words", "want"),
    commands=(["cl"], ["classes"]),
    options=(["quota", "--pr"], ["--problems"]),
    formats=(["quota", "-o", ""], ["text", "json", "yaml"]),
    shells=(["completion", ""], ["bash", "zsh", "fish"]),
    namespaces=(["quota", "-n", "ml"], ["ml", "ml-dev"]),
    namespaces_again=(["status", "-n", "web", "-n", "ml-"], ["ml-dev"]),
    contexts=(["why", "--context", ""], ["test"]),
    kinds=(["why", "po"], ["pods"]),
    policies=(["pause", "s"], ["strict"]),
    reasons=(["rules", "Fractional"], ["FractionalGPU"]),
    rules=(["rules", "gpu-q"], ["gpu-quota"]),
)
def test_names_are_completed(
    words: list[str], want: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ApiServer(tmp_path, answering(OBJECTS)) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig()))
        assert completions(*words) == want


@cases("words", namespaces=["quota", "-n", ""], kinds=["why", ""], contexts=["why", "--context", ""])
def test_what_cannot_be_read_completes_nothing_and_says_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("garbage", "{current-context: a, contexts: []}"):
        (tmp_path / "config").write_text(text)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        assert completions(*words) == []
    assert capsys.readouterr() == ("", "")


@cases("answer", without_rights=FORBIDDEN, of_no_api_server=Answer(b"<html>log in</html>"))
def test_where_no_namespace_can_be_read_none_is_completed(answer: Answer, tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: answer) as server:
        assert completions("quota", "--kubeconfig", str(server.kubeconfig()), "-n", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str) -> None:
    script = CliRunner().invoke(main, ["completion", shell]).stdout

    assert f"_GPU_ADMISSION_COMPLETE={shell}_complete" in script


def installed(folder: Path, name: str) -> None:
    program = folder / name
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m webhook "$@"\n')
    program.chmod(0o755)


@pytest.mark.processes
@cases(
    ("typed", "want"),
    a_command=(["class"], "classes\n:4\n"),
    an_option=(["quota", "--pro"], "--problems\n:4\n"),
    nothing_yet=(["completion", ""], "bash\nzsh\nfish\n:4\n"),
    a_file=(["classes", "--config", ""], ":0\n"),
    nothing_that_is_known=(["quota", "--nothing"], ":4\n"),
)
def test_kubectl_gets_what_cobra_reads(typed: list[str], want: str, tmp_path: Path) -> None:
    installed(tmp_path, "kubectl-gpu_admission")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([COMPLETION, *typed], env=environment, capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == (want, "")


@pytest.mark.processes
def test_bash_completes_by_the_script(tmp_path: Path) -> None:
    """The function that the script defines, as bash calls it at a TAB behind `gpu-admission class`."""
    installed(tmp_path, "gpu-admission")
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
