"""What the API server itself pays for being registered with it: pods with and without GPUs, and where its profile has the CPU.

Short blocks with and without our webhooks follow each other, since their difference is a fraction of a millisecond. The profiles
are the API server's own (`/debug/pprof/profile`), taken while pods are created, and read by `go tool pprof`.
"""

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec
import urllib3

from tests.bench import bursts
from tests.bench.admissions import FOLDER, NAMESPACE, PODS, Admission, Nothing, Ours
from tests.bench.before import Version
from tests.bench.bursts import API_SERVER, WARM_UP
from tests.bench.clients import NUMBER
from tests.bench.measure import LoadFailed, measure, plan
from tests.bench.pods import model_server
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook

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
_LINE = re.compile(r"^\s*\S+\s+\S+%\s+\S+%\s+\S+\s+([\d.]+)%\s+(\S+)", re.MULTILINE)


class ApiRow(msgspec.Struct, frozen=True, kw_only=True):
    """CPU of the API server for a pod, in ms: the median of blocks, the middle half of them, and by part in % of its profile."""

    pod: str
    admitted_by: str
    cpu_ms: float
    quartiles_ms: tuple[float, float]
    percent: dict[str, float]


class ApiReport(msgspec.Struct, frozen=True, kw_only=True):
    """`more_ms`: by pod and version of ours, the median difference of neighbouring blocks with and without it."""

    rows: list[ApiRow]
    more_ms: dict[str, dict[str, float]]


def compare(
    versions: list[Version], *, rounds: int, creates: int, progress: Callable[[str], None]
) -> ApiReport:
    """Create `creates` pods of either kind in each block, `rounds` blocks of each, and profile each once."""
    blocks: dict[tuple[str, str], list[float]] = {}
    shares: dict[tuple[str, str], dict[str, float]] = {}
    progress("api: starting a control plane and our webhook")
    with ControlPlane() as plane:
        plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        admissions: list[Admission] = [Nothing(plane)]
        served = [
            Webhook(plane, config=FOLDER / "policy", host=number, source=version.source)
            for number, version in enumerate(versions, start=10)
        ]
        for webhook, version in zip(served, versions, strict=True):
            webhook.start()
            admissions.append(Ours(plane, webhook, version.after(Ours.name)))
        for number in range(1, rounds + 1):
            for admission in admissions:
                admission.register()
                admission.await_force()
                _block(plane, GPU_POD, WARM_UP)
                for pod in (CPU_POD, GPU_POD):
                    cpu = _block(plane, pod, creates)
                    blocks.setdefault((pod, admission.name), []).append(cpu)
                    progress(f"api: round {number}/{rounds}, {pod} pod, {admission.name}: {cpu:.2f} ms")
                    if number == rounds:
                        shares[pod, admission.name] = _profile(plane, pod)
                admission.unregister()
        for webhook in served:
            webhook.stop()
    rows = [
        ApiRow(
            pod=pod,
            admitted_by=name,
            cpu_ms=median(taken),
            quartiles_ms=_quartiles(taken),
            percent=shares[pod, name],
        )
        for (pod, name), taken in sorted(blocks.items())
    ]
    more: dict[str, dict[str, float]] = {}
    for (pod, name), taken in blocks.items():
        if name != Nothing.name:
            pairs = zip(taken, blocks[pod, Nothing.name], strict=True)
            more.setdefault(pod, {})[name] = median(ours - nothing for ours, nothing in pairs)
    return ApiReport(rows=rows, more_ms=more)


def _block(plane: ControlPlane, pod: str, creates: int) -> float:
    """Return the API server's CPU for one of so many pods, in milliseconds."""
    body = model_server(f"model-server-{NUMBER}", gpus=int(pod == GPU_POD))
    wanted = plan(plane, PODS, body=body, requests=creates, clients=CLIENTS)
    sample = measure(wanted, {API_SERVER: [plane.pids[API_SERVER]]}, want=201)
    bursts.clear(plane, NAMESPACE)
    return sample.cpu_seconds[API_SERVER] / creates * 1000


def _quartiles(taken: list[float]) -> tuple[float, float]:
    ordered = sorted(taken)
    return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]


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
    command = [
        go,
        "tool",
        "pprof",
        "-symbolize=none",
        "-top",
        "-cum",
        "-nodecount=5000",
        "-nodefraction=0",
        str(path),
    ]
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
