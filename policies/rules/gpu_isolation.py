"""Keep containers that ask for no GPU from seeing one.

Images built on CUDA carry NVIDIA_VISIBLE_DEVICES=all, and a container runtime that believes them shows every GPU of the node
to a container that asked for none (k8s-device-plugin#61, also with `nvidia.com/gpu: 0`). Unset in the pod does not help,
the image's own value applies then: so `void` is written out.

Reads:   what asks for a GPU, variables, hostPath volumes, privileged containers, tolerations.
Adds:    NVIDIA_VISIBLE_DEVICES=void to each container that asks for no GPU and says nothing itself; not in the pods of a
         fraction scheduler, which sets the variable.
Denies:  the variable set to anything that shows GPUs in such a container; GPU devices of the node mounted as files.
Warns:   of privileged containers in pods for GPU nodes, of pods that go to GPU nodes without asking for a GPU.
"""

import posixpath
from collections.abc import Iterator
from functools import partial

from policies.finding import Finding, Severity
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod
from policies.pods.tolerations import overlaps
from policies.rule import Context, Mode, Rule, RuleOptions
from policies.rules import gpu_toleration

ID = "gpu-isolation"

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VOID = "void"
HARMLESS = frozenset({VOID, "none", ""})
"""Values that show no GPU; `none` lets the driver's libraries in (README of nvidia-container-runtime)."""

GPU_DEVICES = frozenset({"dri", "kfd"})
GPU_DEVICE_PREFIXES = ("nvidia", "accel", "neuron")
"""Below /dev: nvidia0, nvidiactl, nvidia-uvm, nvidia-caps; AMD's kfd; dri of all; accel of Gaudi and TPU; neuron0."""

# The texts of findings that `gpu-admission export` says in the API server, too.
REQUEST_GPUS = 'request GPUs in resources.limits ("nvidia.com/gpu": 1)'
EXPOSED = (
    f'{VARIABLE} must be "{VOID}" or unset in a container that requests no GPU: its GPUs belong to other pods'
)
PRIVILEGED = (
    "should be false: a privileged container sees every device of the node, also the GPUs of other pods"
)
REMOVE_PRIVILEGED = "remove it; CUDA and ROCm need no privileges"
TOLERATED = (
    "should not let the pod onto GPU nodes: it requests no GPU, and takes CPU and memory from pods that do"
)
REMOVE_TOLERATION = "remove the toleration or request a GPU"


_warning = partial(Finding, rule=ID, severity=Severity.WARNING)


class GPUIsolationOptions(RuleOptions, frozen=True):
    mode: Mode = Mode.AUDIT


def mutate(patch: PodPatch, _options: GPUIsolationOptions, context: Context) -> Iterator[Finding]:
    if context.resource_mapping.pod_fraction(patch.pod) is None:
        for place in patch.pod.places:
            is_set = any(variable.name == VARIABLE for variable in place.container.env or ())
            if not is_set and not context.resource_mapping.container_asks(place.container):
                patch.add_env(place, VARIABLE, VOID)
    yield from ()


def check(pod: Pod, _options: GPUIsolationOptions, context: Context) -> Iterator[Finding]:
    yield from exposed_containers(pod, context)
    yield from mounted_devices(pod)
    asks = context.resource_mapping.pod_asks(pod)
    tolerated = tolerated_gpu_taint(pod, context)
    if asks or tolerated is not None:
        yield from privileged_containers(pod)
    # Agents that run on every node tolerate everything, rightly.
    if not asks and tolerated is not None and not context.made_by_daemonset:
        path = f"spec.tolerations[{tolerated}]"
        yield _warning(path=path, message=TOLERATED, remedy=REMOVE_TOLERATION)


def exposed_containers(pod: Pod, context: Context) -> Iterator[Finding]:
    """Deny the variable where it shows GPUs that the container did not ask for."""
    if context.resource_mapping.pod_fraction(pod) is not None:
        return
    for place in pod.places:
        if context.resource_mapping.container_asks(place.container):
            continue
        for index, variable in enumerate(place.container.env or ()):
            is_harmless = not variable.value_from and (variable.value or "") in HARMLESS
            if variable.name == VARIABLE and not is_harmless:
                yield Finding(
                    rule=ID,
                    path=f"{place.path}.env[{index}]",
                    container=place.container.name,
                    value=variable.value,
                    message=EXPOSED,
                    remedy=f"{REQUEST_GPUS} or remove the variable",
                )


def mounted_devices(pod: Pod) -> Iterator[Finding]:
    """Deny GPU devices of the node that are mounted as files, past every count."""
    mounting: dict[str, dict[str, None]] = {}
    for place in pod.places:
        for mount in place.container.volume_mounts or ():
            mounting.setdefault(mount.name, {})[place.container.name] = None
    for index, volume in enumerate(pod.body.volumes or ()):
        path = volume.host_path.path if volume.host_path else ""
        if volume.name in mounting and holds_gpu_devices(path):
            names = ", ".join(f'"{name}"' for name in mounting[volume.name])
            yield Finding(
                rule=ID,
                path=f"spec.volumes[{index}].hostPath.path",
                value=path,
                message=f"must not hold GPU devices of the node (mounted by container {names}): nothing counts or reserves them",
                remedy=f"{REQUEST_GPUS}, which mounts their devices",
            )


def holds_gpu_devices(path: str) -> bool:
    """Whether a path of the node is a GPU device, or a directory with all of them (/dev, /)."""
    parts = [part for part in posixpath.normpath(path).split("/") if part]
    if parts[:1] != ["dev"]:
        return not parts and path.startswith("/")
    return len(parts) == 1 or parts[1] in GPU_DEVICES or parts[1].startswith(GPU_DEVICE_PREFIXES)


def privileged_containers(pod: Pod) -> Iterator[Finding]:
    for place in pod.places:
        security = place.container.security_context
        if security is not None and security.privileged:
            yield _warning(
                path=f"{place.path}.securityContext.privileged",
                container=place.container.name,
                value="true",
                message=PRIVILEGED,
                remedy=REMOVE_PRIVILEGED,
            )


def tolerated_gpu_taint(pod: Pod, context: Context) -> int | None:
    """Return the index of the first toleration that lets the pod onto GPU nodes."""
    options = context.options_of(gpu_toleration.RULE.id)
    # The taints of GPU nodes are those that the tolerations of GPU pods name.
    taints = [gpu_toleration.NVIDIA_GPU, *(each for c in context.classes for each in c.tolerations)]
    if isinstance(options, gpu_toleration.GPUTolerationOptions):
        taints += options.tolerations
    tolerations = enumerate(pod.body.tolerations or ())
    return next((at for at, each in tolerations if any(overlaps(each, taint) for taint in taints)), None)


RULE = Rule(
    id=ID,
    summary="containers that ask for no GPU see none",
    options=GPUIsolationOptions,
    mutate=mutate,
    check=check,
)
