"""Durations as text, such as `8h` or `1h30m`: the format of the Gateway API (GEP-2257), in whole seconds."""

import re
from functools import lru_cache

_DURATION = re.compile(r"(?:([0-9]{1,5})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,5})s)?")
_INFORMAL = re.compile(
    r"([0-9]{1,5})\s*(?:(d|days?)|(h|hrs?|hours?)|(m|mins?|minutes?)|(s|secs?|seconds?))", re.IGNORECASE
)
_SECONDS = (86_400, 3600, 60, 1)
"""Of the units in _WRITTEN."""
DURATION_MUST = 'must be a duration of at least a second, such as "8h" or "1h30m"'


@lru_cache(maxsize=256)  # the same few of a policy's options
def duration_seconds(text: str) -> int | None:
    """Return the seconds. None if the text does not have this form, or says `0s`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return hours * 3600 + minutes * 60 + seconds or None


def duration_text(seconds: int) -> str:
    """Return the shortest text: `72h`, `1h30m`, `45s`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def meant_seconds(text: str) -> int | None:
    """Return the seconds of a duration as people write it: `8hours`, `5 min`, `2d`. None if it is another text."""
    match = _INFORMAL.fullmatch(text)
    if match is None:
        return duration_seconds(text)
    factor = next(factor for unit, factor in zip(match.groups()[1:], _SECONDS, strict=True) if unit)
    return int(match[1]) * factor or None
