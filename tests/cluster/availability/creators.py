"""Clients that create GPU pods one after another, or with a pause in which connections fall idle, and keep every outcome."""

import random
import threading
import time
from typing import NamedTuple, Self

from tests.builders import JSON
from tests.controlplane import ControlPlane

BETWEEN = 0.03
"""Seconds between two creations of a client: some 25 a second, so that three replicas have a processor beside them."""
LONGEST_PAUSE = 2.0
"""Seconds; a pause now and then leaves connections of the API server idle, to be used again or closed meanwhile."""


class Attempt(NamedTuple):
    """One creation: when it began (monotonic) and what came of it. A pod without a name was not created."""

    began: float
    seconds: float
    name: str
    said: str


def gpu_pod() -> JSON:
    container = {"name": "train", "image": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {"metadata": {"generateName": "trainer-"}, "spec": {"containers": [container]}}


class Creators:
    """`clients` threads that create pods in a namespace of their own for the length of a `with` block."""

    def __init__(self, plane: ControlPlane, namespace: str, clients: int, *, pauses: bool = True) -> None:
        self._plane = plane
        self.namespace = namespace
        self._pauses = pauses
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._create) for _ in range(clients)]
        self.attempts: list[Attempt] = []

    def __enter__(self) -> Self:
        self._plane.client().post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def failed(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if not attempt.name]

    @property
    def created(self) -> set[str]:
        return {attempt.name for attempt in self.attempts if attempt.name}

    def wait_for(self, more: int) -> None:
        want = len(self.created) + more
        deadline = time.monotonic() + 120
        while len(self.created) < want:
            assert time.monotonic() < deadline, self.failed[-3:]
            time.sleep(0.02)

    def _create(self) -> None:
        client = self._plane.client()
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        while not self._stop.is_set():
            began = time.monotonic()
            status, answer = client.post(path, gpu_pod())
            seconds = time.monotonic() - began
            created = status == 201
            self.attempts.append(
                Attempt(
                    began,
                    seconds,
                    answer["metadata"]["name"] if created else "",
                    "" if created else str(answer),
                )
            )
            time.sleep(BETWEEN)
            if self._pauses and random.random() < 0.1:  # noqa: S311  # no secret
                self._stop.wait(random.uniform(0, LONGEST_PAUSE))  # noqa: S311  # likewise
