"""Deadline of an admission request, from the timeout that the API server sends in `?timeout=`; durations of Go."""

import re
from datetime import timedelta
from functools import lru_cache
from time import monotonic

import durationpy

DEFAULT_SECONDS = 10.0
"""Default of a webhook's `timeoutSeconds`, for callers that send no timeout."""
LONGEST_SECONDS = 30.0
"""Maximum of `timeoutSeconds`."""

_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{0,9})?(?:ns|us|µs|μs|ms|s|m|h))+")
"""Go's units. durationpy also reads days to years, other digits than ASCII, and whatever stands between two parts."""


def deadline_of(timeout: str | None, began: float | None = None) -> float:
    """Return the moment (`monotonic`) by which to answer a request that came at `began`, or now.

    A tenth of the time, at least 0.1 s and at most half of it, is left for the network, the audit line and the response.
    """
    seconds = min(seconds_of(timeout), LONGEST_SECONDS)
    return (monotonic() if began is None else began) + max(seconds - max(seconds / 10, 0.1), seconds / 2)


@lru_cache(maxsize=64)  # API servers send few distinct values
def seconds_of(duration: str | None) -> float:
    """Return the seconds of a duration, the default if it is missing, zero or not valid."""
    try:
        return parse_duration(duration or "").total_seconds() or DEFAULT_SECONDS
    except ValueError:
        return DEFAULT_SECONDS


def parse_duration(text: str) -> timedelta:
    """Parse a duration as Go writes it, such as `5s`, `1h30m` or `1.5s`. Raises ValueError."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f'"{text[:40]}" is not a valid duration: write 30m or 1h30m')
    duration: timedelta = durationpy.from_str(text)
    return duration
