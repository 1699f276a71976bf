"""One busy quota: GPU pods created by a crowd, decided by one and more replicas of `serve` behind one Service.

The quota is that of one namespace, or of a team of 20 namespaces, whose ledgers are one object; beside these the same in 20
namespaces without a team, which have a quota each as those of the team have, and in a namespace without a quota. All by the same
replicas, in turn: what is left of the rate is what the quota costs, and what the team costs.

Connections are spread over replicas as a Service does it, each to the next one.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from tests.bench import bursts
from tests.bench.before import Version
from tests.bench.bursts import WARM_UP, Decisions
from tests.bench.clients import TURN
from tests.bench.figures import Progress, figures, ratio
from tests.bench.installation import ROOM, Installation
from tests.bench.measure import Sample
from tests.controlplane import ControlPlane

REPLICAS = (1, 2, 3)
CLIENTS = 32
MEMBERS = 20


class Subject(NamedTuple):
    """Whose quota is busy. With TURN in `namespace` there are MEMBERS of them, which differ in that."""

    name: str
    namespace: str

    @property
    def namespaces(self) -> list[str]:
        number = MEMBERS if TURN in self.namespace else 1
        return [self.namespace.replace(TURN, f"{index:04d}") for index in range(number)]


NO_QUOTA, QUOTA = Subject("none", "without-quota"), Subject("one", "hot")
APART, TEAM = Subject("20", f"apart-{TURN}"), Subject("team", f"together-{TURN}")
SUBJECTS = (NO_QUOTA, QUOTA, APART, TEAM)
TEAM_NAME = "together"

Key = tuple[str, int, str]  # version, replicas, subject


def compare(
    versions: list[Version], replica_counts: Sequence[int], *, rounds: int, creates: int, progress: Progress
) -> Iterator[str]:
    """Create `creates` pods of each subject under each number of replicas of each version, in interleaved rounds."""
    samples: dict[Key, list[Sample]] = {}
    decisions: dict[Key, list[Decisions]] = {}
    progress("hot: starting a control plane")
    with ControlPlane() as plane:
        for name in (name for subject in SUBJECTS for name in subject.namespaces):
            plane.client().post("/api/v1/namespaces", {"metadata": {"name": name}})
        for number in range(1, rounds + 1):
            for version in versions:
                with Installation(plane, version) as installed:
                    subjects = _prepared(installed)
                    for replicas in replica_counts:
                        for name, (sample, decided) in _measured(
                            installed, subjects, replicas, creates
                        ).items():
                            key = (version.name, replicas, name)
                            samples.setdefault(key, []).append(sample)
                            decisions.setdefault(key, []).append(decided)
                            progress(
                                f"hot: round {number}/{rounds}, {version.name}, {replicas} replicas, quota {name}: "
                                f"{sample.rate:.0f}/s, {decided.conflict_share:.0%} of writes conflict"
                            )
    return _lines(samples, decisions, creates)


def _prepared(installed: Installation) -> list[Subject]:
    """Set the quotas, have them counted, and return the subjects: a version that knows no teams has none of a team."""
    subjects = [each for each in SUBJECTS if each is not TEAM or installed.knows_teams]
    for subject in subjects:
        for namespace in () if subject is NO_QUOTA else subject.namespaces:
            installed.set_quota(namespace, ROOM)
    if TEAM in subjects:
        installed.set_team(TEAM_NAME, TEAM.namespace.replace(TURN, "*"), ROOM)
    installed.start_controller()
    for subject in subjects:
        _settle(installed, subject)
    return subjects


def _settle(installed: Installation, subject: Subject) -> None:
    """Return once the subject has no pods, and its quotas know it."""
    for namespace in subject.namespaces:
        bursts.clear(installed.plane, namespace)
    if subject is TEAM:
        installed.await_team(TEAM_NAME, MEMBERS)
    elif subject is not NO_QUOTA:
        for namespace in subject.namespaces:
            installed.await_settled(namespace, 0)


def _measured(
    installed: Installation, subjects: Sequence[Subject], replicas: int, creates: int
) -> dict[str, tuple[Sample, Decisions]]:
    """Return what a burst of each subject cost, and what was decided meanwhile."""
    plane, found = installed.plane, {}
    with installed.serving(replicas) as serving:
        counted = bursts.servers(plane, installed, serving)
        for subject in subjects:
            turns = len(subject.namespaces)
            for burst in (WARM_UP, creates):
                before = Decisions.of(serving)
                sample = bursts.create(
                    plane, subject.namespace, counted, clients=CLIENTS, creates=burst, turns=turns
                )
                found[subject.name] = (sample, Decisions.of(serving).since(before))
                _settle(installed, subject)
    return found


def _lines(
    samples: dict[Key, list[Sample]], decisions: dict[Key, list[Decisions]], creates: int
) -> Iterator[str]:
    yield f"HOT: GPU pods created by {CLIENTS} clients, by replicas of serve: without a quota, in a namespace with one,"
    yield f"in {MEMBERS} namespaces with one each, and in {MEMBERS} such namespaces that are a team"
    yield "(of no: rate as a share of that without a quota; of 20: of that in 20 namespaces without a team;"
    yield "a write: creations for each of a ledger; lost: share of the ledgers' writes that met another's, and how many"
    yield "of 100 creations did)"
    yield ""
    yield f"{'':<64} CPU ms per create"
    yield (
        f"{'':<6} {'n':>1} {'quota':<5} {'per s':>5} {'of no':>5} {'of 20':>5} {'p50 ms':>6} {'p99 ms':>6} {'a write':>7} "
        f"{'lost':>4} {'100':>4} {'API':>5} {'etcd':>4} {'hook':>4} {'contr':>5}"
    )
    order = [subject.name for subject in SUBJECTS]
    for key in sorted(samples, key=lambda key: (key[1], key[0], order.index(key[2]))):
        (version, replicas, subject), row = key, figures(samples[key])
        of_no_quota = ratio(samples[key], samples[version, replicas, NO_QUOTA.name])
        of_apart, writes = f"{'–':>5}", f"{'–':>7} {'–':>4} {'–':>4}"
        if subject == TEAM.name:
            of_apart = f"{ratio(samples[key], samples[version, replicas, APART.name]):>5.2f}"
        if subject != NO_QUOTA.name:
            decided = decisions[key]
            per_write = median(each.per_write(creates) for each in decided)
            lost = median(each.conflict_share for each in decided)
            of_100 = median(100 * each.conflicts / creates for each in decided)
            writes = f"{per_write:>7.1f} {lost:>4.0%} {of_100:>4.1f}"
        yield (
            f"{version:<6} {replicas:>1} {subject:<5} {row.per_second:>5.0f} {of_no_quota:>5.2f} {of_apart} "
            f"{row.p50_ms:>6.0f} {row.p99_ms:>6.0f} {writes} {row.cpu_columns(5, 4, 4, 5)}"
        )
