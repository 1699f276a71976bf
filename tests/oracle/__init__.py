"""The answers of Kubernetes itself, without a cluster: defaults, LimitRanger, validation of pods, and filters of its scheduler.

    answer = oracle().ask(World(pod, limit_ranges=[...], nodes=[...], bound=[...]))
    answer.code, answer.message            # 201, or the API server's refusal
    answer.pod                             # with its defaults, and what LimitRanges gave it
    answer.room()                          # the nodes on which the scheduler would place it

The program (main.go) is Kubernetes' own code, and knows nothing of ours. tests/cluster/test_oracle.py holds its answers against a
real API server and scheduler; tests/oracle/worlds.py draws worlds.
"""

import atexit
import subprocess
import threading
from functools import cache
from itertools import permutations
from typing import Any, Self

import msgspec

from tests.controlplane import ControlPlaneUnavailable
from tests.oracle.binary import ORACLE
from tests.unavailable import skip_without

JSON = dict[str, Any]


class World(msgspec.Struct, rename="camel"):
    """One pod and what decides about it, all objects of v1 as one writes them."""

    pod: JSON
    """Or a workload of Kubernetes' own kinds: if the API server takes it, the answer is about the pod of its controller."""
    namespace: str = "team"
    limit_ranges: list[JSON] = []
    """Of the namespace. Several give their defaults in an order of chance: `Oracle.answers` has every order."""
    resource_quotas: list[JSON] = []
    """Of the namespace, each with the `status` that its controller would write: `hard`, and what others have `used`."""
    nodes: list[JSON] = []
    bound: list[JSON] = []
    """The pods on the nodes, of any namespace, each with its `spec.nodeName`."""


class Refusal(msgspec.Struct, frozen=True):
    """Why the scheduler would not place the pod on a node: the first filter that refuses it, in the scheduler's order."""

    filter: str
    reasons: tuple[str, ...]


class Answer(msgspec.Struct):
    code: int
    """201, 400 (it cannot be decoded), 403 (a LimitRange or ResourceQuota refuses it) or 422 (validation refuses it)."""
    message: str
    """The API server's; "" with 201."""
    instead: list[str] | None
    """Those of the other LimitRanges that refuse the pod: the API server checks them in any order, and stops at the first."""
    reviewed: JSON | None
    """The pod as mutating webhooks see it. None: it cannot be decoded."""
    pod: JSON | None
    """The pod as it is stored. None: it is refused."""
    nodes: dict[str, Refusal | None] | None
    """By name; None where nothing refuses the pod. No nodes at all if the pod is not stored."""

    def room(self) -> frozenset[str]:
        """Return the names of the nodes that take the pod now."""
        return frozenset(name for name, refusal in (self.nodes or {}).items() if refusal is None)


class WorldRefused(ValueError):  # noqa: N818  # says whose fault it is
    """No cluster can be like this world; the message says why."""


class Oracle:
    """The running program; any number of threads may ask. It ends with this process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([ORACLE.locate()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it

    def ask(self, world: World) -> Answer:
        """Return the answer, with LimitRanges in the order of the world. Raises WorldRefused."""
        assert self._process.stdin
        assert self._process.stdout
        with self._lock:
            self._process.stdin.write(msgspec.json.encode(world) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        answer = msgspec.json.decode(line)
        if "error" in answer:
            raise WorldRefused(answer["error"])
        return msgspec.convert(answer, Answer)

    def answers(self, world: World) -> list[Answer]:
        """Return the answers with LimitRanges in every order: a real API server gives one of them."""
        return [
            self.ask(msgspec.structs.replace(world, limit_ranges=list(order)))
            for order in permutations(world.limit_ranges)
        ]


@cache
def _started() -> Oracle:
    started = Oracle()
    atexit.register(started.__exit__)
    return started


def oracle() -> Oracle:
    """Return the oracle of this process. Skips the test where it cannot be had, as tests of a cluster are skipped."""
    try:
        return _started()
    except ControlPlaneUnavailable as unavailable:
        skip_without(unavailable)
