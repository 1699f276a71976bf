"""Manifests of other projects, where they stand beside this one."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.builders import JSON

ROOT = Path(__file__).parents[1]

CORPUS = Path(os.environ.get("GPU_ADMISSION_CORPUS", ROOT.parent / "shared" / "corpus"))


def objects(folder: Path) -> Iterator[tuple[str, JSON]]:
    """Yield every object in the folder with the name of its file; what is no YAML is not for the API server."""
    for file in sorted(folder.glob("*.yaml")):
        try:
            documents = list(yaml.safe_load_all(file.read_text()))
        except yaml.YAMLError:
            continue
        for document in documents:
            yield from ((file.name, item) for item in unpacked(document))


def unpacked(document: Any) -> Iterator[JSON]:
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from unpacked(item)
    elif isinstance(document, dict) and isinstance(document.get("kind"), str) and "apiVersion" in document:
        yield document
