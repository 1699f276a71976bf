"""Text that somebody else wrote, as a terminal or a browser may get it: nothing that it would obey, and nothing hidden.

Control characters (C0, C1 such as U+009B, which begins a command), marks of direction, invisible and unassigned characters: all
that `str.isprintable` knows as such.
"""

import re
from collections.abc import Callable, Sequence

_UNUSUAL = re.compile(r"[^\t\n -~]")

_IN_ONE_LINE = str.maketrans(dict.fromkeys("\t\n", "\N{REPLACEMENT CHARACTER}"))


def printable(text: str) -> str:
    """Return the text with U+FFFD for what is not printable, tabs and line breaks too."""
    return printable_lines(text).translate(_IN_ONE_LINE)


def printable_lines(text: str) -> str:
    """Return the text with U+FFFD for characters that are not printable. Tabs and line breaks stay."""
    return _escaped(text, lambda _: "\N{REPLACEMENT CHARACTER}")


def printable_json(text: str) -> str:
    """Return JSON that reads back as the same values."""
    return _escaped(text, _escaped_in_json)


def printable_yaml(text: str) -> str:
    """Return YAML that reads back as the same values, if every scalar with anything that is not printable is in double quotes."""
    return _escaped(text, lambda character: f"\\U{ord(character):08x}")


def printable_xml(text: str) -> str:
    """Return XML that reads back as the same text; what XML cannot hold must have gone before."""
    return _escaped(text, lambda character: f"&#{ord(character)};")


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isascii() and text.isprintable():
        return text
    return _UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else escape(found[0]), text)


def _escaped_in_json(character: str) -> str:
    """Return the escape of the character: two, a surrogate pair, beyond the basic plane."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def first_names(names: Sequence[str], limit: int) -> str:
    """Return the first names, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
