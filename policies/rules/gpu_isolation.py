"""Keep containers from GPUs that nobody gave them.

Images built on CUDA carry NVIDIA_VISIBLE_DEVICES=all, and a container runtime that believes them shows every GPU of the node
to a container that requested none (k8s-device-plugin#61, also with `nvidia.com/gpu: 0`). Unset in the pod does not help,
the image's own value applies then: so `void` is written out. Beside a request, too, the pod's own value wins: the kubelet
appends it to the variables of the device plugin (`GenerateRunContainerOptions`).

Reads:   requests for GPUs and unmapped accelerators, variables, mounts, hostPath volumes, annotations, privileged containers,
         tolerations.
Adds:    NVIDIA_VISIBLE_DEVICES=void to each container that requests no GPU and does not set the variable; not to the one that
         a fraction scheduler serves, whose variable it sets, nor to one that requests an accelerator by a name that no mapping
         has, nor in pods of device plugins and exporters, on virtual nodes, and of schedulers whose GPUs nothing counts.
Denies:  values that show GPUs (of NVIDIA_VISIBLE_DEVICES and those of other vendors), also beside a request; files of the node
         that lead to GPUs; mounts and annotations that name devices; resources that show all cards of the node.
Warns:   of variables beside a request, or where a fraction scheduler serves, whose values are elsewhere, of privileged
         containers in pods for GPU nodes, of pods that go to GPU nodes without requesting a GPU, of unmapped accelerators.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from policies.finding import Edit, Edits, Finding, Reason, Severity, one_choice, warning
from policies.gpus import exposure
from policies.gpus.fraction_annotations import FRACTION_CONTAINER, fraction_container
from policies.gpus.mapping_spec import NVIDIA_GPU
from policies.gpus.unmapped import (
    gets_other_gpus,
    is_unmapped_accelerator,
    other_resources,
    other_scheduler_request,
)
from policies.gpus.vendor import VOID
from policies.gpus.vendors import NVIDIA_VISIBLE_DEVICES
from policies.placement.given_tolerations import toleration_for_resource
from policies.pods.field_paths import annotation_path
from policies.pods.patch import PodPatch
from policies.pods.pod import ContainerPlace, EnvVar, Pod
from policies.pods.tolerations import overlaps
from policies.rule import Context, Mode, Phase, Rule, RuleOptions
from policies.rules import gpu_toleration

DEVICE_VARIABLE = Reason(
    "DeviceVariable", "a container with GPUs sets a variable that the device plugin sets"
)
EXPOSED_GPUS = Reason("ExposedGPUs", "a container reaches GPUs that it does not request")
PRIVILEGED_CONTAINER = Reason("PrivilegedContainer", "a privileged container on a GPU node sees all GPUs")
UNMAPPED_RESOURCE = Reason(
    "UnmappedResource", "a container requests an accelerator that no GPUResourceMapping has"
)
TOLERATES_GPU_TAINT = Reason("ToleratesGPUTaint", "a pod without GPUs tolerates the taint of GPU nodes")

ID = "gpu-isolation"

VARIABLE = NVIDIA_VISIBLE_DEVICES

# Texts of findings that `gpu-admission export` also uses. In a pair, the part that depends on the pod goes between the two.
REQUEST_GPUS = "request nvidia.com/gpu: 1 in resources.limits"
EXPOSED = (
    " must be ",
    " or unset in a container that requests no GPU: the GPUs that it sees belong to other pods",
)
EXPOSED_REMEDY = f"{REQUEST_GPUS} or remove the variable"
REQUEST_INSTEAD = "remove it, and request GPUs only in resources.limits"
REPLACED = " must be ", " or unset beside a GPU request: it replaces the GPUs that the node assigns"
REMOVE_VARIABLE = "remove the variable"
UNREAD = "can replace the GPUs that the node assigns: what it holds is not known at admission"
NAME_VARIABLES = "set a prefix, or name the variables in env"
LISTED = "must not be a list of GPUs for NVIDIA's runtime: nothing counts or reserves them"
LEADS_TO_GPUS = (
    'must not lead to GPUs of the node (mounted by container "',
    '"): nothing counts or reserves them; device plugins and exporters need an exemption in the GPUPolicy',
)
ANNOTATED = "must not name devices of the node: nothing counts or reserves them"
MONITOR_MESSAGE = (
    "must not be requested: it shows the container all GPUs of the node, and nothing counts or reserves them; monitors need "
    "an exemption in the GPUPolicy"
)
UNMAPPED = "should be in a GPUResourceMapping: it is an accelerator by its name, and no quota counts it"
PRIVILEGED = "should be false: a privileged container sees every device of the node, also those of other pods"
REMOVE_PRIVILEGED = "remove it; GPUs need no privileges, and TPUs only in old versions of GKE"
TOLERATED = (
    "should not let the pod onto GPU nodes: it requests no GPU, and takes CPU and memory from pods that do"
)
REMOVE_TOLERATION = "remove the toleration or request a GPU"

_exposed = partial(Finding, reason=EXPOSED_GPUS)
_unread = partial(warning, reason=DEVICE_VARIABLE, message=UNREAD)


class GPUIsolationOptions(RuleOptions, frozen=True):
    mode: Mode = Mode.AUDIT


def mutate(patch: PodPatch, _options: GPUIsolationOptions, context: Context) -> Iterator[Finding]:
    if not is_of_the_gpu_stack(patch.pod) and not gets_other_gpus(patch.pod, context.resource_mapping):
        fraction_container_name = fraction_container(patch.pod, context.resource_mapping)
        for place in patch.pod.places:
            container = place.container
            is_set = any(variable.name == VARIABLE for variable in container.env or ())
            has_gpu = (
                container.name == fraction_container_name
                or context.resource_mapping.container_requests_gpus(container)
            )
            if not is_set and not has_gpu and not any(unmapped(patch.pod, [place], context)):
                patch.add_env(place, VARIABLE, VOID)
    yield from ()


def unmapped(
    pod: Pod, places: Iterable[ContainerPlace], context: Context
) -> Iterator[tuple[str, ContainerPlace]]:
    """Yield the names of requested accelerators that no mapping has, if a node may have them.

    A cordoned node has what it had: the pod may wait for it, and keeps its variables then.
    A kubelet ignores such a resource if its node lacks it, which no scheduler prevents with a nodeName.
    """
    mapping = context.resource_mapping
    for place in () if pod.spec.node_name else places:
        for name in other_resources(place.container, mapping):
            nodes = context.nodes
            is_possible = (
                nodes is None or not nodes.resources or name in nodes.resources | nodes.cordoned_resources
            )
            if is_possible and is_unmapped_accelerator(name, mapping):
                yield name, place


def check(pod: Pod, _options: GPUIsolationOptions, context: Context) -> Iterator[Finding]:
    fraction_container_name = fraction_container(pod, context.resource_mapping)
    for place in pod.places:
        yield from variable_findings(pod, place, fraction_container_name, context)
    yield from mount_findings(pod, context)
    for key, value in pod.annotations.items():
        if exposure.names_devices(key):
            path = annotation_path(key)
            yield _exposed(
                path=path, value=value, message=ANNOTATED, **_request_instead(pod, context, Edit(path))
            )
    having_others = [each for each in pod.places if other_resources(each.container, context.resource_mapping)]
    yield from monitor_findings(pod, having_others, context)
    accelerators = dict(reversed(tuple(unmapped(pod, having_others, context))))
    for name, place in reversed(accelerators.items()):
        # Of a misspelt name, rule ineffective-fields says which is meant.
        if context.resource_mapping.suggested_name(name) is None:
            yield warning(
                reason=UNMAPPED_RESOURCE,
                path=place.amount_paths(name)[0],
                container=place.container.name,
                message=UNMAPPED,
                ask_contact=f"to add {{pattern: {name}, measure: devices}} to its spec.resources "
                "(measure: nothing if it is not one)",
            )
    scheduler_request = other_scheduler_request(pod, context.resource_mapping)
    if scheduler_request is not None:
        key, scheduler = scheduler_request
        message = f"gets GPUs from {scheduler}: no quota counts them, and no rule but this one reads them"
        yield warning(reason=UNMAPPED_RESOURCE, path=annotation_path(key), message=message)
    requests_gpu = bool(scheduler_request or accelerators) or context.resource_mapping.pod_requests_gpus(pod)
    tolerated = None if requests_gpu else tolerated_gpu_taint(pod, context)
    if requests_gpu or tolerated is not None:
        yield from privileged_containers(pod)
    # Agents that run on every node have to tolerate all taints.
    if tolerated is not None and not context.made_by_daemonset:
        path = f"spec.tolerations[{tolerated}]"
        yield warning(
            reason=TOLERATES_GPU_TAINT,
            path=path,
            message=TOLERATED,
            choices=((Edit(path),), *(_requesting_edits(place) for place in pod.apps[:1])),
            remedy=REMOVE_TOLERATION,
        )


def variable_findings(
    pod: Pod, place: ContainerPlace, fraction_container_name: str | None, context: Context
) -> Iterator[Finding]:
    """Yield the problems of variables by which container runtimes show devices."""
    container = place.container
    requests = context.resource_mapping.container_requests_gpus(container)
    has_gpus = requests or container.name == fraction_container_name
    for index, variable in enumerate(container.env or ()):
        if exposure.shows_devices(variable.name):
            path = f"{place.path}.env[{index}]"
            yield from _variable_value_findings(path, pod, place, variable, context, has_gpus=has_gpus)
    # What env sets, as KAI's webhook does before validation, comes before envFrom.
    in_env = {variable.name for variable in container.env or ()}
    is_unread = requests or (
        container.name == fraction_container_name
        and VARIABLE not in in_env
        and context.phase is not Phase.TEMPLATE
    )
    for index, source in enumerate(container.env_from or ()) if is_unread else ():
        prefix = source.prefix or ""
        if not exposure.may_set_devices(prefix):
            continue
        path = f"{place.path}.envFrom[{index}]"
        finding = partial(
            _exposed,
            reason=DEVICE_VARIABLE,
            path=path,
            container=container.name,
            choices=one_choice(Edit(f"{path}.prefix", "APP_")),
            is_example=True,
            remedy=NAME_VARIABLES,
        )
        data = context.config_maps.get(source.config_map_ref.name) if source.config_map_ref else None
        if data is None:
            yield finding(severity=Severity.WARNING, message=UNREAD)
        for key, value in (data or {}).items():
            name = prefix + key
            is_shown = exposure.shows_devices(name) and value not in exposure.hiding_values(name)
            if is_shown and name not in in_env:
                yield finding(message=_must_hide(name, REPLACED))


def _variable_value_findings(
    path: str, pod: Pod, place: ContainerPlace, variable: EnvVar, context: Context, *, has_gpus: bool
) -> Iterator[Finding]:
    name, source, value = place.container.name, exposure.source_of(variable), variable.value
    key = source.config_map_key_ref if source else None
    data = context.config_maps.get(key.name) if key else None
    if key and data is not None:
        source, value = None, data.get(key.key)
    if source is not None and has_gpus:
        # The schedulers of Ascend's plugin write the devices into an annotation with the name of the resource. Those of
        # fractions write valueFrom, and the pod does not say what they will put there.
        names = (each.name for each, _ in context.resource_mapping.container_requests(place.container))
        is_assigned = any(source.is_annotation(name) and name not in pod.annotations for name in names)
        if context.resource_mapping.container_requests_gpus(place.container) and not is_assigned:
            yield _unread(path=path, container=name, choices=one_choice(Edit(path)), remedy=REMOVE_VARIABLE)
    elif source is not None or (value or "") not in exposure.hiding_values(variable.name):
        yield _exposed(
            reason=DEVICE_VARIABLE if has_gpus else EXPOSED_GPUS,
            path=path,
            container=name,
            value=variable.value or None,
            message=_must_hide(variable.name, REPLACED if has_gpus else EXPOSED),
            choices=((Edit(path),),)
            if has_gpus
            else ((*_requesting_edits(place), Edit(path)), (Edit(path),)),
            remedy=REMOVE_VARIABLE if has_gpus else EXPOSED_REMEDY,
        )


def _must_hide(variable: str, texts: tuple[str, str]) -> str:
    before, after = texts
    return f'{variable}{before}"{exposure.hiding_values(variable)[-1]}"{after}'


def mount_findings(pod: Pod, context: Context) -> Iterator[Finding]:
    """Deny mounts that NVIDIA's runtime reads as GPUs, and files of the node that lead to GPUs: no quota counts these."""
    for place in pod.places:
        for index, mount in enumerate(place.container.volume_mounts or ()):
            if exposure.DEVICE_LIST in mount.mount_path:
                path = f"{place.path}.volumeMounts[{index}]"
                yield _exposed(
                    path=f"{path}.mountPath",
                    container=place.container.name,
                    value=mount.mount_path,
                    message=LISTED,
                    **_request_instead(pod, context, Edit(path), of=place),
                )
    for index, path, container in mounted_paths(pod):
        if exposure.leads_to_gpus(path):
            yield _exposed(
                path=f"spec.volumes[{index}].hostPath.path",
                value=path,
                message=container.join(LEADS_TO_GPUS),
                **_request_instead(
                    pod, context, *_without_volume(pod, index), of=_place_named(pod, container)
                ),
                is_example=not exposure.is_device(path),  # agents and exporters need an exemption instead
            )


