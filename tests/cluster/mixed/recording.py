"""What etcd stores, with the time at which each revision came: a watch from the beginning, read while all goes on."""

import threading
import time
from contextlib import suppress
from http.client import HTTPException
from typing import Any, NamedTuple

from tests.cluster.controllers import eventually
from tests.cluster.quota import history
from tests.cluster.quota.history import Event
from tests.controlplane import ControlPlane

KEPT = (
    "/registry/pods/",
    "/registry/gpu-admission.dev/",
    "/registry/jobs/",
    "/registry/events/",
    "/registry/namespaces/",
)
"""Keys of what judges of pods read; the rest is forgotten."""


class Timed(NamedTuple):
    """`at`: seconds since 1970, when the event came from etcd."""

    event: Event
    at: float


class Recording:
    """It begins at once. `complete` returns all until now; what comes later is not read."""

    def __init__(self, plane: ControlPlane, kept: tuple[str, ...] = KEPT) -> None:
        self._plane = plane
        self._kept = kept
        self._since = self._last = history.revision(plane)
        self._events: list[Timed] = []
        threading.Thread(target=self._run, daemon=True).start()

    def complete(self) -> list[Timed]:
        until = history.revision(self._plane)
        assert eventually(lambda: self._last >= until), "etcd sends its history"
        return [each for each in self._events if each.event.revision <= until]

    def _run(self) -> None:
        with suppress(OSError, HTTPException, ValueError):  # the cluster was ended
            for batch in history.batches(self._plane, self._since):
                at = time.time()
                self._events += [Timed(event, at) for event in batch if self._keeps(event)]
                if batch:
                    self._last = batch[-1].revision

    def _keeps(self, event: Event) -> bool:
        reason: Any = (event.value or {}).get("reason") if event.key.startswith("/registry/events/") else None
        return event.key.startswith(self._kept) and reason in {None, "QuotaNotStarted"}
