"""Files that `check` reads: the arguments, and in directories the files that `kubectl apply -f` reads, unless they are ignored.

Directories hold more than manifests: Helm charts, kustomizations and their patches are noted, and files without apiVersion and
kind are counted.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import EFBIG
from fnmatch import fnmatchcase
from os.path import normpath
from pathlib import Path, PurePath
from typing import Any, BinaryIO

import msgspec

from webhook.configuration.documents import SUFFIXES, LocatedProblem, reading
from webhook.tools.check.rendering import KUSTOMIZATIONS, Renderer, ToRender, chart_of, patch_files

STDIN = "-"
STDIN_NAME = "stdin"
LARGEST_MIB = 64
"""Of one file: the CustomResourceDefinitions of a large project have 10 MiB, and a device never ends."""

Track = Callable[[Sequence[Any], str], Iterable[Any]]
"""Passes a sequence through and shows how far it is; the text says what is done with it."""

_HEAD = re.compile(r"\b(apiVersion|kind)[\"']?\s*:")
_COMPONENT = re.compile(r"^kind: *Component\b", re.MULTILINE)


class Input(msgspec.Struct):
    """What was read besides objects."""

    problems: list[LocatedProblem] = []
    """Why something cannot be read."""
    warnings: list[LocatedProblem] = []
    """What is read, but may not be what its author meant."""
    to_render: list[ToRender] = []
    others: int = 0
    """Documents without apiVersion and kind."""
    ignored: int = 0
    """Number of files and directories that the caller left out."""


Text = tuple[str, str, bool]
"""The name of a file, its content, and whether it is stdin, which is a stream of manifests and nothing else."""


def texts(
    sources: Sequence[str], recursive: bool, ignore: Sequence[str], found: Input, track: Track
) -> Iterator[Text]:
    """Yield the texts in which manifests can be, in the order of the sources."""
    files = [each for source in sources for each in _Listing(source, recursive, ignore, found).files()]
    patches = patch_files(Path(file) for file, _ in files if file != STDIN)
    for file, is_named in track(files, "reading"):
        if file == STDIN:
            with reading(STDIN, found.problems):
                yield STDIN_NAME, _content(sys.stdin.buffer), True
        elif Path(normpath(Path(file).absolute())) not in patches:
            with reading(file, found.problems):
                with Path(file).open("rb") as stream:
                    content = _content(stream)
                if _may_hold_manifests(Path(file), content, is_named, found):
                    yield file, content, False


def _content(stream: BinaryIO) -> str:
    """Return the text. Raises UnicodeDecodeError, OSError where it is too long."""
    content = stream.read(LARGEST_MIB * 2**20 + 1)
    if len(content) > LARGEST_MIB * 2**20:
        raise OSError(EFBIG, f"must be at most {LARGEST_MIB} MiB")
    return content.decode("utf-8-sig")


def _may_hold_manifests(file: Path, content: str, is_named: bool, found: Input) -> bool:
    if file.name in KUSTOMIZATIONS:
        if not _COMPONENT.search(content):  # part of kustomizations
            found.to_render.append(ToRender(Renderer.KUSTOMIZE, str(file.parent)))
        return False
    chart = chart_of(file) if "{{" in content else None
    if chart is not None:
        to_render = ToRender(Renderer.HELM, str(chart))
        if to_render not in found.to_render:
            found.to_render.append(to_render)
        return False
    if not is_named and not _HEAD.search(content):
        found.others += 1
        return False
    return True


class _Listing:
    """The files of one argument, and whether it names them."""

    def __init__(self, source: str, recursive: bool, ignore: Sequence[str], found: Input) -> None:
        self._source, self._recursive, self._found = source, recursive, found
        self._ignore = [glob.rstrip("/").removeprefix("./") for glob in ignore]

    def files(self) -> list[tuple[str, bool]]:
        source, problems = self._source, self._found.problems
        if source.startswith(("http://", "https://")):
            message = "URLs are not supported: curl -sSL URL | gpu-admission check -f -"
            problems.append(LocatedProblem.of_file(source, message))
            return []
        path = Path(source)
        if source == STDIN or not path.is_dir():
            return [] if source != STDIN and self._is_ignored(path) else [(source, True)]
        files: list[str] = []
        ignored = self._found.ignored
        with reading(source, problems):
            files = sorted(str(file) for file in self._below(path, path))
            if not files and self._found.ignored == ignored:
                hint = "" if self._recursive else " (-R reads the directories below, too)"
                message = f"must contain a .yaml, .yml or .json file{hint}"
                problems.append(LocatedProblem.of_file(source, message))
        return [(file, False) for file in files]

    def _below(self, folder: Path, top: Path) -> Iterator[Path]:
        for entry in folder.iterdir():
            if is_folder := entry.is_dir():
                may_be_read = self._recursive and not entry.is_symlink()
            else:
                may_be_read = entry.suffix in SUFFIXES or entry.name in KUSTOMIZATIONS
            if not may_be_read or self._is_ignored(entry.relative_to(top)):
                continue
            if is_folder:
                yield from self._below(entry, top)
            elif entry.is_file() or not entry.exists():  # not a pipe or a device: to read one may never end
                yield entry

    def _is_ignored(self, path: PurePath) -> bool:
        """Whether a glob matches a name in the path, or the path down to it; `*` matches `/`, too."""
        paths = [*path.parents, path]
        names = [name for each in paths for name in (each.name, each.as_posix(), f"/{each.as_posix()}")]
        ignored = any(fnmatchcase(name, glob) for glob in self._ignore for name in names)
        self._found.ignored += ignored
        return ignored
