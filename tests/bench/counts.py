"""When a controller counts: 2,000 new quotas, a release in a quiet namespace, and releases while pods are listed again.

There are 20,000 pods, half of them over 2,000 namespaces. Pods are listed again while 100 and while 200 of these are full; the
releases are in the last one.
"""

import signal
import time
from collections.abc import Callable
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
                progress(f"counts: round {number}/{rounds}, {version.name}")
                with Installation(plane, version) as installed:
                    taken[version.name].append(_figures(plane, installed, Releases(plane, victims)))
    medians = {
        name: {
            subject: {what: median(each[subject][what] for each in found) for what in found[0][subject]}
            for subject in found[0]
        }
        for name, found in taken.items()
    }
    return ScaleReport(population=POPULATION, figures=medians, targets=[])


def _team(number: int) -> str:
    return f"team-{number:04d}"


def _figures(plane: ControlPlane, installed: Installation, releases: Releases) -> Figures:
    figures = {FIRST: _first_count(plane, installed), RELEASE: {}, RELIST: {}}
    with installed.serving(1):
        _fill(plane, installed, 1)
        releases.one(SMALL)
        taken = []
        for _ in range(RELEASES):
            time.sleep(QUIET_SECONDS)
            taken.append(releases.one(SMALL))
        figures[RELEASE] = {"ms, p50": median(taken), "ms, longest": max(taken)}
        installed.stop_controller()
        with way(plane) as (server, process):
            installed.start_controller(server=server)
            for full in FULL:
                _fill(plane, installed, full)
                releases.one(_team(full - 1))
                found: list[float] = []
                for _ in range(RELISTS):
                    until = time.monotonic() + RELIST_SECONDS
                    process.send_signal(signal.SIGUSR1)
                    while time.monotonic() < until:
                        found.append(releases.one(_team(full - 1)))
                        time.sleep(0.1)
                figures[RELIST][f"ms, p50, {full} namespaces full"] = percentile(sorted(found), 50)
                figures[RELIST][f"ms, longest, {full} namespaces full"] = max(found)
            installed.stop_controller()
    return figures


def _first_count(plane: ControlPlane, installed: Installation) -> dict[str, float]:
    """Start a controller where all quotas are new, and return what it takes until all are counted."""
    for number in range(POPULATION.namespaces):
        installed.set_quota(_team(number), ROOM)
    servers, began = cpu_seconds(plane.pids[API_SERVER]), time.monotonic()
    controller = installed.start_controller()
    ready = time.monotonic() - began

    def counted() -> bool:
        ledgers = installed.ledgers()
        return len(ledgers) == POPULATION.namespaces and all(
            ledger.used is not None for ledger in ledgers.values()
        )

    wait_until(counted, "not every quota is counted", seconds=300, pause=0.5)
    return {
        "s until the controller is ready": ready,
        "s until all are counted": time.monotonic() - began,
        "s of controller's CPU": cpu_seconds(controller.pid),
        "s of API server's CPU": cpu_seconds(plane.pids[API_SERVER]) - servers,
    }


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
