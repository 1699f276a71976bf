"""Many GPU pods: what a controller's start takes, and whether counts, releases and creations go by the size of what is there.

Half of the pods are in one namespace, `big`, the others all over `team-0000` and its like, each with a quota. They run on nodes
of one class. A release takes from the answer to a pod's deletion, in a namespace whose quota is full, until another is admitted.
With teams, each version has a second turn in which the others are also members of a ClusterGPUQuota, ten of each.
"""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from statistics import median

import psutil
import urllib3

from tests.bench import bursts
from tests.bench.before import Version
from tests.bench.clients import NUMBER, TURN
from tests.bench.figures import Progress, percentile
from tests.bench.installation import API, ROOM, Installation, wait_until
from tests.bench.measure import cpu_seconds, measure, plan
from tests.bench.pods import model_server
from tests.bench.population import BIG, CLASS, MEMBERS, SMALL, Population, populate
from tests.bench.releases import Releases
from tests.controlplane import ControlPlane
from tests.controlplane.client import MERGE_PATCH, accepted
from tests.controlplane.plane import API_SERVER

OTHER_CLASS = "nvidia-h100-80gb"
CREATES, CLIENTS, FEW = 1000, 32, 8
SPREAD = 1500
"""Creations over all namespaces, whose settling is measured."""
RELEASES, RAISES = 20, 5
PACED_PER_SECOND, PACED_SECONDS = 5, 6
RECOUNT_SECONDS = 20
PATIENCE = 300
"""Seconds for what is done with every namespace."""

Figures = dict[str, dict[str, float]]
"""By what was done and what was measured then, which says its unit; in the order of the measurements."""

LONGEST, P50 = "ms, longest", "ms, p50"
START, RELEASE, RAISE = "a controller's start", "a release", "a raised hard"
TEAM_RELEASE, TEAM_RAISE = "a release in a full team", "a raised hard of a team"
TEAMS_GONE, TEAMS_MADE = "all teams deleted", "all teams made while it runs"
CREATE, PACED = "creations/s", "deletions"
SPREAD_OUT, RELABEL, RESTART, START_AGAIN, RECOUNT = (
    "creations all over",
    "nodes relabelled",
    "an API server that comes back",
    "a controller's restart",
    "a recount of everything",
)
STATUS = "gpu-admission status"
CPU, READ, RESIDENT = "s of controller's CPU", "MB of pods read", "MiB resident"

_READ_BYTES = re.compile(
    r'^(?:apiserver_response_sizes_sum\{.*resource="pods".*verb="LIST"'
    r'|apiserver_watch_events_sizes_sum\{.*resource="pods").*\} (\S+)$',
    re.MULTILINE,
)

_CALLS = re.compile(
    r'^apiserver_request_total\{.*group="gpu-admission\.dev".*verb="(GET|POST|PUT|PATCH|DELETE)".*\} (\S+)$',
    re.MULTILINE,
)


def compare(
    versions: list[Version], population: Population, *, teams: int, rounds: int, progress: Progress
) -> Iterator[str]:
    """Fill a cluster once, let the versions take turns in it, and return the medians of their figures, as a table.

    With `teams` each has two turns, of which the second has so many.
    """
    taken: dict[str, list[Figures]] = {}
    victims: dict[str, str] = {}
    with ControlPlane() as plane:
        progress(f"scale: making {2 * population.pods} pods on {population.nodes} nodes")
        populate(plane, population)
        for number in range(1, rounds + 1):
            for version, grouped in product(versions, sorted({0, teams})):
                name = f"{version.name}, {grouped} teams" if grouped else version.name
                prefix = f"scale: round {number}/{rounds}, {name}: "

                def say(what: str, prefix: str = prefix) -> None:
                    progress(prefix + what)

                one = _Turn(plane, version, population, grouped, victims, say)
                if not grouped or one.installed.knows_teams:
                    one.run()
                    taken.setdefault(name, []).append(one.figures)
    return _lines(population, taken)


