"""Send requests to a server from many clients, and measure the CPU of every process."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
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


class Load:
    """A process of clients for the length of a `with` block, which keeps its connections from one plan to the next."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.clients"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C is for us, who then end it
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(
        self, plan: Plan, servers: Mapping[str, Sequence[int]], *, want: int, rest_seconds: float = 0
    ) -> Sample:
        """Run the plan and measure the CPU of `servers`, name → pids, until so many seconds after the last answer.

        LoadFailed: an answer had another status than `want`.
        """
        process = self._process
        _tell(process, msgspec.json.encode(plan).decode())
        if _line(process) != "ready":
            raise LoadFailed(f"no connections to {plan.host} port {plan.port}: {_last_words(process)}")
        before = clocks(servers)
        _tell(process, "begin")
        answer = _line(process)
        time.sleep(rest_seconds)
        cpu = used_since(before, clocks(servers))
        if not answer:
            raise LoadFailed(f"{plan.path} on {plan.host}: {_last_words(process)}")
        outcome = msgspec.json.decode(answer, type=Outcome)
        if set(outcome.statuses) != {want}:
            raise LoadFailed(
                f"{plan.path}: {outcome.statuses}; the first: {outcome.complaint or 'no complaint'}"
            )
        return Sample(outcome=outcome, cpu_seconds=cpu)


def measure(plan: Plan, servers: Mapping[str, Sequence[int]], *, want: int) -> Sample:
    """Run one plan by clients of its own."""
    with Load() as load:
        return load.run(plan, servers, want=want)


Clocks = dict[str, dict[int, float]]
"""CPU seconds of the processes of each server, by name and pid."""


def clocks(servers: Mapping[str, Sequence[int]]) -> Clocks:
    """Read the CPU clocks of processes and their children."""
    return {name: {pid: _cpu_clock(pid) for pid in _family(pids)} for name, pids in servers.items()}


def used_since(before: Clocks, after: Clocks) -> dict[str, float]:
    """Return the CPU seconds between two readings, by server. LoadFailed: a process ended, and its clock with it."""
    if ended := [name for name in before if before[name].keys() - after[name].keys()]:
        raise LoadFailed(f"a process of {', '.join(ended)} ended while it was measured")
    return {name: sum(after[name].values()) - sum(before[name].values()) for name in before}


def cpu_seconds(*pids: int) -> float:
    """Return what processes and their children have used, user and system."""
    return sum(clocks({"": pids})[""].values())


def _family(pids: Sequence[int]) -> set[int]:
    tops = [psutil.Process(pid) for pid in pids]
    return {process.pid for top in tops for process in (top, *top.children(recursive=True))}


def _cpu_clock(pid: int) -> float:
    """Return the seconds that a process has run, of all its threads, ended ones too.

    They are the nanoseconds of /proc/PID/task/*/schedstat, which lose those of threads that ended; /proc/PID/stat has steps
    of 10 ms. The clock's number is clock_getcpuclockid's: CPUCLOCK_SCHED of include/linux/posix-timers_types.h.
    """
    return time.clock_gettime(~pid << 3 | 2)


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
