"""Many GPU pods: what a controller's start takes, and whether counts, releases and creations go by the size of what is there.

Half of the pods are in one namespace, `big`, the others all over `team-0000` and its like, each with a quota. They run on nodes
of one class. A release takes from the answer to a pod's deletion, in a namespace whose quota is full, until another is admitted.
"""

import re
import time
from collections.abc import Iterator
from statistics import median

import psutil
import urllib3

from tests.bench import bursts
from tests.bench.before import Version
from tests.bench.clients import NUMBER, TURN
from tests.bench.figures import Progress, percentile
from tests.bench.installation import ROOM, Installation, wait_until
from tests.bench.measure import cpu_seconds, measure, plan
from tests.bench.pods import model_server
from tests.bench.population import BIG, CLASS, SMALL, Population, populate
from tests.bench.releases import Releases
from tests.controlplane import ControlPlane
from tests.controlplane.client import MERGE_PATCH
from tests.controlplane.plane import API_SERVER

OTHER_CLASS = "nvidia-h100-80gb"
CREATES, CLIENTS, FEW = 1000, 32, 8
SPREAD = 1500
"""Creations over all namespaces, whose settling is measured."""
RELEASES, RAISES = 20, 5
PACED_PER_SECOND, PACED_SECONDS = 5, 6
RECOUNT_SECONDS = 20

Figures = dict[str, dict[str, float]]
"""By what was done and what was measured then, which says its unit; in the order of the measurements."""

LONGEST, P50 = "ms, longest", "ms, p50"
START, RELEASE, RAISE = "a controller's start", "a release", "a raised hard"
CREATE, PACED = "creations/s", "deletions"
SPREAD_OUT, RELABEL, RESTART, RECOUNT = (
    "creations all over",
    "nodes relabelled",
    "an API server that comes back",
    "a recount of everything",
)
CPU, READ = "s of controller's CPU", "MB of pods read"

_READ_BYTES = re.compile(
    r'^(?:apiserver_response_sizes_sum\{.*resource="pods".*verb="LIST"'
    r'|apiserver_watch_events_sizes_sum\{.*resource="pods").*\} (\S+)$',
    re.MULTILINE,
)


def compare(
    versions: list[Version], population: Population, *, rounds: int, progress: Progress
) -> Iterator[str]:
    """Fill a cluster once, let the versions take turns in it, and return the medians of their figures, as a table."""
    taken: dict[str, list[Figures]] = {version.name: [] for version in versions}
    victims: dict[str, str] = {}
    with ControlPlane() as plane:
        progress(f"scale: making {2 * population.pods} pods on {population.nodes} nodes")
        populate(plane, population)
        for number in range(1, rounds + 1):
            for version in versions:
                prefix = f"scale: round {number}/{rounds}, {version.name}: "

                def say(what: str, prefix: str = prefix) -> None:
                    progress(prefix + what)

                one = _Turn(plane, version, population, victims, say)
                one.run()
                taken[version.name].append(one.figures)
    return _lines(population, taken)


