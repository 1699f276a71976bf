"""Compare the processes that a container starts, one for each GPU, with the GPUs that it requests.

Reads:   --tensor-parallel-size, -tp, --tp, --num-shard (vLLM, SGLang, TGI), --nproc_per_node (torchrun) and --num_processes
         (accelerate) in command and args, GPUs of the container; nprocPerNode of a PyTorchJob, numProcPerNode of a TrainJob and
         its runtimes, slotsPerWorker of an MPIJob, GPUs of their pods.
Warns:   about more processes than GPUs, which fail or wait forever, and about fewer, which leave GPUs idle; about several MIG
         slices in one container.

A mismatch is reported only if it is certain: the flag has a plain number, and the container requests whole GPUs, each of which a
process sees as one device. A server on several nodes (Ray, --nnodes) may have more processes. A script with loops or background
jobs may start several servers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice

from msgspec.structs import replace

from policies.finding import Edit, Finding, Reason, Severity, together
from policies.gpus.resource_mapping import GPUResource, Measure, ResourceMapping
from policies.gpus.vendors import from_all_vendors
from policies.pods.annotations import MODEL_NAMES
from policies.pods.field_paths import path_parts, value_at
from policies.pods.pod import Container, ContainerPlace, Pod
from policies.pods.quantity import Quantity
from policies.pods.workload import Workload, WorkloadPods
from policies.rule import Context, Rule, RuleOptions

SEVERAL_SLICES = Reason(
    "SeveralSlices", "a container requests several slices or shares, of which a process sees one"
)
MORE_PROCESSES = Reason("MoreProcesses", "a container starts more processes than it has GPUs")
IDLE_GPUS = Reason("IdleGPUs", "a container starts fewer processes than it has GPUs")

ID = "parallelism"
LONGEST_TEXT = 16_384
"""Maximum of characters of command and args that are read of a pod, in the order of its containers."""
MAX_FLAGS = 16
"""Maximum of flags that are read of one command."""

ONE_DEVICE_EACH = from_all_vendors(lambda vendor: vendor.one_device_each)

_NUMBER = r"(?:=|\s+)[\"']?([0-9]{1,4})(?![\w.])"
"""The plain number of a flag, as in `--tp 4` and `--tp="4"`."""
# The dash is before its own lookbehind, because `re` searches a literal character faster than a lookbehind.
_FLAG = re.compile(
    r"(-(?<![\w-]-)(?:-?tp|-tp[-_]size|-tensor[-_]parallel[-_]size|-num[-_]shard|-nproc[-_]per[-_]node|-num[-_]processes))"
    rf"{_NUMBER}"
)
"""A number of processes: of a server (vLLM, SGLang, TGI), on a node (torchrun), or on all machines (accelerate)."""
_MACHINES = re.compile(rf"(?<![\w-])--num[-_]machines{_NUMBER}")
_MACHINES_ELSEWHERE = re.compile(r"machine|config[-_]file|main[-_]process[-_]ip")
"""Signs that a variable or a configuration file sets the number of machines."""
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_ACCELERATE = re.compile(r"\baccelerate\b")
_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\b|\baccelerate\b")
_SEVERAL_NODES = re.compile(
    r"(?<![A-Z])ray(?![A-Z])|kuberay|--nnodes|node[-_]rank|dist[-_]init[-_]addr|multi[-_]node|LWS_|--headless",
    re.IGNORECASE,
)
"""Signs that a server runs on several nodes: Ray, ranks or addresses of nodes, variables of a LeaderWorkerSet."""
_OTHER_GPU_USERS = re.compile(
    r"(?<![>&])&(?![>&\d])"  # a background job; not && nor a redirection such as 2>&1
    r"|\b(for|while|xargs)\b|_VISIBLE_DEVICES|(data|pipeline|context)[-_]parallel|(?<![\w-])--?[dp]p\b|[dp]p[-_]size|draft"
)
"""Signs that more than the counted processes use GPUs: background jobs, loops, a chosen list of devices, data or pipeline
parallelism, draft models."""
_MPI_LAYOUT = re.compile(r"(?<!\S)--?(g|t|N|ngpus|npernode|map-by|oversubscribe)\b")
"""Options of mpirun for the processes on a node, and of nccl-tests for the GPUs of a process (-g)."""

_FIELDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("kubeflow.org", "MPIJob"): ("spec.slotsPerWorker",),
    ("kubeflow.org", "PyTorchJob"): ("spec.nprocPerNode", "spec.elasticPolicy.nProcPerNode"),
    ("sagemaker.amazonaws.com", "HyperPodPyTorchJob"): ("spec.nprocPerNode",),
    ("trainer.kubeflow.org", "TrainJob"): ("spec.trainer.numProcPerNode",),
    ("trainer.kubeflow.org", "TrainingRuntime"): ("spec.mlPolicy.torch.numProcPerNode", "spec.mlPolicy.mpi.numProcPerNode"),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): (
        "spec.mlPolicy.torch.numProcPerNode", "spec.mlPolicy.mpi.numProcPerNode",
    ),
}  # fmt: skip
"""Fields with the number of processes in each pod, by kind (api/ of mpi-operator, training-operator and trainer)."""

_warning = partial(Finding, severity=Severity.WARNING)
_several_slices = partial(
    _warning,
    reason=SEVERAL_SLICES,
    message="should be 1: a CUDA process sees one slice of a card, so the others stay idle unless more processes run",
    remedy="request one larger slice, or one in each container",
)
"""Source: maintainers in NVIDIA/k8s-device-plugin#728, and #446. With several slices, a server used only the first one, and
training did not start. With two kinds of slices, the container saw only one kind."""

Requested = tuple[tuple[GPUResource, Quantity], ...]
"""The GPU resources of a container, and their amounts."""


def check(pod: Pod, _options: RuleOptions, context: Context) -> Iterator[Finding]:
    counted: list[tuple[ContainerPlace, int]] = []
    for place in pod.places:
        requested = context.resource_mapping.container_requests(place.container)
        if requested:
            yield from _slices(place, requested)
            if gpus := _gpus(place.container, requested):
                counted.append((place, gpus))
    texts = _command_lines(place.container for place, _ in counted)
    for (place, gpus), text in zip(counted, texts, strict=True):
        flags = _processes(text)
        if not flags:
            continue
        on_several_nodes = _SEVERAL_NODES.search(text) is not None
        has_other_users = len(flags) > 1 or _OTHER_GPU_USERS.search(text) is not None
        for flag, count, machines in flags:
            is_of_server = "proc" not in flag  # --tp and the like; not --nproc_per_node, --num_processes
            spans_nodes = on_several_nodes and is_of_server
            owner = "the container" if machines == 1 else f"{machines} machines"
            may_be_fewer = has_other_users or spans_nodes
            mismatch = _mismatch(
                count, gpus * machines, owner, may_be_more=spans_nodes, may_be_fewer=may_be_fewer
            )
            if mismatch is not None:
                path, value = _path(place, flag), f"{flag} {count}"
                yield replace(mismatch, path=path, container=place.container.name, value=value)
                break


def check_workload(workload: Workload, _options: RuleOptions, context: Context) -> Iterator[Finding]:
    for path in _FIELDS.get((workload.group, workload.kind), ()):
        text = str(value_at(workload.data, path_parts(path)))
        count = int(text) if re.fullmatch("[0-9]{1,4}", text) else 0
        is_mpi = workload.kind == "MPIJob" and count > 0
        has_layout = is_mpi and _any_command_has(_MPI_LAYOUT, workload.pods)
        for pods in workload.pods if count else ():
            if is_mpi and ".Worker." not in pods.path:
                continue  # the launcher of an MPIJob only starts the processes
            gpus, owner = _gpus_of_pod(pods.pod, context.resource_mapping), f"a pod of {pods.path}"
            # mpirun, torchrun and the runtimes of a TrainJob start one process for each GPU.
            is_one_each = (
                is_mpi or workload.group == "trainer.kubeflow.org" or _any_command_has(_TORCHRUN, [pods])
            )
            may_be_fewer = has_layout or not is_one_each
            mismatch = _mismatch(count, gpus, owner, may_be_fewer=may_be_fewer) if gpus else None
            if mismatch is not None:
                yield replace(mismatch, path=path, value=text, choices=together(Edit(path, gpus)))
                break


def _mismatch(
    count: int, gpus: int, owner: str, *, may_be_more: bool = False, may_be_fewer: bool
) -> Finding | None:
    """Return the warning, without path and container. None if the numbers match, or are allowed to differ."""
    if count > gpus and not may_be_more:
        message = f"should be at most {gpus}, the GPUs of {owner}"
        remedy = f"set {gpus} or request {count} GPUs"
        return _warning(reason=MORE_PROCESSES, message=message, remedy=remedy)
    if count < gpus and not may_be_fewer:
        message = f"should be {gpus}, the GPUs of {owner}: the others stay idle"
        return _warning(reason=IDLE_GPUS, message=message, remedy=f"set {gpus} or request {count}")
    return None


def _slices(place: ContainerPlace, requested: Requested) -> Iterator[Finding]:
    slices = [(resource, amount) for resource, amount in requested if resource.measure is Measure.SLICES]
    count = sum(amount.value for _, amount in slices)
    if count > 1:
        path, name = place.amount_paths(slices[0][0].name)[0], place.container.name
        yield _several_slices(path=path, container=name, value=str(count))


def _gpus(container: Container, requested: Requested) -> int:
    """Return the number of whole GPUs of the container. 0 if it requests none, or also other GPU resources."""
    counted = [(resource, amount) for resource, amount in requested if resource.measure.is_count]
    if len(counted) != 1 or counted[0][0].name not in ONE_DEVICE_EACH:
        return 0
    return 0 if container.resources is None or container.resources.claims else counted[0][1].value


def _command_lines(containers: Iterable[Container]) -> Iterator[str]:
    """Yield the command line of each container, without comments. It is "" for containers beyond LONGEST_TEXT."""
    unread = LONGEST_TEXT
    for container in containers:
        parts = (*(container.command or ()), *(container.args or ()))
        length = sum(map(len, parts)) + len(parts)
        if length > unread:
            yield ""
            continue
        unread -= length
        text = "\n".join(parts)
        yield _COMMENT.sub("", text) if "#" in text else text


def _processes(text: str) -> list[tuple[str, int, int]]:
    """Return each flag that sets a number of processes, the number, and on how many machines they run."""
    flags = [(match[1], int(match[2]), 1) for match in islice(_FLAG.finditer(text), MAX_FLAGS)]
    if not any("processes" in flag for flag, _, _ in flags):
        return flags
    machines = _MACHINES.search(text)
    if not _ACCELERATE.search(text) or (machines is None and _MACHINES_ELSEWHERE.search(text)):
        return [flag for flag in flags if "processes" not in flag[0]]
    number = max(1, int(machines[1])) if machines else 1
    return [(flag, count, number) for flag, count, _ in flags]


def depends_on_gpu_count(pod: Pod) -> bool:
    """Whether the pod must change with its number of GPUs: it declares a model, or sets a number of processes."""
    texts = _command_lines(place.container for place in pod.places)
    return not MODEL_NAMES.isdisjoint(pod.annotations) or any(map(_processes, texts))


def _path(place: ContainerPlace, flag: str) -> str:
    """Return the path of the first item of args or command that has the flag."""
    container = place.container
    for name, items in (("args", container.args), ("command", container.command)):
        for index, item in enumerate(items or ()):
            if flag in item:
                return f"{place.path}.{name}[{index}]"
    return place.path


def _gpus_of_pod(pod: Pod, mapping: ResourceMapping) -> int:
    apps = (place.container for place in pod.apps)
    return sum(_gpus(container, mapping.container_requests(container)) for container in apps)


def _any_command_has(pattern: re.Pattern[str], pods: Iterable[WorkloadPods]) -> bool:
    texts = _command_lines(place.container for each in pods for place in each.pod.places)
    return any(map(pattern.search, texts))


RULE = Rule(
    id=ID,
    reasons=(SEVERAL_SLICES, MORE_PROCESSES, IDLE_GPUS),
    summary="as many processes are started as GPUs are requested",
    check=check,
    check_workload=check_workload,
    not_exported="it only warns, by reading the arguments of many launchers",
)
