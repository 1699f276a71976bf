"""What the demo shows: narration, commands as typed, and their real output, at 80 columns."""

import re
import subprocess
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

WIDTH = 80
INDENT = "  "
_COLUMN_GAP = re.compile(r" {2,}")


class Stage:
    """Prints to stdout; styled on a terminal, plain into a pipe."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._scenes = 0

    def title(self, text: str) -> None:
        self._line(text, "bold")
        self._line()

    def scene(self, heading: str, narration: str) -> None:
        """Start the next numbered scene."""
        self._scenes += 1
        self._line()
        self._line(f"{self._scenes}. {heading}", "bold")
        self.say(narration)
        self._line()

    def say(self, text: str, style: str = "") -> None:
        self._wrapped(text, INDENT, INDENT, style)

    def command(self, words: Sequence[str]) -> None:
        """Show a command as it is typed; a long one goes on after a backslash."""
        lines = textwrap.wrap(" ".join(words), WIDTH - 8, break_long_words=False, break_on_hyphens=False)
        continued = [f"{line} \\" for line in lines[:-1]] + lines[-1:]
        for index, line in enumerate(continued):
            self._line(f"{INDENT}{'$ ' if index == 0 else '    '}{line}", "bold cyan")

    def output(self, done: subprocess.CompletedProcess[str]) -> None:
        """Show what a command printed: tables narrowed, sentences wrapped, errors marked."""
        for line in table_lines(done.stdout.splitlines()):
            self._wrapped(line, INDENT, INDENT * 2)
        for line in done.stderr.splitlines():
            style = "yellow" if line.startswith("Warning") else "red"
            self._wrapped(line, INDENT, INDENT * 2, style)

    def diff(self, lines: Sequence[str]) -> None:
        for line in lines:
            style = {"+": "green", "-": "red"}.get(line[:1], "")
            self._wrapped(line, INDENT, INDENT + line[:1] + INDENT * 4, style)

    def _wrapped(self, text: str, first: str, rest: str, style: str = "") -> None:
        lines = textwrap.wrap(
            text,
            WIDTH,
            initial_indent=first,
            subsequent_indent=rest,
            break_on_hyphens=False,
            replace_whitespace=False,
            drop_whitespace=True,
        )
        for line in lines or [""]:
            self._line(line, style)

    def _line(self, text: str = "", style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True, crop=False, overflow="ignore")


def table_lines(lines: list[str]) -> list[str]:
    """Return kubectl's table without the columns in which no row has a value, two spaces between the others.

    Other lines are returned unchanged.
    """
    if len(lines) < 2 or not re.fullmatch(r"[A-Z][A-Z ()-]+", lines[0].rstrip()):  # noqa: PLR2004 - heading and a row
        return lines
    starts = [0, *(gap.end() for gap in _COLUMN_GAP.finditer(lines[0].rstrip()))]
    ends = [*starts[1:], None]
    columns = [[line[start:end].strip() for line in lines] for start, end in zip(starts, ends, strict=True)]
    kept = [column for column in columns if set(column[1:]) - {"<none>", ""}]
    widths = [max(map(len, column)) for column in kept]
    rows = zip(*kept, strict=True)
    return [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
