"""Everything that etcd ever stored, revision by revision, from etcd itself: no watch cache between, nothing left out."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.controlplane import ControlPlane
from tests.controlplane.etcd import Etcd

READABLE = ("--storage-media-type=application/json", "--etcd-compaction-interval=0")
"""Arguments of an API server whose history can be read later: nothing is forgotten, and no type needs its protobuf."""

_EVERY_KEY = b64encode(b"\0").decode()


class Event(NamedTuple):
    """An object as a revision left it, None if it was deleted. `key` as in /registry/pods/NAMESPACE/NAME."""

    revision: int
    key: str
    value: Any


def revision(plane: ControlPlane) -> int:
    """Return the latest revision."""
    request = {"key": _EVERY_KEY, "range_end": _EVERY_KEY, "limit": 1}
    answer = Etcd(plane).call("/v3/kv/range", request, Connection="close")
    return int(json.loads(answer.readline())["header"]["revision"])


def events(plane: ControlPlane, since: int) -> Iterator[Event]:
    """Yield what was stored after the revision `since` and until now, in order."""
    until = revision(plane)
    if since < until:
        for batch in batches(plane, since):
            yield from (event for event in batch if event.revision <= until)
            if batch and batch[-1].revision >= until:
                return


def batches(plane: ControlPlane, since: int) -> Iterator[list[Event]]:
    """Yield what was stored after the revision `since`, and what is stored from now on, as etcd sends it."""
    request = {"key": _EVERY_KEY, "range_end": _EVERY_KEY, "start_revision": str(since + 1)}
    answer = Etcd(plane).call("/v3/watch", {"create_request": request}, Connection="close")
    while line := answer.readline():
        yield [_event(each) for each in json.loads(line)["result"].get("events", ())]


def _event(event: Any) -> Event:
    stored = event["kv"]
    return Event(int(stored["mod_revision"]), b64decode(stored["key"]).decode(), _value(event))


def _value(event: Any) -> Any:
    key = b64decode(event["kv"]["key"])
    is_object = event.get("type") != "DELETE" and key.startswith(b"/registry/")
    return json.loads(b64decode(event["kv"]["value"])) if is_object else None
