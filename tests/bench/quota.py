"""What a quota costs: pods created through a real API server with no quota, with its own ResourceQuota, and with a GPUQuota.

The ResourceQuota is kept by its own controller and the GPUQuota by ours; their namespaces differ, so that only the webhooks, and
versions of ours, have to come and go between samples. Two hooks that do nothing, and gpu-admission without a quota, stand
between: what it costs to be called, and to correct and place a pod, is no cost of the quota.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from statistics import median

import msgspec

from tests.bench import bursts
from tests.bench.admissions import NAMESPACE, Noop, Nothing
from tests.bench.before import Version
from tests.bench.bursts import WARM_UP, WEBHOOK, Decisions
from tests.bench.cluster import CLIENTS
from tests.bench.figures import Figures, figures
from tests.bench.installation import ROOM, Installation, wait_until
from tests.bench.measure import Sample
from tests.bench.noop_server import NoopServer
from tests.bench.pods import GPU
from tests.controlplane import ControlPlane

NATIVE, OURS = "native-quota", "gpu-quota"
NO_QUOTA, RESOURCE_QUOTA, NO_GPU_QUOTA, GPU_QUOTA = "no quota", "ResourceQuota", "no GPUQuota", "GPUQuota"
CROWD = max(CLIENTS)

Key = tuple[str, int]  # subject, clients


class QuotaReport(msgspec.Struct, frozen=True, kw_only=True):
    """`batches`: requests decided with one read or write of the ledger, on average, by subject and clients."""

    figures: list[Figures]
    batches: dict[str, dict[int, float]]


class _Samples:
    """What was measured so far; `take` adds to it."""

    def __init__(self, plane: ControlPlane, creates: int, progress: Callable[[str], None]) -> None:
        self.plane = plane
        self._creates = creates
        self._progress = progress
        self.of: dict[Key, list[Sample]] = {}
        self.batches: dict[Key, list[float]] = {}

    def take(
        self,
        subject: str,
        namespace: str,
        counted: Mapping[str, list[int]],
        settle: Callable[[], object],
        decided: Callable[[], Decisions] | None = None,
    ) -> None:
        """Create pods at each number of clients, and delete them without counting that."""
        bursts.create(self.plane, namespace, counted, clients=CROWD, creates=WARM_UP)
        bursts.clear(self.plane, namespace)
        settle()
        for clients in CLIENTS:
            before = decided() if decided else None
            sample = bursts.create(self.plane, namespace, counted, clients=clients, creates=self._creates)
            after = decided() if decided else None
            bursts.clear(self.plane, namespace)
            settle()
            self.of.setdefault((subject, clients), []).append(sample)
            if before and after:
                self.batches.setdefault((subject, clients), []).append(after.since(before).per_batch)
            self._progress(f"quota: {subject}, {clients:>2} clients: {sample.rate:.0f}/s")


def compare(
    versions: list[Version], *, rounds: int, creates: int, progress: Callable[[str], None]
) -> QuotaReport:
    """Create `creates` pods at each number of clients under each subject, in interleaved rounds."""
    with ExitStack() as stack:
        progress("quota: starting a control plane with its controllers")
        plane = stack.enter_context(ControlPlane(controllers=True))
        _prepare(plane)
        samples = _Samples(plane, creates, progress)
        nothing, noop = Nothing(plane), Noop(plane, stack.enter_context(NoopServer(plane, host=40)))
        for number in range(1, rounds + 1):
            progress(f"quota: round {number}/{rounds}")
            counted = bursts.servers(plane)
            for subject, namespace in ((NO_QUOTA, NAMESPACE), (RESOURCE_QUOTA, NATIVE)):
                samples.take(subject, namespace, counted, nothing.register)
            noop.register()
            noop.await_force()
            samples.take(noop.name, NAMESPACE, counted | {WEBHOOK: [noop.server]}, nothing.register)
            noop.unregister()
            for version in versions:
                _ours(samples, version)
    return _report(samples)


def _prepare(plane: ControlPlane) -> None:
    """Have the namespaces, one with a ResourceQuota, as their controllers leave them."""
    client = plane.client()
    for name in (NAMESPACE, NATIVE, OURS):
        client.post("/api/v1/namespaces", {"metadata": {"name": name}})
    path = f"/api/v1/namespaces/{NATIVE}/resourcequotas"
    client.post(path, {"metadata": {"name": "native"}, "spec": {"hard": {f"requests.{GPU}": str(ROOM)}}})
    wait_until(
        lambda: "used" in client.get(f"{path}/native")[1].get("status", {}),
        "the ResourceQuota is not counted",
    )
    accounts = [f"/api/v1/namespaces/{name}/serviceaccounts/default" for name in (NAMESPACE, NATIVE, OURS)]
    wait_until(
        lambda: all(client.get(account)[0] == 200 for account in accounts), "there are no service accounts"
    )


def _ours(samples: _Samples, version: Version) -> None:
    plane = samples.plane
    with Installation(plane, version) as installed:
        installed.set_quota(OURS, ROOM)
        installed.start_controller()
        installed.await_settled(OURS, 0)
        with installed.serving(1) as serving:
            counted = bursts.servers(plane, installed, serving)
            for subject, namespace in ((NO_GPU_QUOTA, NAMESPACE), (GPU_QUOTA, OURS)):
                samples.take(
                    version.after(subject),
                    namespace,
                    counted,
                    lambda: installed.await_settled(OURS, 0),
                    lambda: Decisions.of(serving),
                )


def _report(samples: _Samples) -> QuotaReport:
    of = samples.of
    batches: dict[str, dict[int, float]] = {}
    for (subject, clients), sizes in samples.batches.items():
        batches.setdefault(subject, {})[clients] = median(sizes)
    rows = [figures(name, clients, each) for (name, clients), each in of.items()]
    return QuotaReport(figures=sorted(rows, key=lambda row: row.clients), batches=batches)
