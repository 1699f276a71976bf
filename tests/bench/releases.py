"""Releases: the time from the deletion of a pod, in a namespace whose quota is full, until another one is admitted there."""

import time
from itertools import count

from tests.bench import bursts
from tests.bench.measure import LoadFailed
from tests.bench.pods import model_server
from tests.bench.seeding import SEED
from tests.controlplane import ControlPlane

PAUSE = 0.01
"""Between two attempts to create a pod in a full namespace."""

_numbers = count(1)


class Releases:
    """`victims` are the pods to delete next, by namespace: those that were admitted last."""

    def __init__(self, plane: ControlPlane, victims: dict[str, str]) -> None:
        self.victims = victims
        self._client = plane.client()

    def one(self, namespace: str, *, patience: tuple[int, ...] = (403,)) -> float:
        """Delete a pod and return the milliseconds until another is admitted, which is the next to be deleted."""
        victim = self.victims.get(namespace, f"{SEED}-000000")
        status, answer = self._client.delete(
            f"{bursts.pods(namespace)}/{victim}", None, {"gracePeriodSeconds": "0"}
        )
        if status != 200:
            raise LoadFailed(f"{namespace}: {victim} cannot be deleted: {answer}")
        began = time.perf_counter()
        self.victims[namespace] = self.create(namespace, patience)
        return (time.perf_counter() - began) * 1000

    def create(self, namespace: str, patience: tuple[int, ...] = (403,)) -> str:
        """Create a pod as soon as it is admitted, and return its name. LoadFailed: refused otherwise, or for too long."""
        name = f"{SEED}-again-{next(_numbers)}"
        body = model_server(name, gpus=1)
        body["metadata"]["labels"]["app"] = SEED
        deadline = time.monotonic() + 120
        while True:
            status, answer = self._client.post(bursts.pods(namespace), body)
            if status == 201:
                return name
            if status not in patience or time.monotonic() > deadline:
                raise LoadFailed(f"{namespace}: {answer}")
            time.sleep(PAUSE)
