"""How long one write takes while all goes on: what else the machine does holds up each write of a controller as much."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import uuid4

import urllib3

from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted

EVERY = 0.25

Writes = Sequence[tuple[float, float]]
"""When each write was due and ended, in seconds since 1970: a machine that stands still holds up its beginning, too."""


@contextmanager
def pulse(plane: ControlPlane) -> Iterator[Writes]:
    """Write a ConfigMap, which no webhook reviews, again and again until the end of the block. Yield the writes until now."""
    client, name, writes = plane.client(), f"pulse-{uuid4()}", list[tuple[float, float]]()
    configmaps = "/api/v1/namespaces/default/configmaps"
    accepted(client.post(configmaps, {"metadata": {"name": name}}))
    stopping = threading.Event()

    def run() -> None:
        due = time.time() + EVERY
        while not stopping.wait(EVERY):
            with suppress(
                urllib3.exceptions.HTTPError
            ):  # the API server is away, which is a fault of its own
                client.patch(f"{configmaps}/{name}", {"data": {"at": str(due)}})
                writes.append((due, time.time()))
            due = time.time() + EVERY

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield writes
    finally:
        stopping.set()
        thread.join()


def delay(number: int, writes: Writes, began: float, ended: float) -> float:
    """Return for how long the machine may have held up so many writes in this time, by the slowest write of it."""
    return number * max(
        (end - begin for begin, end in writes if begin <= ended and began <= end), default=0.0
    )
