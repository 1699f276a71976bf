"""Pods that wait in line for quota: how soon a freed GPU is used, what it costs that many wait, and what a pod pays that fits.

Beside it the same with denial: Jobs whose pods were denied, until the Job controller tries again.
"""

import json
import random
import threading
import time
from collections.abc import Iterator
from itertools import count
from statistics import median
from typing import Any, Self

import psutil
import urllib3

from tests.bench import bursts
from tests.bench.admissions import FOLDER
from tests.bench.before import Version
from tests.bench.figures import CLIENTS, Figures, Progress, Samples, cpu_ratio, percentile, table
from tests.bench.installation import ROOM, Installation, wait_until
from tests.bench.measure import cpu_seconds
from tests.bench.pods import model_server
from tests.bench.seeding import SEED, random_uid, seed
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted

POLICY = FOLDER / "queueing"
DENY, QUEUE = "deny", "queue-fits"
ONE, BIG, TEAM = "queue-one", "queue-big", "queue-{:04d}"
FREED, FREED_OF_MANY = 500, 50
RUNNING = 8
"""Pods that hold the quota of a namespace in which others wait."""
DENIED_JOBS, DENIED_SECONDS = 16, 90
REST_SECONDS = 20
PAUSE_SECONDS = 0.5
"""Before each deletion, at most: freed one after the other, GPUs wait for the pace at which a namespace is counted."""

_numbers = count(1)


