"""What the commands share in showing things to people: width, wrapping, colour on terminals only."""

from collections.abc import Iterable
from textwrap import wrap

from rich.console import Console
from rich.text import Text

WIDTH = 80
WIDEST = 120
"""Longer lines are hard to read, however wide the terminal."""


class Screen:
    """Prints lines of text; styled on a terminal, plain into a pipe."""

    def __init__(self, *, stderr: bool = False) -> None:
        self._console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
        terminal = self._console.is_terminal
        self.width = min(max(self._console.width, 40), WIDEST) if terminal else WIDTH

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line as it is, however long."""
        shown = Text(printable(text), style=style)
        self._console.print(shown, soft_wrap=True, crop=False, overflow="ignore")

    def paragraph(self, text: str, *, indent: int = 0, hanging: int = 2, style: str = "") -> None:
        """Print `text` wrapped; every line is indented, all but the first by `hanging` more."""
        for line in wrapped(text, self.width, indent, hanging):
            self.line(line, style)

    def table(self, rows: Iterable[tuple[str, str]], *, indent: int = 0, widest: int = 28) -> None:
        """Print two columns, the second one wrapped."""
        rows = list(rows)
        column = min(max((len(name) for name, _ in rows), default=0), widest)
        for name, text in rows:
            if len(name) > column:
                self.line(" " * indent + name)
                name = ""
            self.paragraph(f"{name:<{column}}  {text}", indent=indent, hanging=column + 2)


def wrapped(text: str, width: int, indent: int, hanging: int) -> list[str]:
    """Return the lines of `text`; words too long for a line (paths, images) are left whole."""
    first, rest = " " * indent, " " * (indent + hanging)
    return wrap(
        printable(text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        expand_tabs=False,
        replace_whitespace=False,
    ) or [first.rstrip()]


def printable(text: str) -> str:
    """Return the text without what could steer a terminal: names in manifests are anyone's."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def counted(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
