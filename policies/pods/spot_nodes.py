"""Spot nodes that a pod selects: the notice before the provider takes one back, and what is lost with it."""

import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from policies.finding import Edit, Finding, Json, Reason, Severity, together
from policies.pods.pod import ContainerPlace, Pod, Toleration, VolumeMount
from policies.pods.tolerations import tolerates

SHORT_NOTICE = Reason("ShortNotice", "a spot node ends before the termination grace period of a pod")
LOST_WITH_NODE = Reason("LostWithNode", "what a training saves is lost with its spot node")
UNTOLERATED_SPOT = Reason("UntoleratedSpot", "a pod selects spot nodes whose taint it does not tolerate")

AKS_LABEL = "kubernetes.azure.com/scalesetpriority"
AKS_TAINT = Toleration(key=AKS_LABEL, operator="Equal", value="spot", effect="NoSchedule")
"""On each spot node of AKS (its documentation, spot-node-pool). GKE Autopilot adds the toleration for its taint itself."""


class Notice(NamedTuple):
    """The seconds that pods on a spot node of a provider have."""

    provider: str
    seconds: int
    unless: str = ""


GKE = Notice("GKE", 15, ", unless its pool gives up to 120 s")
"""GKE, concepts/spot-vms: 30 s, of which the last 15 s belong to system pods; up to 120 s by the node system configuration."""
EC2 = Notice("EC2", 120)
"""EC2, spot-instance-termination-notices: two minutes. Karpenter begins to drain with the notice."""
AKS = Notice("AKS", 30)
"""Azure, spot-vms: at least 30 s after the scheduled event."""

SPOT_LABELS = {
    ("cloud.google.com/gke-spot", "true"): GKE,
    ("cloud.google.com/gke-preemptible", "true"): GKE,
    ("cloud.google.com/gke-provisioning", "spot"): GKE,
    ("cloud.google.com/gke-provisioning", "preemptible"): GKE,
    ("eks.amazonaws.com/capacityType", "SPOT"): EC2,
    ("karpenter.sh/capacity-type", "spot"): EC2,
    (AKS_LABEL, "spot"): AKS,
}
"""The node labels of spot nodes. Karpenter makes nodes of other clouds, too, whose notice is not longer."""

_DIRECTORY = "(?:dir|directory|path|folder|root)"
_SAVES = re.compile(
    rf"(?:(?<!\S)--?|\w\.)(?:(?:outputs?|out|checkpoints?|ckpts?|save)(?:[-_]?{_DIRECTORY})?"
    rf"|(?:\w+[-_])?(?:output|checkpoint|ckpt|save|results?|work|exp|experiment|train|default[-_](?:root|local))[-_]?{_DIRECTORY})"
    r"[ =\n]+[\"']?(/[\w./-]+)"
)
"""A flag, or a key of Hydra, that names where a training saves, and the absolute path; `--save` is Megatron's."""
_TRAINS = re.compile(
    r"(?<![^\W_])(?:pre)?train(?:ing|er)?(?![^\W_])|fine[-_]?tun|torchrun|deepspeed|accelerate\s+launch"
)
_REMOTE = re.compile(r"\b\w+://")
"""A bucket or another service to which it may save."""
CHECKPOINTS = "/checkpoints"
LONGEST_TEXT = 20_000
"""Characters of a command line that are read."""


def selected_spot(pod: Pod) -> Notice | None:
    """Return the notice of the spot nodes that the pod requires; None if it may run on other nodes, too."""

    def requires(key: str, value: str) -> bool:
        terms = pod.required_terms
        return pod.node_selector.get(key) == value or (
            bool(terms)
            and all(
                any(
                    each.key == key and each.operator == "In" and each.values == (value,)
                    for each in term.match_expressions or ()
                )
                for term in terms
            )
        )

    if not pod.constrains_nodes:
        return None
    return next((notice for label, notice in SPOT_LABELS.items() if requires(*label)), None)


