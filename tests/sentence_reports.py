"""Writes for tests/sentences.py which changed letters the assertions of a run missed: a plugin of pytest."""

import json
import os
import re
from pathlib import Path

import pytest

_LETTERS: dict[str, str] = json.loads(os.environ.get("GPU_ADMISSION_LETTERS", "{}"))
_CHANGED = re.compile("[\U00020000-\U0002a6df]")
_missed: set[str] = set()
_failed: dict[str, list[str]] = {}


def restored(text: str) -> str:
    """Return the text with the letters put back that were changed."""
    return _CHANGED.sub(lambda character: _LETTERS.get(character[0], character[0]), text)


def missed_by(operator: str, left: object, right: object) -> set[str]:
    """Return the changed letters, each of which alone makes a comparison fail that holds with all letters put back."""
    one, other = (value if isinstance(value, str) else repr(value) for value in (left, right))
    if operator == "==" and restored(one) == restored(other):
        return {
            a
            for pair in zip(one, other, strict=False)
            if pair[0] != pair[1]
            for a in pair
            if _CHANGED.fullmatch(a)
        }
    if operator == "in" and (start := restored(other).find(restored(one))) >= 0:
        part = other[start : start + len(one)]
        return {
            a
            for pair in zip(one, part, strict=False)
            if pair[0] != pair[1]
            for a in pair
            if _CHANGED.fullmatch(a)
        }
    return set()


def pytest_assertrepr_compare(op: str, left: object, right: object) -> None:
    """Take what a failing comparison missed."""
    _missed.update(missed_by(op, left, right))


def pytest_exception_interact(node: pytest.Item | pytest.Collector, call: pytest.CallInfo[object]) -> None:
    """Take a test that failed, or a file that could not be collected, and the changed letters in its message."""
    message = str(call.excinfo.value) if call.excinfo else ""
    _failed.setdefault(node.nodeid, []).extend(dict.fromkeys(_CHANGED.findall(message)))


def pytest_sessionfinish() -> None:
    """Write both for tests/sentences.py."""
    shown = {"missed": sorted(_missed), "failed": _failed}
    Path(os.environ["GPU_ADMISSION_SENTENCES"]).write_text(json.dumps(shown), "utf-8")
