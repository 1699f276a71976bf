"""Commits to compare with, each in a worktree of its own beside the working tree."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.measure import ROOT


class Version(NamedTuple):
    """A tree of ours, by its place in the tables: `now` is the working tree."""

    name: str
    source: Path

    def after(self, what: str) -> str:
        """Return what a row of this version is called."""
        return what if self.source == ROOT else f"{what}, {self.name}"


NOW = Version("now", ROOT)


@contextmanager
def versions(commit: str | None) -> Iterator[list[Version]]:
    """Check the commit out, if there is one, and return it and the working tree. RuntimeError: the commit is not here."""
    if commit is None:
        yield [NOW]
        return
    if _git("cat-file", "-e", f"{commit}^{{commit}}") != 0:
        raise RuntimeError(f"--before: there is no commit {commit} here (a shallow clone?)")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "before")
        command = ["git", "worktree", "add", "--quiet", "--detach", str(source), commit]
        subprocess.run(command, cwd=ROOT, check=True)
        try:
            yield [Version("before", source), NOW]
        finally:
            _git("worktree", "remove", "--force", str(source))


def _git(*arguments: str) -> int:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False).returncode
    except FileNotFoundError:  # sources without git
        return 127
