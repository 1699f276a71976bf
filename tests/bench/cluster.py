"""What admission costs a whole cluster: GPU pods created through a real API server, admitted in several ways."""

from collections.abc import Iterator
from contextlib import ExitStack

from tests.bench import bursts
from tests.bench.admissions import (
    NAMESPACE,
    OUR_CALLS,
    Admission,
    Cel,
    Floor,
    Nothing,
    Ours,
    State,
    calls_of,
    in_turns,
    serve,
)
from tests.bench.before import NOW, Version
from tests.bench.bursts import WARM_UP
from tests.bench.figures import (
    API_SERVER,
    CLIENTS,
    CONTROLLER,
    ETCD,
    WEBHOOK,
    Figures,
    Key,
    Progress,
    Samples,
    cpu_ratio,
    figures,
    table,
)
from tests.bench.installation import ROOM, Installation, wait_until
from tests.bench.measure import Sample
from tests.bench.noop_server import NoopServer
from tests.bench.reviews import answers, capture
from tests.controlplane import ControlPlane
from tests.controlplane.client import JSON_PATCH, accepted
from tests.controlplane.webhook import CONFIGURATION_PATHS

DIFFER = ", differ"
BUSY = (8, 32)
"""Clients of the summary."""


class Installed(Admission):
    """gpu-admission with its controller, under their service accounts."""

    in_force = State(calls=OUR_CALLS, refuses=True, places=True)

    def __init__(
        self, plane: ControlPlane, version: Version, *, has_quota: bool = False, has_conditions: bool = True
    ) -> None:
        super().__init__(plane)
        self._version, self._has_quota, self._has_conditions = version, has_quota, has_conditions
        more = ", GPUQuota" if has_quota else "" if has_conditions else ", never"
        self.name = version.after(f"installed{more}")

    def register(self) -> None:
        self._stack = ExitStack()
        self._installed = self._stack.enter_context(Installation(self.plane, self._version))
        if self._has_quota:
            self._installed.set_quota(NAMESPACE, ROOM)
        controller = self._installed.start_controller()
        self.settle()
        (replica,) = self._stack.enter_context(self._installed.serving(1)).each
        self._servers = {WEBHOOK: [self.plane.pids[replica.name]], CONTROLLER: [controller.pid]}
        if not self._has_conditions:
            self._remove_conditions()

    def unregister(self) -> None:
        self._stack.close()

    @property
    def servers(self) -> dict[str, list[int]]:
        return self._servers

    def settle(self) -> None:
        if self._has_quota:
            self._installed.await_settled(NAMESPACE, 0)

    def _remove_conditions(self) -> None:
        """Register as the chart does with `webhooks.matchConditions: never`."""
        client = self.plane.client()
        for path in CONFIGURATION_PATHS:
            changes = [
                {"op": "remove", "path": f"/webhooks/{index}/matchConditions"}
                for index, webhook in enumerate(client.get(path)[1]["webhooks"])
                if webhook["name"] in OUR_CALLS
            ]
            accepted(client.patch(path, changes, content_type=JSON_PATCH))
        wait_until(self._reviews_cpu_pods, "pods without GPUs are not reviewed")

    def _reviews_cpu_pods(self) -> bool:
        before = calls_of(self.plane)
        self.probe(gpus=0)
        return frozenset(calls_of(self.plane) - before) >= OUR_CALLS


def compare(versions: list[Version], *, rounds: int, creates: int, progress: Progress) -> Iterator[str]:
    """Create `creates` pods at each number of clients under each admission, in interleaved rounds."""
    samples: Samples = {}
    with ExitStack() as stack:
        progress("cluster: starting a control plane and both webhooks")
        plane = stack.enter_context(ControlPlane())
        ours = serve(stack, plane, versions)
        floor = stack.enter_context(NoopServer(plane, host=21, answers=_answers(plane, ours[-1])))
        admissions = [
            Nothing(plane),
            Floor(plane, floor),
            Cel(plane),
            *ours,
            *(Installed(plane, version) for version in versions),
            Installed(plane, NOW, has_conditions=False),
            *(Installed(plane, version, has_quota=True) for version in versions),
        ]
        for number, admission in in_turns(admissions, rounds):
            _create(plane, admission, 32, WARM_UP)  # connections, the Go runtime's and our caches
            for clients in CLIENTS:
                for name, differ in ((admission.name, False), (f"{admission.name}{DIFFER}", True)):
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
    counted = bursts.servers(plane) | admission.servers
    try:
        return bursts.create(plane, NAMESPACE, counted, clients=clients, creates=creates, differ=differ)
    finally:
        bursts.clear(plane, NAMESPACE)
        admission.settle()


def _lines(samples: Samples) -> Iterator[str]:
    def more(key: Key, row: Figures) -> str:
        return f"{row.cpu_columns(5, 4, 4, 6)} {cpu_ratio(samples[key], samples[_cel(key)]):>6.2f}"

    yield "CLUSTER: GPU pods created through a real API server; CPU in ms per create"
    yield "(differ: each pod has an argument of its own; the others differ in what no rule reads;"
    yield "of CEL: all of the CPU as a share of that with the two CEL policies, for equal pods and clients;"
    yield "never: registered without matchConditions)"
    yield ""
    yield from table(samples, "  API etcd hook contr. of CEL", more)
    yield ""
    yield f"{f'means of {BUSY[0]} and {BUSY[1]} clients':<36} {'all':>6} {'hook, contr.':>12} {'of CEL':>6}"
    rows = {key: figures(taken) for key, taken in samples.items()}

    def mean(name: str, *servers: str) -> float:
        return sum(rows[name, n].cpu_ms.get(each, 0) for n in BUSY for each in servers) / len(BUSY)

    for name in dict.fromkeys(name for name, _ in samples):
        everything = (API_SERVER, ETCD, WEBHOOK, CONTROLLER)
        total, cel = mean(name, *everything), mean(_cel((name, 0))[0], *everything)
        yield f"{name:<36} {total:>6.2f} {mean(name, WEBHOOK, CONTROLLER):>12.2f} {total / cel:>6.2f}"


def _cel(key: Key) -> Key:
    """Return the key of the CEL policies for such pods and as many clients."""
    name, clients = key
    return f"{Cel.name}{DIFFER if name.endswith(DIFFER) else ''}", clients
