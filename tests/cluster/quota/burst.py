"""Many clients that create GPU pods and claims at once, as controllers do: what was not decided is asked again."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import pytest
import urllib3

from tests.builders import JSON
from tests.cluster.quota.quotas import CLAIMS, PODS, claim, gpu_pod
from tests.cluster.quota.referee import GPU, SLICE, Cost, cost
from tests.controlplane.client import Client

CLIENTS = 32
NO_ROOM = "exceeded quota: "
UNDECIDED_AFTER = 120.0
"""Seconds after which a client gives a request up."""
PAUSE = 0.1
HARD: dict[str, Any] = {
    "gpus": "100",
    "classes": {"nvidia-a100": "50", "nvidia-h100-80gb": "40", "nvidia-t4": "30"},
    "resources": {"nvidia.com/mig-1g.10gb": "35"},
}
# urllib3 leaves it to the garbage collector to close what a killed server has cut.
cut = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
)

A100, H100, T4 = "nvidia-a100-80gb", "nvidia-h100-80gb", "nvidia-t4"
MIX = {"1": 35, "2": 20, "8": 15, "slices": 20, "claim": 10}
"""Kinds of requests and their shares in a hundred."""


class Request(NamedTuple):
    """`name` is that of the object, after that of its namespace where a burst is for several."""

    name: str
    path: str
    body: JSON

    @property
    def object_path(self) -> str:
        return f"{self.path}/{self.body['metadata']['name']}"

    @property
    def cost(self) -> Cost:
        return cost(self.body)


def requests(namespace: str, number: int, seed: int) -> list[Request]:
    """Return pods with 1, 2 and 8 GPUs and with slices, each pinned to one of three classes, and claims: always the same."""
    draw = random.Random(seed)  # noqa: S311  the same requests in every run
    kinds = draw.choices(list(MIX), list(MIX.values()), k=number)
    return [_request(namespace, f"{kind}-{index:04}", kind, draw) for index, kind in enumerate(kinds)]


def _request(namespace: str, name: str, kind: str, draw: random.Random) -> Request:
    if kind == "claim":
        return _claim(namespace, name, draw.randint(1, 2))
    resource, amount = (SLICE, draw.randint(1, 3)) if kind == "slices" else (GPU, int(kind))
    pinned = draw.choice([A100, H100] if kind == "slices" else [A100, H100, T4])
    body = gpu_pod(name, amount, resource, nodeSelector={"accelerator": pinned})
    return Request(name, PODS.format(namespace), body)


def _claim(namespace: str, name: str, count: int) -> Request:
    return Request(name, CLAIMS.format(namespace), claim(name, count))


def crowd(namespace: str, number: int, **spec: Any) -> list[Request]:
    names = [f"crowd-{index:04}" for index in range(number)]
    return [Request(name, PODS.format(namespace), gpu_pod(name, **spec)) for name in names]


def crowds(namespace: str, number: int) -> list[Request]:
    """Return as many claims as pods, each kind in equal amounts."""
    pods = crowd(namespace, number // 2)
    return [each for pod in pods for each in (pod, _claim(namespace, f"claim-of-{pod.name}", 1))]


class Burst:
    """`CLIENTS` threads that work off `requested`. Each request ends as admitted, refused for lack of room, or undecided."""

    def __init__(self, client: Client, requested: Sequence[Request]) -> None:
        self._client = client
        self._queue: Iterator[Request] = iter(requested)
        self.paths = {request.name: request.object_path for request in requested}
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(CLIENTS)]
        self.per_second: float | None = None
        """How many requests to begin in a second; None: as many as can be."""
        self.admitted: dict[str, float] = {}
        """When the attempt began that was admitted."""
        self.refused: dict[str, Request] = {}
        self.undecided: list[str] = []
        self.troubles: Counter[str] = Counter()
        """Attempts that ended in no decision, by what was said; they were made again."""
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()
        self.seconds = time.monotonic() - self._began

    @property
    def answered(self) -> int:
        return len(self.admitted) + len(self.refused) + len(self.undecided)

    def stop(self) -> None:
        with self._lock:
            self._queue = iter(())

    def _work(self) -> None:
        while (request := self._next()) is not None:
            self._see_through(request)

    def _next(self) -> Request | None:
        with self._lock:
            if self.per_second:
                time.sleep(1 / self.per_second)
            return next(self._queue, None)

    def _see_through(self, request: Request) -> None:
        deadline = time.monotonic() + UNDECIDED_AFTER
        while time.monotonic() < deadline:
            began = time.monotonic()
            said = create(self._client, request)
            if said == "":
                self.admitted[request.name] = began
                return
            if NO_ROOM in said:
                self.refused[request.name] = request
                return
            with self._lock:
                self.troubles[_kind(said)] += 1
            time.sleep(PAUSE)
        self.undecided.append(request.name)

    def retry(self, again: Sequence[Request]) -> None:
        """Ask once more for some that were refused."""

        def one(request: Request) -> None:
            began = time.monotonic()
            if create(self._client, request) == "":
                self.admitted[request.name] = began
                del self.refused[request.name]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, again))


def create(client: Client, request: Request) -> str:
    """Return what stands in the way, nothing if the object is there."""
    try:
        status, answer = client.post(request.path, request.body)
    except urllib3.exceptions.HTTPError as error:
        return f"{type(error).__name__}"
    if status in {201, 409}:  # it is there already if the answer to an earlier attempt was lost
        return ""
    return answer["message"] if isinstance(answer, dict) else f"{status} {answer}"


def _kind(said: str) -> str:
    for words in (
        "has not been counted yet",
        "failed calling webhook",
        "could not be checked",
        "cannot hold more reservations",
        "is being recalculated",
    ):
        if words in said:
            return words
    return said[:80]


class Churn:
    """Ends pods while a burst lasts, some by deletion, some by phase: what was full has room again."""

    def __init__(self, client: Client, burst: Burst, *, every: float = 0.03) -> None:
        self._client = client
        self._burst = burst
        self._every = every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.ended: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        draw = random.Random(7)  # noqa: S311  the same choices, as far as what lives is the same
        while not self._stopping.wait(self._every):
            living = [name for name in list(self._burst.admitted) if name not in self.ended]
            if len(living) > 5:
                self._end(draw.choice(living), draw)

    def _end(self, name: str, draw: random.Random) -> None:
        path = self._burst.paths[name]
        try:
            if "/pods/" not in path or draw.random() < 0.5:
                status, _ = self._client.delete(path, {"gracePeriodSeconds": 0})
            else:
                status, _ = self._client.patch(f"{path}/status", {"status": {"phase": "Succeeded"}})
        except urllib3.exceptions.HTTPError:
            return
        if status in {200, 404}:
            self.ended.add(name)
