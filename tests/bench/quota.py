"""What a quota costs: pods created through a real API server with no quota, with its own ResourceQuota, and with a GPUQuota.

The ResourceQuota is kept by its own controller and the GPUQuota by ours, both running all the time; their namespaces differ, so
that only the webhooks have to come and go between samples. Two hooks that do nothing, and gpu-admission without a quota, stand
between: what it costs to be called, and to correct and place a pod, is no cost of the quota.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from tests.bench.admissions import FOLDER, NAMESPACE, Admission, Noop, Nothing, Ours
from tests.bench.clients import NUMBER, Plan
from tests.bench.cluster import API_SERVER, CLIENTS, WEBHOOK
from tests.bench.figures import Figures, Target, figures, percentile, ratio
from tests.bench.measure import Sample, measure
from tests.bench.noop_server import NoopServer
from tests.bench.pods import GPU, model_server
from tests.cluster.controllers import Command, eventually
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import Webhook

NATIVE, OURS = "native-quota", "gpu-quota"
NO_QUOTA, RESOURCE_QUOTA, NO_GPU_QUOTA, GPU_QUOTA = (
    "no quota",
    "ResourceQuota",
    "gpu-admission, no quota",
    "GPUQuota",
)
CONTROLLER = "controller"
SERVERS = (API_SERVER, WEBHOOK, CONTROLLER)
ROOM = 1_000_000
CROWD = max(CLIENTS)
WARM_UP = 64
RATE_WANTED, MILLISECONDS_WANTED, BATCH_WANTED = 0.6, 5.0, 1.5

Key = tuple[str, int]  # subject, clients


class QuotaReport(msgspec.Struct, frozen=True, kw_only=True):
    """`batches`: requests decided with one read or write of the row, on average, by clients."""

    figures: list[Figures]
    batches: dict[int, float]
    targets: list[Target]


class Subject(NamedTuple):
    """One row of the table: what is registered, and in which namespace pods are made."""

    name: str
    admission: Admission
    namespace: str


class Scene:
    """The planes' processes, and one namespace for each kind of quota."""

    def __init__(self, stack: ExitStack) -> None:
        self.plane = stack.enter_context(ControlPlane(controllers=True))
        arguments = ("--kubeconfig", self.plane.kubeconfig())
        self.webhook = stack.enter_context(Webhook(self.plane, config=FOLDER / "policy", arguments=arguments))
        client = self.plane.client()
        client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        _native_quota(self.plane)
        ours = Ours(self.plane, self.webhook)
        ours.register()  # its kinds of documents
        ours.unregister()
        self.controller = Command(self.plane, "controller", "--config", str(FOLDER / "policy"))
        self.controller.start()
        self.team = Namespace(self.plane, OURS)
        self.team.quota({"gpus": str(ROOM), "classes": {"nvidia-a100-80gb": str(ROOM)}})
        _await(lambda: self.team.used() is not None, "the GPUQuota is not counted")
        nothing = Nothing(self.plane)
        noop = Noop(self.plane, stack.enter_context(NoopServer(self.plane, host=20)))
        self.subjects = [
            Subject(NO_QUOTA, nothing, NAMESPACE),
            Subject(RESOURCE_QUOTA, nothing, NATIVE),
            Subject(noop.name, noop, NAMESPACE),
            Subject(NO_GPU_QUOTA, ours, NAMESPACE),
            Subject(GPU_QUOTA, ours, OURS),
        ]
        accounts = [
            f"/api/v1/namespaces/{subject.namespace}/serviceaccounts/default" for subject in self.subjects
        ]
        _await(
            lambda: all(client.get(account)[0] == 200 for account in accounts),
            "there are no service accounts",
        )

    def create(self, subject: Subject, clients: int, creates: int) -> Sample:
        """Create the pods, and delete them without counting that."""
        user = json.loads(self.plane.kubeconfig().read_text())["users"][0]["user"]
        server = urlsplit(self.plane.url)
        path = f"/api/v1/namespaces/{subject.namespace}/pods"
        plan = Plan(
            host=server.hostname or "",
            port=server.port or 0,
            path=path,
            body=json.dumps(model_server(f"model-server-{NUMBER}", gpus=1)),
            requests=creates,
            clients=clients,
            ca_file=str(self.plane.ca_file),
            server_name="localhost",
            token=user["token"],
        )
        servers = {API_SERVER: self.plane.pids[API_SERVER]}
        if subject.admission.server is not None:
            servers |= {WEBHOOK: subject.admission.server, CONTROLLER: self.controller.pid}
        try:
            return measure(plan, servers, want=201)
        finally:
            self.plane.client().delete(path, {"gracePeriodSeconds": 0})
            _await(self._is_settled, "the GPUQuota still counts what was deleted")

    def batches(self) -> tuple[float, float]:
        """Return how many requests were decided so far, and in how many batches."""
        name = "gpu_admission_quota_batch_size"
        return self.webhook.total(f"{name}_sum"), self.webhook.total(f"{name}_count")

    def _is_settled(self) -> bool:
        row = self.team.row()
        return not row.reservations and not any((row.used or {}).values())


