"""What every command prints: no terminal obeys it, whatever stands in what it reads."""

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from xml.etree import ElementTree as ET

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console
from rich.text import Text

from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import cluster
from webhook.commands import main, output
from webhook.commands.output import Screen, echo, print_value, progress
from webhook.tools.doctor.checks import CHECKS

ROOT = Path(__file__).parents[3]
HOSTILE = "x\x9b2J\u202e\u2066\x7f\x85y"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": HOSTILE,
        "annotations": {"gpu-admission.dev/gpu-class": HOSTILE, f"gpu-admission.dev/{HOSTILE}": HOSTILE},
    },
    "spec": {
        "containers": [{"name": HOSTILE, "resources": {"limits": {"nvidia.com/gpu": HOSTILE, HOSTILE: "1"}}}]
    },
}

ANSWERS = {
    **cluster(),
    "/api/v1/namespaces/ml/pods": [],
    "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.3"},
}


def texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from (key, *texts(each))
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def printed(tmp_path: Path, *arguments: str, document: object = POD) -> str:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(document))
    done = CliRunner().invoke(main, [*arguments, "-f", str(file)])
    assert done.exit_code in {0, 1}, done.output
    assert all(map(str.isprintable, done.output.split("\n"))), done.output
    return done.stdout


@pytest.mark.parametrize("output", ["text", "diff"])
def test_text_shows_that_something_stood_there(tmp_path: Path, output: str) -> None:
    assert "x�2J����y" in printed(tmp_path, "check", "-o", output) or output == "diff"


@pytest.mark.parametrize("output", ["json", "sarif"])
def test_json_has_the_same_text(tmp_path: Path, output: str) -> None:
    found = texts(json.loads(printed(tmp_path, "check", "-o", output)))
    assert any(HOSTILE in each for each in found)


def test_yaml_has_the_same_text(tmp_path: Path) -> None:
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    metadata = {"name": "named", "annotations": {"note": HOSTILE}}
    document = {**POD, "metadata": metadata, "spec": {"containers": [container]}}
    (read,) = yaml.safe_load_all(printed(tmp_path, "check", "-o", "yaml", document=document))
    assert read["metadata"]["annotations"]["note"] == HOSTILE


def test_xml_has_the_same_text(tmp_path: Path) -> None:
    report = ET.fromstring(printed(tmp_path, "check", "-o", "junit"))  # noqa: S314 - of our own making
    assert [HOSTILE in (case.get("name") or "") for case in report.iter("testcase")] == [True]


def test_a_problem_is_printed_likewise(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        json.dumps({**POD, "kind": HOSTILE, "apiVersion": "gpu-admission.dev/v1alpha1"})
    )
    done = CliRunner().invoke(main, ["config", str(tmp_path)])
    assert done.exit_code == 2
    assert "2J" in done.output
    assert all(map(str.isprintable, done.output.split("\n")))


def test_commands_print_in_one_place() -> None:
    folder = ROOT / "webhook" / "commands"
    printing = ("click.echo(", "print(", "sys.stdout.write(", "secho(")
    found = {
        file.name
        for file in folder.glob("*.py")
        if any(f"{before}{each}" in file.read_text() for each in printing for before in (" ", "\n"))
    }
    assert found == {"output.py"}


@cases(
    "arguments",
    a_command=(HOSTILE,),
    an_option=(f"--{HOSTILE}",),
    an_option_of_a_command=("check", f"--{HOSTILE}"),
    a_choice=("check", "-o", HOSTILE),
    an_argument=("rules", HOSTILE),
    a_number=("estimate", "--params", HOSTILE),
    a_file=("check", "--config", HOSTILE, "x"),
)
def test_usage_errors_quote_nothing_that_a_terminal_obeys(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, arguments)

    assert done.exit_code == 2
    assert all(map(str.isprintable, done.output.split("\n"))), done.output


SHOWN = "\x1b[?25l"
"""The cursor is hidden while something is drawn."""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return what a terminal gets on stderr."""
    drawn = io.StringIO()
    monkeypatch.setattr(output, "Console", partial(Console, file=drawn, force_terminal=True, width=80))
    return drawn


def test_a_terminal_shows_within_two_seconds_what_is_being_done(terminal: io.StringIO) -> None:
    with progress("reading https://it"):
        end = monotonic() + 2
        while "reading https://it" not in terminal.getvalue() and monotonic() < end:
            sleep(0.01)
        assert "reading https://it" in terminal.getvalue()
        with progress("reading ") as more:
            more("nodes")
    assert terminal.getvalue().count(SHOWN) == 1, "one line for all problems"


@cases(
    ("arguments", "want"),
    files=(("check", "-f", "pod.json"), "checking manifests"),
    logs=(("usage", "pod.json"), "reading audit logs"),
    an_installation=(
        ("doctor", "--kubeconfig", "kubeconfig"),
        f"check {len(CHECKS)}/{len(CHECKS)} {CHECKS[-1].title}",
    ),
    a_cluster=(("classes", "-n", "ml", "--kubeconfig", "kubeconfig"), "reading the cluster"),
    what_is_written_to_it=(
        ("release", "-n", "ml", "--kubeconfig", "kubeconfig"),
        "removing the scheduling gates",
    ),
)
def test_what_commands_say_that_they_do(
    terminal: io.StringIO, tmp_path: Path, arguments: tuple[str, ...], want: str
) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    with ApiServer(tmp_path, answering(ANSWERS)) as server:
        files = {"pod.json": str(tmp_path / "pod.json"), "kubeconfig": str(server.kubeconfig())}
        CliRunner().invoke(main, [files.get(each, each) for each in arguments])

    assert f" {want}\n" in Text.from_ansi(terminal.getvalue()).plain


@cases(
    "print_text",
    a_line=lambda: echo("found"),
    a_value=lambda: print_value("json", {}),
    a_value_in_yaml=lambda: print_value("yaml", {}),
)
def test_output_ends_it(terminal: io.StringIO, print_text: Callable[[], None]) -> None:
    with progress("reading"):
        print_text()
        drawn = terminal.getvalue()
        assert drawn.endswith(("\x1b[?25h", "\x1b[2K")), "the line is gone"
    assert terminal.getvalue() == drawn


def test_into_a_pipe_only_the_answer_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("reading ") as shown:
        shown("nodes")
        Screen().line("found")
    assert capsys.readouterr() == ("found\n", "")
