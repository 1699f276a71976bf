"""Literals and conditions of CEL."""

import re
import string
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

LIST_WIDTH = 110
MAX_ALTERNATIVES = 20
"""Globs in one regular expression."""
NAME_CHARACTERS = f"{string.ascii_letters}{string.digits}./_-"
"""Those of namespaces and resources. The - is last, where `[…]` takes it for itself."""
_META = re.compile(r"[*?\[]")
# In `r'…'`, which can hold neither a quote nor a line end.
_SPECIAL = str.maketrans({c: f"\\{c}" for c in r"\.^$*+?()[]{}|"} | {"'": r"\x27", "\n": r"\n", "\r": r"\r"})
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def text(value: str) -> str:
    """Return the string as a CEL literal."""
    characters = (_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in value)
    return f"'{''.join(characters)}'"


def literal(value: Any) -> str:
    """Return plain data as a CEL literal: maps with an entry a line, long lists on several lines."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        return str(value).lower()
    if isinstance(value, Mapping):
        entries = ",\n  ".join(f"{text(key)}: {literal(each)}" for key, each in value.items())
        return f"{{\n  {entries}}}"
    lines = [""]
    for each in map(literal, value):
        if lines[-1] and len(lines[-1]) + len(each) > LIST_WIDTH:
            lines.append("")
        lines[-1] += f", {each}" if lines[-1] else each
    joined = ",\n  ".join(lines)
    return f"[{joined}]"


def glob_regex(glob: str) -> str:
    """Return a shell glob (`fnmatch`: `*`, `?`, `[a-z]`, `[!a-z]`) as an RE2 expression without anchors."""
    regex, at = "", 0
    while at < len(glob):
        character, at = glob[at], at + 1
        end = glob.find("]", at + 1 + glob.startswith("!", at)) if character == "[" else -1
        if character == "*":
            regex += ".*"
        elif character == "?":
            regex += "."
        elif end > 0:
            # RE2 refuses some ranges that fnmatch accepts, such as z-a, so list the characters.
            fitting = "".join(c for c in NAME_CHARACTERS if fnmatchcase(c, glob[at - 1 : end + 1]))
            regex, at = f"{regex}[{fitting or f'^{NAME_CHARACTERS}'}]", end + 1
        else:
            regex += character.translate(_SPECIAL)
    return regex


def fits(subject: str, globs: Iterable[str]) -> str:
    """Return the condition that one of the globs fits the text `subject`; `true` where `*` is among them."""
    globs = list(dict.fromkeys(globs))
    if "*" in globs:
        return "true"
    plain = [glob for glob in globs if not _META.search(glob)]
    regexes = [glob_regex(glob) for glob in globs if _META.search(glob)]
    # A literal cannot be folded: a long one becomes several.
    parts = (regexes[at : at + MAX_ALTERNATIVES] for at in range(0, len(regexes), MAX_ALTERNATIVES))
    ways = [f"{subject} in {literal(plain)}"] if plain else []
    ways += (f"{subject}.matches(r'^({'|'.join(part)})$')" for part in parts)
    return " || ".join(ways) or "false"
