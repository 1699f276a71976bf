"""Versions that take turns in one cluster full of pods: each has its figures, one phase after the other."""

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from statistics import median

from tests.bench import bursts
from tests.bench.before import Version
from tests.bench.figures import Progress, percentile
from tests.bench.installation import Installation, wait_until
from tests.bench.pods import model_server
from tests.bench.population import Population, populate
from tests.bench.releases import Releases
from tests.controlplane import ControlPlane

Figures = dict[str, dict[str, float]]
"""By what was done and what was measured then, which says its unit; in the order of the measurements."""

RELIST = "releases while pods are listed again"
LONGEST, P50 = "ms, longest", "ms, p50"


class Turn(ABC):
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

    @abstractmethod
    def run(self) -> None:
        """Measure all phases."""

    def note(self, subject: str, what: str, figure: float) -> None:
        self.figures.setdefault(subject, {})[what] = figure
        self._progress(f"{subject}, {what}: {figure:.4g}")

    def all_counted(self, quotas: int) -> bool:
        ledgers = self.installed.ledgers()
        return len(ledgers) == quotas and all(ledger.used is not None for ledger in ledgers.values())

    def fill(self, namespaces: Iterable[str], gpus: int) -> None:
        """Lower the quotas to what is there; return once that is in force."""
        names, probe = list(namespaces), model_server("probe", gpus=1)
        for name in names:
            self.installed.set_quota(name, gpus)
        for name in names:
            wait_until(
                lambda name=name: self.client.post(bursts.pods(name), probe, {"dryRun": "All"})[0] == 403,
                f"{name} does not get full",
            )

    def relist(
        self, way: subprocess.Popen[str], namespace: str, where: str, *, times: int, seconds: float
    ) -> None:
        """Let the watch of pods end as too old, and release in the namespace meanwhile."""
        found = list[float]()
        for _ in range(times):
            until = time.monotonic() + seconds
            way.send_signal(signal.SIGUSR1)
            while time.monotonic() < until:
                found.append(self.releases.one(namespace))
                time.sleep(0.1)
        self.note(RELIST, f"{P50}, {where}", percentile(sorted(found), 50))
        self.note(RELIST, f"{LONGEST}, {where}", max(found))


def take_turns(
    turn: type[Turn],
    title: str,
    versions: list[Version],
    population: Population,
    victims: dict[str, str],
    *,
    rounds: int,
    progress: Progress,
) -> Iterator[str]:
    """Fill a cluster once, let the versions take turns in it, and return the medians of their figures, as a table."""
    taken: dict[str, list[Figures]] = {version.name: [] for version in versions}
    with ControlPlane() as plane:
        progress(f"{title}: making {2 * population.pods} pods on {population.nodes} nodes")
        populate(plane, population)
        for number in range(1, rounds + 1):
            for version in versions:
                prefix = f"{title}: round {number}/{rounds}, {version.name}: "

                def say(what: str, prefix: str = prefix) -> None:
                    progress(prefix + what)

                one = turn(plane, version, population, victims, say)
                one.run()
                taken[version.name].append(one.figures)
    return _lines(title, population, taken)


def _lines(title: str, population: Population, taken: dict[str, list[Figures]]) -> Iterator[str]:
    pods = (
        f"{population.pods} GPU pods in one namespace, {population.pods} over {population.namespaces} others"
    )
    yield f"{title.upper()}: {pods}, on {population.nodes} nodes"
    yield ""
    yield f"{'':<59}" + "".join(f"{name:>10}" for name in taken)
    first, *_ = taken.values()
    for subject, figures in first[0].items():
        yield subject
        for what in figures:
            medians = (median(each[subject][what] for each in found) for found in taken.values())
            yield f"  {what:<57}" + "".join(f"{figure:>10.4g}" for figure in medians)
