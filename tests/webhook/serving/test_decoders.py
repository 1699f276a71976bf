"""Reviews run in threads, and msgspec crashes where threads use a type for the first time together: decoders are made once."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
REVIEWED_BY = (
    "policies",
    "webhook/serving",
    "webhook/evaluation",
    "webhook/workloads",
    "webhook/cluster",
    "webhook/quota",
)


def test_no_review_makes_a_decoder() -> None:
    files = [file for folder in REVIEWED_BY for file in (ROOT / folder).rglob("*.py")]

    assert len(files) > 100
    assert [file.name for file in files if re.search(r"json\.decode\([^\n]*type=", file.read_text())] == []
