"""Packages of PyPI in a virtual environment of their own, installed once, hash-locked, where the control plane's binaries are."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from tests.controlplane.build import ControlPlaneUnavailable, folder_for, locked


def folder_of(name: str, constraints: Path) -> Path:
    """Return where the packages of `constraints`, which `make lock` writes, are or will be."""
    return folder_for(f"{name}-{hashlib.sha256(constraints.read_bytes()).hexdigest()[:12]}")


def installed(name: str, constraints: Path, out: TextIO) -> Path:
    """Return its Python, after installing it if it is not there. Raises ControlPlaneUnavailable if that cannot be."""
    folder = folder_of(name, constraints)
    python, done = folder / "bin" / "python", folder / ".installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(folder.name + ".lock"), out):
        if done.exists():
            return python
        shutil.rmtree(folder, ignore_errors=True)
        venv: list[str | Path] = [sys.executable, "-m", "venv", folder]
        options = ("--quiet", "--require-hashes", "--only-binary=:all:")
        pip: list[str | Path] = [python, "-m", "pip", "install", *options, "-r", constraints]
        for command in (venv, pip):
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                raise ControlPlaneUnavailable(f"{name} cannot be installed: {run.stderr.strip()[-500:]}")
        done.touch()
    return python
