"""The pages of the documentation, and the blocks in them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / room / "README.md" for room in ("deploy", "deploy/chart", "policies", "webhook")),
    ]
)

BLOCK = re.compile(
    r"(?P<before>^[^\n]*\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)

each_page = pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])


def prose(page: Path) -> str:
    """Return a page without its blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> Iterator[re.Match[str]]:
    return (found for found in BLOCK.finditer(page.read_text()) if found["language"] == language)
