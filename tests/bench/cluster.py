"""What admission costs a whole cluster: pods created through a real API server, admitted in several ways."""

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import msgspec

from tests.bench.admissions import FOLDER, NAMESPACE, PODS, Admission, Cel, Floor, Noop, Nothing, Ours
from tests.bench.before import Version
from tests.bench.bursts import API_SERVER, WARM_UP, WEBHOOK, servers
from tests.bench.clients import NUMBER
from tests.bench.figures import Figures, figures
from tests.bench.measure import Sample, measure, plan
from tests.bench.noop_server import NoopServer
from tests.bench.pods import model_server
from tests.bench.reviews import answers, capture
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook

CLIENTS = (1, 8, 32)
GPU_POD, CPU_POD = "GPU", "CPU"

Key = tuple[str, str, int]  # pod, admission, clients


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu_pod_ms` is what the API server spends more on a pod without GPUs than with nothing registered, by clients."""

    figures: dict[str, list[Figures]]
    cpu_pod_ms: dict[str, dict[int, float]]


def compare(
    versions: list[Version], *, rounds: int, creates: int, progress: Callable[[str], None]
) -> ClusterReport:
    """Create `creates` pods of either kind at each number of clients under each admission, in interleaved rounds."""
    with ExitStack() as stack:
        progress("cluster: starting a control plane and both webhooks")
        plane = stack.enter_context(ControlPlane())
        plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        served = [
            stack.enter_context(Webhook(plane, config=FOLDER / "policy", host=number, source=version.source))
            for number, version in enumerate(versions, start=10)
        ]
        ours = [
            Ours(plane, webhook, version.after(Ours.name))
            for webhook, version in zip(served, versions, strict=True)
        ]
        noop = stack.enter_context(NoopServer(plane, host=20))
        floor = stack.enter_context(NoopServer(plane, host=21, answers=_answers(plane, served[-1])))
        admissions = [Nothing(plane), Noop(plane, noop), Floor(plane, floor), Cel(plane), *ours]
        samples: dict[Key, list[Sample]] = {}
        for number in range(1, rounds + 1):
            for admission in admissions:
                admission.register()
                admission.await_force()
                _create(
                    plane, admission, GPU_POD, 32, WARM_UP
                )  # connections, the Go runtime's and our caches
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


def _answers(plane: ControlPlane, webhook: Webhook) -> dict[str, str]:
    ours = Ours(plane, webhook)
    ours.register()
    ours.await_force()
    reviews = capture(plane)
    ours.unregister()
    return answers(webhook, reviews)


def _create(plane: ControlPlane, admission: Admission, pod: str, clients: int, creates: int) -> Sample:
    """Create the pods, and delete them without counting that."""
    body = model_server(f"model-server-{NUMBER}", gpus=int(pod == GPU_POD))
    requested = plan(plane, PODS, body=body, requests=creates, clients=clients)
    counted = servers(plane) | ({} if admission.server is None else {WEBHOOK: [admission.server]})
    try:
        return measure(requested, counted, want=201)
    finally:
        plane.client().delete(PODS, {"gracePeriodSeconds": 0})


def cost(row: Figures) -> float:
    """Return milliseconds of CPU for one pod, of the API server and of the webhook; etcd's share is the same for all."""
    return row.cpu_ms[API_SERVER] + row.cpu_ms.get(WEBHOOK, 0)


def _report(samples: dict[Key, list[Sample]]) -> ClusterReport:
    rows: dict[str, list[Figures]] = {GPU_POD: [], CPU_POD: []}
    for clients in CLIENTS:
        for pod, name, n in samples:
            if n == clients:
                rows[pod].append(figures(name, clients, samples[pod, name, clients]))
    return ClusterReport(figures=rows, cpu_pod_ms=_cpu_pods(samples))


def _cpu_pods(samples: dict[Key, list[Sample]]) -> dict[str, dict[int, float]]:
    """Return the medians over rounds, each against its neighbour in time."""
    found: dict[str, dict[int, float]] = {}
    for (pod, name, clients), taken in samples.items():
        if pod == CPU_POD and name != Nothing.name:
            pairs = zip(taken, samples[pod, Nothing.name, clients], strict=True)
            more = median(a.cpu_seconds[API_SERVER] - b.cpu_seconds[API_SERVER] for a, b in pairs)
            creates = len(taken[0].outcome.milliseconds)
            found.setdefault(name, {})[clients] = more / creates * 1000
    return found
