"""What the API server itself pays for being registered with it: pods with and without GPUs.

Short blocks with and without our webhooks follow each other, since their difference is a fraction of a millisecond.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median

from tests.bench import bursts
from tests.bench.admissions import NAMESPACE, Nothing, in_turns, serve
from tests.bench.before import Version
from tests.bench.bursts import WARM_UP
from tests.bench.figures import API_SERVER, Progress
from tests.controlplane import ControlPlane

CLIENTS = 8
GPU_POD, CPU_POD = "GPU", "CPU"
Key = tuple[str, str]  # pod, admission


def compare(versions: list[Version], *, rounds: int, creates: int, progress: Progress) -> Iterator[str]:
    """Create `creates` pods of either kind in each block, `rounds` blocks of each."""
    blocks: dict[Key, list[float]] = {}
    progress("api: starting a control plane and our webhook")
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane())
        admissions = [Nothing(plane), *serve(stack, plane, versions)]
        for number, admission in in_turns(admissions, rounds):
            _block(plane, GPU_POD, WARM_UP)
            for pod in (CPU_POD, GPU_POD):
                cpu = _block(plane, pod, creates)
                blocks.setdefault((pod, admission.name), []).append(cpu)
                progress(f"api: round {number}/{rounds}, {pod} pod, {admission.name}: {cpu:.2f} ms")
    return _lines(blocks)


def _lines(blocks: dict[Key, list[float]]) -> Iterator[str]:
    yield f"API SERVER: its CPU for one pod, {CLIENTS} clients"
    yield ""
    yield f"{'':<30} {'ms':>5} {'middle half':>12}"
    for (pod, name), taken in sorted(blocks.items()):
        ordered, quarter = sorted(taken), len(taken) // 4
        yield f"{pod} pod, {name:<21} {median(taken):>5.2f} {ordered[quarter]:>5.2f}–{ordered[-1 - quarter]:<6.2f}"
    yield ""
    for (pod, name), taken in blocks.items():
        if name != Nothing.name:
            pairs = zip(taken, blocks[pod, Nothing.name], strict=True)
            more = median(ours - nothing for ours, nothing in pairs)
            yield f"{more:+.2f} ms  {pod} pod, {name}: beyond nothing registered, median of neighbouring blocks"


def _block(plane: ControlPlane, pod: str, creates: int) -> float:
    """Return the API server's CPU for one of so many pods, in milliseconds."""
    counted = {API_SERVER: [plane.pids[API_SERVER]]}
    gpus = int(pod == GPU_POD)
    sample = bursts.create(plane, NAMESPACE, counted, clients=CLIENTS, creates=creates, gpus=gpus)
    bursts.clear(plane, NAMESPACE)
    return sample.cpu_seconds[API_SERVER] / creates * 1000