def spot_findings(pod: Pod, *, is_training: bool) -> Iterator[Finding]:
    """Warn of what a GPU pod on spot nodes lacks: a toleration, time to end, a volume that outlives the node."""
    notice = selected_spot(pod)
    if notice is None:
        return
    warning = partial(Finding, severity=Severity.WARNING)
    if notice is AKS and not any(tolerates(each, AKS_TAINT) for each in pod.spec.tolerations or ()):
        yield warning(
            reason=UNTOLERATED_SPOT,
            path="spec.tolerations",
            message="each spot node of AKS has this taint, so the pod stays pending",
            choices=together(Edit("spec.tolerations[-]", AKS_TAINT)),
        )
    grace = pod.spec.termination_grace_period_seconds
    if grace is not None and grace > notice.seconds:
        yield warning(
            reason=SHORT_NOTICE,
            path="spec.terminationGracePeriodSeconds",
            value=str(grace),
            message=f"holds for drains: on a spot node of {notice.provider} pods have {notice.seconds} s after the notice"
            f"{notice.unless}",
        )
    for place in pod.apps if is_training else ():
        text = _command_line(place)
        saved_to = list(dict.fromkeys(_SAVES.findall(text)))
        is_remote = _REMOTE.search(text) or any(
            _outlives(pod, mount) for mount in place.container.volume_mounts or ()
        )
        if saved_to or _mounts_checkpoints(place):
            for path in saved_to or [CHECKPOINTS]:
                yield from _lost(pod, place, path)
        elif _TRAINS.search(text) and not is_remote:
            yield from _lost(pod, place, CHECKPOINTS)


def _command_line(place: ContainerPlace) -> str:
    """Return command and args, and variables as if they were flags: `CHECKPOINT_DIR` is like `--checkpoint_dir`."""
    container = place.container
    variables = (f"--{each.name.lower()}={each.value}" for each in container.env or () if each.value)
    return "\n".join((*(container.command or ()), *(container.args or ()), *variables))[:LONGEST_TEXT]


def _mounts_checkpoints(place: ContainerPlace) -> bool:
    return any(each.mount_path.rstrip("/") == CHECKPOINTS for each in place.container.volume_mounts or ())


def _outlives(pod: Pod, mount: VolumeMount) -> bool:
    """Whether the volume may outlive the node. One that the pod does not have comes from the object that makes it."""
    volume = pod.volume_named(mount.name)
    return volume is None or not (volume.empty_dir or volume.host_path or volume.secret)


def _lost(pod: Pod, place: ContainerPlace, path: str) -> Iterator[Finding]:
    """Warn of a path that an emptyDir or the container itself has. Other volumes may outlive the node."""
    mounts = [
        (at, each)
        for at, each in enumerate(place.container.volume_mounts or ())
        if f"{path}/".startswith(f"{each.mount_path.rstrip('/')}/")
    ]
    at, mount = max(mounts, key=lambda each: len(each[1].mount_path), default=(0, None))
    volumes = pod.spec.volumes or ()
    index = next((i for i, each in enumerate(volumes) if mount is not None and each.name == mount.name), None)
    if mount is not None and (index is None or volumes[index].empty_dir is None):
        return
    claim = Json('{"claimName": "checkpoints"}')
    if mount is not None:
        why = f"volume {mount.name} is an emptyDir"
        edits = (
            Edit(f"spec.volumes[{index}].emptyDir"),
            Edit(f"spec.volumes[{index}].persistentVolumeClaim", claim),
        )
        where = f"{place.path}.volumeMounts[{at}].mountPath"
    else:
        why, where = "no volume is mounted there", place.path
        volume = Json('{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}')
        mounted = Json(f'{{"name": "checkpoints", "mountPath": "{path}"}}')
        edits = (Edit("spec.volumes[-]", volume), Edit(f"{place.path}.volumeMounts[-]", mounted))
    yield Finding(
        reason=LOST_WITH_NODE,
        severity=Severity.WARNING,
        path=where,
        container=place.container.name,
        value=path,
        message=f"what is saved there is lost with the spot node: {why}",
        choices=together(*edits),
        is_example=True,
        remedy="mount a PersistentVolumeClaim there",
    )
