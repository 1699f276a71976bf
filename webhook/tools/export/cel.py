"""Literals and conditions of CEL: texts, lists, globs, and which resources are GPUs."""

import re
import string
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from policies.gpus.mapping_spec import Measure, ResourcePattern
from policies.gpus.resource_mapping import ResourceMapping

Named = tuple[str, str]
"""Name and CEL expression: of a variable, of a match condition."""

LIST_WIDTH = 110
MAX_ALTERNATIVES = 20
"""Globs in one regular expression."""
NAME_CHARACTERS = f"{string.ascii_letters}{string.digits}./_-"
"""Those of namespaces and resources. The - is last, where `[…]` takes it for itself."""
_META = re.compile(r"[*?\[]")
_SPECIAL = str.maketrans({c: f"\\{c}" for c in r"\.^$*+?()[]{}|"} | {"'": r"\x27", "\n": r"\n", "\r": r"\r"})
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def text(value: str) -> str:
    """Return the string as a CEL literal."""
    characters = (_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in value)
    return f"'{''.join(characters)}'"


def texts(values: Iterable[str]) -> str:
    """Return the strings as a CEL list, a long one on several lines."""
    lines = [""]
    for literal in map(text, values):
        if lines[-1] and len(lines[-1]) + len(literal) > LIST_WIDTH:
            lines.append("")
        lines[-1] += f", {literal}" if lines[-1] else literal
    joined = ",\n  ".join(lines)
    return f"[{joined}]"


def escaped(literal: str) -> str:
    """Return the text as part of a regular expression (RE2) in `r'…'`, which can hold neither a quote nor a line end."""
    return literal.translate(_SPECIAL)


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
            regex += escaped(character)
    return regex


def fits(subject: str, globs: Iterable[str]) -> str:
    """Return the condition that one of the globs fits the text `subject`; `true` where `*` is among them."""
    globs = list(dict.fromkeys(globs))
    if "*" in globs:
        return "true"
    plain = [glob for glob in globs if not _META.search(glob)]
    regexes = [glob_regex(glob) for glob in globs if _META.search(glob)]
    return " || ".join(_fitting(subject, plain, regexes)) or "false"


def _fitting(subject: str, plain: Sequence[str], regexes: Sequence[str]) -> Iterator[str]:
    """Yield the conditions that `subject` is one of the texts, and that one of the regular expressions fits the whole of it."""
    if plain:
        yield f"{subject} in {texts(plain)}"
    # A literal cannot be folded: a long one becomes several.
    for at in range(0, len(regexes), MAX_ALTERNATIVES):
        yield f"{subject}.matches(r'^({'|'.join(regexes[at : at + MAX_ALTERNATIVES])})$')"


# ---- which pods and containers request GPUs


def is_gpu_name(
    name: str, resource_mapping: ResourceMapping, wanted: Callable[[ResourcePattern], bool] = lambda _: True
) -> str:
    """Return the condition that the resource `name` (a CEL variable) is a GPU resource whose pattern is wanted.

    The first pattern that fits a name decides, so a pattern counts only where no other one before it fits.
    """
    groups: dict[tuple[ResourcePattern, ...], list[ResourcePattern]] = defaultdict(list)
    unwanted: list[ResourcePattern] = []
    for candidate in resource_mapping.patterns:
        if candidate.measure is Measure.NOTHING or not wanted(candidate):
            unwanted.append(candidate)
        else:
            groups[tuple(each for each in unwanted if _may_overlap(each, candidate))].append(candidate)
    ways: list[str] = []
    for exceptions, group in groups.items():
        condition = any_pattern(name, group)
        unless = f"!({any_pattern(name, exceptions)})"
        ways.append(f"({unless} &&\n ({condition}))" if exceptions else condition)
    return " ||\n".join(ways) or "false"


def any_pattern(name: str, patterns: Iterable[ResourcePattern]) -> str:
    plain = [pattern.pattern for pattern in patterns if "*" not in pattern.pattern]
    # Here a * stands for one or more characters, unlike in globs.
    regexes = [escaped(each.pattern).replace(r"\*", ".+") for each in patterns if "*" in each.pattern]
    return " ||\n".join(_fitting(name, plain, regexes))


def _may_overlap(one: ResourcePattern, other: ResourcePattern) -> bool:
    """Whether some name could fit both; yes in doubt."""
    (head, star, tail), (other_head, other_star, other_tail) = (
        each.pattern.partition("*") for each in (one, other)
    )
    if not star and not other_star:
        return head == other_head
    heads = head.startswith(other_head) or other_head.startswith(head)
    return heads and (tail.endswith(other_tail) or other_tail.endswith(tail))
