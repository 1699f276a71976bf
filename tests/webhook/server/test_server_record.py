"""What docs/develop/http-server.md says: gunicorn is used by its public names, and every promise has its test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PUBLIC = {
    "gunicorn.app.base",
    "gunicorn.arbiter",
    "gunicorn.errors",
    "gunicorn.glogging",
    "gunicorn.workers.base",
}


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


def test_every_promise_names_a_test_that_is_there() -> None:
    promises = (
        (ROOT / "docs" / "develop" / "http-server.md")
        .read_text()
        .split("## What it promises\n")[1]
        .split("\n## ")[0]
    )
    path, missing, seen = ROOT, [], 0
    for file, name in re.findall(r"`([\w/]*(?:\.py)?)(?:::(\w+))?`", promises):
        if file.endswith(".py"):
            path = ROOT / file if "/" in file else ROOT / "tests" / "webhook" / "server" / file
            missing += [] if path.is_file() else [file]
        if name:
            seen += 1
            missing += [] if f"def {name}(" in path.read_text() else [name]
    assert seen > 15
    assert missing == []
