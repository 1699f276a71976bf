"""Commits to compare with, each in a worktree of its own beside the working tree."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.measure import ROOT

EDGE_BEFORE = "35f8580"
"""The last commit with the edge before this one."""


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
    """Return the commit, if there is to be one, and the working tree. RuntimeError: the commit is not here."""
    if commit is None:
        yield [NOW]
        return
    with source_of(commit) as source:
        if source is None:
            raise RuntimeError(f"--before: there is no commit {commit} here (a shallow clone?)")
        yield [Version("before", source), NOW]


@contextmanager
def source_of(commit: str) -> Iterator[Path | None]:
    """Check the commit out into a worktree of its own for the length of the block; None where it is not to be had."""
    if _git("cat-file", "-e", f"{commit}^{{commit}}") != 0:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "before")
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", source, commit], cwd=ROOT, check=True
        )
        try:
            yield source
        finally:
            _git("worktree", "remove", "--force", str(source))


def _git(*arguments: str) -> int:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False).returncode
    except FileNotFoundError:  # sources without git
        return 127
