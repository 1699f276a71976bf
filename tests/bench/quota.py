"""What a quota costs: pods created through a real API server with no quota, with its own ResourceQuota, and with a GPUQuota.

The ResourceQuota is kept by its own controller and the GPUQuota by ours; their namespaces differ, so that only the webhooks, and
versions of ours, have to come and go between samples. gpu-admission without a quota stands between: what it costs to be called,
and to correct and place a pod, is no cost of the quota.
"""

from collections.abc import Iterator, Mapping
from statistics import median

from tests.bench import bursts
from tests.bench.admissions import NAMESPACE
from tests.bench.before import Version
from tests.bench.bursts import WARM_UP, Decisions
from tests.bench.figures import CLIENTS, Figures, Key, Progress, Samples, table
from tests.bench.installation import ROOM, Installation, wait_until
from tests.bench.pods import GPU
from tests.controlplane import ControlPlane
from tests.controlplane.replicas import Replicas

NATIVE, OURS = "native-quota", "gpu-quota"
NO_QUOTA, RESOURCE_QUOTA, NO_GPU_QUOTA, GPU_QUOTA = "no quota", "ResourceQuota", "no GPUQuota", "GPUQuota"
CROWD = max(CLIENTS)


class _Samples:
    """What was measured so far; `take` adds to it."""

    def __init__(self, plane: ControlPlane, creates: int, progress: Progress) -> None:
        self.plane = plane
        self._creates = creates
        self._progress = progress
        self.of: Samples = {}
        self.batches: dict[Key, list[float]] = {}

    def take(
        self,
        subject: str,
        namespace: str,
        counted: Mapping[str, list[int]],
        installed: Installation | None = None,
        serving: Replicas | None = None,
    ) -> None:
        """Create pods at each number of clients, and delete them without counting that."""

        def settle() -> None:
            bursts.clear(self.plane, namespace)
            if installed is not None:
                installed.await_settled(OURS, 0)

        bursts.create(self.plane, namespace, counted, clients=CROWD, creates=WARM_UP)
        settle()
        for clients in CLIENTS:
            before = Decisions.of(serving) if serving else None
            sample = bursts.create(self.plane, namespace, counted, clients=clients, creates=self._creates)
            if serving and before:
                decided = Decisions.of(serving).since(before)
                self.batches.setdefault((subject, clients), []).append(decided.per_batch)
            settle()
            self.of.setdefault((subject, clients), []).append(sample)
            self._progress(f"quota: {subject}, {clients:>2} clients: {sample.rate:.0f}/s")


def compare(versions: list[Version], *, rounds: int, creates: int, progress: Progress) -> Iterator[str]:
    """Create `creates` pods at each number of clients under each subject, in interleaved rounds."""
    progress("quota: starting a control plane with its controllers")
    with ControlPlane(controllers=True) as plane:
        _prepare(plane)
        samples = _Samples(plane, creates, progress)
        for number in range(1, rounds + 1):
            progress(f"quota: round {number}/{rounds}")
            for subject, namespace in ((NO_QUOTA, NAMESPACE), (RESOURCE_QUOTA, NATIVE)):
                samples.take(subject, namespace, bursts.servers(plane))
            for version in versions:
                _ours(samples, version)
    return _lines(samples)


def _prepare(plane: ControlPlane) -> None:
    """Have the namespaces, one with a ResourceQuota, as their controllers leave them."""
    client = plane.client()
    for name in (NAMESPACE, NATIVE, OURS):
        client.post("/api/v1/namespaces", {"metadata": {"name": name}})
    path = f"/api/v1/namespaces/{NATIVE}/resourcequotas"
    client.post(path, {"metadata": {"name": "native"}, "spec": {"hard": {f"requests.{GPU}": str(ROOM)}}})
    wait_until(lambda: "used" in client.get(f"{path}/native")[1].get("status", {}), "it is not counted")
    accounts = [f"/api/v1/namespaces/{name}/serviceaccounts/default" for name in (NAMESPACE, NATIVE, OURS)]
    wait_until(lambda: all(client.get(each)[0] == 200 for each in accounts), "there are no service accounts")


def _ours(samples: _Samples, version: Version) -> None:
    plane = samples.plane
    with Installation(plane, version) as installed:
        installed.set_quota(OURS, ROOM)
        installed.start_controller()
        installed.await_settled(OURS, 0)
        with installed.serving(1) as serving:
            counted = bursts.servers(plane, installed, serving)
            for subject, namespace in ((NO_GPU_QUOTA, NAMESPACE), (GPU_QUOTA, OURS)):
                samples.take(version.after(subject), namespace, counted, installed, serving)


def _lines(samples: _Samples) -> Iterator[str]:
    def more(key: Key, row: Figures) -> str:
        size = median(samples.batches.get(key, [0]))
        return f"{f'{size:.1f}' if size else '–':>5} {row.cpu_columns(5, 4, 4, 6)}"

    yield "QUOTA: GPU pods created through a real API server, both quota controllers running"
    yield "(batch: requests decided with one read or write of the ledger; CPU in ms per create)"
    yield ""
    yield from table(samples.of, "batch   API etcd hook contr.", more)
