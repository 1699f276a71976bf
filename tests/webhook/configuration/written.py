"""Directories of policies, and documents as the API server has them."""

from pathlib import Path
from typing import Any

import pytest

from webhook.configuration.cluster_source import DocumentStatus, Record
from webhook.configuration.documents import Document
from webhook.configuration.loader import ConfigurationError, load_directory

HEAD = "apiVersion: gpu-admission.dev/v1alpha1\n"


def policy(spec: str, name: str = "default") -> str:
    return f"{HEAD}kind: GPUPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n"


def gpu_quota(spec: str, metadata: str = "{name: default, namespace: team}") -> str:
    return f"{HEAD}kind: GPUQuota\nmetadata: {metadata}\nspec: {spec}\n"


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / f"{name}.yaml").write_text(text)
    return directory


def problems_of(directory: Path, *, standalone: bool = False) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        load_directory(directory, standalone=standalone)
    assert str(raised.value) == "\n".join(str(problem) for problem in raised.value.problems)
    return [str(problem) for problem in raised.value.problems]


def record(name: str, spec: dict[str, Any], status: DocumentStatus | None = None) -> Record:
    return Record(name, 3, Document("GPUPolicy", name, spec), status or DocumentStatus())
