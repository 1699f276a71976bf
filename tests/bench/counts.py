"""When a controller counts: 2,000 new quotas, a release in a quiet namespace, and releases while pods are listed again.

There are 20,000 pods, half of them over 2,000 namespaces. Pods are listed again while 100 and while 200 of these are full; the
releases are in the last one.
"""

import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from tests.bench import bursts
from tests.bench.before import Version
from tests.bench.figures import percentile
from tests.bench.installation import ROOM, Installation, wait_until
from tests.bench.measure import cpu_seconds
from tests.bench.pods import model_server
from tests.bench.population import SMALL, Population, populate
from tests.bench.releases import Releases, way
from tests.bench.scale import Figures, ScaleReport
from tests.bench.seeding import SEED
from tests.controlplane import ControlPlane
from tests.controlplane.plane import API_SERVER

POPULATION = Population(pods=10_000, namespaces=2000, nodes=1000)
RELEASES, QUIET_SECONDS = 12, 1.5
FULL, RELISTS, RELIST_SECONDS = (100, 200), 5, 3

FIRST, RELEASE, RELIST = (
    "new quotas",
    "a release in a quiet namespace",
    "releases while pods are listed again",
)


def compare(versions: list[Version], *, rounds: int, progress: Callable[[str], None]) -> ScaleReport:
    """Fill a cluster once, and let the versions take turns in it."""
    taken: dict[str, list[Figures]] = {version.name: [] for version in versions}
    victims = {_team(number - 1): f"{SEED}-{number - 1:06d}" for number in FULL}
    with ControlPlane() as plane:
        progress(f"counts: making {2 * POPULATION.pods} pods")
        populate(plane, POPULATION)
        for number in range(1, rounds + 1):
            for version in versions:
                say = partial(_say, progress, f"counts: round {number}/{rounds}, {version.name}")
                taken[version.name].append(_Turn(plane, version, victims, say).run())
    medians = {
        name: {
            subject: {what: median(each[subject][what] for each in found) for what in found[0][subject]}
            for subject in found[0]
        }
        for name, found in taken.items()
    }
    return ScaleReport(title="COUNTS", population=POPULATION, figures=medians, targets=[])


def _say(progress: Callable[[str], None], title: str, what: str) -> None:
    progress(f"{title}: {what}")


def _team(number: int) -> str:
    return f"team-{number:04d}"


class _Turn:
    """One version in the cluster: its figures, one phase after the other."""

    def __init__(
        self, plane: ControlPlane, version: Version, victims: dict[str, str], say: Callable[[str], None]
    ) -> None:
        self._plane = plane
        self._installed = Installation(plane, version)
        self._releases = Releases(plane, victims)
        self._say = say
        self._figures: Figures = {}

    def run(self) -> Figures:
        with self._installed as installed:
            for number in range(POPULATION.namespaces):
                installed.set_quota(_team(number), ROOM)
            self._count()
            with installed.serving(1):
                self._release()
                installed.stop_controller()
                with way(self._plane) as (server, process):
                    installed.start_controller(server=server)
                    for full in FULL:
                        self._relist(process, full)
                    installed.stop_controller()
        return self._figures

    def _note(self, subject: str, what: str, figure: float) -> None:
        self._figures.setdefault(subject, {})[what] = figure
        self._say(f"{subject}, {what}: {figure:.4g}")

    def _count(self) -> None:
        """Start a controller where all quotas are new."""
        servers, began = cpu_seconds(self._plane.pids[API_SERVER]), time.monotonic()
        controller = self._installed.start_controller()
        self._note(FIRST, "s until the controller is ready", time.monotonic() - began)
        wait_until(self._all_counted, "not every quota is counted", seconds=300, pause=0.5)
        self._note(FIRST, "s until all are counted", time.monotonic() - began)
        self._note(FIRST, "s of controller's CPU", cpu_seconds(controller.pid))
        self._note(FIRST, "s of API server's CPU", cpu_seconds(self._plane.pids[API_SERVER]) - servers)

    def _all_counted(self) -> bool:
        ledgers = self._installed.ledgers()
        return len(ledgers) == POPULATION.namespaces and all(
            ledger.used is not None for ledger in ledgers.values()
        )

    def _release(self) -> None:
        _fill(self._plane, self._installed, 1)
        self._releases.one(SMALL)
        taken = []
        for _ in range(RELEASES):
            time.sleep(QUIET_SECONDS)
            taken.append(self._releases.one(SMALL))
        self._note(RELEASE, "ms, p50", median(taken))
        self._note(RELEASE, "ms, longest", max(taken))

    def _relist(self, way: subprocess.Popen[str], full: int) -> None:
        """Let the watch of pods end as too old while so many namespaces are full, and release in the last one meanwhile."""
        last, found = _team(full - 1), list[float]()
        _fill(self._plane, self._installed, full)
        self._releases.one(last)
        for _ in range(RELISTS):
            until = time.monotonic() + RELIST_SECONDS
            way.send_signal(signal.SIGUSR1)
            while time.monotonic() < until:
                found.append(self._releases.one(last))
                time.sleep(0.1)
        self._note(RELIST, f"ms, p50, {full} namespaces full", percentile(sorted(found), 50))
        self._note(RELIST, f"ms, longest, {full} namespaces full", max(found))


def _fill(plane: ControlPlane, installed: Installation, namespaces: int) -> None:
    """Lower so many quotas to what is there; return once that is in force."""
    for number in range(namespaces):
        installed.set_quota(_team(number), POPULATION.each)
    client, probe = plane.client(), model_server("probe", gpus=1)
    for number in range(namespaces):
        path = bursts.pods(_team(number))
        wait_until(
            lambda path=path: client.post(path, probe, {"dryRun": "All"})[0] == 403,
            f"{path} does not get full",
        )