class _Turn:
    """One version in the cluster. `victims` are the pods to delete next, by namespace: those that were admitted last."""

    def __init__(
        self,
        plane: ControlPlane,
        version: Version,
        population: Population,
        teams: int,
        victims: dict[str, str],
        progress: Progress,
    ) -> None:
        self.plane = plane
        self.client = plane.client()
        self.installed = Installation(plane, version)
        self.population = population
        self.teams = teams
        self.releases = Releases(plane, victims)
        self.figures: Figures = {}
        self._progress = progress

    @property
    def _sizes(self) -> dict[str, int]:
        return {BIG: self.population.pods, SMALL: self.population.each}

    def run(self) -> None:
        with self.installed as installed:
            for namespace in self._small():
                installed.set_quota(namespace, ROOM)
            for namespace, pods in self._sizes.items():
                installed.set_quota(namespace, pods)
            self._make_teams()
            self._start()
            with installed.serving(1):
                self._release(RELEASE, SMALL)
                self._release(RELEASE, BIG)
                self._raise_hard(RAISE, self._set_small)
                if self.teams:
                    self._fill_team()
                self._create_and_delete(SMALL)
                self._create_and_delete(BIG)
                self._settle()
                self._status()
                if self.teams:
                    self._regroup()
                self._relabel()
                for namespace, pods in self._sizes.items():
                    self._fill(namespace, pods)
                self._restart_api_server()
                installed.stop_controller()
                self._start_again()
                self._recount()
                installed.stop_controller()
        self._label_nodes(CLASS)

    def _note(self, subject: str, what: str, figure: float) -> None:
        self.figures.setdefault(subject, {})[what] = figure
        self._progress(f"{subject}, {what}: {figure:.4g}")

    def _all_counted(self, members: int) -> bool:
        """Whether every quota is counted, so many of them in a team."""
        ledgers = self.installed.ledgers().values()
        return (
            len(ledgers) == self.population.namespaces + 1
            and all(ledger.used is not None for ledger in ledgers)
            and sum(bool(ledger.team) for ledger in ledgers) == members
        )

    def _small(self) -> Iterator[str]:
        return (f"team-{number:04d}" for number in range(self.population.namespaces))

    def _make_teams(self) -> None:
        for number in range(self.teams):
            self._set_team(number, ROOM)

    def _set_team(self, number: int, gpus: int) -> None:
        """Make a team of MEMBERS namespaces, or change its quota; SMALL is in the first."""
        self.installed.set_team(f"team-{number:03d}", f"team-{number:03d}*", gpus)

    def _set_small(self, more: int) -> None:
        self.installed.set_quota(SMALL, self._sizes[SMALL] + more)

    @contextmanager
    def _calls(self, subject: str) -> Iterator[None]:
        """Note the calls for quotas, teams and ledgers of the length of the block, without lists."""
        before = self._requests()
        yield
        calls = self._requests() - before
        self._note(subject, "reads of quotas and ledgers", calls.pop("GET", 0))
        self._note(subject, "writes of quotas, statuses and ledgers", calls.total())

    def _requests(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for verb, number in _CALLS.findall(self.client.get("/metrics")[1]):
            found[verb] += int(float(number))
        return found

    @property
    def _pid(self) -> int:
        assert self.installed.controller is not None
        return self.installed.controller.pid

    def _read_bytes(self) -> float:
        return sum(float(each) for each in _READ_BYTES.findall(self.client.get("/metrics")[1]))

    def _start(self) -> None:
        read, began = self._read_bytes(), time.monotonic()
        with self._calls(START):
            self.installed.start_controller()
            self._note(START, "s until it is ready", time.monotonic() - began)
            self._await_counted(MEMBERS * self.teams)
            self._note(START, "s until every quota is counted", time.monotonic() - began)
            self._note(START, CPU, cpu_seconds(self._pid))
        self._note(START, RESIDENT, self._resident)
        self._note(START, READ, (self._read_bytes() - read) / 1e6)

    def _await_counted(self, members: int) -> None:
        wait_until(
            lambda: self._all_counted(members), "not every quota is counted", pause=0.5, seconds=PATIENCE
        )

    @property
    def _resident(self) -> float:
        return float(psutil.Process(self._pid).memory_info().rss / 2**20)

    def _start_again(self) -> None:
        """Start a controller of ledgers that are counted. Its CPU, memory and calls are those of a recount's period."""
        began = time.monotonic()
        with self._calls(START_AGAIN):
            self.installed.start_controller("--recount-seconds", str(RECOUNT_SECONDS))
            self._note(START_AGAIN, "s until it is ready", time.monotonic() - began)
            self.releases.one(SMALL)
            self._note(START_AGAIN, "s until the first release", time.monotonic() - began)
            time.sleep(max(0.0, began + RECOUNT_SECONDS - time.monotonic()))
            self._note(START_AGAIN, CPU, cpu_seconds(self._pid))
        self._note(START_AGAIN, RESIDENT, self._resident)

    def _where(self, namespace: str) -> str:
        return f"among {self._sizes[namespace]}"

    def _release(self, subject: str, namespace: str) -> None:
        self.installed.await_settled(namespace, self._sizes[namespace])
        cpu = cpu_seconds(self._pid)
        taken = sorted(self.releases.one(namespace) for _ in range(RELEASES))
        where = self._where(namespace)
        self._note(subject, f"{P50}, {where}", percentile(taken, 50))
        self.installed.await_settled(namespace, self._sizes[namespace])
        each = (cpu_seconds(self._pid) - cpu) / RELEASES * 1000
        self._note(subject, f"ms of controller's CPU, {where}", each)

    def _raise_hard(self, subject: str, set_hard: Callable[[int], None]) -> None:
        """Raise a full quota by one GPU at a time, and return to where it was. `set_hard` gives it so many more."""
        taken, extra = [], []
        for number in range(1, RAISES + 1):
            set_hard(number)
            began = time.perf_counter()
            extra.append(self.releases.create(SMALL))
            taken.append((time.perf_counter() - began) * 1000)
        self._note(subject, "ms until it is in force, p50", median(taken))
        for name in extra:
            self._delete(SMALL, name)
        self.installed.await_settled(SMALL, self._sizes[SMALL])

    def _fill_team(self) -> None:
        """Let the team of SMALL be full, where its own quota has room."""
        size = MEMBERS * self.population.each
        self.installed.set_quota(SMALL, ROOM)
        self._await_probe(SMALL, 201)
        self._set_team(0, size)
        self._await_probe(SMALL, 403)
        self._release(TEAM_RELEASE, SMALL)
        self._raise_hard(TEAM_RAISE, lambda more: self._set_team(0, size + more))
        self._set_team(0, ROOM)
        self._await_probe(SMALL, 201)

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
        turns = self.population.namespaces
        bursts.create(self.plane, f"team-{TURN}", {}, clients=CLIENTS, creates=SPREAD, turns=turns)
        began = time.monotonic()
        wait_until(self._nothing_in_flight, "the quotas do not settle", pause=0.1)
        self._note(SPREAD_OUT, f"s until {SPREAD} are settled", time.monotonic() - began)
        self._delete_created(list(self._small()), self.population.each)

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

    def _status(self) -> None:
        """Run it as the administrator."""
        command = (sys.executable, "-m", "webhook", "status", "--kubeconfig", str(self.plane.kubeconfig()))
        began = time.monotonic()
        with subprocess.Popen(
            command, cwd=self.installed.version.source, stdout=subprocess.DEVNULL
        ) as process:
            _, ended, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(ended)
        if process.returncode:
            raise RuntimeError(f"{STATUS} ended with {process.returncode}")
        self._note(STATUS, "s", time.monotonic() - began)
        self._note(STATUS, "s of its CPU", used.ru_utime + used.ru_stime)
        self._note(STATUS, RESIDENT, used.ru_maxrss / 2**10)

    def _regroup(self) -> None:
        """Delete all teams, and make them again."""
        with self._costing(TEAMS_GONE, members=0):
            for number in range(self.teams):
                accepted(self.client.delete(f"{API}/clustergpuquotas/team-{number:03d}"))
        with self._costing(TEAMS_MADE, members=MEMBERS * self.teams):
            self._make_teams()

    @contextmanager
    def _costing(self, subject: str, *, members: int) -> Iterator[None]:
        """Note how long it takes from the beginning of the block until so many ledgers are in teams, and what that costs."""
        cpu, began = cpu_seconds(self._pid), time.monotonic()
        with self._calls(subject):
            yield
            self._await_counted(members)
            self._note(subject, "s until every quota is counted", time.monotonic() - began)
            self._note(subject, CPU, cpu_seconds(self._pid) - cpu)
        self._note(subject, RESIDENT, self._resident)

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
            for namespace in (BIG, *self._small())
        )

    def _fill(self, namespace: str, gpus: int) -> None:
        """Lower the quota to what is there; return once that is in force."""
        self.installed.set_quota(namespace, gpus)
        self._await_probe(namespace, 403)

    def _await_probe(self, namespace: str, status: int) -> None:
        """Return once a pod that is only tried gets that answer: 201 where there is room, 403 where all is used."""
        probe = model_server("probe", gpus=1)
        wait_until(
            lambda: self.client.post(bursts.pods(namespace), probe, {"dryRun": "All"})[0] == status,
            f"{namespace} does not answer {status}",
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
    yield f"{'':<59}" + "".join(f" {name:>14}" for name in taken)
    fullest = max((found[0] for found in taken.values()), key=len)
    for subject, figures in fullest.items():
        yield subject
        for what in figures:
            cells = (_cell(found, subject, what) for found in taken.values())
            yield f"  {what:<57}" + "".join(f" {cell:>14}" for cell in cells)


def _cell(found: list[Figures], subject: str, what: str) -> str:
    """Return the median of what was measured, a dash where it was not."""
    return f"{median(each[subject][what] for each in found):.4g}" if subject in found[0] else "–"
