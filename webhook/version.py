"""The version and the commit of gpu-admission that run here."""

import subprocess
from importlib.metadata import version
from pathlib import Path

VERSION = version("gpu-admission")
PACKAGE = Path(__file__).parent
NOT_RECORDED = "not recorded: built without Git and without GPU_ADMISSION_COMMIT"


def commit() -> str:
    """Return what hatch_build.py wrote into the package; in a checkout, what Git says."""
    baked = PACKAGE / "commit.txt"
    if baked.exists():
        return baked.read_text().strip()
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if not (PACKAGE.parent / ".git").exists():
        return NOT_RECORDED
    try:
        asked = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=False)  # noqa: S603 - git, on PATH
    except FileNotFoundError:
        return NOT_RECORDED
    return asked.stdout.strip() or NOT_RECORDED
