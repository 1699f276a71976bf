"""What admission costs a whole cluster: GPU pods created through a real API server, admitted in several ways."""

from collections.abc import Iterator
from contextlib import ExitStack

from tests.bench import bursts
from tests.bench.admissions import NAMESPACE, Admission, Cel, Floor, Nothing, Ours, in_turns, serve
from tests.bench.before import Version
from tests.bench.bursts import WARM_UP
from tests.bench.figures import (
    API_SERVER,
    CLIENTS,
    WEBHOOK,
    Figures,
    Key,
    Progress,
    Samples,
    cpu_column,
    table,
)
from tests.bench.measure import Sample
from tests.bench.noop_server import NoopServer
from tests.bench.reviews import answers, capture
from tests.controlplane import ControlPlane


def compare(versions: list[Version], *, rounds: int, creates: int, progress: Progress) -> Iterator[str]:
    """Create `creates` pods at each number of clients under each admission, in interleaved rounds."""
    samples: Samples = {}
    with ExitStack() as stack:
        progress("cluster: starting a control plane and both webhooks")
        plane = stack.enter_context(ControlPlane())
        ours = serve(stack, plane, versions)
        floor = stack.enter_context(NoopServer(plane, host=21, answers=_answers(plane, ours[-1])))
        admissions = [Nothing(plane), Floor(plane, floor), Cel(plane), *ours]
        for number, admission in in_turns(admissions, rounds):
            _create(plane, admission, 32, WARM_UP)  # connections, the Go runtime's and our caches
            for clients in CLIENTS:
                for name, differ in ((admission.name, False), (f"{admission.name}, differ", True)):
                    sample = _create(plane, admission, clients, creates, differ=differ)
                    samples.setdefault((name, clients), []).append(sample)
                    progress(
                        f"cluster: round {number}/{rounds}, {name}, {clients:>2} clients: {sample.rate:.0f}/s"
                    )
    return _lines(samples)


def _answers(plane: ControlPlane, ours: Ours) -> dict[str, str]:
    ours.register()
    ours.await_force()
    reviews = capture(plane)
    ours.unregister()
    return answers(ours.webhook, reviews)


def _create(
    plane: ControlPlane, admission: Admission, clients: int, creates: int, *, differ: bool = False
) -> Sample:
    """Create the pods, and delete them without counting that."""
    counted = bursts.servers(plane) | ({} if admission.server is None else {WEBHOOK: [admission.server]})
    try:
        return bursts.create(plane, NAMESPACE, counted, clients=clients, creates=creates, differ=differ)
    finally:
        bursts.clear(plane, NAMESPACE)


def _lines(samples: Samples) -> Iterator[str]:
    def more(_: Key, row: Figures) -> str:
        api, webhook = row.cpu_ms[API_SERVER], row.cpu_ms.get(WEBHOOK)
        return f"{api:>6.2f} {cpu_column(webhook, 7)} {api + (webhook or 0):>6.2f}"

    yield "CLUSTER: GPU pods created through a real API server; CPU in ms per create"
    yield "(differ: each pod has an argument of its own; the others differ in what no rule reads)"
    yield ""
    yield from table(samples, "   API webhook   both", more)
