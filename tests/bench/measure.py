"""Send requests to a server from many clients, and measure the CPU of every process."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil

from tests.bench.clients import Outcome, Plan
from tests.controlplane import ControlPlane

ROOT = Path(__file__).parents[2]


class LoadFailed(RuntimeError):  # noqa: N818  # pairs with ControlPlaneFailed
    """The clients did not get the answers that they were to get; the message says what came instead."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One burst of requests: what the clients saw, and the CPU seconds of every server by name."""

    outcome: Outcome
    cpu_seconds: dict[str, float]

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.outcome.milliseconds) / self.outcome.seconds


def plan(plane: ControlPlane, path: str, body: Any, *, requests: int, clients: int, **more: Any) -> Plan:
    """Return a plan of requests to the API server, as its administrator."""
    user = json.loads(plane.kubeconfig().read_text())["users"][0]["user"]
    server = urlsplit(plane.url)
    return Plan(
        host=server.hostname or "",
        port=server.port or 0,
        path=path,
        body=json.dumps(body),
        requests=requests,
        clients=clients,
        ca_file=str(plane.ca_file),
        server_name="localhost",
        token=user["token"],
        **more,
    )


def measure(plan: Plan, servers: Mapping[str, Sequence[int]], *, want: int) -> Sample:
    """Run the plan and measure the CPU of `servers`, name → pids. LoadFailed: an answer had another status than `want`."""
    with _clients(plan) as process:
        if _line(process) != "ready":
            raise LoadFailed(f"no connections to {plan.host} port {plan.port}: {_last_words(process)}")
        before = {name: cpu_seconds(*pids) for name, pids in servers.items()}
        _tell(process, "begin")
        answer = _line(process)
        after = {name: cpu_seconds(*pids) for name, pids in servers.items()}
        if not answer:
            raise LoadFailed(f"{plan.path} on {plan.host}: {_last_words(process)}")
    outcome = msgspec.json.decode(answer, type=Outcome)
    if set(outcome.statuses) != {want}:
        raise LoadFailed(f"{plan.path}: {outcome.statuses}; the first: {outcome.complaint or 'no complaint'}")
    return Sample(outcome=outcome, cpu_seconds={name: after[name] - before[name] for name in servers})


def cpu_seconds(*pids: int) -> float:
    """Return what processes and their children have used, user and system. The kernel counts in steps of 10 ms."""
    tops = [psutil.Process(pid) for pid in pids]
    family = [process for top in tops for process in (top, *top.children(recursive=True))]
    return float(sum(sum(process.cpu_times()[:2]) for process in family))


@contextmanager
def _clients(plan: Plan) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.clients"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C is for us, who then end it
    ) as process:
        try:
            _tell(process, msgspec.json.encode(plan).decode())
            yield process
        finally:
            process.kill()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def _last_words(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    process.kill()
    return (process.stderr.read().strip().splitlines() or ["nothing was said"])[-1]
