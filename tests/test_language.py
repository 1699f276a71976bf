"""The language of the product: sentences as Kubernetes writes them, in documentation, help, findings, metrics and log lines.

Every text that a reader can meet is walked: pages, the chart, the examples, and the whole source with its docstrings,
comments and literals. `--help` is rendered as well, because click composes it.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from tests.cases import cases
from webhook.commands import main

ROOT = Path(__file__).parents[1]
SHIPPED = (
    ".pre-commit-hooks.yaml",
    "README.md",
    "SECURITY.md",
    "action.yml",
    "docs",
    "policies",
    "webhook",
    "certs",
    "deploy",
    "examples",
    "Makefile",
    "pyproject.toml",
)
GENERATED = {"deploy/constraints-build.txt"}
TEXTS = {".py", ".md", ".yaml", ".yml", ".json", ".tpl", ".txt", ".toml", ""}

WORDS = {
    "told": "say, report or list",
    "mends?|mended|mending": "fix or repair",
    "vouch(es|ed|ing)?": "sign or trust",
    "lends?|lent|lending": "share or overcommit",
    "affairs?": "name the subject itself",
    "shall": "must",
    "lets? in|letting in": "admit",
    "for ever": "forever, or a bound",
    "anew|thrice": "again",
    "aloud|dear(est)?": "in the log, large",
    "whoever": "name the subject",
}
"""A word that no Kubernetes document uses so, and what to write instead."""

PHRASES = {
    r"(?<!there )\b(is|are) no (?!longer\b|more\b|less\b|later\b|earlier\b|older\b|newer\b)": "is not a valid …, must be …",
    r"(?<!there )\b(is|are) none (of|that|which)\b": "must be one of …, is not …",
    r"\bof which (nothing|nobody)\b": "say it of the subject",
    r"^MOST_(?!EXPENSIVE)": "MAX_ for a maximum",
    r"\bAPI servers? (itself |has |have )?refuse[sd]?\b(?! the connection)": "rejects",
    r"^[#|*\-\"' ]*(What|Whatever|Whoever|Who) [a-z][^.?|:\n]{2,90}? (is|are|gets|get) "
    r"(denied|refused|rejected|admitted|allowed|added|checked|counted|left|sent|read|kept|not)\b": "name the subject",
}
"""Likewise turns of phrase: a noun that something "is no", a relative clause as a subject."""


def pattern() -> re.Pattern[str]:
    words = "|".join(WORDS)
    return re.compile("|".join([rf"\b({words})\b", *PHRASES]), re.IGNORECASE | re.MULTILINE)


OFFENCE = pattern()


def shipped_texts() -> Iterator[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *SHIPPED],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    ).stdout.split()
    yield from (name for name in listed if Path(name).suffix in TEXTS and name not in GENERATED)


def offences(text: str) -> list[str]:
    """Return `line: what is written` for each offence; words that a line quotes from others are not spared."""
    return [
        f"{text.count(chr(10), 0, found.start()) + 1}: {' '.join(found[0].split())}"
        for found in OFFENCE.finditer(text)
    ]


def advice() -> str:
    return "; ".join(f"{word}: {instead}" for word, instead in (WORDS | PHRASES).items())


def test_shipped_texts_are_written_in_standard_words() -> None:
    found = [f"{name}:{each}" for name in shipped_texts() for each in offences((ROOT / name).read_text())]
    assert found == [], f"instead: {advice()}"


def commands(group: click.Group, context: click.Context, *path: str) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(context):
        yield (*path, name)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, context, *path, name)


def test_help_is_written_in_standard_words() -> None:
    for command in [(), *commands(main, click.Context(main))]:
        shown = CliRunner().invoke(main, [*command, "--help"])
        assert shown.exit_code == 0, shown.output
        assert offences(" ".join(shown.output.split())) == [], f"{command}; instead: {advice()}"


@cases(
    ("sentence", "want"),
    a_word=("the author is told", ["1: told"]),
    a_verb=("how to mend it", ["1: mend"]),
    two_words_on_the_second_line=("a\nGPU pods are let in", ["2: let in"]),
    not_a_valid_number=('"x" is no number', ["1: is no"]),
    one_of=("is none of enforce, warn", ["1: is none of"]),
    of_the_api_server=("many API servers refuse such a pod", ["1: API servers refuse"]),
    a_clause=("What cannot work is refused when you apply it", ["1: What cannot work is refused"]),
    there_is_no_and_no_longer=("There is no GPUQuota, and it is no longer counted", []),
    words_inside_words=("must equal limits; commend, blend, recommended", []),
)
def test_the_walk_finds_what_it_is_for(sentence: str, want: list[str]) -> None:
    assert offences(sentence) == want