def compare(*, rounds: int, creates: int, progress: Callable[[str], None]) -> QuotaReport:
    """Create `creates` pods at each number of clients under each subject, in interleaved rounds."""
    samples: dict[Key, list[Sample]] = {}
    batches: dict[int, list[float]] = {}
    with ExitStack() as stack:
        progress("quota: starting a control plane with its controllers, the webhook and our controller")
        scene = Scene(stack)
        for number in range(1, rounds + 1):
            registered: Admission | None = None
            for subject in scene.subjects:
                if subject.admission is not registered:
                    if registered is not None:
                        registered.unregister()
                    subject.admission.register()
                    subject.admission.await_force()
                    registered = subject.admission
                scene.create(subject, CROWD, WARM_UP)
                for clients in CLIENTS:
                    decided, decisions = scene.batches()
                    sample = scene.create(subject, clients, creates)
                    samples.setdefault((subject.name, clients), []).append(sample)
                    if subject.name == GPU_QUOTA:
                        after = scene.batches()
                        batches.setdefault(clients, []).append((after[0] - decided) / (after[1] - decisions))
                    progress(
                        f"quota: round {number}/{rounds}, {subject.name}, {clients:>2} clients: {sample.rate:.0f}/s"
                    )
            scene.subjects[-1].admission.unregister()
    return _report(samples, {clients: median(sizes) for clients, sizes in batches.items()})


def _native_quota(plane: ControlPlane) -> None:
    client = plane.client()
    client.post("/api/v1/namespaces", {"metadata": {"name": NATIVE}})
    path = f"/api/v1/namespaces/{NATIVE}/resourcequotas"
    client.post(path, {"metadata": {"name": "native"}, "spec": {"hard": {f"requests.{GPU}": str(ROOM)}}})
    _await(
        lambda: "used" in client.get(f"{path}/native")[1].get("status", {}),
        "the ResourceQuota is not counted",
    )


def _await(check: Callable[[], bool], otherwise: str) -> None:
    if not eventually(check, seconds=60):
        raise RuntimeError(f"{otherwise} after 60 s")


def _p50(samples: list[Sample]) -> float:
    return median(percentile(sorted(sample.outcome.milliseconds), 50) for sample in samples)


def _report(samples: dict[Key, list[Sample]], batches: dict[int, float]) -> QuotaReport:
    rate = ratio(samples[GPU_QUOTA, CROWD], samples[RESOURCE_QUOTA, CROWD])
    added = _p50(samples[GPU_QUOTA, 1]) - _p50(samples[NO_QUOTA, 1])
    targets = [
        Target(
            what=f"{CROWD} clients: creates/s ≥ {RATE_WANTED} of those with a ResourceQuota",
            figure=rate,
            met=rate >= RATE_WANTED,
        ),
        Target(
            what=f"{CROWD} clients: requests per batch, visibly more than one",
            figure=batches[CROWD],
            met=batches[CROWD] >= BATCH_WANTED,
        ),
        Target(
            what=f"1 client: ms added to p50, at most {MILLISECONDS_WANTED:.0f}",
            figure=added,
            met=added <= MILLISECONDS_WANTED,
        ),
    ]
    rows = [figures(name, clients, each) for (name, clients), each in samples.items()]
    return QuotaReport(figures=sorted(rows, key=lambda row: row.clients), batches=batches, targets=targets)
