"""Messages that the documentation quotes are messages of the product.

A quote stands in code type, in quotation marks, in italics or in a text block, and has two words of a sentence. Templates must
cover all of its words: a template is a text of the code, whose literal parts are all in the quote, in order, or the output of a
command, which `test_docs.py` runs. It may be cut where the quote begins or ends, and at "…".
`<!-- of NAME -->` behind a quote says that another program writes it.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path

from tests.cases import cases
from tests.pages import ROOT, blocks, each_page, prose

SOURCES = ["policies/**/*", "webhook/**/*", "certs/**/*"]
SOURCES += (f"tests/cluster/{name}" for name in ("outage/*", "availability/*", "test_callers"))
"""The product, and the tests in which stands what real API servers say."""

QUOTED = re.compile(r'`(?P<code>[^`]+)`|"(?P<quote>[^"`]+)"|(?<![*\w])\*(?P<italic>[^*\s`][^*`]*)\*(?![*\w])')
OF_ANOTHER = re.compile(r"[`\"*] ?<!-- of [\w ]+ -->")
NO_MESSAGE = re.compile(
    r"(kubectl|gpu-admission|make|helm|kubeadm|kustomize|docker|pip) (?!takes|was|is )"  # a command line
    r"|.* --?[a-z]"  # with an option
    r'|"?[\w.-]+"?: ("?[\w.-]+"?|\{.*\})$'  # YAML or JSON
    r"|\w+\(.*\)$|.* (\+|==|≤) "  # a call or a formula
    r"|\w+/\w+/|[.{]|PATH "  # a path
)
NO_OUTPUT = re.compile(
    r"(?m)^\S+/\S+ (created|configured)$"  # of kubectl
    r"|\d+/\d+ nodes are available:"  # of the scheduler
    r"|unable to get local issuer certificate"  # of OpenSSL
)
WORD = re.compile(r"[a-z]+")  # words with capitals, digits or signs may be values
VALUE = "\0"

Template = tuple[tuple[str, ...], ...]  # the words of each literal part


def quotes(page: Path) -> Iterator[str]:
    """Yield the quotes of a page but for its blocks."""
    text = re.sub(r"(?<=\])\([^)]*\)|<\w+ [^>]*>", "", prose(page))  # links, and pictures with their titles
    for paragraph in re.split(r"\n\n|\n(?=- |\|)", text):
        for match in QUOTED.finditer(paragraph):
            quote = " ".join(match[match.lastgroup or 0].split())
            is_sentence = sum(
                WORD.fullmatch(word) is not None for word in words_of(quote)
            ) > 1 or quote.endswith(":")
            if is_sentence and not (OF_ANOTHER.match(paragraph, match.end() - 1) or NO_MESSAGE.match(quote)):
                yield quote


def outputs(page: Path) -> Iterator[str]:
    """Yield the text blocks of a page of docs/, but for the tables of measurements in performance.md."""
    if page.is_relative_to(ROOT / "docs") and page.name != "performance.md":
        yield from (NO_OUTPUT.sub("", block["text"]) for block in blocks(page, "text"))


def words_of(text: str) -> list[str]:
    return [word for each in text.split() if (word := each.strip("(),;:.\"'`*"))]


def texts_in(source: str) -> Iterator[str]:
    """Yield the texts of a module but its docstrings, with VALUE in place of what is interpolated."""
    tree = list(ast.walk(ast.parse(source)))
    unread = {id(node.value) for node in tree if isinstance(node, ast.Expr)}
    for node in tree:
        if isinstance(node, ast.JoinedStr):
            unread |= {id(part) for part in node.values}
            yield from forms(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "counted":
            yield from (f"{VALUE} {noun}{end}" for noun in forms(node.args[1]) for end in ("", "s"))
    for node in tree:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unread:
            yield re.sub(r"%[sdr]|\{\w*\}", VALUE, node.value)


def forms(node: ast.expr) -> list[str]:
    """Return the texts that an expression can have: `f"{count} pod{'s' if many else ''}"` has two."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp():
            return [*forms(node.body), *forms(node.orelse)]
        case ast.FormattedValue():
            return forms(node.value)
        case ast.JoinedStr():
            return ["".join(parts) for parts in product(*map(forms, node.values))]
        case _:
            return [VALUE]