class _Turn:
    """One version in the cluster. `victims` are the pods to delete next, by namespace: those that were admitted last."""

    def __init__(
        self,
        plane: ControlPlane,
        version: Version,
        population: Population,
        victims: dict[str, str],
        progress: Progress,
    ) -> None:
        self.plane = plane
        self.client = plane.client()
        self.installed = Installation(plane, version)
        self.population = population
        self.releases = Releases(plane, victims)
        self.figures: Figures = {}
        self._progress = progress

    @property
    def _sizes(self) -> dict[str, int]:
        return {BIG: self.population.pods, SMALL: self.population.each}

    def run(self) -> None:
        with self.installed as installed:
            for namespace in self._teams():
                installed.set_quota(namespace, ROOM)
            for namespace, pods in self._sizes.items():
                installed.set_quota(namespace, pods)
            self._start()
            with installed.serving(1):
                self._release(SMALL)
                self._release(BIG)
                self._raise_hard()
                self._create_and_delete(SMALL)
                self._create_and_delete(BIG)
                self._settle()
                self._relabel()
                for namespace, pods in self._sizes.items():
                    self._fill(namespace, pods)
                self._restart_api_server()
                installed.stop_controller()
                installed.start_controller("--recount-seconds", str(RECOUNT_SECONDS))
                self._recount()
                installed.stop_controller()
        self._label_nodes(CLASS)

    def _note(self, subject: str, what: str, figure: float) -> None:
        self.figures.setdefault(subject, {})[what] = figure
        self._progress(f"{subject}, {what}: {figure:.4g}")

    def _all_counted(self, quotas: int) -> bool:
        ledgers = self.installed.ledgers()
        return len(ledgers) == quotas and all(ledger.used is not None for ledger in ledgers.values())

    def _teams(self) -> Iterator[str]:
        return (f"team-{number:04d}" for number in range(self.population.namespaces))

    @property
    def _pid(self) -> int:
        assert self.installed.controller is not None
        return self.installed.controller.pid

    def _read_bytes(self) -> float:
        return sum(float(each) for each in _READ_BYTES.findall(self.client.get("/metrics")[1]))

    def _start(self) -> None:
        read, began = self._read_bytes(), time.monotonic()
        self.installed.start_controller()
        self._note(START, "s until it is ready", time.monotonic() - began)
        quotas = self.population.namespaces + 1
        wait_until(lambda: self._all_counted(quotas), "not every quota is counted", pause=0.2)
        self._note(START, "s until every quota is counted", time.monotonic() - began)
        self._note(START, CPU, cpu_seconds(self._pid))
        self._note(START, "MiB resident", psutil.Process(self._pid).memory_info().rss / 2**20)
        self._note(START, READ, (self._read_bytes() - read) / 1e6)

    def _where(self, namespace: str) -> str:
        return f"among {self._sizes[namespace]}"

    def _release(self, namespace: str) -> None:
        self.installed.await_settled(namespace, self._sizes[namespace])
        cpu = cpu_seconds(self._pid)
        taken = sorted(self.releases.one(namespace) for _ in range(RELEASES))
        where = self._where(namespace)
        self._note(RELEASE, f"{P50}, {where}", percentile(taken, 50))
        self.installed.await_settled(namespace, self._sizes[namespace])
        each = (cpu_seconds(self._pid) - cpu) / RELEASES * 1000
        self._note(RELEASE, f"ms of controller's CPU, {where}", each)

    def _raise_hard(self) -> None:
        """Raise a full quota by one GPU at a time, and return to where it was."""
        taken, extra = [], []
        for number in range(1, RAISES + 1):
            self.installed.set_quota(SMALL, self._sizes[SMALL] + number)
            began = time.perf_counter()
            extra.append(self.releases.create(SMALL))
            taken.append((time.perf_counter() - began) * 1000)
        self._note(RAISE, "ms until it is in force, p50", median(taken))
        for name in extra:
            self._delete(SMALL, name)
        self.installed.await_settled(SMALL, self._sizes[SMALL])

    def _create_and_delete(self, namespace: str) -> None:
        where, size = self._where(namespace), self._sizes[namespace]
        self.installed.set_quota(namespace, ROOM)
        self._delete(namespace, self.releases.create(namespace))
        self.installed.await_settled(namespace, size)
        sample = bursts.create(self.plane, namespace, {}, clients=CLIENTS, creates=CREATES)
        self._note(CREATE, f"of {CLIENTS} clients, {where}", sample.rate)
        self.installed.await_settled(namespace, size + CREATES)
        began = time.monotonic()
        cpu = cpu_seconds(self._pid)
        for number in range(PACED_PER_SECOND * PACED_SECONDS):
            self._delete(namespace, f"model-server-{number:06d}")
            time.sleep(max(0.0, began + (number + 1) / PACED_PER_SECOND - time.monotonic()))
        share = (cpu_seconds(self._pid) - cpu) / (time.monotonic() - began)
        self._note(PACED, f"% of a core at {PACED_PER_SECOND} a second, {where}", share * 100)
        self._delete_created([namespace], size)

    def _settle(self) -> None:
        """Create pods all over the namespaces; time begins with the last answer."""
        teams = self.population.namespaces
        bursts.create(self.plane, f"team-{TURN}", {}, clients=CLIENTS, creates=SPREAD, turns=teams)
        began = time.monotonic()
        wait_until(self._nothing_in_flight, "the quotas do not settle", pause=0.1)
        self._note(SPREAD_OUT, f"s until {SPREAD} are settled", time.monotonic() - began)
        self._delete_created(list(self._teams()), self.population.each)

    def _delete(self, namespace: str, name: str) -> None:
        self.client.delete(f"{bursts.pods(namespace)}/{name}", None, {"gracePeriodSeconds": "0"})

    def _delete_created(self, namespaces: list[str], size: int) -> None:
        """Leave in each namespace the pods that were there before; return once they are all that is counted."""
        selected = {"labelSelector": "app=model-server"}
        for namespace in namespaces:
            self.client.delete(bursts.pods(namespace), {"gracePeriodSeconds": 0}, selected)
        for namespace in namespaces:
            self.installed.await_settled(namespace, size)

    def _nothing_in_flight(self) -> bool:
        return not any(ledger.in_flight for ledger in self.installed.ledgers().values())

    def _relabel(self) -> None:
        cpu, began = cpu_seconds(self._pid), time.monotonic()
        self._label_nodes(OTHER_CLASS)
        wait_until(self._is_relabelled, "the pods are not counted for their nodes' new class", pause=0.2)
        self._note(RELABEL, "s until they are counted", time.monotonic() - began)
        self._note(RELABEL, CPU, cpu_seconds(self._pid) - cpu)

    def _label_nodes(self, class_name: str) -> None:
        relabel = plan(
            self.plane,
            f"/api/v1/nodes/node-{NUMBER}",
            {"metadata": {"labels": {"accelerator": class_name}}},
            requests=self.population.nodes,
            clients=FEW,
            method="PATCH",
            content_type=MERGE_PATCH,
        )
        measure(relabel, {}, want=200)

    def _is_relabelled(self) -> bool:
        """Whether nothing that runs counts for the class of which no node is any more; a pod that is not bound yet still does."""
        ledgers = self.installed.ledgers()
        return all(
            (ledgers[namespace].used or {}).get(f"classes/{CLASS}") == int(namespace in self.releases.victims)
            for namespace in (BIG, *self._teams())
        )

    def _fill(self, namespace: str, gpus: int) -> None:
        """Lower the quota to what is there; return once that is in force."""
        probe = model_server("probe", gpus=1)
        self.installed.set_quota(namespace, gpus)
        wait_until(
            lambda: self.client.post(bursts.pods(namespace), probe, {"dryRun": "All"})[0] == 403,
            f"{namespace} does not get full",
        )

    def _restart_api_server(self) -> None:
        self.plane.restart(API_SERVER)
        began = time.perf_counter()
        wait_until(self._answers, "the API server does not answer")
        # What is registered, and who may do what, it learns a moment later.
        self.releases.one(SMALL, patience=(401, 403, 500, 503, 504))
        self._note(RESTART, "s until the first release", time.perf_counter() - began)
        taken = sorted(self.releases.one(SMALL, patience=(403, 500)) for _ in range(RELEASES))
        self._note(RESTART, f"{LONGEST}, of those after it", taken[-1])

    def _answers(self) -> bool:
        try:
            return bool(self.client.get("/readyz")[0] == 200)
        except urllib3.exceptions.HTTPError:
            return False

    def _recount(self) -> None:
        """Measure one round of recounts, in which nothing happens."""
        self.installed.await_settled(BIG, self._sizes[BIG])
        time.sleep(RECOUNT_SECONDS)  # what belongs to the start; what was counted then is due a period later
        read, cpu = self._read_bytes(), cpu_seconds(self._pid)
        servers = cpu_seconds(self.plane.pids[API_SERVER])
        time.sleep(RECOUNT_SECONDS)
        self._note(RECOUNT, READ, (self._read_bytes() - read) / 1e6)
        self._note(RECOUNT, CPU, cpu_seconds(self._pid) - cpu)
        self._note(RECOUNT, "s of API server's CPU", cpu_seconds(self.plane.pids[API_SERVER]) - servers)


def _lines(population: Population, taken: dict[str, list[Figures]]) -> Iterator[str]:
    pods = (
        f"{population.pods} GPU pods in one namespace, {population.pods} over {population.namespaces} others"
    )
    yield f"SCALE: {pods}, on {population.nodes} nodes"
    yield ""
    yield f"{'':<59}" + "".join(f"{name:>10}" for name in taken)
    first, *_ = taken.values()
    for subject, figures in first[0].items():
        yield subject
        for what in figures:
            medians = (median(each[subject][what] for each in found) for found in taken.values())
            yield f"  {what:<57}" + "".join(f"{figure:>10.4g}" for figure in medians)
