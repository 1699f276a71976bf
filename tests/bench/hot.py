"""One busy namespace: GPU pods created by a crowd, decided by one and more replicas of `serve` behind one Service.

Connections are spread over replicas as a Service does it, each to the next one. Beside it the same in a namespace without a
quota, by the same replicas: what is left of its rate is what the quota costs.
"""

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from tests.bench import bursts
from tests.bench.before import Version
from tests.bench.bursts import WARM_UP, Decisions
from tests.bench.figures import Figures, figures, ratio
from tests.bench.installation import ROOM, Installation
from tests.bench.measure import Sample
from tests.controlplane import ControlPlane

QUOTA, NO_QUOTA = "hot", "without-quota"
REPLICAS = (1, 2, 3)
CLIENTS = 32

Key = tuple[str, int, str]  # version, replicas, namespace


class HotRow(msgspec.Struct, frozen=True, kw_only=True):
    """`of_no_quota` is the rate as a share of that without a quota.

    `per_write`: creations for each write of the ledger; `conflict_share`: of all its writes; `conflicts`: of a hundred creations.
    """

    version: str
    replicas: int
    quota: bool
    figures: Figures
    per_write: float
    conflict_share: float
    conflicts: float
    of_no_quota: float


class HotReport(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[HotRow]


def compare(
    versions: list[Version],
    *,
    replica_counts: Sequence[int] = REPLICAS,
    rounds: int,
    creates: int,
    progress: Callable[[str], None],
) -> HotReport:
    """Create `creates` pods in either namespace under each number of replicas of each version, in interleaved rounds."""
    samples: dict[Key, list[Sample]] = {}
    decisions: dict[Key, list[Decisions]] = {}
    progress("hot: starting a control plane")
    with ControlPlane() as plane:
        for name in (QUOTA, NO_QUOTA):
            plane.client().post("/api/v1/namespaces", {"metadata": {"name": name}})
        for number in range(1, rounds + 1):
            for version in versions:
                with Installation(plane, version) as installed:
                    installed.set_quota(QUOTA, ROOM)
                    installed.start_controller()
                    installed.await_settled(QUOTA, 0)
                    for replicas in replica_counts:
                        for namespace, (sample, decided) in _measured(installed, replicas, creates).items():
                            key = (version.name, replicas, namespace)
                            samples.setdefault(key, []).append(sample)
                            decisions.setdefault(key, []).append(decided)
                            progress(
                                f"hot: round {number}/{rounds}, {version.name}, {replicas} replicas, {namespace}: "
                                f"{sample.rate:.0f}/s, {decided.conflict_share:.0%} of writes conflict"
                            )
    return _report(samples, decisions, creates)


def _measured(installed: Installation, replicas: int, creates: int) -> dict[str, tuple[Sample, Decisions]]:
    """Return what a burst in each namespace cost, and what was decided meanwhile."""
    plane, found = installed.plane, {}
    with installed.serving(replicas) as serving:
        counted = bursts.servers(plane, installed, serving)
        for namespace in (NO_QUOTA, QUOTA):
            for burst in (WARM_UP, creates):
                before = Decisions.of(serving)
                sample = bursts.create(plane, namespace, counted, clients=CLIENTS, creates=burst)
                found[namespace] = (sample, Decisions.of(serving).since(before))
                bursts.clear(plane, namespace)
                installed.await_settled(QUOTA, 0)
    return found


def _report(
    samples: dict[Key, list[Sample]], decisions: dict[Key, list[Decisions]], creates: int
) -> HotReport:
    rows = [
        HotRow(
            version=version,
            replicas=replicas,
            quota=namespace == QUOTA,
            figures=figures(namespace, CLIENTS, taken),
            per_write=median(each.per_write(creates) for each in decisions[version, replicas, namespace]),
            conflict_share=median(each.conflict_share for each in decisions[version, replicas, namespace]),
            conflicts=median(
                100 * each.conflicts / creates for each in decisions[version, replicas, namespace]
            ),
            of_no_quota=ratio(taken, samples[version, replicas, NO_QUOTA]),
        )
        for (version, replicas, namespace), taken in samples.items()
    ]
    return HotReport(rows=rows)