def monitor_findings(pod: Pod, places: Iterable[ContainerPlace], context: Context) -> Iterator[Finding]:
    """Deny resources that show all cards of the node, such as those for monitoring."""
    for place in places:
        for name in other_resources(place.container, context.resource_mapping):
            if exposure.shows_all_cards(name):
                paths = place.amount_paths(name)
                yield _exposed(
                    path=paths[0],
                    container=place.container.name,
                    message=MONITOR_MESSAGE,
                    **_request_instead(pod, context, *map(Edit, paths), of=place),
                    is_example=True,  # as of agents and exporters
                )


def _requesting_edits(place: ContainerPlace) -> Edits:
    return (Edit(f"{place.path}.resources.limits[{NVIDIA_GPU}]", 1),)


def _request_instead(
    pod: Pod, context: Context, *removed: Edit, of: ContainerPlace | None = None
) -> dict[str, Any]:
    """Return choices and remedy of a finding: remove what shows GPUs, and request one if the container has none."""
    place = of or next(iter(pod.apps), None)
    has_gpus = place is None or context.resource_mapping.container_requests_gpus(place.container)
    requested = () if place is None or has_gpus else _requesting_edits(place)
    return {"choices": ((*requested, *removed),), "remedy": REQUEST_INSTEAD}


def _place_named(pod: Pod, container: str) -> ContainerPlace | None:
    return next((place for place in pod.places if place.container.name == container), None)


