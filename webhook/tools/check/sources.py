"""Files that `check` reads: the arguments, and in directories the files that `kubectl apply -f` reads, unless they are ignored.

Directories hold more than manifests. Helm charts, kustomizations and their patches, templates and placeholders are not errors:
they are listed with the command that renders them, whose output can be checked. Files without apiVersion and kind are counted.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from os.path import normpath
from pathlib import Path, PurePath
from typing import NamedTuple

import msgspec

from policies.printable import first_names
from webhook.configuration.documents import FILE_SUFFIXES, LocatedProblem, reading
from webhook.configuration.files import LEADS_OUT, Source, decode_text, leads_out, read_file
from webhook.configuration.yaml_documents import YamlDocument, load_documents

KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
"""File names that `kustomize build` reads (RecognizedKustomizationFileNames of kustomize's konfig)."""

STDIN = "-"
STDIN_NAME = "stdin"
MAX_FILE_BYTES = 64 * 2**20
"""The CustomResourceDefinitions of a large project have 10 MiB, and a device never ends."""

RENDER_FIRST = "must be rendered first"

_MAX_NAMES = 5


class Renderer(Enum):
    """A tool that makes manifests of a source: the noun for the source, and the remedy."""

    HELM = "Helm chart", "helm template CHART | gpu-admission check -f -"
    KUSTOMIZE = "kustomization", "kustomize build DIRECTORY | gpu-admission check -f -"
    TEMPLATE = "template", "render it and check the result"

    def __init__(self, noun: str, remedy: str) -> None:
        self.noun, self.remedy = noun, remedy


class ToRender(msgspec.Struct, frozen=True):
    """A chart, the directory of a kustomization, or a file that is a template from `line` on."""

    renderer: Renderer
    file: str
    line: int = 0


def render_sentences(unrendered: Iterable[ToRender]) -> Iterator[str]:
    """Yield a sentence for each renderer, with the names of its first sources."""
    unrendered = list(unrendered)
    for renderer in Renderer:
        names = [
            f"{template.file}:{template.line}" if template.line else template.file
            for template in unrendered
            if template.renderer is renderer
        ]
        if names:
            noun = f"{renderer.noun}{'s' * (len(names) > 1)}"
            yield f"{len(names)} {noun} not checked ({first_names(names, _MAX_NAMES)}): {renderer.remedy}"


def chart_of(file: Path) -> Path | None:
    """Return the Helm chart in whose `templates` the file is."""
    folders = (folder.parent for folder in file.parents if folder.name == "templates")
    return next((folder for folder in folders if (folder / "Chart.yaml").is_file()), None)


def patch_files(files: Iterable[Path]) -> frozenset[Path]:
    """Return the patches of the kustomizations beside these files or one folder above, as absolute paths."""
    folders = {folder for file in files for folder in file.absolute().parents[:2]}
    return frozenset(patch for folder in folders for patch in _patches_in(folder))


def _patches_in(folder: Path) -> Iterator[Path]:
    file = next((folder / name for name in KUSTOMIZATIONS if (folder / name).is_file()), None)
    try:
        documents = list(load_documents(read_file(file, MAX_FILE_BYTES, folder)[0])) if file else []
    except (OSError, UnicodeDecodeError):
        return  # a problem where the file itself is read
    for document in documents:
        data = document.data if isinstance(document, YamlDocument) else None
        for field in ("patches", "patchesStrategicMerge", "patchesJson6902"):
            listed = data.get(field) if isinstance(data, dict) else None
            for item in listed if isinstance(listed, list) else ():
                path = item.get("path") if isinstance(item, dict) else item
                if isinstance(path, str) and "\n" not in path:
                    yield Path(normpath(folder / path))


def read_stdin() -> bytes:
    return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)


_API_VERSION_OR_KIND = re.compile(r"\b(apiVersion|kind)[\"']?\s*:")
_COMPONENT = re.compile(r"^kind: *Component\b", re.MULTILINE)


class ReadResult(msgspec.Struct):
    """What reading found besides objects: problems, warnings, notes and counts."""

    problems: list[LocatedProblem] = []
    """Why something cannot be read."""
    warnings: list[LocatedProblem] = []
    """What is read, but may not be what its author meant."""
    to_render: list[ToRender] = []
    other_documents: int = 0
    """Documents without apiVersion and kind."""
    notes: list[str] = []
    """What of a cluster the evaluation lacks."""
    ignored: int = 0
    """Number of files and directories that the caller left out."""
    sources: dict[str, Source] = {}
    """The files that were read, by name."""


