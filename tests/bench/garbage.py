"""What an API server and its etcd pay later for a block: garbage collection and compaction.

A collection takes as long as some twenty creations, and comes after some hundred. Within a block it would be that block's alone;
so it is made to happen between blocks, and each block gets the share that it allocated. Likewise with revisions and compaction.
"""

import json
import re
from base64 import b64encode
from typing import NamedTuple

from tests.bench.measure import cpu_seconds
from tests.controlplane import ControlPlane
from tests.controlplane.etcd import Etcd

API_SERVER, ETCD = "kube-apiserver", "etcd"
_STATISTIC = re.compile(r"^# (TotalAlloc|HeapAlloc|NextGC|NumGC) = (\d+)$", re.MULTILINE)


class Memory(NamedTuple):
    """Of runtime.MemStats: bytes allocated so far, those in use, at which a collection begins, and the collections so far."""

    allocated: int
    in_use: int
    next_collection: int
    collections: int


class Revisions(NamedTuple):
    """The revision of etcd, and what compacting up to it has cost it for each one."""

    now: int
    seconds_each: float


def memory(plane: ControlPlane, *, collect: bool) -> Memory:
    """Read it from the API server's own profile, after a collection if it is to `collect`."""
    query = {"debug": "1", **({"gc": "1"} if collect else {})}
    status, text = plane.client().get("/debug/pprof/heap", query)
    if status != 200:
        raise RuntimeError(f"the API server shows no profile: {text}")
    found = {name: int(value) for name, value in _STATISTIC.findall(text)}
    return Memory(found["TotalAlloc"], found["HeapAlloc"], found["NextGC"], found["NumGC"])


def collection_seconds(plane: ControlPlane) -> float:
    """Return the API server's CPU for one collection: that of a profile with one, less that of a profile without."""
    pid = plane.pids[API_SERVER]
    began = cpu_seconds(pid)
    memory(plane, collect=False)
    between = cpu_seconds(pid)
    memory(plane, collect=True)
    return cpu_seconds(pid) - between - (between - began)


def revision(etcd: Etcd) -> int:
    key = b64encode(b"none").decode()
    return int(_answer(etcd, "/v3/kv/range", {"key": key})["header"]["revision"])


def compact(etcd: Etcd, pid: int, since: int) -> Revisions:
    """Compact all revisions, of which those after `since` are new."""
    now, began = revision(etcd), cpu_seconds(pid)
    _answer(etcd, "/v3/kv/compaction", {"revision": now, "physical": True})
    return Revisions(now, (cpu_seconds(pid) - began) / max(now - since, 1))


def _answer(etcd: Etcd, path: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
    answer: dict[str, dict[str, str]] = json.loads(etcd.call(path, body).read())
    return answer
