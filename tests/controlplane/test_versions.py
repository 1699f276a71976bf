"""What is skipped on older versions of Kubernetes, as docs/develop/development.md lists it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SINCE = re.compile(r"""\bsince\(\s*(\d+), "([^"]+)"\s*\)""")
ROW = re.compile(r"^\| 1\.(\d+) \| (.+) \|$", re.MULTILINE)


def test_the_documentation_lists_what_is_skipped_and_why() -> None:
    files = sorted((ROOT / "tests/cluster").rglob("*.py"))
    skipped = {(minor, why) for file in files for minor, why in SINCE.findall(file.read_text())}
    rows = ROW.findall((ROOT / "docs/develop/development.md").read_text())

    assert len(skipped) > 3
    assert {(minor, why) for minor, reasons in rows for why in reasons.split("; ")} == skipped