def _without_volume(pod: Pod, index: int) -> Iterator[Edit]:
    yield Edit(f"spec.volumes[{index}]")
    name = (pod.spec.volumes or ())[index].name
    for place in pod.places:
        for at, mount in enumerate(place.container.volume_mounts or ()):
            if mount.name == name:
                yield Edit(f"{place.path}.volumeMounts[{at}]")


def is_of_the_gpu_stack(pod: Pod) -> bool:
    """Whether it is a device plugin or an exporter, whose image may see all GPUs. Its paths are denied nevertheless."""
    return any(exposure.is_of_the_gpu_stack(path) for _, path, _ in mounted_paths(pod))


def mounted_paths(pod: Pod) -> Iterator[tuple[int, str, str]]:
    """Yield each hostPath volume that is mounted: its index, its path, and the name of the first container that mounts it."""
    mounting: dict[str, str] = {}
    for place in pod.places:
        for mount in place.container.volume_mounts or ():
            mounting.setdefault(mount.name, place.container.name)
    for index, volume in enumerate(pod.spec.volumes or ()):
        if volume.host_path is not None and volume.name in mounting:
            yield index, volume.host_path.path, mounting[volume.name]


def privileged_containers(pod: Pod) -> Iterator[Finding]:
    for place in pod.places:
        security = place.container.security_context
        if security is not None and security.privileged:
            yield warning(
                reason=PRIVILEGED_CONTAINER,
                path=f"{place.path}.securityContext.privileged",
                container=place.container.name,
                value="true",
                message=PRIVILEGED,
                choices=one_choice(Edit(f"{place.path}.securityContext.privileged")),
                remedy=REMOVE_PRIVILEGED,
            )


