"""Our two hooks against a view that does nothing on the very same server, and against a commit of ours."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from tests.bench.admissions import NAMESPACE, Ours
from tests.bench.before import NOW, Version
from tests.bench.clients import Plan
from tests.bench.figures import Figures, cpu_ratio, figures, ratio
from tests.bench.measure import Sample, measure
from tests.bench.noop_server import SERVER_NAME as NOOP_NAME
from tests.bench.noop_server import NoopServer
from tests.bench.reviews import MUTATE, VALIDATE, capture
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import SERVER_NAME, Webhook

CLIENTS = (1, 8, 32)
STOCK = "no-op, stock gthread"


class Subject(msgspec.Struct, frozen=True):
    """A server and the review it is sent; `against` and `before` name the subjects that it is compared with."""

    name: str
    plan: Callable[[int], Plan]
    pid: int
    against: str | None = None
    before: str | None = None


class EdgeReport(msgspec.Struct, frozen=True, kw_only=True):
    review_bytes: dict[str, int]
    figures: list[Figures]
    rate_ratios: dict[str, dict[int, float]]
    p99_ratios: dict[str, dict[int, float]]
    cpu_ratios: dict[str, dict[int, float]]


def compare(
    versions: list[Version], *, rounds: int, requests: int, progress: Callable[[str], None]
) -> EdgeReport:
    """Replay a captured review of each phase, `requests` times at each number of clients, in interleaved rounds."""
    with ExitStack() as stack:
        progress("edge: starting a control plane to capture reviews from")
        plane = stack.enter_context(ControlPlane())
        served = {
            version: stack.enter_context(
                Webhook(
                    plane,
                    config=version.source / "tests" / "bench" / "policy",
                    host=number,
                    source=version.source,
                )
            )
            for number, version in enumerate(versions, start=10)
        }
        reviews = _reviews(plane, served[NOW])
        for name in ("kube-apiserver", "etcd"):
            plane.kill(name)  # has said all that is needed, and would take CPU from the comparison
        noop = stack.enter_context(NoopServer(plane, host=20))
        stock = stack.enter_context(NoopServer(plane, host=21, stock=True))
        subjects = _subjects(plane, served, noop, stock, reviews, requests)
        samples = _samples(subjects, rounds, progress)
    return _report(subjects, samples, {path: len(review) for path, review in reviews.items()})


def _reviews(plane: ControlPlane, webhook: Webhook) -> dict[str, str]:
    plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    ours = Ours(plane, webhook)
    ours.register()
    ours.await_force()
    return capture(plane)


def _subjects(
    plane: ControlPlane,
    served: dict[Version, Webhook],
    noop: NoopServer,
    stock: NoopServer,
    reviews: dict[str, str],
    requests: int,
) -> list[Subject]:
    def plan(path: str, address: str, ca_file: Path, name: str) -> Callable[[int], Plan]:
        return lambda clients: Plan(
            host=address,
            port=443,
            path=f"{path}?timeout=5s",
            body=reviews[path],
            requests=requests,
            clients=clients,
            ca_file=str(ca_file),
            server_name=name,
        )

    def of_noop(path: str, server: NoopServer) -> Callable[[int], Plan]:
        return plan(path, server.address, server.ca_file, NOOP_NAME)

    def of_ours(path: str, server: Webhook) -> Callable[[int], Plan]:
        return plan(path, server.address, server.folder / "certs" / "ca.crt", SERVER_NAME)

    def each(path: str, against: str) -> list[Subject]:
        before = next((version.after(path) for version in served if version != NOW), None)
        return [
            Subject(
                version.after(path),
                of_ours(path, webhook),
                plane.pids[webhook.name],
                against=against if version == NOW else None,
                before=before if version == NOW else None,
            )
            for version, webhook in served.items()
        ]

    first, second = "no-op, pod as it arrives", "no-op, final pod"
    return [
        Subject(first, of_noop(MUTATE, noop), noop.pid),
        *each(MUTATE, against=first),
        Subject(second, of_noop(VALIDATE, noop), noop.pid),
        *each(VALIDATE, against=second),
        Subject(STOCK, of_noop(MUTATE, stock), stock.pid),
    ]


Samples = dict[tuple[str, int], list[Sample]]


def _samples(subjects: list[Subject], rounds: int, progress: Callable[[str], None]) -> Samples:
    samples: Samples = {(subject.name, clients): [] for clients in CLIENTS for subject in subjects}
    for subject in subjects:  # imports, caches, the allocator
        measure(subject.plan(8), {}, want=200)
    for number in range(1, rounds + 1):
        for clients in CLIENTS:
            for subject in subjects:
                sample = measure(subject.plan(clients), {"server": [subject.pid]}, want=200)
                samples[subject.name, clients].append(sample)
                progress(
                    f"edge: round {number}/{rounds}, {clients:>2} clients, {subject.name}: {sample.rate:.0f}/s"
                )
    return samples


def _report(subjects: list[Subject], samples: Samples, review_bytes: dict[str, int]) -> EdgeReport:
    rows = {key: figures(*key, taken) for key, taken in samples.items()}
    rates: dict[str, dict[int, float]] = {}
    p99s: dict[str, dict[int, float]] = {}
    for subject in subjects:
        if subject.against is not None:
            pairs = {clients: ((subject.name, clients), (subject.against, clients)) for clients in CLIENTS}
            rates[subject.name] = {n: ratio(samples[a], samples[b]) for n, (a, b) in pairs.items()}
            p99s[subject.name] = {n: rows[a].p99_ms / rows[b].p99_ms for n, (a, b) in pairs.items()}
    cpu = {
        subject.name: {n: cpu_ratio(samples[subject.name, n], samples[subject.before, n]) for n in CLIENTS}
        for subject in subjects
        if subject.before is not None
    }
    return EdgeReport(
        review_bytes=review_bytes,
        figures=list(rows.values()),
        rate_ratios=rates,
        p99_ratios=p99s,
        cpu_ratios=cpu,
    )
