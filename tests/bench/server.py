"""Our two hooks against a view that does nothing on the very same server, and against a commit of ours."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.bench.admissions import NAMESPACE, serve
from tests.bench.before import Version
from tests.bench.clients import Plan
from tests.bench.figures import CLIENTS, Figures, Key, Progress, Samples, cpu_ratio, table
from tests.bench.measure import Sample, measure
from tests.bench.noop_server import SERVER_NAME as NOOP_NAME
from tests.bench.noop_server import NoopServer
from tests.bench.reviews import MUTATE, VALIDATE, capture
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import SERVER_NAME, Webhook

STOCK = "no-op, stock gthread"


class Subject(NamedTuple):
    """A server, and the review that it is sent."""

    name: str
    pid: int
    path: str
    address: str
    ca_file: Path
    server_name: str


def compare(versions: list[Version], *, rounds: int, requests: int, progress: Progress) -> Iterator[str]:
    """Replay a captured review of each phase, `requests` times at each number of clients, in interleaved rounds."""
    samples: Samples = {}
    with ExitStack() as stack:
        progress("server: starting a control plane to capture reviews from")
        plane = stack.enter_context(ControlPlane())
        plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        ours = {
            version: serve(stack, plane, version, host) for host, version in enumerate(versions, start=30)
        }
        ours[versions[-1]].register()
        reviews = capture(plane)
        for name in ("kube-apiserver", "etcd"):
            plane.kill(name)  # has said all that is needed, and would take CPU from the comparison
        subjects = _subjects(
            plane,
            ours,
            stack.enter_context(NoopServer(plane, host=20)),
            stack.enter_context(NoopServer(plane, host=21, stock=True)),
        )

        def take(subject: Subject, clients: int) -> Sample:
            plan = Plan(
                host=subject.address,
                port=443,
                path=f"{subject.path}?timeout=5s",
                body=reviews[subject.path],
                requests=requests,
                clients=clients,
                ca_file=str(subject.ca_file),
                server_name=subject.server_name,
            )
            return measure(plan, {"server": [subject.pid]}, want=200)

        for subject in subjects:  # imports, caches, the allocator
            take(subject, 8)
        for number in range(1, rounds + 1):
            for clients in CLIENTS:
                for subject in subjects:
                    sample = take(subject, clients)
                    samples.setdefault((subject.name, clients), []).append(sample)
                    progress(
                        f"server: round {number}/{rounds}, {clients:>2} clients, {subject.name}: {sample.rate:.0f}/s"
                    )
    return _lines(samples, {path: len(review) for path, review in reviews.items()})


def _subjects(
    plane: ControlPlane, ours: Mapping[Version, Webhook], noop: NoopServer, stock: NoopServer
) -> list[Subject]:
    def of_noop(name: str, path: str, server: NoopServer) -> Subject:
        return Subject(name, server.pid, path, server.address, server.ca_file, NOOP_NAME)

    def of_each(path: str) -> list[Subject]:
        return [
            Subject(
                version.after(path),
                plane.pids[webhook.name],
                path,
                webhook.address,
                webhook.certificates / "ca.crt",
                SERVER_NAME,
            )
            for version, webhook in ours.items()
        ]

    return [
        of_noop("no-op, pod as it arrives", MUTATE, noop),
        *of_each(MUTATE),
        of_noop("no-op, final pod", VALIDATE, noop),
        *of_each(VALIDATE),
        of_noop(STOCK, MUTATE, stock),
    ]


def _lines(samples: Samples, review_bytes: dict[str, int]) -> Iterator[str]:
    def more(key: Key, row: Figures) -> str:
        before = samples.get((f"{key[0]}, before", key[1]))
        return f"{row.cpu_ms['server']:>6.2f}" + (
            f" {cpu_ratio(samples[key], before):>5.2f}" if before else ""
        )

    sizes = ", ".join(f"{path} {size} bytes" for path, size in review_bytes.items())
    yield "SERVER: one process, TLS connections kept alive, reviews of a GPU pod"
    yield f"({sizes}; CPU of the server in ms per request, and as a share of that before)"
    yield ""
    yield from table(samples, "   CPU share", more)
