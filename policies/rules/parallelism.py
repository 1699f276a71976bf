"""Compare the processes that a container starts, one for each GPU, with the GPUs that it requests.

Reads:   --tensor-parallel-size, -tp, --tp, --num-shard (vLLM, SGLang, TGI), --nproc_per_node (torchrun) and --num_processes
         (accelerate) in command and args, GPUs of the container; nprocPerNode of a PyTorchJob, numProcPerNode of a TrainJob and
         its runtimes, slotsPerWorker of an MPIJob, GPUs of their pods.
Warns:   of more processes than GPUs, which fail or wait for GPUs that never come, and of fewer, which leave GPUs idle; of
         several MIG slices in one container.

Only certain mismatches are reported: a plain number beside whole GPUs, each of which is one device to a process. A server on
several nodes (Ray, --nnodes) may have more processes; a script with loops or background jobs may start several servers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice

from msgspec.structs import replace

from policies.finding import Edit, Finding, Severity
from policies.gpus.resource_mapping import GPUResource, Measure, ResourceMapping
from policies.gpus.vendors import of_all
from policies.pods.annotations import MODELS
from policies.pods.field_paths import path_parts, value_at
from policies.pods.pod import Container, ContainerPlace, Pod
from policies.pods.quantity import Quantity
from policies.pods.workload import Workload, WorkloadPods
from policies.reason import Reason
from policies.rule import Context, Rule, RuleOptions

ID = "parallelism"
LONGEST_TEXT = 16_384
"""Characters of command and args of a pod that are read at most, in the order of its containers."""
MAX_FLAGS = 16
"""Flags of one command that are read."""

ONE_DEVICE_EACH = of_all(lambda vendor: vendor.one_device_each)

_TENSOR = r"-tensor[-_]parallel[-_]size|-?tp|-tp[-_]size|-num[-_]shard"
_PER_NODE = r"-nproc[-_]per[-_]node"
_IN_TOTAL = r"-num[-_]processes"
# The first dash comes before what must not precede it, because `re` finds a character faster than a place.
_FLAGS = re.compile(
    rf"(-(?<![\w-]-)(?:{_TENSOR}|{_PER_NODE}|{_IN_TOTAL}))(?:=|\s+)[\"']?([0-9]{{1,4}})(?![\w.])"
)
_MACHINES = re.compile(r"(?<![\w-])--num[-_]machines(?:=|\s+)[\"']?([0-9]{1,4})(?![\w.])")
_ELSEWHERE = re.compile(r"machine|config[-_]file|main[-_]process[-_]ip")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_ACCELERATE = re.compile(r"\baccelerate\b")
_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\b|\baccelerate\b")
_SEVERAL_NODES = re.compile(
    r"(?<![A-Z])ray(?![A-Z])|kuberay|--nnodes|node[-_]rank|dist[-_]init[-_]addr|multi[-_]node|LWS_|--headless",
    re.IGNORECASE,
)
_OTHER_WAYS = re.compile(
    r"(?<![>&])&(?![>&\d])|\b(for|while|xargs)\b|_VISIBLE_DEVICES|(data|pipeline|context)[-_]parallel|(?<![\w-])--?[dp]p\b|"
    r"[dp]p[-_]size|draft"
)
"""Other users of GPUs than the processes that a flag counts: background jobs, loops, devices chosen by hand, parallelism over
data and pipeline stages, draft models."""
_BY_HAND = re.compile(r"(?<!\S)--?(g|t|N|ngpus|npernode|map-by|oversubscribe)\b")
"""How many processes mpirun starts on a node, or GPUs that each uses (nccl-tests' -g)."""

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
"""Kinds with a number of processes for each of their pods (api/ of mpi-operator, training-operator and trainer)."""

ONE_SLICE = (
    "should be 1: a CUDA process sees one slice of a card, so the others stay idle unless more processes run"
)
"""Maintainers in NVIDIA/k8s-device-plugin#728, and #446: of several the server used the first, and training did not start. Of two
kinds of slices the container saw only one."""

_warning = partial(Finding, rule=ID, severity=Severity.WARNING)


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
    texts = _texts(place.container for place, _ in counted)
    for (place, gpus), text in zip(counted, texts, strict=True):
        found = _processes(text)
        if not found:
            continue
        spans = _SEVERAL_NODES.search(text) is not None
        others = len(found) > 1 or _OTHER_WAYS.search(text) is not None
        for flag, count, machines in found:
            may_span_nodes = spans and re.search(_TENSOR, flag) is not None
            mismatch = _mismatch(
                count,
                gpus * machines,
                "the container" if machines == 1 else f"{machines} machines",
                may_be_more=may_span_nodes,
                may_be_fewer=others or may_span_nodes,
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
        is_by_hand = is_mpi and _any_command_has(_BY_HAND, workload.pods)
        for pods in workload.pods if count else ():
            if is_mpi and ".Worker." not in pods.path:
                continue  # the launcher of an MPIJob only starts the processes
            gpus, whose = _gpus_of_pod(pods.pod, context.resource_mapping), f"a pod of {pods.path}"
            # mpirun, torchrun and the runtimes of a TrainJob start one process for each GPU.
            is_one_each = (
                is_mpi or workload.group == "trainer.kubeflow.org" or _any_command_has(_TORCHRUN, [pods])
            )
            may_be_fewer = is_by_hand or not is_one_each
            mismatch = _mismatch(count, gpus, whose, may_be_fewer=may_be_fewer) if gpus else None
            if mismatch is not None:
                yield replace(mismatch, path=path, value=text, fix=(Edit(path, gpus),))
                break


def _mismatch(
    count: int, gpus: int, whose: str, *, may_be_more: bool = False, may_be_fewer: bool
) -> Finding | None:
    """Return the warning, without its place. None if the numbers agree or may differ."""
    if count > gpus and not may_be_more:
        message = f"should be at most {gpus}, the GPUs of {whose}"
        remedy = f"set {gpus} or request {count} GPUs"
        return _warning(reason=Reason.MORE_PROCESSES, message=message, remedy=remedy)
    if count < gpus and not may_be_fewer:
        message = f"should be {gpus}, the GPUs of {whose}: the others stay idle"
        return _warning(reason=Reason.IDLE_GPUS, message=message, remedy=f"set {gpus} or request {count}")
    return None


# ---- containers


def _slices(place: ContainerPlace, requested: Requested) -> Iterator[Finding]:
    slices = [(resource, amount) for resource, amount in requested if resource.measure is Measure.SLICES]
    count = sum(amount.value for _, amount in slices)
    if count > 1:
        yield _warning(
            reason=Reason.SEVERAL_SLICES,
            path=place.amount_paths(slices[0][0].name)[0],
            container=place.container.name,
            value=str(count),
            message=ONE_SLICE,
            remedy="request one larger slice, or one in each container",
        )


def _gpus(container: Container, requested: Requested) -> int:
    """Return the whole GPUs of the container. 0 if it requests none, or also other resources."""
    counted = [(resource, amount) for resource, amount in requested if resource.measure.is_count]
    if len(counted) != 1 or counted[0][0].name not in ONE_DEVICE_EACH:
        return 0
    return 0 if container.resources is None or container.resources.claims else counted[0][1].value


def _texts(containers: Iterable[Container]) -> Iterator[str]:
    """Yield the command line of each container without comments, and "" beyond LONGEST_TEXT."""
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
    """Return each flag with a number of processes, that number, and the machines on which they run."""
    found = [(each[1], int(each[2]), 1) for each in islice(_FLAGS.finditer(text), MAX_FLAGS)]
    if not any(re.search(_IN_TOTAL, flag) for flag, _, _ in found):
        return found
    machines = _MACHINES.search(text)
    # A configuration file, or a variable, may name more machines.
    if not _ACCELERATE.search(text) or (machines is None and _ELSEWHERE.search(text)):
        return [each for each in found if not re.search(_IN_TOTAL, each[0])]
    number = max(1, int(machines[1])) if machines else 1
    return [(flag, count, number) for flag, count, _ in found]


def counts_on_gpus(pod: Pod) -> bool:
    """Whether a declared model, or a command line that names a number of processes, depends on how many GPUs there are."""
    texts = _texts(place.container for place in pod.places)
    return not MODELS.isdisjoint(pod.annotations) or any(map(_processes, texts))


def _path(place: ContainerPlace, flag: str) -> str:
    """Return the path of the first item of args or command that has the flag."""
    container = place.container
    for name, items in (("args", container.args), ("command", container.command)):
        for index, item in enumerate(items or ()):
            if flag in item:
                return f"{place.path}.{name}[{index}]"
    return place.path


# ---- workloads


def _gpus_of_pod(pod: Pod, mapping: ResourceMapping) -> int:
    apps = (place.container for place in pod.apps)
    return sum(_gpus(container, mapping.container_requests(container)) for container in apps)


def _any_command_has(pattern: re.Pattern[str], pods: Iterable[WorkloadPods]) -> bool:
    texts = _texts(place.container for each in pods for place in each.pod.places)
    return any(map(pattern.search, texts))


RULE = Rule(
    id=ID,
    summary="as many processes are started as GPUs are requested",
    check=check,
    check_workload=check_workload,
    not_exported="it only warns, by reading the arguments of many launchers",
)
