"""Short blocks of creations under every admission, in random order, and what each creation costs.

A lap has a block of every row. A controller costs the API server something for every pod of the cluster; so it runs in that half
of a lap whose admissions need it, and the halves change places from lap to lap. A block ends REST seconds after its last answer,
because counts follow; what its servers spend in that time when nothing is created is taken off again.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.bench import bursts
from tests.bench.admissions import (
    FOLDER,
    NAMESPACE,
    OUR_CALLS,
    Admission,
    State,
    register,
    serve,
    static_policies,
)
from tests.bench.before import Version
from tests.bench.clients import NUMBER
from tests.bench.figures import API_SERVER, CONTROLLER, ETCD, WEBHOOK, Progress
from tests.bench.garbage import Memory, collection_seconds, compact, memory, revision
from tests.bench.installation import POLICY, ROOM, Installation, wait_until
from tests.bench.measure import Load, Sample, clocks, plan, used_since
from tests.bench.noop_server import NoopServer
from tests.bench.pods import model_server
from tests.bench.reviews import answers, capture
from tests.controlplane import ControlPlane
from tests.controlplane import webhook as installed_webhook
from tests.controlplane.etcd import Etcd
from tests.controlplane.webhook import Webhook

CREATES = 25
CLIENTS = 8
REST = 0.3
LAPS = 40
EQUAL, DIFFER, CPU = "", ", differ", ", CPU pod"
"""Pods of a block: with a GPU, with an argument of their own besides, without a GPU."""
OURS = State(calls=OUR_CALLS, refuses=True, places=True)
NOTHING, CEL, ALONE, INSTALLED = "nothing", "2 CEL policies", "gpu-admission", "installed"
STATIC = "policies in files"


class Row(NamedTuple):
    admission: Admission
    pods: str

    @property
    def name(self) -> str:
        return f"{self.admission.name}{self.pods}"


class Block(NamedTuple):
    """What was measured of a block, and what the API server's memory and etcd's revisions were before and after."""

    sample: Sample
    seconds: float
    memory: tuple[Memory, Memory]
    revisions: int
    has_controller: bool

    @property
    def collections(self) -> int:
        """Return how many there were in the block itself; the profile after it makes none."""
        return self.memory[1].collections - self.memory[0].collections


class Costs(NamedTuple):
    """Of one row: CPU in ms per create by server, a value for each lap, and the milliseconds of all its requests."""

    cpu_ms: dict[str, list[float]]
    milliseconds: list[float]

    @property
    def all_cpu_ms(self) -> list[float]:
        return [sum(lap) for lap in zip(*self.cpu_ms.values(), strict=True)]


class Bench:
    """A control plane with one tree of ours, between whose admissions nothing has to be installed or registered."""

    def __init__(self, stack: ExitStack, version: Version) -> None:
        self.version = version
        files = Path(stack.enter_context(TemporaryDirectory()))
        in_files = (f"{NAMESPACE}-static", f"{NAMESPACE}-both")
        arguments = static_policies(files, POLICY, *in_files)
        self.plane = plane = stack.enter_context(ControlPlane(apiserver_args=arguments))
        names = ("nothing", "noop", "cel", "static", "both", "installed", "never", "quota")
        for name in (NAMESPACE, *(f"{NAMESPACE}-{name}" for name in names)):
            plane.client().post("/api/v1/namespaces", {"metadata": {"name": name}})
        self._installed = stack.enter_context(Installation(plane, version))
        alone = serve(stack, plane, version, host=30)
        register(plane, version, alone.address, alone.certificates / "ca.crt", NAMESPACE, in_files[1])
        ours = {WEBHOOK: [plane.pids[alone.name]]}
        in_alone = Admission(ALONE, NAMESPACE, ours, OURS)
        in_alone.await_force(plane)
        floor = stack.enter_context(NoopServer(plane, host=21, answers=answers(alone, capture(plane))))
        register(plane, version, floor.address, floor.ca_file, f"{NAMESPACE}-noop")
        plane.kubectl("apply", "-f", FOLDER / "cel.yaml")
        self.bare = [
            Admission(NOTHING, f"{NAMESPACE}-nothing"),
            Admission(
                "no-op as we are",
                f"{NAMESPACE}-noop",
                {WEBHOOK: [floor.pid]},
                State(calls=OUR_CALLS, places=True),
            ),
            Admission(CEL, f"{NAMESPACE}-cel", {}, State(refuses=True, places=True)),
            Admission(STATIC, in_files[0], {}, State(refuses=True)),
            in_alone,
            Admission(f"{ALONE}, {STATIC}", in_files[1], ours, OURS),
        ]
        serving = self._serve(stack)
        self.installed = [
            Admission(f"{INSTALLED}{more}", f"{NAMESPACE}-{name}", serving, OURS)
            for more, name in (("", "installed"), (", never", "never"), (", GPUQuota", "quota"))
        ]
        for admission in self.bare:
            admission.await_force(plane)
        self._etcd = Etcd(plane)
        stack.callback(self._etcd.close)
        self._load = stack.enter_context(Load())
        self._compacted = revision(self._etcd)
        self._created = 0
        self._blocks: dict[str, list[Block]] = {}
        self._at_rest: dict[tuple[bool, str], list[float]] = {}
        self._collection: list[float] = []
        self._compaction: list[float] = []

    def _serve(self, stack: ExitStack) -> dict[str, Sequence[int]]:
        plane, version = self.plane, self.version
        kubeconfig = plane.account_kubeconfig(installed_webhook.NAMESPACE, "gpu-admission-webhook")
        webhook = stack.enter_context(
            Webhook(
                plane,
                config=POLICY,
                host=31,
                arguments=("--kubeconfig", kubeconfig),
                source=version.source,
                installation=installed_webhook.NAMESPACE,
            )
        )
        self._installed.set_quota(f"{NAMESPACE}-quota", ROOM)
        authority = webhook.certificates / "ca.crt"
        register(plane, version, webhook.address, authority, f"{NAMESPACE}-installed", f"{NAMESPACE}-quota")
        register(plane, version, webhook.address, authority, f"{NAMESPACE}-never", has_conditions=False)
        return {WEBHOOK: [plane.pids[webhook.name]]}

    def half(self, rows: Sequence[Row], *, has_controller: bool) -> None:
        """Measure a block of each row, with or without a controller beside them."""
        if has_controller and self._installed.controller is None:
            self._installed.start_controller()
            self._await_rest()
            for admission in self.installed:
                admission.await_force(self.plane)
        elif not has_controller and self._installed.controller is not None:
            self._installed.stop_controller()
        self._collection.append(collection_seconds(self.plane))
        self._measure_rest(has_controller=has_controller)
        for row in rows:
            self._blocks.setdefault(row.name, [])  # in the order of the table
        for row in random.sample(rows, len(rows)):
            self._blocks[row.name].append(self._block(row, has_controller=has_controller))
        for namespace in {row.admission.namespace for row in rows}:
            bursts.clear(self.plane, namespace)
        if has_controller:
            self._installed.await_settled(f"{NAMESPACE}-quota", 0)
        compacted = compact(self._etcd, self.plane.pids[ETCD], self._compacted)
        self._compacted = compacted.now
        self._compaction.append(compacted.seconds_each)

    def _servers(self, admission: Admission, *, has_controller: bool) -> dict[str, Sequence[int]]:
        controller = self._installed.controller
        ours = {CONTROLLER: [controller.pid]} if has_controller and controller else {}
        return {**bursts.servers(self.plane), **admission.servers, **ours}

    def _await_rest(self) -> None:
        """Return once the controller has done what follows its start."""
        controller = self._installed.controller
        assert controller is not None
        servers = {CONTROLLER: [controller.pid]}

        def rests() -> bool:
            before = clocks(servers)
            time.sleep(0.5)
            return used_since(before, clocks(servers))[CONTROLLER] < 0.02

        wait_until(rests, "the controller does not rest")

    def _measure_rest(self, *, has_controller: bool) -> None:
        admission = (self.installed if has_controller else self.bare)[-1]
        servers = self._servers(admission, has_controller=has_controller)
        before = clocks(servers)
        time.sleep(REST)
        for name, seconds in used_since(before, clocks(servers)).items():
            self._at_rest.setdefault((has_controller, name), []).append(seconds / REST)

    def _block(self, row: Row, *, has_controller: bool) -> Block:
        body = _pod(row.pods)
        self._created += CREATES
        path = bursts.pods(row.admission.namespace)
        wanted = plan(
            self.plane, path, body, requests=CREATES, clients=CLIENTS, first=self._created % 1_000_000
        )
        before, revisions = memory(self.plane, collect=True), revision(self._etcd)
        servers = self._servers(row.admission, has_controller=has_controller)
        began = time.monotonic()
        sample = self._load.run(wanted, servers, want=201, rest_seconds=REST)
        seconds, written = time.monotonic() - began, revision(self._etcd) - revisions
        return Block(sample, seconds, (before, memory(self.plane, collect=False)), written, has_controller)

    def forget(self) -> None:
        for blocks in self._blocks.values():
            blocks.clear()

    def costs(self) -> dict[str, Costs]:
        """Return those of each row, with what is paid later and without what servers spend at rest."""
        return {name: self._costs(blocks) for name, blocks in self._blocks.items()}

    def _costs(self, blocks: Sequence[Block]) -> Costs:
        cpu: dict[str, list[float]] = {}
        for block in blocks:
            for server, seconds in block.sample.cpu_seconds.items():
                at_rest = sum(taken := self._at_rest.get((block.has_controller, server), [0.0])) / len(taken)
                later = self._later(block, server)
                per_create = (seconds - at_rest * block.seconds + later) / CREATES * 1000
                cpu.setdefault(server, []).append(per_create)
        return Costs(cpu, [value for block in blocks for value in block.sample.outcome.milliseconds])

    def _later(self, block: Block, server: str) -> float:
        """Return the seconds of garbage collection or compaction that a block causes, less those that happened in it."""
        if server == API_SERVER:
            before, after = block.memory
            share = (after.allocated - before.allocated) / (before.next_collection - before.in_use)
            return (share - block.collections) * median(self._collection)
        return block.revisions * median(self._compaction) if server == ETCD else 0.0


def _pod(kind: str) -> dict[str, object]:
    body = model_server(f"model-server-{NUMBER}", gpus=0 if kind == CPU else 1)
    body["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": NUMBER}
    if kind == DIFFER:
        body["spec"]["containers"][0]["args"].append(f"--seed={NUMBER}")
    return body


def run(
    versions: Sequence[Version], kinds: Sequence[str], *, laps: int, progress: Progress
) -> Mapping[Version, dict[str, Costs]]:
    """Measure every admission with pods of these kinds, under each version on a control plane of its own."""
    with ExitStack() as stack:
        progress("blocks: starting a control plane and all webhooks for each version")
        benches = [Bench(stack, version) for version in versions]
        for lap in _laps(laps, progress):
            for has_controller in (True, False) if lap % 2 else (False, True):
                for bench in random.sample(benches, len(benches)):
                    admissions = bench.installed if has_controller else bench.bare
                    rows = [Row(admission, kind) for admission in admissions for kind in kinds]
                    bench.half(rows, has_controller=has_controller)
                    if lap == 0:  # connections, the Go runtime's and our caches
                        bench.forget()
        return {bench.version: bench.costs() for bench in benches}


def _laps(laps: int, progress: Progress) -> Iterator[int]:
    """Yield the number of each lap, 0 for the first one, which warms up."""
    for lap in range(laps + 1):
        progress(f"blocks: lap {lap}/{laps}")
        yield lap