class Starts:
    """Watches pods, and notes when each is first seen without a scheduling gate (`perf_counter`)."""

    def __init__(self, plane: ControlPlane, path: str) -> None:
        token = json.loads(plane.kubeconfig().read_text())["users"][0]["user"]["token"]
        self._pool = urllib3.connection_from_url(
            plane.url, ca_certs=str(plane.ca_file), retries=False, timeout=None
        )
        self._headers = {"Authorization": f"Bearer {token}"}
        self._path = path
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.at: dict[str, float] = {}
        """By the uid of the pod."""

    def __enter__(self) -> Self:
        self._response = self._pool.request(
            "GET", f"{self._path}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
            headers=self._headers, preload_content=False,
        )  # fmt: skip
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._pool.close()

    def _watch(self) -> None:
        try:
            for line in _lines_of(self._response):
                self._see(json.loads(line))
        except (urllib3.exceptions.HTTPError, ValueError, AttributeError, OSError):
            return  # closed

    def _see(self, event: Any) -> None:
        pod = event["object"]
        if event["type"] in {"ADDED", "MODIFIED"} and not pod["spec"].get("schedulingGates"):
            with self._changed:
                self.at.setdefault(pod["metadata"]["uid"], time.perf_counter())
                self._changed.notify_all()

    def wait_for(self, number: int, seconds: float) -> float:
        """Return when so many had started."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.at) >= number, seconds):
                raise RuntimeError(f"{self._path}: {len(self.at)} pods started, not {number}")
            return max(self.at.values())


def _lines_of(response: Any) -> Iterator[bytes]:
    rest = b""
    while chunk := response.read1():
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def compare(
    versions: list[Version], *, rounds: int, creates: int, pods: int, namespaces: int, progress: Progress
) -> Iterator[str]:
    """Measure each version in a new control plane. `pods` wait in one namespace, then 20 times as many over `namespaces`."""
    for version in versions:
        progress(f"queue: starting a control plane with its controllers for {version.name}")
        with (
            ControlPlane(controllers=True) as plane,
            Installation(plane, version, POLICY) as installed,
        ):
            one = _Bench(plane, installed, lambda what: progress(f"queue: {what}"))
            one.start()
            with installed.serving(1) as serving:
                counted = bursts.servers(plane, installed, serving)
                samples = one.fits(counted, rounds, creates)
                one.denied()
                one.freed()
                one.many_in_one(pods)
                one.many_over(namespaces, 20 * pods // namespaces)
        yield from _lines(version, one, samples)


class _Bench:
    def __init__(self, plane: ControlPlane, installed: Installation, progress: Progress) -> None:
        self.plane, self.installed = plane, installed
        self.client = plane.client()
        self.figures: dict[str, float] = {}
        self._progress = progress

    def start(self) -> None:
        for name in (DENY, QUEUE, ONE, BIG):
            self._namespace(name)
        for name in (DENY, QUEUE):
            self.installed.set_quota(name, ROOM)
        for name in (ONE, BIG):
            self.installed.set_quota(name, RUNNING)
        self.installed.start_controller()
        for name in (DENY, QUEUE, ONE, BIG):
            self.installed.await_settled(name, 0)

    def _namespace(self, name: str) -> None:
        self.client.post("/api/v1/namespaces", {"metadata": {"name": name}})
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda: self.client.get(path)[0] == 200, f"{name} has no service account")

    def _note(self, what: str, figure: float) -> None:
        self.figures[what] = figure
        self._progress(f"{what}: {figure:.4g}")

    def fits(self, counted: dict[str, list[int]], rounds: int, creates: int) -> Samples:
        """Create pods that fit at once where others would be denied, and where they would wait, in turns."""
        samples: Samples = {}
        for number in range(rounds):
            for clients in CLIENTS:
                for name in (DENY, QUEUE) if number % 2 else (QUEUE, DENY):
                    bursts.create(self.plane, name, counted, clients=clients, creates=bursts.WARM_UP)
                    self._clear(name)
                    sample = bursts.create(self.plane, name, counted, clients=clients, creates=creates)
                    self._clear(name)
                    samples.setdefault((name, clients), []).append(sample)
                    self._progress(f"{name}, {clients} clients: {sample.rate:.0f}/s")
        return samples

    def _clear(self, name: str) -> None:
        bursts.clear(self.plane, name)
        self.installed.await_settled(name, 0)

    def denied(self) -> None:
        """Free a GPU in namespaces that deny, each with a Job that has been denied for some time."""
        names = [f"denied-{number}" for number in range(DENIED_JOBS)]
        for name in names:
            self._namespace(name)
            self.installed.set_quota(name, 1)
        for name in names:
            self.installed.await_settled(name, 0)
            self._create(name, 1)
            accepted(self.client.post(f"/apis/batch/v1/namespaces/{name}/jobs", _job()))
        time.sleep(DENIED_SECONDS)
        began: dict[str, float] = {}
        for name in names:
            self._delete(name, self._running(name)[0])
            began[name] = time.perf_counter()
        taken: list[float] = []
        while began:
            made = [each for each in began if self._running(each)]
            taken += [time.perf_counter() - began.pop(each) for each in made]
            time.sleep(0.1)
        self._note("denied, s until a Job's pod is made again, p50", median(taken))
        self._note("denied, s until a Job's pod is made again, longest", max(taken))

    def freed(self) -> None:
        self._line_up(ONE, FREED)
        with Starts(self.plane, bursts.pods(ONE)) as starts:
            taken = sorted(self._freed(starts, ONE, FREED))
        self._note("ms from a deletion until the next gate is gone, p50", percentile(taken, 50))
        self._note("ms from a deletion until the next gate is gone, p99", percentile(taken, 99))
        self._note("ms from a deletion until the next gate is gone, longest", taken[-1])
        self._clear(ONE)

    def _freed(self, starts: Starts, name: str, times: int) -> Iterator[float]:
        """Delete running pods one by one. Yield the milliseconds until another one starts."""
        starts.wait_for(RUNNING, 60)
        running = list(starts.at)
        names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in self._pods(name)}
        for number in range(times):
            time.sleep(random.uniform(0, PAUSE_SECONDS))  # noqa: S311 - jitter
            began = time.perf_counter()
            self._delete(name, names[running[number]])
            at = starts.wait_for(RUNNING + number + 1, 60)
            running = list(starts.at)
            yield (at - began) * 1000

    def many_in_one(self, waiting: int) -> None:
        where = f"{waiting} in one namespace"
        self._line_up(BIG, waiting)
        self._rest(where)
        self._note(f"{where}, bytes of the ledger", self.installed.ledger(BIG).size)
        cpu = cpu_seconds(self._pid)
        with Starts(self.plane, bursts.pods(BIG)) as starts:
            taken = sorted(self._freed(starts, BIG, FREED_OF_MANY))
            time.sleep(2)
            self._note(f"{where}, ms until the next gate is gone, p50", percentile(taken, 50))
            self._note(f"{where}, ms until the next gate is gone, longest", taken[-1])
            self._note(
                f"{where}, ms of controller's CPU each", (cpu_seconds(self._pid) - cpu) / len(taken) * 1000
            )
            cpu, began = cpu_seconds(self._pid), time.perf_counter()
            self.installed.set_quota(BIG, ROOM)
            at = starts.wait_for(RUNNING + waiting, 600)
            self._note(f"{where}, s from a raised hard until all started", at - began)
            started = waiting - FREED_OF_MANY
            self._note(
                f"{where}, ms of controller's CPU each, all started",
                (cpu_seconds(self._pid) - cpu) / started * 1000,
            )
        self._clear(BIG)

    def many_over(self, namespaces: int, each: int) -> None:
        where = f"{namespaces * each} over {namespaces} namespaces"
        names = [TEAM.format(number) for number in range(namespaces)]
        for name in names:
            self._namespace(name)
            self.installed.set_quota(name, 1)
        for name in names:
            self.installed.await_settled(name, 0)
            self._create(name, 1)
        self.installed.stop_controller()
        self._seed(names, each)
        began = time.monotonic()
        self.installed.start_controller()
        wait_until(lambda: self._all_wait(names, each), "not all pods are counted", seconds=600, pause=1)
        self._note(f"{where}, s from a controller's start until all are counted", time.monotonic() - began)
        self._rest(where)
        cpu, few = cpu_seconds(self._pid), names[:FREED_OF_MANY]
        with Starts(self.plane, "/api/v1/pods") as starts:
            starts.wait_for(namespaces, 60)
            for name in few:
                before = len(starts.at)
                self._delete(name, self._running(name)[0])
                starts.wait_for(before + 1, 60)
            time.sleep(5)
            self._note(
                f"{where}, ms of controller's CPU each", (cpu_seconds(self._pid) - cpu) / len(few) * 1000
            )
            cpu, began, before = cpu_seconds(self._pid), time.perf_counter(), len(starts.at)
            for name in names:
                self.installed.set_quota(name, ROOM)
            left = namespaces * each - len(few)
            at = starts.wait_for(before + left, 3600)
            self._note(f"{where}, s from a raised hard until all started", at - began)
            self._note(
                f"{where}, ms of controller's CPU each, all started",
                (cpu_seconds(self._pid) - cpu) / left * 1000,
            )
            self._note(f"{where}, MiB resident at the end", self._resident)

    def _seed(self, names: list[str], each: int) -> None:
        """Make pods that wait, in each namespace so many."""
        first, name = names[0], f"{SEED}-000000"
        body = model_server(name, gpus=1)
        made = accepted(self.client.post(bursts.pods(first), body))
        if not made["spec"].get("schedulingGates"):
            raise RuntimeError("the pod does not wait")

        def renamed(number: int) -> dict[str, str]:
            return {
                name: f"{SEED}-{number:06d}",
                made["metadata"]["uid"]: random_uid(3, number),
                first: names[number % len(names)],
            }

        seed(self.plane, f"/registry/pods/{first}/{name}", range(1, each * len(names)), renamed)

    def _all_wait(self, names: list[str], each: int) -> bool:
        ledgers = self.installed.ledgers()
        return all(ledgers[name].waiting == each for name in names)

    def _rest(self, where: str) -> None:
        time.sleep(5)
        cpu = cpu_seconds(self._pid)
        time.sleep(REST_SECONDS)
        share = (cpu_seconds(self._pid) - cpu) / REST_SECONDS
        self._note(f"{where}, % of a core of the controller at rest", share * 100)
        self._note(f"{where}, MiB resident", self._resident)

    @property
    def _pid(self) -> int:
        assert self.installed.controller is not None
        return self.installed.controller.pid

    @property
    def _resident(self) -> float:
        return float(psutil.Process(self._pid).memory_info().rss) / 2**20

    def _line_up(self, name: str, waiting: int) -> None:
        """Have RUNNING pods hold the quota, and others wait."""
        for _ in range(RUNNING):
            self._create(name, 1)
        bursts.create(self.plane, name, {}, clients=8, creates=waiting)
        wait_until(lambda: self.installed.ledger(name).waiting == waiting, f"{waiting} do not wait in {name}")

    def _create(self, namespace: str, gpus: int) -> None:
        body = model_server(f"holder-{next(_numbers)}", gpus=gpus)
        accepted(self.client.post(bursts.pods(namespace), body))

    def _delete(self, namespace: str, name: str) -> None:
        accepted(self.client.delete(f"{bursts.pods(namespace)}/{name}", {"gracePeriodSeconds": 0}))

    def _pods(self, namespace: str) -> list[Any]:
        return list(self.client.get(bursts.pods(namespace))[1]["items"])

    def _running(self, namespace: str) -> list[str]:
        pods = self._pods(namespace)
        return [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("schedulingGates")]


def _job() -> dict[str, Any]:
    spec = model_server("", gpus=1)["spec"] | {"restartPolicy": "Never"}
    return {"metadata": {"name": "denied"}, "spec": {"template": {"spec": spec}}}


def _lines(version: Version, one: _Bench, samples: Samples) -> Iterator[str]:
    yield f"QUEUE: pods that wait in line for quota, {version.name}"
    yield ""

    def more(_key: object, row: Figures) -> str:
        return row.cpu_columns(5, 4, 4, 6)

    yield from table(samples, "  API etcd hook contr.", more)
    for clients in CLIENTS:
        share = cpu_ratio(samples[QUEUE, clients], samples[DENY, clients])
        yield f"CPU of a pod that fits, with Queue, of {clients} clients: {share:.3f} of that with Deny"
    yield ""
    for what, figure in one.figures.items():
        yield f"  {what:<75}{figure:>10.4g}"
