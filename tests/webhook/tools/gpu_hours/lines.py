"""Audit lines for tests, as serve and controller write them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from tests.builders import uid

LINE = dict[str, Any]
START = datetime(2026, 11, 21, tzinfo=UTC)


def moment(minutes: float) -> str:
    """Return a time of a line, so many minutes after midnight."""
    return (START + timedelta(minutes=minutes)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def count(verdict: str, pod: str, since: float, at: float, gpus: str = "1", **tweaks: Any) -> LINE:
    """Return a line of the controller."""
    return {
        "time": moment(at),
        "phase": "count",
        "kind": "Pod",
        "namespace": "team",
        "name": pod,
        "verdict": verdict,
        "replica": "controller-1",
        "objectUid": uid(pod),
        "owner": f"Pod/{pod}",
        "since": moment(since),
        "demand": {"gpus": gpus},
        **tweaks,
    }


def waited(pod: str, since: float, at: float) -> LINE:
    """Return the line about a pod that waited for quota, and whose scheduling gate was removed."""
    line = count("started", pod, since, at)
    del line["demand"]
    return line


def validated(pod: str, at: float, **tweaks: Any) -> LINE:
    """Return the line of the webhook about a new pod with a demand of one GPU."""
    return {
        "time": moment(at),
        "phase": "validate",
        "operation": "CREATE",
        "kind": "Pod",
        "namespace": "team",
        "name": pod,
        "user": "ada",
        "dryRun": False,
        "verdict": "allowed",
        "objectUid": uid(pod),
        "demand": {"gpus": "1"},
        **tweaks,
    }


def written(path: Path, lines: Iterable[LINE | bytes]) -> str:
    """Write the lines, as they are or as JSON, and return the path."""
    path.write_bytes(b"".join((x if isinstance(x, bytes) else msgspec.json.encode(x)) + b"\n" for x in lines))
    return str(path)


def counting(since: float, until: float, replica: str = "controller-1", every: float = 0.5) -> list[LINE]:
    """Return the lines with which a controller says that it led between two moments, one each half minute."""
    ends = [since, *(since + every * number for number in range(1, int((until - since) / every))), until]
    return [
        {
            "time": moment(end),
            "phase": "count",
            "kind": "Controller",
            "name": replica,
            "verdict": "counting",
            "replica": replica,
            "since": moment(begin),
        }
        for begin, end in zip([since, *ends], ends, strict=False)
    ]
