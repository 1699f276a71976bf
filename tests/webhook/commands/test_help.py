"""`--help` on a terminal of 80 columns: no line is cut, or wider."""

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.pages import ROOT
from webhook.commands import main


def commands(group: click.Group, context: click.Context, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, context, *path, name)
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(commands(main, click.Context(main))), ids=" ".join)
def test_no_line_is_cut_or_wider_than_the_terminal(path: tuple[str, ...]) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(main, [*path, "--help"]).stdout

    _, *lines = shown.splitlines()
    assert lines
    assert [line for line in lines if line.endswith("...") or len(line) > 80] == []


def test_groups_are_named_by_who_uses_them() -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["--help"]).stdout

    assert re.findall(r"^(\w.*):$", shown, re.MULTILINE) == [
        "Options",
        "For tenants",
        "For operators",
        "Processes",
        "This program",
    ]


def test_the_namespaces_that_are_meant_without_a_name_are_said() -> None:
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["status", "--help"]).stdout

    default = "Namespace. Default: all that you may read, else the context's. Can be repeated."
    assert default in " ".join(shown.split())


def test_every_command_is_in_a_group() -> None:
    folder = ROOT / "webhook" / "commands"
    written = {
        name.replace("_", "-")
        for file in folder.glob("*.py")
        for name in re.findall(
            r"^@click\.(?:command|group)\((?:.*\n)*?def (\w+)\(", file.read_text(), re.MULTILINE
        )
    }

    assert written - {"main"} == set(main.commands)
