"""Until when an admission request has to be answered: the API server says how long it waits, in `?timeout=`."""

import re
from functools import lru_cache
from time import monotonic

DEFAULT_SECONDS = 10.0
"""What `timeoutSeconds` of a webhook is where it is left out; for callers that say nothing."""
LONGEST_SECONDS = 30.0
"""The most that `timeoutSeconds` may be."""

_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{0,9})?(?:ns|us|µs|μs|ms|s|m|h))+", re.ASCII)
_PART = re.compile(r"([\d.]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def deadline_of(timeout: str | None) -> float:
    """Return the moment (`monotonic`) by which to answer a request that came in now.

    A tenth of the time, at least 0.1 s, is left for the way there and back, and for what is written last.
    """
    seconds = min(seconds_of(timeout), LONGEST_SECONDS)
    return monotonic() + max(seconds - max(seconds / 10, 0.1), seconds / 2)


@lru_cache(maxsize=64)  # the same few of all API servers
def seconds_of(duration: str | None) -> float:
    """Read a duration as Go writes it, such as `5s`, `1m0s` or `1.5s`; what is none is the default."""
    if not duration or not _DURATION.fullmatch(duration):
        return DEFAULT_SECONDS
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(duration)) or DEFAULT_SECONDS
