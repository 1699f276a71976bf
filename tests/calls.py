"""Counts calls of Python functions: work that a busy machine does not change."""

import gc
import sys
from collections.abc import Callable
from types import FrameType


def calls(work: Callable[[], object]) -> int:
    """Return how many Python functions are called. A comprehension is one call, however long it is."""
    number = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal number
        number += event == "call"

    before = sys.getprofile()
    gc.disable()  # hypothesis has a callback, which would be counted when garbage happens to be collected
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return number
