"""One busy namespace: GPU pods created by a crowd, decided by one and more replicas of `serve` behind one Service.

Connections are spread over replicas as a Service does it, each to the next one. Beside it the same in a namespace without a
quota, by the same replicas: what is left of its rate is what the quota costs.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from tests.bench import bursts
from tests.bench.before import Version
from tests.bench.bursts import WARM_UP, Decisions
from tests.bench.figures import Progress, figures, ratio
from tests.bench.installation import ROOM, Installation
from tests.bench.measure import Sample
from tests.controlplane import ControlPlane

QUOTA, NO_QUOTA = "hot", "without-quota"
REPLICAS = (1, 2, 3)
CLIENTS = 32

Key = tuple[str, int, str]  # version, replicas, namespace


def compare(
    versions: list[Version], replica_counts: Sequence[int], *, rounds: int, creates: int, progress: Progress
) -> Iterator[str]:
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
    return _lines(samples, decisions, creates)


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


def _lines(
    samples: dict[Key, list[Sample]], decisions: dict[Key, list[Decisions]], creates: int
) -> Iterator[str]:
    yield f"HOT: GPU pods created in one namespace by {CLIENTS} clients, by replicas of serve"
    yield "(of no: rate as a share of that without a quota; a write: creations for each of the ledger;"
    yield "lost: share of the ledger's writes that met another's, and how many of 100 creations did)"
    yield ""
    yield f"{'':<58} CPU ms per create"
    yield (
        f"{'':<6} {'n':>1} {'quota':<5} {'per s':>5} {'of no':>5} {'p50 ms':>6} {'p99 ms':>6} {'a write':>7} {'lost':>4} "
        f"{'100':>4} {'API':>5} {'etcd':>4} {'hook':>4} {'contr':>5}"
    )
    for (version, replicas, namespace), taken in sorted(samples.items(), key=_place):
        row, decided = figures(taken), decisions[version, replicas, namespace]
        of_no_quota = ratio(taken, samples[version, replicas, NO_QUOTA])
        writes = f"{'–':>7} {'–':>4} {'–':>4}"
        if namespace == QUOTA:
            per_write = median(each.per_write(creates) for each in decided)
            lost = median(each.conflict_share for each in decided)
            of_100 = median(100 * each.conflicts / creates for each in decided)
            writes = f"{per_write:>7.1f} {lost:>4.0%} {of_100:>4.1f}"
        yield (
            f"{version:<6} {replicas:>1} {'yes' if namespace == QUOTA else 'no':<5} {row.per_second:>5.0f} "
            f"{of_no_quota:>5.2f} {row.p50_ms:>6.0f} {row.p99_ms:>6.0f} {writes} {row.cpu_columns(5, 4, 4, 5)}"
        )


def _place(item: tuple[Key, object]) -> tuple[int, str, bool]:
    (version, replicas, namespace), _ = item
    return replicas, version, namespace == QUOTA
