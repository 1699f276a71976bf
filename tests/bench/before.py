"""The last commit with the edge before this one, beside the working tree, to compare with."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.measure import ROOT

EDGE_BEFORE = "35f8580"


@contextmanager
def source_before() -> Iterator[Path | None]:
    """Check the commit out into a worktree of its own for the length of the block; None where it is not to be had."""
    if _git("cat-file", "-e", f"{EDGE_BEFORE}^{{commit}}") != 0:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "before")
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", source, EDGE_BEFORE], cwd=ROOT, check=True
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
