"""Directories of policies."""

from pathlib import Path

HEAD = "apiVersion: gpu-admission.dev/v1alpha1\n"


def policy(spec: str, name: str = "default") -> str:
    return f"{HEAD}kind: GPUPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n"


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / f"{name}.yaml").write_text(text)
    return directory
