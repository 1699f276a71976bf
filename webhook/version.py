"""The version and the commit of gpu-admission that run here."""

import subprocess
from importlib.metadata import version
from pathlib import Path

VERSION = version("gpu-admission")
PACKAGE = Path(__file__).parent
_DESCRIBE = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def commit() -> str:
    """Return what hatch_build.py wrote into the package; in a checkout, what Git says."""
    baked = PACKAGE / "commit.txt"
    if baked.exists():
        return baked.read_text().strip()
    top = PACKAGE.parent
    # Named, so that Git looks for no other checkout around an installation.
    command = ["git", f"--git-dir={top / '.git'}", *_DESCRIBE]
    try:
        return subprocess.run(command, cwd=top, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - git, on PATH
    except (OSError, subprocess.CalledProcessError):
        return "not recorded: built without Git and without GPU_ADMISSION_COMMIT"
