"""Controllers for tests: in this process with short bounds, or as the real command."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from uuid import uuid4

import urllib3
from prometheus_client import CollectorRegistry

from policies.quota.amounts import GPUS
from policies.quota.catalogue import CatalogueVersion
from tests.controlplane.gpuquota import Namespace, api_client
from tests.controlplane.plane import ControlPlane
from tests.controlplane.webhook import Webhook, serving
from webhook.cluster.api import ApiClient
from webhook.cluster.leader import LeaderElector, LeaseTimings
from webhook.cluster.objects import BUDGETS_CONFIG_MAP, CAPACITY_CONFIG_MAP, CATALOGUES_CONFIG_MAP, DEVICES
from webhook.configuration.cluster_source import ClusterSource
from webhook.configuration.loader import Configuration, load_directory
from webhook.controller.gpu_use import Measuring
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.wiring import make_manager

ROOT = Path(__file__).parents[2]
QUICK_LEASE = LeaseTimings(lease=5, renew=4, retry=1)
"""A machine that stands still for less than `renew` costs nobody the lead."""
T = TypeVar("T")


def eventually(check: Callable[[], T], *, seconds: float = 30) -> T:
    """Return what `check` returns as soon as it is truthy, else its last answer.

    Nearly everything is true within a second; the rest is for machines with much else to do. It is shorter than the times after
    which a controller repairs what a fault has left: 40 s for a reservation, five minutes for a count. What is not true soon is
    checked less often: each check takes the time of an API server.
    """
    began = time.monotonic()
    while not (answer := check()) and (waited := time.monotonic() - began) < seconds:
        time.sleep(min(0.2, 0.05 + waited / 20))
    return answer


def is_there(plane: ControlPlane, path: str) -> bool:
    """Whether the API server has the object, or serves the kind, soon."""
    return eventually(lambda: plane.client().get(path)[0] == 200, seconds=90)


@contextmanager
def published_catalogues(plane: ControlPlane) -> Iterator[Callable[[], dict[str, str]]]:
    """Have the ConfigMaps of the chart, empty at first and gone at the end; return what is published in that of catalogues."""
    client, configmaps = plane.client(), "/api/v1/namespaces/default/configmaps"
    for name in (CATALOGUES_CONFIG_MAP, BUDGETS_CONFIG_MAP, CAPACITY_CONFIG_MAP, DEVICES):
        assert client.post(configmaps, {"metadata": {"name": name}})[0] == 201
    try:
        yield lambda: client.get(f"{configmaps}/{CATALOGUES_CONFIG_MAP}")[1].get("data", {})
    finally:
        for name in (CATALOGUES_CONFIG_MAP, BUDGETS_CONFIG_MAP, CAPACITY_CONFIG_MAP, DEVICES):
            client.delete(f"{configmaps}/{name}")


def gpus(team: Namespace) -> Fraction | None:
    """Return what of the GPUs is used, None before they were counted."""
    used = team.used()
    return None if used is None else used.get(GPUS, Fraction(0))


def uses(team: Namespace, amount: int, *, seconds: float = 30) -> bool:
    return eventually(lambda: gpus(team) == amount, seconds=seconds)


def shows(team: Namespace, used: int, reserved: int = 0) -> bool:
    """Whether the status of the quota says soon that so many GPUs are used, and reserved."""

    def shown() -> bool:
        status = team.status()
        return (
            status.used is not None and status.used[GPUS] == used and status.reserved.get(GPUS, 0) == reserved
        )

    return eventually(shown)


def is_ready(team: Namespace) -> bool:
    ready = team.condition("Ready")
    return ready is not None and ready.status == "True"


class Running:
    """A controller in threads of this process, for the length of a `with` block. Controllers of one lease compete."""

    def __init__(
        self,
        plane: ControlPlane,
        *,
        lease: str | None = None,
        expiry: float = 40.0,
        api: ApiClient | None = None,
        configuration: Configuration | None = None,
        write_usage: Callable[[dict[str, Any]], object] | None = None,
        measuring: Measuring | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.metrics = ControllerMetrics(CollectorRegistry())
        api = api or api_client(plane)
        self.leader = LeaderElector(
            api, "default", lease or f"test-{uuid4()}", f"candidate-{uuid4()}", timings=QUICK_LEASE
        )
        self.manager = make_manager(
            api,
            configuration or load_directory(None),
            self.leader,
            self.metrics,
            namespace="default",
            recount_seconds=300.0,
            write_usage=write_usage,
            measuring=measuring,
            observed=ObservedLedgers(expiry=expiry, no_quota=0.2),
            clock=clock,
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.manager.run, args=(self._stopping,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert eventually(lambda: not self.why_unready()), self.why_unready()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def why_unready(self) -> str:
        return self.manager.informers.why_unready()

    def catalogue_version(self, team: Namespace) -> str:
        """Return by what this controller counts the quota of the namespace, or is about to."""
        own = self.manager.informers.usage.own_counter
        return str(CatalogueVersion(own.digest, team.ledger_object().unclassified_pods))

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


class Counting(NamedTuple):
    plane: ControlPlane
    webhook: Webhook
    running: Running
    lines: list[dict[str, Any]]
    """What the controller writes of usage, as it comes."""


@contextmanager
def counting(
    plane: ControlPlane,
    *,
    host: int = 10,
    expiry: float = 40.0,
    lease: str | None = None,
    api: ApiClient | None = None,
) -> Iterator[Counting]:
    """Serve and count by the documents and DeviceClasses of the cluster; the ConfigMap of the chart is there."""
    reloaded, stopping = threading.Event(), threading.Event()
    lines: list[dict[str, Any]] = []
    with (
        published_catalogues(plane),
        serving(plane, host=host, arguments=("--kubeconfig", plane.kubeconfig())) as webhook,
    ):
        source = ClusterSource(api_client(plane), lambda _: reloaded.set(), "default")
        source.start()
        source.wait()
        with Running(
            plane,
            lease=lease,
            api=api,
            configuration=source.configuration,
            expiry=expiry,
            write_usage=lines.append,
        ) as running:

            def follow() -> None:
                while not stopping.is_set():
                    if reloaded.wait(0.1):
                        reloaded.clear()
                        running.manager.configure(source.configuration)

            thread = threading.Thread(target=follow, daemon=True)
            thread.start()
            yield Counting(plane, webhook, running, lines)
            stopping.set()
            thread.join(10)
        source.stop()


class Command:
    """`gpu-admission controller` as a process of its own, of the tree `source`; it ends with the plane at the latest.

    `program`: the module that is run, and its first arguments.
    """

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        *arguments: str,
        source: Path = ROOT,
        program: tuple[str, ...] = ("webhook", "controller"),
    ) -> None:
        self.name = name
        self._plane = plane
        self._arguments = arguments
        self._source = source
        self._program = program
        self.kubeconfig = plane.kubeconfig()
        self.port = 0
        self._starts = 0

    def start(self) -> None:
        """Start the process, again if it has ended, and return once it is ready."""
        self._starts += 1
        self._plane.processes.start(
            self.name,
            [
                *("env", f"PYTHONPATH={self._source}", sys.executable, "-m", *self._program),
                *("--kubeconfig", self.kubeconfig, "--host", "127.0.0.1", "--port", "0"),
                *self._arguments,
            ],
        )
        assert eventually(self._started, seconds=60), self.log()[:4000]
        assert eventually(lambda: self.get("/readyz")[0] == 200, seconds=60), self.log()[:4000]

    @property
    def pid(self) -> int:
        return self._plane.pids[self.name]

    def get(self, path: str) -> tuple[int, str]:
        with urllib3.PoolManager(retries=False, timeout=20) as pool:
            answer = pool.request("GET", f"http://127.0.0.1:{self.port}{path}")
            return answer.status, answer.data.decode()

    def metric(self, name: str) -> list[str]:
        return [line for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]

    def log(self) -> str:
        return self._plane.logs(self.name)

    def exit_status(self) -> Any:
        return self._plane.processes.exit_status(self.name)

    def _started(self) -> bool:
        marker = "metrics on port "
        lines = [line for line in self.log().splitlines() if marker in line]
        if len(lines) < self._starts:
            return False
        self.port = int(lines[-1].rpartition(marker)[2])
        return True


def is_leader(controller: Command) -> bool:
    return controller.metric("gpu_admission_controller_leader ") == ["gpu_admission_controller_leader 1.0"]
