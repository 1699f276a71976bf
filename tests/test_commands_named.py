"""The commands that commands, pages, Events and logs tell people to run exist, and take those arguments.

Every literal that has a command is walked, with x for what is filled in. `gpu-admission` parses its commands, and kubectl itself
those of kubectl, with an API server that does not answer. What they name of an installation is in deploy/static.
"""

import ast
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import click
import pytest

from tests.controlplane import ControlPlaneUnavailable
from tests.controlplane.build import locate
from tests.literals import texts
from tests.unavailable import skip_without
from tests.yaml_files import load_yaml_all
from webhook.commands import main

ROOT = Path(__file__).parents[1]
TOOLS = ("doctor", "why", "scan", "console", "rightsize")
FOLDERS = (*(f"webhook/tools/{each}" for each in TOOLS), "webhook/canary", "webhook/controller")
COMMAND = re.compile(
    r"(?:^|[:;] |`|\(|\b(?:then|see|or|and) )((?:kubectl|gpu-admission) [^;`()]+?)"
    r"(?= (?:says|explains|first)\b|[;`)]|: |, |\. |$)"
)
"""A command at the beginning of a sentence, or behind one."""
ANY_VERB = "kubectl x nodes x xx"
"""Of a function that is given the verb and its arguments."""
UNREACHABLE = "refused"
INSTALLED = {
    f"{each['kind'].lower()}/{each['metadata']['name']}"
    for path in (ROOT / "deploy/static").rglob("*.yaml")
    for each in load_yaml_all(path)
    if each and "metadata" in each
}


@cache
def _named() -> set[str]:
    return {
        match[1].replace("{}", "x").replace("{namespace}", "x").strip()
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in texts(ast.parse(path.read_text()))
        for match in COMMAND.finditer(text)
    }


def commands(program: str) -> list[str]:
    return sorted({each for each in _named() if each.startswith(f"{program} ")} - {ANY_VERB})


@pytest.mark.parametrize("command", commands("gpu-admission"))
def test_our_commands_parse(command: str) -> None:
    group: click.Command = main
    arguments = shlex.split(command)[1:]
    while isinstance(group, click.Group):
        _, group, arguments = group.resolve_command(click.Context(group), arguments)  # type: ignore[assignment]
        assert group is not None
    group.make_context(group.name, list(arguments))


@pytest.mark.processes
@pytest.mark.parametrize("command", commands("kubectl"))
def test_kubectl_takes_its_commands(command: str, tmp_path: Path) -> None:
    try:
        kubectl = locate() / "kubectl"
    except ControlPlaneUnavailable as unavailable:
        skip_without(unavailable)
    arguments = [str(kubectl), "--server=http://127.0.0.1:1", *shlex.split(command)[1:]]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert UNREACHABLE in done.stderr, done.stderr


@pytest.mark.parametrize("command", [each for each in commands("kubectl") if "deployment/" in each])
def test_what_a_command_names_is_installed(command: str) -> None:
    named = [each for each in re.findall(r"deployment/[\w-]+", command) if each != "deployment/x"]

    assert named == [each for each in named if each in INSTALLED]