def texts_of(
    sources: Sequence[str],
    recursive: bool,
    ignore: Sequence[str],
    result: ReadResult,
    stdin: Callable[[], bytes],
) -> Iterator[tuple[str, str, bool]]:
    """Yield the files in which manifests can be: name, content, and whether it is stdin, which has nothing but manifests."""
    files = [file for source in sources for file in _Argument(source, recursive, ignore, result).files()]
    patches = patch_files(Path(file) for file, _ in files if file != STDIN)
    for file, top in files:
        if file == STDIN:
            with reading(STDIN, result.problems):
                yield STDIN_NAME, decode_text(stdin(), MAX_FILE_BYTES), True
        elif Path(normpath(Path(file).absolute())) not in patches:
            with reading(file, result.problems):
                content, result.sources[file] = read_file(Path(file), MAX_FILE_BYTES, top)
                source = Path(file)
                if to_render := _rendered_source(source, content):
                    if to_render not in result.to_render:
                        result.to_render.append(to_render)
                elif source.name in KUSTOMIZATIONS:
                    continue
                elif top is not None and not _API_VERSION_OR_KIND.search(content):
                    result.other_documents += 1
                else:
                    yield file, content, False


def _rendered_source(file: Path, content: str) -> ToRender | None:
    """Return the kustomization or the Helm chart that the file is a part of; None if it is of neither."""
    if file.name in KUSTOMIZATIONS:
        # A Component is not built by itself.
        return None if _COMPONENT.search(content) else ToRender(Renderer.KUSTOMIZE, str(file.parent))
    chart = chart_of(file) if "{{" in content else None
    return ToRender(Renderer.HELM, str(chart)) if chart else None


class _Argument(NamedTuple):
    """The files of one argument, and the directory that it names, None if it names the file."""

    source: str
    recursive: bool
    ignore: Sequence[str]
    result: ReadResult

    def files(self) -> list[tuple[str, Path | None]]:
        source, problems = self.source, self.result.problems
        if source.startswith(("http://", "https://")):
            message = "URLs are not supported: curl -sSL URL | gpu-admission check -f -"
            problems.append(LocatedProblem.of_file(source, message))
            return []
        path = Path(source)
        if source == STDIN or not path.is_dir():
            if source != STDIN and self._is_ignored(path):
                self.result.ignored += 1
                return []
            return [(source, None)]
        files: list[str] = []
        ignored = self.result.ignored
        with reading(source, problems):
            files = sorted(str(file) for file in self._below(path, path))
            if not files and self.result.ignored == ignored:
                hint = "" if self.recursive else " (-R reads the directories below, too)"
                message = f"must contain a .yaml, .yml or .json file{hint}"
                problems.append(LocatedProblem.of_file(source, message))
        return [(file, path) for file in files]

    def _below(self, folder: Path, top: Path) -> Iterator[Path]:
        for entry in folder.iterdir():
            if is_folder := entry.is_dir():
                may_be_read = self.recursive
            else:
                may_be_read = entry.suffix in FILE_SUFFIXES or entry.name in KUSTOMIZATIONS
            if not may_be_read:
                continue
            if self._is_ignored(entry.relative_to(top)):
                self.result.ignored += 1
            elif is_folder and not entry.is_symlink():
                yield from self._below(entry, top)
            elif is_folder:
                if leads_out(entry, top):
                    self.result.warnings.append(LocatedProblem.of_file(str(entry), LEADS_OUT))
            elif entry.is_file() or not entry.exists() or leads_out(entry, top):  # not a pipe
                yield entry

    def _is_ignored(self, path: PurePath) -> bool:
        """Whether a glob matches a name in the path, or the path down to it; `*` matches `/`, too."""
        paths = [*path.parents, path]
        globs = [glob.rstrip("/").removeprefix("./") for glob in self.ignore]
        names = [name for path in paths for name in (path.name, path.as_posix(), f"/{path.as_posix()}")]
        return any(fnmatchcase(name, glob) for glob in globs for name in names)
