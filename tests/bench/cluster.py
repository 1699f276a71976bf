"""What admission costs a whole cluster: pods created through a real API server, admitted in four ways."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from urllib.parse import urlsplit

import msgspec

from tests.bench.admissions import FOLDER, NAMESPACE, PODS, Admission, Cel, Noop, Nothing, Ours
from tests.bench.clients import NUMBER, Plan
from tests.bench.figures import Figures, Target, figures, ratio
from tests.bench.measure import Sample, measure
from tests.bench.noop_server import NoopServer
from tests.bench.pods import model_server
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook

CLIENTS = (1, 8, 32)
CROWDED = (8, 32)
GPU_POD, CPU_POD = "GPU", "CPU"
API_SERVER, WEBHOOK = "kube-apiserver", "webhook"

Key = tuple[str, str, int]  # pod, admission, clients


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    figures: dict[str, list[Figures]]
    targets: list[Target]


def compare(*, rounds: int, creates: int, progress: Callable[[str], None]) -> ClusterReport:
    """Create `creates` pods of either kind at each number of clients under each admission, in interleaved rounds."""
    with ExitStack() as stack:
        progress("cluster: starting a control plane and both webhooks")
        plane = stack.enter_context(ControlPlane())
        plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        webhook = stack.enter_context(Webhook(plane, config=FOLDER / "policy"))
        noop = stack.enter_context(NoopServer(plane, host=20))
        admissions = [Nothing(plane), Noop(plane, noop), Cel(plane), Ours(plane, webhook)]
        samples: dict[Key, list[Sample]] = {}
        for number in range(1, rounds + 1):
            for admission in admissions:
                admission.register()
                admission.await_force()
                _create(plane, admission, GPU_POD, 32, 64)  # connections, the Go runtime's and our caches
                for pod in (GPU_POD, CPU_POD):
                    for clients in CLIENTS:
                        sample = _create(plane, admission, pod, clients, creates)
                        samples.setdefault((pod, admission.name, clients), []).append(sample)
                        progress(
                            f"cluster: round {number}/{rounds}, {admission.name}, {clients:>2} clients, {pod} pods: "
                            f"{sample.rate:.0f}/s"
                        )
                admission.unregister()
    return _report(samples)


def _create(plane: ControlPlane, admission: Admission, pod: str, clients: int, creates: int) -> Sample:
    """Create the pods, and delete them without counting that."""
    kubeconfig = json.loads(plane.kubeconfig().read_text())
    server = urlsplit(plane.url)
    plan = Plan(
        host=server.hostname or "",
        port=server.port or 0,
        path=PODS,
        body=json.dumps(model_server(f"model-server-{NUMBER}", gpus=int(pod == GPU_POD))),
        requests=creates,
        clients=clients,
        ca_file=str(plane.ca_file),
        server_name="localhost",
        token=kubeconfig["users"][0]["user"]["token"],
    )
    servers = {name: plane.pids[name] for name in (API_SERVER, "etcd")}
    if admission.server is not None:
        servers[WEBHOOK] = admission.server
    try:
        return measure(plan, servers, want=201)
    finally:
        plane.client().delete(PODS, {"gracePeriodSeconds": 0})


def cost(row: Figures) -> float:
    """Return milliseconds of CPU for one pod, of the API server and of whom it asks; etcd's share is the same for all."""
    return row.cpu_ms[API_SERVER] + row.cpu_ms.get(WEBHOOK, 0)


def _cpu(sample: Sample) -> float:
    return sample.cpu_seconds[API_SERVER] + sample.cpu_seconds.get(WEBHOOK, 0)


def _report(samples: dict[Key, list[Sample]]) -> ClusterReport:
    rows: dict[str, list[Figures]] = {GPU_POD: [], CPU_POD: []}
    for clients in CLIENTS:
        for pod, name, n in samples:
            if n == clients:
                rows[pod].append(figures(name, clients, samples[pod, name, clients]))
    targets = []
    for clients in CLIENTS:
        ours, theirs = (samples[GPU_POD, each.name, clients] for each in (Ours, Cel))
        share = median(_cpu(a) / _cpu(b) for a, b in zip(ours, theirs, strict=True))
        what = f"GPU pod, {clients} clients: CPU < that of the CEL policies"
        targets.append(Target(what=what, figure=share, met=share < 1))
    for clients in CROWDED:
        rate = ratio(samples[GPU_POD, Ours.name, clients], samples[GPU_POD, Cel.name, clients])
        what = f"GPU pod, {clients} clients: creates/s > with the CEL policies"
        targets.append(Target(what=what, figure=rate, met=rate > 1))
    return ClusterReport(figures=rows, targets=targets)