def templates_of(text: str) -> Iterator[Template]:
    """Yield the words of a text between its values. A word that is joined to a value may be a part of it, or not."""
    for is_part in (False, True):
        parts: list[list[str]] = [[]]
        for word in text.split():
            stem, *joined = word.split(VALUE)
            parts[-1] += words_of("" if joined and is_part else stem)
            parts += [words_of("" if is_part else each) for each in joined]
        yield tuple(tuple(part) for part in parts if part)


def all_templates(texts: Iterable[str]) -> dict[Template, bool]:
    """Return all templates, and whether each may be a part of a sentence: one word alone is a key, or the label of a row."""
    found: dict[Template, bool] = {}
    for text in texts:
        for template in filter(None, templates_of(text)):
            found[template] = found.get(template, False) or len(text.split()) > 1
    return found


@cache
def templates() -> dict[Template, bool]:
    files = (path for pattern in SOURCES for path in ROOT.glob(f"{pattern}.py"))
    texts = [text for path in files for text in texts_in(path.read_text())]
    texts += [block["text"] for page in (ROOT / "docs").rglob("*.md") for block in blocks(page, "console")]
    return all_templates(texts)


def places_of(part: Sequence[str], words: Sequence[str], begin: int = 0) -> Iterator[int]:
    yield from (at for at in range(begin, len(words) - len(part) + 1) if words[at : at + len(part)] == part)


def following(parts: Template, words: Sequence[str], begin: int) -> set[int]:
    """Return the places of the parts from `begin` on, up to the last word; none if the words go on without a part."""
    places: set[int] = set()
    for part in parts:
        at = next(places_of(part, words, begin), None)
        if at is None:
            for start in range(begin, len(words) + 1):
                if words[start:] == part[: len(words) - start]:
                    is_cut = not any(map(WORD.fullmatch, words[begin:start]))
                    return places | set(range(start, len(words))) if is_cut else set()
        else:
            begin = at + len(part)
            places |= set(range(at, begin))
    return places


def covered(words: Sequence[str], parts: Template) -> set[int]:
    """Return the places of the words that a template covers; it may be cut before the first word, and behind the last one."""
    places: set[int] = set()
    for at in places_of(parts[0], words):
        places |= following(parts, words, at)
    for index, part in enumerate(parts):
        for cut in range(0 if index else 1, len(part)):
            if part[cut] == words[0]:
                places |= following((part[cut:], *parts[index + 1 :]), words, 0)
    for size in range(2, len(parts[0])):
        if words[-size:] == parts[0][:size]:
            places |= set(range(len(words) - size, len(words)))
    return places


def unwritten(quote: str, known: Iterable[Template]) -> list[str]:
    """Return the words of sentences in a quote that no template covers."""
    words = tuple(words_of(quote))
    fields = re.findall(r"\b([a-z]+): \d", quote)  # set parallelism: 4
    cuts = [-1, *(at for at, word in enumerate(words) if word == "…"), len(words)]
    spans = [(begin + 1, end) for begin, end in combinations(cuts, 2) if begin + 1 < end]
    places = {
        begin + at
        for parts in known
        if any(word in words for part in parts for word in part)
        for begin, end in spans
        for at in covered(words[begin:end], parts)
    }
    rest = (word for at, word in enumerate(words) if at not in places and word not in fields)
    return [word for word in rest if WORD.fullmatch(word)]


@each_page
def test_a_quoted_message_is_one_that_we_write(page: Path) -> None:
    sentences = [template for template, is_sentence in templates().items() if is_sentence]
    found = {quote: unwritten(quote, sentences) for quote in quotes(page)}
    found |= {output: unwritten(output, templates()) for output in outputs(page)}

    assert {quote: words for quote, words in found.items() if words} == {}


CODE = """f"a pod needs {gpus}, which can never fit: {'they' if many else 'it'} must be {at_most:g} or less{hint}\""""


@cases(
    ("quote", "is_ours"),
    whole=("a pod needs 16 GPUs, which can never fit: it must be 8 or less", True),
    begun_and_ended_early=("which can never fit: they must be", True),
    with_an_ellipsis=("… can never fit: … must be …", True),
    another_word=("a pod needs 16 GPUs, which will never fit", False),
    another_end=("a pod needs 16 GPUs: it can never start", False),
    a_word_more=("a pod needs 16 whole GPUs, which can never fit", False),
    a_part_left_out=("a pod needs 16 GPUs: it must be 8 or less", False),
)
def test_the_search_for_quoted_messages(quote: str, is_ours: bool) -> None:
    assert (unwritten(quote, all_templates(texts_in(CODE))) == []) is is_ours
