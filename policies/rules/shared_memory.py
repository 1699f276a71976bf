"""Give pods on several GPUs a /dev/shm that is large enough for the data that their processes exchange (NCCL, data loaders).

Reads:   how many whole GPUs the pod runs on, memory limits, volumes and mounts.
Adds:    from two GPUs on, one memory emptyDir of `sizeLimit`, mounted at /dev/shm of every container that requests a GPU.
Warns:   if `sizeLimit` is a percentage and a memory limit is missing, or the pod has another volume of that name.

A container runtime's own /dev/shm has 64 MiB, and all containers of the pod share it; the containers with GPUs share this volume.
Data in it counts as memory of the container that writes it. The rule does nothing if the pod mounts something there itself, with
hostIPC, which shows the node's own /dev/shm, or on Windows, which has no /dev/shm.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil

from policies.finding import Edit, Finding, Reason, one_choice, warning
from policies.gpus.cards import gpu_requests
from policies.gpus.mapping_spec import Measure
from policies.pods.names import cleaned_path
from policies.pods.patch import PodPatch
from policies.pods.pod import ContainerPlace, EmptyDir, Pod, ResourceList, Volume, VolumeMount
from policies.pods.quantity import Quantity, QuantityError, in_mebibytes, parse_or_none, parse_quantity
from policies.rule import Context, Mode, Rule, RuleOptions

SHARED_MEMORY_NOT_ADDED = Reason("SharedMemoryNotAdded", "a volume for /dev/shm is not added")

ID = "shared-memory"
VOLUME = "gpu-admission-shm"
MOUNT_PATH = "/dev/shm"  # noqa: S108 - the mount point in the container, not a file of ours
RUNTIME_DEFAULT = 64 * 2**20
"""Size in containerd and CRI-O. A smaller volume would be worse."""

_PERCENTAGE = re.compile(r"([0-9]{1,3})%")
_not_added = partial(warning, reason=SHARED_MEMORY_NOT_ADDED, path="spec.volumes")


class SharedMemoryOptions(RuleOptions, frozen=True):
    mode: Mode = Mode.DISABLED
    size_limit: int | str = "50%"
    """A percentage of the containers' smallest memory limit ("50%"), or a quantity ("16Gi")."""

    def problems(self) -> Iterator[tuple[str, str]]:
        text = str(self.size_limit)
        if text.endswith("%"):
            match = _PERCENTAGE.fullmatch(text)
            if match is None or not 1 <= int(match[1]) <= 100:  # noqa: PLR2004 - per cent
                yield "sizeLimit", f'must be a whole percentage from 1% to 100%, not "{self.size_limit}"'
            return
        try:
            size = parse_quantity(self.size_limit).value
        except QuantityError as error:
            yield "sizeLimit", f"must be a quantity or a percentage such as 50%: {error}"
            return
        if size < RUNTIME_DEFAULT:
            yield "sizeLimit", f'must be at least 64Mi, which every pod has anyway, not "{self.size_limit}"'


def mutate(patch: PodPatch, options: SharedMemoryOptions, context: Context) -> Iterator[Finding]:
    pod = patch.pod
    if pod.spec.host_ipc or pod.is_windows or not on_several_gpus(pod, context):
        return
    mounts = [mount for place in pod.places for mount in shared_memory_mounts(place)]
    if any(mount.name != VOLUME for mount in mounts):
        return
    with_gpus = context.resource_mapping.places_with_gpus(pod)
    without_mount = [place for place in with_gpus if not shared_memory_mounts(place)]
    if not without_mount:
        return
    volume = pod.volume_named(VOLUME)
    if volume is None:
        size = size_in_bytes(str(options.size_limit), with_gpus, pod)
        if size is None:
            unlimited = [
                (place.path, place.container.requests.get("memory") or "16Gi")
                for place in with_gpus
                if "memory" not in place.container.limits
            ]
            own = Volume(name="shm", empty_dir=EmptyDir(medium="Memory"))
            mount = VolumeMount(name="shm", mount_path=MOUNT_PATH)
            yield _not_added(
                message=f"{MOUNT_PATH} stays at 64 MiB: sizeLimit {options.size_limit} needs a memory limit",
                choices=(
                    tuple(Edit(f"{path}.resources.limits[memory]", amount) for path, amount in unlimited),
                    (
                        Edit("spec.volumes[-]", own),
                        *(Edit(f"{place.path}.volumeMounts[-]", mount) for place in with_gpus),
                    ),
                ),
                is_example=True,
                remedy="set a memory limit on every container that requests a GPU, or mount a memory emptyDir at /dev/shm",
            )
            return
        if size < RUNTIME_DEFAULT:
            return
        patch.add_volume(
            Volume(name=VOLUME, empty_dir=EmptyDir(medium="Memory", size_limit=in_mebibytes(size)))
        )
    elif volume.empty_dir is None or volume.empty_dir.medium != "Memory":
        yield _not_added(
            message=f"volume {VOLUME} must be a memory emptyDir",
            choices=one_choice(*_renaming(pod)),
            is_example=True,
            remedy="rename that volume",
        )
        return
    for place in without_mount:
        patch.add_volume_mount(place, VolumeMount(name=VOLUME, mount_path=MOUNT_PATH))


def _renaming(pod: Pod) -> Iterator[Edit]:
    """Yield the edits that give the volume another name."""
    another = f"{VOLUME}-own"
    for at, volume in enumerate(pod.spec.volumes or ()):
        if volume.name == VOLUME:
            yield Edit(f"spec.volumes[{at}].name", another)
    for place in pod.places:
        for at, mount in enumerate(place.container.volume_mounts or ()):
            if mount.name == VOLUME:
                yield Edit(f"{place.path}.volumeMounts[{at}].name", another)


def on_several_gpus(pod: Pod, context: Context) -> bool:
    try:
        requests = gpu_requests(pod, context.resource_mapping)
    except QuantityError:
        return False  # gpu-requests refuses the pod for it
    whole = (ceil(amount) for resource, amount in requests.items() if resource.measure is Measure.DEVICES)
    return sum(whole) > 1


def shared_memory_mounts(place: ContainerPlace) -> list[VolumeMount]:
    """Return the mounts at /dev/shm of the container, or at a folder above it."""
    mounts = place.container.volume_mounts or ()
    return [mount for mount in mounts if cleaned_path(mount.mount_path) in {MOUNT_PATH, "/dev", "/"}]


def size_in_bytes(size_limit: str, with_gpus: Sequence[ContainerPlace], pod: Pod) -> int | None:
    """Return the size of the volume. None if it is a percentage and a memory limit is missing."""
    percentage = _PERCENTAGE.fullmatch(size_limit)
    if percentage is None:
        return parse_quantity(size_limit).value
    pod_limits = (pod.spec.resources and pod.spec.resources.limits) or {}
    limits = [memory_limit(place.container.limits) or memory_limit(pod_limits) for place in with_gpus]
    known = [limit.value for limit in limits if limit is not None]
    return min(known) * int(percentage[1]) // 100 if len(known) == len(limits) else None


def memory_limit(limits: ResourceList) -> Quantity | None:
    return parse_or_none(limits["memory"]) if "memory" in limits else None


RULE = Rule(
    id=ID,
    reasons=(SHARED_MEMORY_NOT_ADDED,),
    summary="pods on several GPUs get a /dev/shm that is large enough",
    options=SharedMemoryOptions,
    mutate=mutate,
    not_exported="it computes the size from the memory of the pod; without it, /dev/shm has 64 MiB",
)
