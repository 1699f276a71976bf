"""When a controller counts: 2,000 new quotas, a release in a quiet namespace, and releases while pods are listed again.

There are 20,000 pods, half of them over 2,000 namespaces. Pods are listed again while 100 and while 200 of these are full; the
releases are in the last one.
"""

import subprocess
import time
from collections.abc import Iterator
from statistics import median

from tests.bench.before import Version
from tests.bench.figures import Progress
from tests.bench.installation import ROOM, wait_until
from tests.bench.measure import cpu_seconds
from tests.bench.population import SMALL, Population
from tests.bench.releases import way
from tests.bench.seeding import SEED
from tests.bench.turns import Turn, take_turns
from tests.controlplane.plane import API_SERVER

POPULATION = Population(pods=10_000, namespaces=2000, nodes=1000)
RELEASES, QUIET_SECONDS = 12, 1.5
FULL, RELISTS, RELIST_SECONDS = (100, 200), 5, 3

FIRST, RELEASE = "new quotas", "a release in a quiet namespace"


def _team(number: int) -> str:
    return f"team-{number:04d}"


def compare(versions: list[Version], *, rounds: int, progress: Progress) -> Iterator[str]:
    victims = {_team(number - 1): f"{SEED}-{number - 1:06d}" for number in FULL}
    return take_turns(_Turn, "counts", versions, POPULATION, victims, rounds=rounds, progress=progress)


class _Turn(Turn):
    def run(self) -> None:
        with self.installed as installed:
            for number in range(POPULATION.namespaces):
                installed.set_quota(_team(number), ROOM)
            self._count()
            with installed.serving(1):
                self._release()
                installed.stop_controller()
                with way(self.plane) as (server, process):
                    installed.start_controller(server=server)
                    for full in FULL:
                        self._relist(process, full)
                    installed.stop_controller()

    def _count(self) -> None:
        """Start a controller where all quotas are new."""
        servers, began = cpu_seconds(self.plane.pids[API_SERVER]), time.monotonic()
        controller = self.installed.start_controller()
        self.note(FIRST, "s until the controller is ready", time.monotonic() - began)
        quotas = POPULATION.namespaces
        wait_until(lambda: self.all_counted(quotas), "not every quota is counted", seconds=300, pause=0.5)
        self.note(FIRST, "s until all are counted", time.monotonic() - began)
        self.note(FIRST, "s of controller's CPU", cpu_seconds(controller.pid))
        self.note(FIRST, "s of API server's CPU", cpu_seconds(self.plane.pids[API_SERVER]) - servers)

    def _release(self) -> None:
        self.fill([SMALL], POPULATION.each)
        self.releases.one(SMALL)
        taken = []
        for _ in range(RELEASES):
            time.sleep(QUIET_SECONDS)
            taken.append(self.releases.one(SMALL))
        self.note(RELEASE, "ms, p50", median(taken))
        self.note(RELEASE, "ms, longest", max(taken))

    def _relist(self, way: subprocess.Popen[str], full: int) -> None:
        """Release in the last of so many full namespaces."""
        last = _team(full - 1)
        self.fill(map(_team, range(full)), POPULATION.each)
        self.releases.one(last)
        self.relist(way, last, f"{full} namespaces full", times=RELISTS, seconds=RELIST_SECONDS)
