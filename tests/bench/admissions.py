"""The ways to admit a pod that are compared, each between `register` and `unregister` the only one in force."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.bench.before import Version
from tests.bench.figures import WEBHOOK
from tests.bench.noop_server import NoopServer
from tests.bench.pods import JSON, is_placed, model_server
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook, apply_all, manifests, uninstall

FOLDER = Path(__file__).parent
NAMESPACE = "bench"
LIMIT = 8  # GPUs of a container, in policy/ as in cel.yaml
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
IN_FORCE_WITHIN = 30
OUR_CALLS = frozenset({"pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev"})

_CALLED = re.compile(r'^apiserver_admission_webhook_request_total\{.*name="([^"]+)".*\} (\d+)', re.MULTILINE)


class State(NamedTuple):
    """What can be seen of an admission from outside: webhooks called, a pod with nine GPUs refused, one with one placed."""

    calls: frozenset[str] = frozenset()
    refuses: bool = False
    places: bool = False


class Admission:
    """`name` is its place in the table. Unless it says otherwise it is the API server alone."""

    name: str
    in_force = State()

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def register(self) -> None: ...

    def unregister(self) -> None: ...

    @property
    def server(self) -> int | None:
        """Return the pid of the webhook's master process, if there is a webhook."""
        return None

    @property
    def servers(self) -> dict[str, list[int]]:
        """Return the processes of ours whose CPU counts, by server."""
        return {} if self.server is None else {WEBHOOK: [self.server]}

    def settle(self) -> None:
        """Return once nothing is left to be done for the pods that were deleted."""

    def await_force(self) -> None:
        """Return as soon as this admission does what it should, and no other is left; RuntimeError: it never does."""
        deadline = time.monotonic() + IN_FORCE_WITHIN
        while (state := self._state()) != self.in_force:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not in force after {IN_FORCE_WITHIN} s: {state}")
            time.sleep(0.1)

    def _state(self) -> State:
        before = calls_of(self.plane)
        refused, _ = self.probe(gpus=LIMIT + 1)
        _, placed = self.probe(gpus=1)
        return State(
            calls=frozenset(calls_of(self.plane) - before),
            refuses=refused >= 400,
            places="spec" in placed and is_placed(placed),
        )

    def probe(self, *, gpus: int) -> tuple[int, JSON]:
        return self.plane.client().post(PODS, model_server("probe", gpus=gpus), {"dryRun": "All"})


def calls_of(plane: ControlPlane) -> Counter[str]:
    calls: Counter[str] = Counter()
    for name, count in _CALLED.findall(plane.client().get("/metrics")[1]):
        calls[name] += int(count)
    return calls


class Nothing(Admission):
    name = "nothing"


class Cel(Admission):
    """Shape check, toleration and node selector by policies that the API server evaluates itself."""

    name = "2 CEL policies"
    in_force = State(refuses=True, places=True)

    def register(self) -> None:
        self.plane.kubectl("apply", "-f", FOLDER / "cel.yaml")

    def unregister(self) -> None:
        self.plane.kubectl("delete", "-f", FOLDER / "cel.yaml")


class Floor(Admission):
    """Two hooks registered exactly as we are, which answer every pod what we answered one: nobody who is called can cost less."""

    name = "no-op as we are"
    in_force = State(calls=OUR_CALLS, places=True)

    def __init__(self, plane: ControlPlane, server: NoopServer) -> None:
        super().__init__(plane)
        self._server = server

    @property
    def server(self) -> int:
        return self._server.pid

    def register(self) -> None:
        apply_all(self.plane, manifests(self._server.address, self._server.ca_file))

    def unregister(self) -> None:
        uninstall(self.plane)


class Ours(Admission):
    """gpu-admission as deploy/ registers it: all rules, with their built-in defaults and a default class."""

    in_force = State(calls=OUR_CALLS, refuses=True, places=True)

    def __init__(self, plane: ControlPlane, version: Version, host: int) -> None:
        super().__init__(plane)
        self.webhook = Webhook(
            plane, config=version.source / "tests" / "bench" / "policy", host=host, source=version.source
        )
        self.version = version
        self.name = version.after("gpu-admission")

    @property
    def server(self) -> int:
        return self.plane.pids[self.webhook.name]

    def register(self) -> None:
        self.webhook.register()

    def unregister(self) -> None:
        self.webhook.unregister()


def serve(stack: ExitStack, plane: ControlPlane, versions: list[Version]) -> list[Ours]:
    """Make the namespace, and have each version run until the stack is left."""
    plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    ours = [Ours(plane, version, host) for host, version in enumerate(versions, start=30)]
    for each in ours:
        stack.enter_context(each.webhook)
    return ours


def in_turns(admissions: Sequence[Admission], rounds: int) -> Iterator[tuple[int, Admission]]:
    """Yield each admission while it is in force, and the number of the round."""
    for number in range(1, rounds + 1):
        for admission in admissions:
            admission.register()
            admission.await_force()
            yield number, admission
            admission.unregister()
