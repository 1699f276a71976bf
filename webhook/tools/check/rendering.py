"""Sources to render before they are manifests: Helm charts, kustomizations and their patches, templates, placeholders.

They are not errors: they are listed apart, with the command whose output can be checked.
"""

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from os.path import normpath
from pathlib import Path
from typing import Any

import msgspec

from policies.pods.field_paths import Parts
from webhook.configuration.yaml_documents import YamlDocument, load_documents

KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
"""File names that `kustomize build` reads (RecognizedKustomizationFileNames of kustomize's konfig)."""

_ACTION = re.compile(r"(?:^|[:,\-\[{])[ \t]*\{[{%]", re.MULTILINE)
"""Where a template puts `{{…}}` or `{%…%}` and YAML has a map as a key: unquoted, where a value or a line starts."""

_TEMPLATED = re.compile(r"\{\{|\{%")
"""Forms of Go templates and Jinja."""

_VARIABLE = re.compile(r"\$\{|^\$[A-Za-z_]\w*$|^<[^<>]+>$")
"""Forms of envsubst, and `<NAME>` as documentation writes it. A shell in a container reads the former, too."""

_REFERENCE = re.compile(r"\$\(")
"""The form of Tekton's parameters. In env, args and command Kubernetes itself expands it."""

_WITH_PARAMETERS = {("", "Template"), ("kubeflow.org", "Experiment")}
"""OpenShift's Template before it had a group; Katib's `${trialParameters.…}`."""

_COMMAND = re.compile(r"\.(args|command)\b")
_EXPANDED = re.compile(r"\.(args|command|env)\b")

_AMOUNTS = {("limits",), ("requests",)}

FIRST = "must be rendered first"

_MOST_NAMES = 5


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


def sentences(found: Iterable[ToRender]) -> Iterator[str]:
    """Yield one sentence for all sources of one renderer, with the names of the first few."""
    found = list(found)
    for renderer in Renderer:
        names = [
            f"{each.file}:{each.line}" if each.line else each.file
            for each in found
            if each.renderer is renderer
        ]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        if names:
            noun, shown = f"{renderer.noun}{'s' * (len(names) > 1)}", ", ".join(names[:_MOST_NAMES])
            yield f"{len(names)} {noun} not checked ({shown}{more}): {renderer.remedy}"


def is_template(text: str) -> bool:
    """Whether text that is not YAML is a template of it."""
    return _ACTION.search(text) is not None


def is_placeholder(value: Any, path: str = "") -> bool:
    """Whether a tool replaces the value at `path` before the API server sees the object."""
    if not isinstance(value, str):
        return False
    if _TEMPLATED.search(value):
        return True
    if _VARIABLE.search(value):
        return not _COMMAND.search(path)
    return _REFERENCE.search(value) is not None and not _EXPANDED.search(path)


def undecided_amounts(data: Any) -> Iterator[tuple[Parts, str]]:
    """Yield every placeholder that stands for the amount of an extended resource, and its path."""
    rest: list[tuple[Parts, Any]] = [((), data)]
    while rest:
        at, value = rest.pop()
        members = (
            enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
        )
        for key, member in members:
            if at[-1:] in _AMOUNTS and "/" in str(key) and is_placeholder(member):
                yield (*at, key), member
            rest.append(((*at, key), member))


def has_parameters(group: str, kind: str) -> bool:
    """Whether placeholders in objects of the kind are parameters that its controller fills in."""
    if group == "argoproj.io":
        return kind != "Rollout"
    return group in {"tekton.dev", "template.openshift.io"} or (group, kind) in _WITH_PARAMETERS


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
        documents = list(load_documents(file.read_text(encoding="utf-8"))) if file else []
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
