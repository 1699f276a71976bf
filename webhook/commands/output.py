"""Output of the commands: text of a readable width, in colour on terminals only; JSON; errors and exit statuses."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from fractions import Fraction
from textwrap import wrap
from typing import Any, NoReturn

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console
from rich.status import Status
from rich.text import Text

from policies.finding import truncate
from policies.printable import printable, printable_json, printable_lines
from policies.quota.amounts import format_amount
from policies.times import utc
from webhook.configuration.yaml_documents import dump_document

FAILED = 1
"""Exit code: the check was made, and its answer is no."""
BAD_INPUT = 2
"""Exit code: wrong usage, or a cluster or documents that cannot be used."""

STRUCTURED = ("json", "yaml")
"""Formats of `-o` with the same content."""

LONGEST_ERROR = 4_000
"""Characters of a line: an error may quote a key of a file, which may be as long as the file."""

NARROWEST, WIDEST = 40, 120
"""Columns of a terminal that are used: longer lines are hard to read, however wide it is."""

WIDEST_NAME = 28
"""Columns of the first column of a table; a longer name has a line of its own."""


class Screen:
    """Prints lines of text: styled and wrapped on a terminal, plain into a pipe, wrapped there only if COLUMNS says how wide."""

    def __init__(self, *, stderr: bool = False) -> None:
        self._console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
        # rich reads COLUMNS, too. grep, logs and scripts want a finding in one line.
        wraps = self._console.is_terminal or "COLUMNS" in os.environ
        self.width = min(max(self._console.width, NARROWEST), WIDEST) if wraps else sys.maxsize

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line as it is, however long."""
        end_progress()
        self._console.print(Text(printable(text), style=style), soft_wrap=True, crop=False, overflow="ignore")

    def heading(self, text: str) -> None:
        self.line()
        self.line(text, "bold")

    def paragraph(self, text: str, *, indent: int = 0, hanging: int = 2, style: str = "") -> None:
        """Print `text` wrapped; every line is indented, all but the first by `hanging` more.

        Words too long for a line (paths, images) are left whole.
        """
        lines = wrap(
            printable(text),
            self.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hanging),
            break_long_words=False,
            break_on_hyphens=False,
            expand_tabs=False,
            replace_whitespace=False,
        )
        for line in lines or [""]:
            self.line(line, style)

    def table(self, rows: Iterable[tuple[str, str | None]]) -> None:
        """Print two columns, indented by two, the second one wrapped. A row without a text is left out."""
        rows = [row for row in rows if row[1]]
        column = min(max((len(name) for name, _ in rows), default=0), WIDEST_NAME)
        for name, text in rows:
            is_long = len(name) > column
            if is_long:
                self.line(f"  {name}")
            self.paragraph(f"{'' if is_long else name:<{column}}  {text}", indent=2, hanging=column + 2)

    def rest(self, number: int, noun: str = "", hint: str = "; -o json has all", *, indent: int = 2) -> None:
        """Print how many there are beyond those that are shown, if any: `and 3 owners more; -o json has all`."""
        if number > 0:
            self.line(f"{'':{indent}}and {counted(number, noun) if noun else number} more{hint}")

    def print_omissions(self, missing_rights: Sequence[str], nodes_from: str = "") -> None:
        """Print where nodes are from, if the caller may not list them, and what is left out for lack of rights."""
        if nodes_from:
            self.line()
            self.paragraph(nodes_from, style="dim")
        if missing_rights:
            self.line()
            self.paragraph(missing_rights_text(missing_rights), style="yellow")


def missing_rights_text(rights: Sequence[str], done: str = "shown") -> str:
    """Return what is left out, in one line; with --verbose all that the caller may not do."""
    context = click.get_current_context(silent=True)
    if len(rights) > 1 and not (
        context and context.get_parameter_source("verbose") is ParameterSource.COMMANDLINE
    ):
        return f"not {done}: what needs {len(rights)} rights that you lack; --verbose lists them"
    return f"you may not {', '.join(rights)}: what depends on it is not {done}"


def amount_or_unknown(amount: Fraction | None) -> str:
    return "?" if amount is None else format_amount(amount)


def since(moment: datetime | None, now: datetime) -> str:
    """Return ` since 07:13 UTC`, with the day unless it is today; "" without a time."""
    return f" since {utc(moment, now)}" if moment else ""


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print text of any lines: all output of commands comes here or through a Screen."""
    end_progress()
    click.echo(printable_lines(text), nl=nl, err=err)


def echo_document(text: str) -> None:
    """Print a document as it is, byte by byte; on a terminal as `echo`."""
    if sys.stdout.isatty():
        echo(text, nl=False)
    else:
        click.echo(text.encode(), nl=False)


def print_value(output: str, value: Any, *, indent: int = 2) -> None:
    """Print a value as JSON or YAML, exact amounts as text: "3", "2/7".

    Without `indent` more follow: JSON is one line, YAML begins with `---`.
    """
    end_progress()
    text = msgspec.json.encode(value, enc_hook=str).decode()
    if output == "yaml":
        text = dump_document(msgspec.json.decode(text))
        click.echo(text if indent else f"---\n{text}", nl=False)
        return
    click.echo(printable_json(msgspec.json.format(text, indent=indent) if indent else text))


_open_statuses: list[Status] = []
"""What shows a progress now, if one does."""


@contextmanager
def progress(doing: str) -> Iterator[Callable[[str], object]]:
    """Show on a terminal what is being done, until something is printed. Into a pipe nothing is written.

    Yields a function that says it more exactly, of the progress around this one if there is one.
    """

    def say(subject: str) -> None:
        for status in _open_statuses:
            status.update(f"{doing}{subject}")

    console = Console(stderr=True, highlight=False)
    if _open_statuses or not console.is_terminal:
        say("")
        yield say
        return
    _open_statuses.append(console.status(doing))
    try:
        with _open_statuses[0]:
            yield say
    finally:
        _open_statuses.clear()


def end_progress() -> None:
    while _open_statuses:
        _open_statuses.pop().stop()


def print_as(output: str, value: Any, show: Callable[[Screen], object]) -> None:
    """Print the value as JSON or YAML, or what `show` prints."""
    if output in STRUCTURED:
        print_value(output, value)
    else:
        show(Screen())


def print_errors(errors: Iterable[object]) -> None:
    for error in errors:
        echo(truncate(f"error: {error}", LONGEST_ERROR), err=True)


def fail(error: object, status: int = BAD_INPUT) -> NoReturn:
    print_errors([error])
    sys.exit(status)


def fail_with(problems: Sequence[object], consequence: str = "") -> NoReturn:
    """Print the problems, then their number with the consequence if one is stated, and end the command."""
    print_errors(problems)
    if consequence:
        echo(f"{counted(len(problems), 'problem')}{consequence}", err=True)
    sys.exit(BAD_INPUT)


def counted(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def as_yaml(value: Any) -> str:
    """Return a value in one line: JSON, which is YAML; a text as it is, without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
