"""Have wheel and sdist say of which commit they are: `gpu-admission --version`.

Without a Git checkout, as in an image build, the commit is what GPU_ADMISSION_COMMIT says. An sdist has it already.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BAKED = Path("webhook", "commit.txt")


class CommitHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or (root / BAKED).exists():
            return  # the one reads Git when it is asked, the other is an sdist
        commit = os.environ.get("GPU_ADMISSION_COMMIT") or _commit(root)
        if not commit:
            self.app.display_warning(
                "No Git checkout, and GPU_ADMISSION_COMMIT is not set: --version will say so."
            )
            return
        self._file = Path(self.directory, "commit.txt")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(f"{commit}\n")
        build_data["force_include"][str(self._file)] = str(BAKED)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's signature
        if hasattr(self, "_file"):
            self._file.unlink()


def _commit(root: Path) -> str:
    """Return the commit of a checkout whose top is `root`, with -dirty if it is changed; "" without one."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - git, on PATH
