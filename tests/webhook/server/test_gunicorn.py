"""What we use of gunicorn: its public names. A private one may change with every minor release."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PUBLIC = {"gunicorn.app.base", "gunicorn.arbiter", "gunicorn.errors", "gunicorn.workers.base"}


def imported() -> Iterator[str]:
    for path in (ROOT / "webhook").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gunicorn"):
                yield node.module or ""
                assert not any(alias.name.startswith("_") for alias in node.names), path
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name.startswith("gunicorn"))


def test_only_master_signals_and_base_worker_are_used() -> None:
    assert set(imported()) == PUBLIC
