"""The command lines in the documentation can be typed; docs/tenants/check.md says what `gpu-admission check` takes and prints."""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.pages import ROOT, blocks, each_page, prose
from webhook.commands import main
from webhook.commands.check import check


def code_in(page: Path) -> Iterator[str]:
    """Yield what stands in code type in a page, but for its blocks."""
    text = prose(page)
    yield from (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text))
    yield from re.findall(r"^ {4}(.+)$", text, re.MULTILINE)


def command_lines(page: Path) -> Iterator[list[str]]:
    """Yield the words behind `gpu-admission` of each command line."""
    typed = (block["text"].splitlines() for language in ("sh", "console") for block in blocks(page, language))
    for line in (*code_in(page), *(line for lines in typed for line in lines)):
        for command in re.split(r" \\?\| ", line.removeprefix("$ ")):
            if re.match("gpu-admission (?!takes|was)", command):
                yield list(takewhile(lambda word: word != ">", shlex.split(command, comments=True)[1:]))


@each_page
def test_a_command_line_names_commands_and_options_that_exist(page: Path) -> None:
    for line in [] if page.name == "CHANGELOG.md" else command_lines(page):  # which names what was removed
        command: click.Command | None = main
        words = list(line)
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, line
        with suppress(click.BadOptionUsage):  # an option that is named without its value
            given, more, _ = command.make_parser(click.Context(command)).parse_args(words)
            assert more == [], line
            # A bare word is read as a directory, but meant as a subcommand that does not exist.
            assert not re.fullmatch("[a-z]+", str(given.get("directory"))), line


def test_the_options_of_check_are_documented() -> None:
    page = (ROOT / "docs" / "tenants" / "check.md").read_text()
    options = (parameter for parameter in check.params if isinstance(parameter, click.Option))
    known = {name for option in options for name in option.opts}
    documented = {
        name for row in re.findall(r"^\| (`-.*?) \|", page, re.MULTILINE) for name in row.split(", ")
    }

    assert documented == {f"`{name}`" for name in known}


def test_what_check_prints_as_json_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "tenants" / "check.md").read_text()
    files = ["examples/workloads/pod-fractional.yaml", "examples/workloads/training-job.yaml", "nowhere.yaml"]
    sources = [argument for file in files for argument in ("-f", file)]
    printed = CliRunner().invoke(main, ["check", *sources, "-o", "json"]).stdout

    assert {name for name in names_in(json.loads(printed)) if f"`{name}`" not in page} == set()


def names_in(document: Any) -> Iterator[str]:
    """Yield the keys of all objects, but for those of a patch operation, which RFC 6902 and the pod define."""
    if isinstance(document, dict):
        yield from (
            f"{key}[]" if isinstance(value, list) and key != "operations" else key
            for key, value in document.items()
        )
        for key, value in document.items():
            yield from names_in(value) if key != "operations" else ()
    elif isinstance(document, list):
        for item in document:
            yield from names_in(item)
