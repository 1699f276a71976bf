"""What the API server itself pays for being registered with it: pods with and without GPUs, and where its profile has the CPU.

Short blocks with and without our webhooks follow each other, since their difference is a fraction of a millisecond. The profiles
are the API server's own (`/debug/pprof/profile`), taken while pods are created, and read by `go tool pprof`.
"""

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import urllib3

from tests.bench import bursts
from tests.bench.admissions import NAMESPACE, Nothing, in_turns, serve
from tests.bench.before import Version
from tests.bench.bursts import WARM_UP
from tests.bench.figures import API_SERVER, Progress
from tests.bench.measure import LoadFailed
from tests.controlplane import ControlPlane

CLIENTS = 8
GPU_POD, CPU_POD = "GPU", "CPU"
SECONDS = 5
"""Of a profile."""
PARTS = {
    "matchConditions": r"webhook/matchconditions\.\(\*matcher\)\.Match$",
    "mutating webhooks": r"webhook/mutating\.\(\*mutatingDispatcher\)\.Dispatch$",
    "validating webhooks": r"webhook/validating\.\(\*validatingDispatcher\)\.Dispatch$",
    "JSON patch": r"json-?patch.*\bPatch\)?\.Apply\w*$",
}
"""What is looked for in a profile, by the function in which it is, with what that calls; the first is part of the next two."""
Key = tuple[str, str]  # pod, admission
_LINE = re.compile(r"^\s*\S+\s+\S+%\s+\S+%\s+\S+\s+([\d.]+)%\s+(\S+)", re.MULTILINE)


def compare(versions: list[Version], *, rounds: int, creates: int, progress: Progress) -> Iterator[str]:
    """Create `creates` pods of either kind in each block, `rounds` blocks of each, and profile each once."""
    blocks: dict[Key, list[float]] = {}
    shares: dict[Key, dict[str, float]] = {}
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
                if number == rounds:
                    shares[pod, admission.name] = _profile(plane, pod)
    return _lines(blocks, shares)


def _lines(blocks: dict[Key, list[float]], shares: dict[Key, dict[str, float]]) -> Iterator[str]:
    yield f"API SERVER: its CPU for one pod, {CLIENTS} clients; of it the percentages of its profile"
    yield ""
    yield f"{'':<30} {'ms':>5} {'middle half':>12}  {'match':>5} {'mutate':>6} {'valid.':>6} {'patch':>5}"
    for (pod, name), taken in sorted(blocks.items()):
        ordered, quarter = sorted(taken), len(taken) // 4
        columns = zip(PARTS, (5, 6, 6, 5), strict=True)
        found = shares[pod, name]
        percent = (f"{f'{found[part]:.1f}' if found else '–':>{width}}" for part, width in columns)
        yield (
            f"{pod} pod, {name:<21} {median(taken):>5.2f} {ordered[quarter]:>5.2f}–{ordered[-1 - quarter]:<6.2f}  "
            f"{' '.join(percent)}"
        )
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


def _profile(plane: ControlPlane, pod: str) -> dict[str, float]:
    """Return the percentages of PARTS while such pods are created; none without Go."""
    go = shutil.which("go")
    if go is None:
        return {}
    ended = threading.Event()

    def load() -> None:
        while not ended.is_set():
            _block(plane, pod, WARM_UP)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        path = plane.processes.folder / "api.pprof"
        _save_profile(plane, path)
    finally:
        ended.set()
        loading.join()
    options = ("-symbolize=none", "-top", "-cum", "-nodecount=5000", "-nodefraction=0")
    command = [go, "tool", "pprof", *options, str(path)]
    top = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    functions = [(name, float(percent)) for percent, name in _LINE.findall(top)]
    return {
        part: max((percent for name, percent in functions if re.search(wanted, name)), default=0.0)
        for part, wanted in PARTS.items()
    }


def _save_profile(plane: ControlPlane, path: Path) -> None:
    token = json.loads(plane.kubeconfig().read_text())["users"][0]["user"]["token"]
    with urllib3.PoolManager(ca_certs=str(plane.ca_file), retries=False) as pool:
        address = f"{plane.url}/debug/pprof/profile?seconds={SECONDS}"
        answer = pool.request("GET", address, headers={"Authorization": f"Bearer {token}"})
    if answer.status != 200:
        raise LoadFailed(f"no profile of the API server: {answer.data.decode(errors='replace')}")
    path.write_bytes(answer.data)