def tolerated_gpu_taint(pod: Pod, context: Context) -> int | None:
    """Return the index of the first toleration that lets the pod onto GPU nodes."""
    options = context.options_of(gpu_toleration.ID)
    listed = [toleration for gpu_class in context.classes for toleration in gpu_class.tolerations]
    if isinstance(options, gpu_toleration.GPUTolerationOptions):
        listed += options.listed
    cards = context.resource_mapping.whole_card_resources
    for at, present in enumerate(pod.spec.tolerations or ()):
        # One without a key is of any taint.
        taint = toleration_for_resource(present.key or "")
        is_of_card = (not present.key or present.key in cards) and overlaps(present, taint)
        if is_of_card or any(overlaps(present, other) for other in listed):
            return at
    return None


RULE = Rule(
    id=ID,
    reasons=(DEVICE_VARIABLE, EXPOSED_GPUS, PRIVILEGED_CONTAINER, TOLERATES_GPU_TAINT, UNMAPPED_RESOURCE),
    summary="containers that ask for no GPU see none",
    options=GPUIsolationOptions,
    mutate=mutate,
    check=check,
    metadata_keys=(FRACTION_CONTAINER, *exposure.DEVICE_KEYS),
    exported_without={
        "accelerators that no GPUResourceMapping has": "the webhook warns of them; they keep what their image says",
        "GPUs of other schedulers": "the webhook warns that no quota counts them",
        "claims of other devices": "CEL cannot look up their devices, so each claim counts as a GPU",
        "pods and privileged containers on GPU nodes that request no GPU": "a warning denies nothing; `check` gives it",
        "pod templates of workloads": "their pods are checked when they are created",
    },
)
