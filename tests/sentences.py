"""Changes each sentence of the product once, and names those that no test of their folder misses.

`.venv/bin/python -m tests.sentences [FOLDER…]` judges folders (`policies`, `webhook/controller`; all without one) in a copy
of this tree.

A sentence is a literal, or a literal part of an f-string, with a word and a space (" of which", "must be "), or a word that an
f-string chooses. To change it, one letter of it becomes a character that stands nowhere else, and one of its own for each
sentence. So all sentences of a folder are changed at once: where
an assertion fails that would hold with the letters put back, each character in the text that it compared would have made it fail
alone. These sentences are asserted; the next round leaves them as they are, so that a test comes to its next assertion. What is
left when no round finds more is changed again in ever smaller groups, for the tests that still fail.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import click

from webhook.commands import main as main_command

ROOT = Path(__file__).parent.parent
FIRST_CHARACTER = 0x20000  # CJK, extension B: letters that can be printed, 42,720 of them
_CHARACTER = re.compile("[\U00020000-\U0002a6df]")
NOT_SAMPLED = {
    "webhook/server": "its tests wait for what a changed sentence does not say, for over an hour in all",
    "webhook/tools/fetch": "its tests wait for what a changed sentence does not say",
}
"""Folders of which no sample is drawn, and why. `make sentences` judges them."""
_WORD = re.compile(r"\W*([A-Za-z][A-Za-z']+)\W*")
_UNREAD_CALLS = ("compile", "fullmatch", "match", "search", "sub", "split", "startswith", "endswith")
_CEL = re.compile(
    r"\.\?|\[\?|orValue\(|variables\.|\.(exists|filter|map|join|size|sum|max)\(|\b(dyn|string)\(| && | \? | == '|'\w+': "
    r"|JSONPatch|\be\.name in|\), name\)"
)
"""Syntax of CEL: the API server reads it, nobody else; the messages in it are literals of their own."""
_STYLE = re.compile(r"bold \w+")
_QUICK = "not slow and (not processes or processes(sentences=True))"
_ADDS_OPTIONS = re.compile("_options?$")
_LOGGERS = ("log", "_log", "logger", "_logger", "LOG", "_LOG")


class Sentence(NamedTuple):
    """A literal part with words: the place in its file by line and column, and by order among those of its file."""

    file: str
    order: int
    line: int
    text: str


class Round(NamedTuple):
    """What a run of tests shows: the characters that an assertion missed, and by failed test those in its message."""

    missed: frozenset[str]
    failed: dict[str, list[str]]


@cache
def folders() -> list[str]:
    """Return the folders of the product, and the files beside them, whose sentences tests of one folder are to assert."""
    paths = [*(ROOT / "webhook").iterdir(), *(ROOT / "webhook/tools").iterdir()]
    parts = [path.relative_to(ROOT).as_posix() for path in paths if path.name != "tools"]
    return ["policies", "certs", *(part for part in sorted(parts) if sentences(part))]


def tests_of(folder: str) -> str:
    """Return the tests of a folder, or of a file beside folders: its own, or else those of all that is beside it."""
    beside = Path("tests", folder)
    own = (beside.with_suffix(""), beside.with_name(f"test_{beside.name}"))
    return next((path for path in own if (ROOT / path).exists()), beside.parent).as_posix()


def sentences(folder: str) -> list[Sentence]:
    """Return the sentences of a file, or of all files of a folder, by file and place."""
    path = ROOT / folder
    files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    return [sentence for file in files for sentence in sentences_of(file.relative_to(ROOT).as_posix())]


@cache
def sentences_of(file: str) -> list[Sentence]:
    """Return the sentences of a file."""
    literals = _literals(ast.parse((ROOT / file).read_text("utf-8")))
    return [
        Sentence(file, order, literal.lineno, str(literal.value)) for order, literal in enumerate(literals)
    ]


def _literals(tree: ast.Module) -> list[ast.Constant]:
    """Return the literals that users read. Whoever writes a regular expression or a log line writes for a program or operator."""
    unread: set[int] = set()
    chosen: set[int] = set()
    for node in ast.walk(tree):
        unread |= {id(part) for part in _of_options(node) if str(part.value) in _help()}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            unread.add(id(node.value))  # a docstring
        elif isinstance(node, ast.Call) and _is_unread(node.func):
            unread |= {id(part) for argument in node.args for part in ast.walk(argument)}
        elif isinstance(node, ast.FunctionDef) and node.returns:
            unread |= {id(part) for part in ast.walk(node.returns)}
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            unread |= {id(part) for part in ast.walk(node.annotation)}
        elif isinstance(node, ast.keyword) and node.arg in {"help", "description", "epilog", "metavar"}:
            unread |= {id(part) for part in ast.walk(node.value)}  # tests/test_docs_commands.py
        elif isinstance(node, ast.Call) and _is_metric(node):
            unread.add(id(node.args[1]))  # its help: tests/test_docs.py
        elif isinstance(node, ast.Call) and _is_named(node):
            unread |= {id(part) for part in ast.walk(node.args[0])}
        elif isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.IfExp):
            chosen |= {id(node.value.body), id(node.value.orelse)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in unread
        and _words(node.value)
        and not _CEL.search(node.value)
        and not _STYLE.fullmatch(node.value)
        and (id(node) in chosen or re.search(r"\s", node.value))
    ]


def _of_options(node: ast.AST) -> list[ast.Constant]:
    """Return the strings of what adds options: a decorator, or a call or definition of a function named `…option(s)`."""
    parts: list[ast.AST] = []
    if isinstance(node, ast.FunctionDef):
        parts = [node] if _ADDS_OPTIONS.search(node.name) else [*node.decorator_list]
    elif (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _ADDS_OPTIONS.search(node.func.id)
    ):
        parts = [node]
    every = (literal for part in parts for literal in ast.walk(part))
    return [
        literal for literal in every if isinstance(literal, ast.Constant) and isinstance(literal.value, str)
    ]


@cache
def _help() -> str:
    """Return what `--help` of all commands prints, which tests/test_docs_commands.py holds."""
    commands = list(main_command.commands.values())
    texts = [command.get_help(click.Context(command, show_default=True)) for command in commands]
    return " ".join(" ".join(texts).split())


def _is_metric(call: ast.Call) -> bool:
    name = call.args[0] if len(call.args) > 1 else None
    return isinstance(name, ast.Constant) and str(name.value).startswith("gpu_admission_")


def _is_named(call: ast.Call) -> bool:
    """Whether the call makes a thread or a part of the controller: its name is for those who read tracebacks."""
    made = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    if isinstance(made, ast.Attribute):
        return made.attr == "add" and len(call.args) > 1
    return isinstance(made, ast.Name) and made.id in {"thread", "Subscribers"} and bool(call.args)


def _is_unread(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        logger = function.value
        name = logger.id if isinstance(logger, ast.Name) else ""
        return function.attr in _UNREAD_CALLS or name in _LOGGERS
    return isinstance(function, ast.Name) and function.id in {"AssertionError", "TypeVar", "cast"}


def _words(text: str) -> list[str]:
    return [match[1] for word in text.split() if (match := _WORD.fullmatch(word))]


def changed(text: str, character: str) -> str:
    """Return a sentence with the middle letter of its longest word replaced: lengths and first letters stay."""
    word = max(_words(text), key=len)
    at = re.search(rf"(?<![A-Za-z]){re.escape(word)}(?![a-z])", text)
    middle = (at.start() if at else text.index(word)) + len(word) // 2
    return text[:middle] + character + text[middle + 1 :]


class Copy:
    """A copy of the tree, whose sentences can be changed."""

    def __init__(self, root: Path, marked: Sequence[Sentence]) -> None:
        """Copy the tree to `root`; `marked`: every sentence that will be changed, each by its own character."""
        self._root = root
        self.character = {sentence: chr(FIRST_CHARACTER + order) for order, sentence in enumerate(marked)}
        self.sentence = {character: sentence for sentence, character in self.character.items()}
        self._letters = {
            character: sentence.text[changed(sentence.text, character).index(character)]
            for character, sentence in self.sentence.items()
        }
        self._sources = {file: (ROOT / file).read_text("utf-8") for file in {each.file for each in marked}}
        self._written: set[str] = set()
        unneeded = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", "dist", "build")
        shutil.copytree(ROOT, root, ignore=unneeded, dirs_exist_ok=True)

    def change(self, active: Collection[Sentence]) -> None:
        """Change the active sentences; put all others back."""
        files = {sentence.file for sentence in active}
        for file in self._written - files:
            (self._root / file).write_text(self._sources[file], "utf-8")
        for file in files:
            tree = ast.parse(self._sources[file])
            literals = _literals(tree)
            for sentence in active:
                if sentence.file == file:
                    literals[sentence.order].value = changed(sentence.text, self.character[sentence])
            (self._root / file).write_text(ast.unparse(tree), "utf-8")
        self._written = files

    def run(self, tests: Sequence[str]) -> Round:
        """Run tests on the copy as it is."""
        answer = self._root / "sentences.json"
        answer.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "GPU_ADMISSION_SENTENCES": str(answer),
            "GPU_ADMISSION_LETTERS": json.dumps(self._letters),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CI": "1",
        }
        plugins = ("-p", "tests.sentence_reports", "-p", "no:cacheprovider", "--hypothesis-profile", "least")
        command = [sys.executable, "-m", "pytest", "-q", *plugins, "--tb=no", "-m", _QUICK, *tests]
        result = subprocess.run(
            command, cwd=self._root, env=environment, capture_output=True, text=True, check=False
        )
        if not answer.exists():
            raise RuntimeError(
                f"pytest said nothing of its tests:\n{result.stdout[-3000:]}{result.stderr[-3000:]}"
            )
        shown = json.loads(answer.read_text("utf-8"))
        return Round(frozenset(shown["missed"]), shown["failed"])


def unasserted(
    judged: Sequence[Sentence], tests: Sequence[str], say: Callable[[str], None]
) -> list[Sentence]:
    """Return those of the judged sentences that none of the tests misses."""
    with tempfile.TemporaryDirectory(prefix="sentences-") as root:
        copy = Copy(Path(root), judged)
        left = list(judged)
        shown = Round(frozenset(), {})
        while left and tests:
            copy.change(left)
            shown = copy.run(tests)
            missed = {copy.sentence[character] for character in shown.missed}
            say(f"{len(left)} changed, {len(shown.failed)} tests failed, {len(missed)} of them asserted")
            left, tests = [sentence for sentence in left if sentence not in missed], sorted(shown.failed)
            if not missed:
                break
        if not left:
            return []
        left, failed = _without_shown(copy, left, shown.failed, say), set(shown.failed)
        copy.change(())
        failed -= copy.run(sorted(failed)).failed.keys() if failed else set()
        return _without_hidden(copy, left, failed, say)


def _without_shown(
    copy: Copy, left: list[Sentence], failed: dict[str, list[str]], say: Callable[[str], None]
) -> list[Sentence]:
    """Return the sentences without those that alone make a test fail, in whose message they were."""
    tried: set[str] = set()
    suspects = {test: characters for test, characters in failed.items() if characters}
    while suspects:
        chosen = {test: characters[0] for test, characters in suspects.items()}
        tried |= set(chosen.values())
        copy.change([copy.sentence[character] for character in sorted({*chosen.values()})])
        shown = copy.run(sorted(suspects))
        alone = {copy.sentence[each[0]] for each in shown.failed.values() if len(each) == 1}
        say(f"{len(chosen)} tests failed with sentences in their message: {len(alone)} of those are asserted")
        left = [sentence for sentence in left if sentence not in alone]
        suspects = {
            test: untried
            for test, each in suspects.items()
            if (untried := [one for one in each if one not in tried])
        }
    return left


def _without_hidden(
    copy: Copy, left: list[Sentence], failed: Collection[str], say: Callable[[str], None]
) -> list[Sentence]:
    """Return the sentences without those that make one of these tests fail. A group that makes one fail is halved."""
    copy.change(left)
    failing = copy.run(sorted(failed)).failed if left and failed else {}
    if not failing:
        return left
    if len(left) == 1:
        say(f"{min(failing)} misses {left[0].file}:{left[0].line}")
        return []
    middle = len(left) // 2
    halves = (left[:middle], left[middle:])
    return [sentence for half in halves for sentence in _without_hidden(copy, half, failing, say)]


def _folder_of(sentence: Sentence) -> str:
    return next(folder for folder in folders() if f"{sentence.file}/".startswith(f"{folder}/"))


def tests_beside(sentence: Sentence) -> list[str]:
    """Return a few test files of its folder: two that have its text, or else those named after its file, or that read pages."""
    beside, stem = ROOT / tests_of(_folder_of(sentence)), Path(sentence.file).stem
    paths = sorted(beside.rglob("test_*.py")) if beside.is_dir() else [beside]
    having = [path for path in paths if sentence.text.strip() in _texts(path)]
    named = [path for path in paths if stem in path.stem]
    of_pages = [] if having else [path for path in paths if ".md" in _texts(path)]
    of_pages.sort(key=lambda path: len(path.parts))  # those of the whole folder first
    chosen = sorted(having or named, key=lambda path: path not in named)
    return sorted({path.relative_to(ROOT).as_posix() for path in (*chosen[:2], *of_pages[:2])})


@cache
def _texts(path: Path) -> str:
    tree = ast.parse(path.read_text("utf-8"))
    return "\n".join(str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant))


def sampled(seed: int, number: int, say: Callable[[str], None]) -> list[Sentence]:
    """Return those of a random sample of the sentences of all judged folders that no test misses."""
    every = [sentence for folder in folders() if folder not in NOT_SAMPLED for sentence in sentences(folder)]
    # By its own hash: a sentence that is new elsewhere draws no others.
    drawn = sorted(every, key=lambda each: sha256(f"{seed} {each.file} {each.text}".encode()).digest())[
        :number
    ]
    left = unasserted(drawn, sorted({test for each in drawn for test in tests_beside(each)}), say)
    return unasserted(left, sorted({tests_of(_folder_of(each)) for each in left}), say) if left else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge folders, and print the sentences that nothing asserts."""
    parser = argparse.ArgumentParser(prog="python -m tests.sentences", description=__doc__.splitlines()[0])
    parser.add_argument(
        "folders", nargs="*", metavar="FOLDER", help="folders of the product; all without one"
    )
    options = parser.parse_args(arguments)
    count = 0
    for folder in options.folders or folders():
        click.echo(f"{folder} ({NOT_SAMPLED[folder]})" if folder in NOT_SAMPLED else folder, err=True)
        for sentence in unasserted(sentences(folder), [tests_of(folder)], partial(click.echo, err=True)):
            count += 1
            click.echo(f"{sentence.file}:{sentence.line}: {sentence.text!r}")
    click.echo(f"{count} sentences that no test of their folder misses")
    click.echo(f"No sample is drawn from {', '.join(NOT_SAMPLED)}.")
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main())
