"""Compare the processes that a container starts, one for each GPU, with the GPUs that it requests.

Reads:   the flags of vLLM, SGLang, TGI, torchrun, accelerate, Ray and DeepSpeed in command and args, with variables whose numbers
         are in env, GPUs of the container, the pods that share a model (`Owner.model_pods`); the fields in
         `policies/pods/process_fields.py`, GPUs of their pods.
Warns:   about more processes than GPUs, which fail or wait forever, and about fewer, which leave GPUs idle; about several MIG
         slices in one container.

A mismatch is reported only if it is certain: the flag has a plain number, and the container requests whole GPUs, each of which a
process sees as one device. A server that finds other nodes by itself (Ray, --nnodes) may have more processes. A script with loops
or background jobs may start several servers.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import ceil, prod

from msgspec.structs import replace

from policies.finding import Edit, Edits, Finding, Reason, warning
from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.gpus.vendors import from_all_vendors
from policies.pods.field_paths import path_parts, value_at
from policies.pods.pod import Container, ContainerPlace, Pod
from policies.pods.process_fields import StatedProcesses, served_gpus, stated_processes
from policies.pods.quantity import Quantity
from policies.pods.workload import Owner, Workload, WorkloadPods
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
    r"(-(?<![\w-]-)(?:-?tp|-tp[-_]size|-tensor[-_]parallel[-_]size|-num[-_]shard|-nproc[-_]per[-_]node|-num[-_]processes"
    rf"|-num[-_]gpus)){_NUMBER}"
)
"""A number of processes: of a server (vLLM, SGLang, TGI), on a node (torchrun, Ray, DeepSpeed), on all machines (accelerate)."""
_PIPELINE = re.compile(rf"(-(?<![\w-]-)(?:-?pp|-pp[-_]size|-pipeline[-_]parallel[-_]size)){_NUMBER}")
_DATA = re.compile(rf"(-(?<![\w-]-)(?:dp|-data[-_]parallel[-_]size)){_NUMBER}")
"""Of vLLM. In SGLang, data parallelism may be within tensor parallelism."""
_MACHINES = re.compile(rf"(?<![\w-])--num[-_]machines{_NUMBER}")
_MACHINES_ELSEWHERE = re.compile(r"machine|config[-_]file|main[-_]process[-_]ip")
"""Signs that a variable or a configuration file sets the number of machines."""
_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)(?::?-[^}]{0,32})?\}|(\w+))")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_ACCELERATE = re.compile(r"\baccelerate\b")
_STARTS_ON_GPUS = re.compile(r"\bray start\b|\bdeepspeed\b")
"""Programs whose --num-gpus says on how many GPUs of a node they start processes."""
_VLLM = re.compile(r"\bvllm\b")
_SERVERS = re.compile(r"\bvllm\b|\bsglang\b|\btrtllm|\blmdeploy\b|\btext-generation-")
"""Programs that start their own processes. A training script has those of its launcher."""
_PARALLEL = re.compile(r"parallel|(?<![\w-])--?[tpd]p\b|^[0-9]+$")
"""Signs that arguments, or another number, say how a server is spread."""
_TGI, _NUM_SHARD = re.compile(r"\btext-generation-inference\b"), "NUM_SHARD"
"""The image of Text Generation Inference, and the variable that is its --num-shard."""
_TORCHRUN = re.compile(r"\btorchrun\b|\bhyperpodrun\b|\btorch\.distributed\b|\baccelerate\b")
_SEVERAL_NODES = re.compile(
    r"(?<![A-Z])ray(?![A-Z])|kuberay|--nnodes|node[-_]rank|dist[-_]init[-_]addr|multi[-_]node|LWS_|--headless"
    r"|data[-_]parallel[-_](?!size[=\s])|(?<![\w-])-dp[a-z]",
    re.IGNORECASE,
)
"""Signs that a server runs on several nodes: Ray, ranks or addresses of nodes or of data parallelism, variables of a
LeaderWorkerSet."""
_OTHER_GPU_USERS = re.compile(
    r"(?<![>&])&(?![>&\d])"  # a background job; not && nor a redirection such as 2>&1
    r"|\b(for|while|xargs)\b|_VISIBLE_DEVICES|(data|pipeline|context)[-_]parallel|(?<![\w-])--?[dp]p\b|[dp]p[-_]size|draft"
)
"""Signs that more than the counted processes use GPUs: background jobs, loops, a chosen list of devices, data or pipeline
parallelism, draft models."""
_MPI_LAYOUT = re.compile(r"(?<!\S)--?(g|t|N|ngpus|npernode|map-by|oversubscribe)\b")
"""Options of mpirun for the processes on a node, and of nccl-tests for the GPUs of a process (-g)."""

_RAY_CLUSTER = "spec.rayClusterConfig"

_several_slices = partial(
    warning,
    reason=SEVERAL_SLICES,
    message="should be 1: a CUDA process sees one slice of a card, so the others stay idle unless more processes run",
    remedy="request one larger slice, or one in each container",
)
"""Source: maintainers in NVIDIA/k8s-device-plugin#728, and #446. With several slices, a server used only the first one, and
training did not start. With two kinds of slices, the container saw only one kind."""

Requested = tuple[tuple[GPUResource, Quantity], ...]
"""The GPU resources of a container, and their amounts."""
Multipliers = Sequence[tuple[str, int]]
"""Names of flags or paths of fields, with the number by which each multiplies the processes."""
EditsForNumber = Callable[[int], Edits]
Counted = tuple[ContainerPlace, str, int]
"""A container, its GPU resource, and the amount."""
PodsWithGPUs = tuple[WorkloadPods, Sequence[Counted]]
Stated = Sequence[tuple[WorkloadPods, Sequence[Counted], StatedProcesses]]


def check(pod: Pod, _options: RuleOptions, context: Context) -> Iterator[Finding]:
    for place in pod.places:
        requested = context.resource_mapping.container_requests(place.container)
        if requested:
            yield from _slice_findings(place, requested)
    counted = list(_with_gpus(pod.places, context.resource_mapping))
    texts = _command_lines(place.container for place, _, _ in counted)
    for (place, resource, gpus), text in zip(counted, texts, strict=True):
        findings = _command_findings(place, resource, gpus, text, context.owner)
        yield from islice(findings, 1)


def _command_findings(
    place: ContainerPlace, resource: str, gpus: int, text: str, owner: Owner
) -> Iterator[Finding]:
    """Yield the warnings about the processes that the command of a container with these GPUs starts."""
    flags = _processes(text)
    is_one_server = all(_is_of_server(flag) for flag, _, _ in flags) and not flags[1:]
    times = _multipliers(f"{place.container.image}\n{text}") if is_one_server else []
    if times and not flags:
        (flag, count), *times = times
        flags = [(flag, count, 1)]
    if not flags:
        return
    pods = owner.model_pods if owner.model_pods_are_all or not _SEVERAL_NODES.search(text) else None
    for counted in (flags[0][0], *(flag for flag, _ in times)):
        text = text.replace(counted, "")
    has_other_users = len(flags) > 1 or _OTHER_GPU_USERS.search(text) is not None
    for flag, count, machines in flags:
        nodes = pods if _is_of_server(flag) else machines
        if nodes is None:
            continue
        owners = "pods" if _is_of_server(flag) else "machines"
        whose = "the container" if nodes == 1 else f"{nodes} {owners} with {gpus} each"
        may_be_fewer = has_other_users or (nodes > 1 and _is_of_server(flag))
        by = partial(_flag_set_to, place, flag, count), partial(_requesting_edits, place, resource)
        mismatch = _mismatch(count, times, gpus, nodes, whose, *by, may_be_fewer=may_be_fewer)
        if mismatch is not None:
            path, value = _path(place, flag), f"{flag} {count}"
            yield replace(mismatch, path=path, container=place.container.name, value=value)


def check_workload(workload: Workload, _options: RuleOptions, context: Context) -> Iterator[Finding]:
    mapping = context.resource_mapping
    with_gpus = [(pods, list(_with_gpus(pods.pod.apps, mapping))) for pods in workload.pods]
    all_counted = all(counted or not mapping.pod_requests_gpus(pods.pod) for pods, counted in with_gpus)
    compared = [
        (pods, counted, stated)
        for pods, counted in with_gpus
        if counted
        for stated in stated_processes(workload.group, workload.kind, workload.data, path_parts(pods.path))
        if not _is_set_elsewhere(stated, pods)
    ]
    if all_counted:
        yield from _serve_config_findings(workload, with_gpus, compared)
    known: set[str] = set()
    for pods, counted, stated in compared:
        field, gpus, same = stated.field, _gpus(counted), [(pods, counted)]
        nodes = pods.owner.model_pods if field.shared else 1
        if nodes is None or (field.anywhere and not (all_counted and _have_most(gpus, compared))):
            continue
        if not field.anywhere:
            same = [(others, of_others) for others, of_others, other in compared if other.path == stated.path]
        by = partial(_field_set_to, stated), partial(_requesting_edits_in, same)
        whose = f"a pod of {pods.path}" if nodes == 1 else f"{nodes} pods with {gpus} each"
        is_script = field.torchrun and not _any_command_has(_TORCHRUN, [pods])
        is_partial = is_script or field.anywhere or field.shared
        may_be_fewer = is_partial or _any_command_has(_MPI_LAYOUT, workload.pods)
        mismatch = _mismatch(stated.count, stated.times, gpus, nodes, whose, *by, may_be_fewer=may_be_fewer)
        if mismatch is None or stated.path in known:
            continue
        known.add(stated.path)
        if field.before and stated.count == 1:
            mismatch = replace(mismatch, message=f"{mismatch.message} before {field.before}")
        if workload.completed_by:
            mismatch = replace(mismatch, message=f"{mismatch.message}, with {workload.completed_by}")
        yield replace(mismatch, path=stated.path, value=str(stated.count))


def _serve_config_findings(
    workload: Workload, with_gpus: Sequence[PodsWithGPUs], found: Stated
) -> Iterator[Finding]:
    """Warn of a RayService whose deployments need more GPUs than all of its pods have."""
    needed = served_gpus(workload.serve_config)
    is_elastic = value_at(workload.data, path_parts(f"{_RAY_CLUSTER}.enableInTreeAutoscaling")) is True
    total, groups = 0, {}
    for pods, counted in with_gpus if needed else ():
        is_group = pods.path.endswith("].template")
        count = pods.count.maximum if is_elastic and is_group else pods.count.running
        if counted and not count:
            return
        stated = (processes.count for others, _, processes in found if others is pods)
        gpus = max(_gpus(counted), *stated, 0) if counted else 0
        total += gpus * (count or 0)
        if gpus and is_group:
            groups[gpus] = pods.path.removesuffix(".template"), count or 0
    if 0 < total < needed:
        edits: Edits = ()
        if groups:
            gpus, (path, count) = max(groups.items())
            edits = _growing_edits(
                workload, path, count + ceil((needed - total) / gpus), is_elastic=is_elastic
            )
        yield warning(
            reason=MORE_PROCESSES,
            path="spec.serveConfigV2",
            message=f"its deployments need {float(needed):g} GPUs, and all pods have {total}",
            remedy=f"set {' and '.join(f'{edit.path}: {edit.value}' for edit in edits)}" if edits else "",
            choices=(edits,) if edits else (),
            is_example=True,  # or fewer replicas of the deployments, in the text
        )


def _growing_edits(workload: Workload, path: str, pods: int, *, is_elastic: bool) -> Edits:
    """Return the edits that give a group of workers this number of pods."""
    group = value_at(workload.data, path_parts(path))
    hosts, most = group.get("numOfHosts"), group.get("maxReplicas")
    replicas = ceil(pods / hosts) if isinstance(hosts, int) and hosts > 0 else pods
    fields = () if is_elastic else ("replicas",)
    if isinstance(most, int) and most < replicas:
        fields = (*fields, "maxReplicas")
    return tuple(Edit(f"{path}.{field}", replicas) for field in fields)


def _have_most(gpus: int, stated: Stated) -> bool:
    """Whether no pod has more GPUs than these, or states that it has."""
    return all(gpus >= (_gpus(counted) if each.field.anywhere else each.count) for _, counted, each in stated)


def _gpus(counted: Sequence[Counted]) -> int:
    return sum(gpus for _, _, gpus in counted)


def _is_set_elsewhere(stated: StatedProcesses, pods: WorkloadPods) -> bool:
    """Whether arguments of a server may set or multiply the number that its operator passes to it."""
    has_command = any(place.container.command for place in pods.pod.apps)
    is_certain = not (has_command or _PARALLEL.search(stated.unless) or _any_command_has(_PARALLEL, [pods]))
    return stated.field.server and not is_certain


def _mismatch(
    count: int,
    times: Multipliers,
    gpus: int,
    nodes: int,
    whose: str,
    set_to: EditsForNumber,
    request: EditsForNumber,
    *,
    may_be_fewer: bool,
) -> Finding | None:
    """Return the warning, without path and container. None if the numbers match, or are allowed to differ.

    Each of `nodes` has these GPUs. All of them start `count` processes, multiplied by `times`. `set_to` returns the edits that
    set the count, `request` those that request GPUs; neither returns any if it cannot.
    """
    factor, total = prod(number for _, number in times), gpus * nodes
    started, most, needed = count * factor, total // factor, -(-count * factor // nodes)
    starts_too_many = started > total
    if not starts_too_many and (started == total or may_be_fewer):
        return None
    by = " and ".join(f"{name} {number}" for name, number in times)
    at_most = "at most " if starts_too_many else ""
    message = f"should be {at_most}{total}, the GPUs of {whose}"
    if times:
        message = f"with {by}, {started} processes start on the {total} GPUs of {whose}"
    amount = f"request {needed}{' GPUs' if starts_too_many else ''}{' in each pod' if nodes > 1 else ''}"
    is_exact = most > 0 and (starts_too_many or most * factor == total)
    choices = {f"set {most}": set_to(most) if is_exact else (), amount: request(needed)}
    offered = {words: edits for words, edits in choices.items() if edits}
    return warning(
        reason=MORE_PROCESSES if starts_too_many else IDLE_GPUS,
        message=message if starts_too_many else f"{message}: the others stay idle",
        remedy=" or ".join(offered),
        choices=tuple(offered.values()),
    )


def _flag_set_to(place: ContainerPlace, flag: str, count: int, number: int) -> Edits:
    """Return the edit that sets the number of a flag, or of the variable that it names."""
    container = place.container
    pattern = re.compile(rf"({re.escape(flag)}(?:=|\s+)[\"']?){count}(?!\w)")
    for name, items in (("args", container.args or ()), ("command", container.command or ())):
        for index, item in enumerate(items):
            if item == flag and items[index + 1 : index + 2] == (str(count),):
                return (Edit(f"{place.path}.{name}[{index + 1}]", str(number)),)
            if (changed := pattern.sub(rf"\g<1>{number}", item, count=1)) != item:
                return (Edit(f"{place.path}.{name}[{index}]", changed),)
    used = {match[1] or match[2] or match[3] for match in _VARIABLE.finditer(_text(container))} | {_NUM_SHARD}
    for index, variable in enumerate(container.env or ()):
        if variable.name in used and variable.value == str(count):
            return (Edit(f"{place.path}.env[{index}].value", str(number)),)
    return ()


def _field_set_to(stated: StatedProcesses, number: int) -> Edits:
    return (Edit(stated.path, str(number) if stated.is_text else number),)


def _requesting_edits(place: ContainerPlace, resource: str, number: int) -> Edits:
    return tuple(Edit(path, number) for path in place.amount_paths(resource))


def _requesting_edits_in(pods: Sequence[tuple[WorkloadPods, Sequence[Counted]]], number: int) -> Edits:
    """Return the edits of the object that request the GPUs in the only container with GPUs of each of these pods."""
    edits = [
        Edit(workload_pods.located(edit.path), edit.value)
        for workload_pods, counted in pods
        for place, resource, _ in counted
        for edit in _requesting_edits(place, resource, number)
    ]
    is_known = all(len(counted) == 1 for _, counted in pods) and all(edit.path for edit in edits)
    return tuple(edits) if is_known else ()


def _slice_findings(place: ContainerPlace, requested: Requested) -> Iterator[Finding]:
    slices = [(resource, amount) for resource, amount in requested if resource.measure is Measure.SLICES]
    count = sum(amount.value for _, amount in slices)
    if count > 1:
        path, name = place.amount_paths(slices[0][0].name)[0], place.container.name
        kept, *others = slices
        edits = [Edit(path, 1) for path in place.amount_paths(kept[0].name)]
        edits += [Edit(path) for resource, _ in others for path in place.amount_paths(resource.name)]
        yield _several_slices(path=path, container=name, value=str(count), choices=(tuple(edits),))


def _with_gpus(places: Iterable[ContainerPlace], mapping: ResourceMapping) -> Iterator[Counted]:
    """Yield the containers that request whole GPUs, and no other GPU resource, with the resource and the amount."""
    for place in places:
        resources = place.container.resources
        counted = [each for each in mapping.container_requests(place.container) if each[0].measure.is_count]
        if len(counted) == 1 and resources is not None and not resources.claims:
            ((resource, amount),) = counted
            if resource.name in ONE_DEVICE_EACH and amount.value:
                yield place, resource.name, amount.value


def _command_lines(containers: Iterable[Container]) -> Iterator[str]:
    """Yield the command line of each container, without comments. It is "" for containers beyond LONGEST_TEXT."""
    unread = LONGEST_TEXT
    for container in containers:
        text = _text(container)
        if len(text) >= unread:
            yield ""
            continue
        unread -= len(text) + 1
        text = _COMMENT.sub("", text) if "#" in text else text
        yield _expanded(text, container) if "$" in text else text


def _text(container: Container) -> str:
    is_tgi = container.image and _TGI.search(container.image)
    shards = (f"--num-shard {env_var.value}" for env_var in container.env or () if env_var.name == _NUM_SHARD)
    return "\n".join((*(container.command or ()), *(container.args or ()), *(shards if is_tgi else ())))


def _expanded(text: str, container: Container) -> str:
    """Return the command line with the numbers of variables that it does not set itself."""
    values = {var.name: var.value for var in container.env or () if f"{var.name}=" not in text}

    def value(match: re.Match[str]) -> str:
        number = values.get(match[1] or match[2] or match[3]) or ""
        return number if re.fullmatch("[0-9]{1,4}", number) else match[0]

    return _VARIABLE.sub(value, text)


def _processes(text: str) -> list[tuple[str, int, int]]:
    """Return each flag that sets a number of processes, the number, and on how many machines they run."""
    flags = [(match[1], int(match[2]), 1) for match in islice(_FLAG.finditer(text), MAX_FLAGS)]
    if any("gpus" in flag for flag, _, _ in flags) and not _STARTS_ON_GPUS.search(text):
        flags = [flag for flag in flags if "gpus" not in flag[0]]
    if not any("processes" in flag for flag, _, _ in flags):
        return flags
    machines = _MACHINES.search(text)
    if not _ACCELERATE.search(text) or (machines is None and _MACHINES_ELSEWHERE.search(text)):
        return [flag for flag in flags if "processes" not in flag[0]]
    number = max(1, int(machines[1])) if machines else 1
    return [(flag, count, number) for flag, count, _ in flags]


def _is_of_server(flag: str) -> bool:
    """Whether the flag is one of a server, such as --tp, and not of a launcher: --nproc_per_node, --num_processes, --num-gpus."""
    return "proc" not in flag and "gpus" not in flag


def _multipliers(text: str) -> list[tuple[str, int]]:
    """Return the flags by which each of the processes of one server is several, with the number."""
    by_pattern = [list(islice(pattern.finditer(text), 2)) for pattern in (_PIPELINE, _DATA)]
    if not any(by_pattern) or not _SERVERS.search(text):
        return []
    return [
        (matches[0][1], int(matches[0][2]))
        for matches in (by_pattern if _VLLM.search(text) else by_pattern[:1])
        if len(matches) == 1 and int(matches[0][2])
    ]


def _path(place: ContainerPlace, flag: str) -> str:
    """Return the path of the first item of args or command that has the flag."""
    container = place.container
    for name, items in (("args", container.args), ("command", container.command)):
        for index, item in enumerate(items or ()):
            if flag in item:
                return f"{place.path}.{name}[{index}]"
    return place.path


def _any_command_has(pattern: re.Pattern[str], pods: Iterable[WorkloadPods]) -> bool:
    texts = _command_lines(place.container for pod in pods for place in pod.pod.places)
    return any(map(pattern.search, texts))


RULE = Rule(
    id=ID,
    reasons=(SEVERAL_SLICES, MORE_PROCESSES, IDLE_GPUS),
    summary="as many processes are started as GPUs are requested",
    check=check,
    check_workload=check_workload,
    not_exported="it only warns, by reading the arguments of many launchers",
)
