"""Spot nodes that a pod selects: the notice before the provider takes one back, and what is lost with it."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from policies.finding import Edit, Edits, Finding, Json, Reason, one_choice, warning
from policies.pods.pod import ContainerPlace, Pod, Toleration, Volume
from policies.pods.tolerations import tolerated

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
MAX_PATHS = 3
"""Paths of one container that are named."""
LONGEST_TEXT = 20_000
"""Characters of a command line that are read."""


def spot_notice(pod: Pod) -> Notice | None:
    """Return the notice of the spot nodes that the pod requires; None if it may run on other nodes, too."""
    required: list[set[tuple[str, tuple[str, ...] | None]]]
    required = [{(key, (value,)) for key, value in pod.node_selector.items()}]
    required += [
        {(each.key, each.values) for each in term.match_expressions or () if each.operator == "In"}
        for term in pod.required_terms
    ]
    for (key, value), notice in SPOT_LABELS.items() if pod.constrains_nodes else ():
        selector, *terms = ((key, (value,)) in labels for labels in required)
        if selector or (terms and all(terms)):
            return notice
    return None


def spot_findings(pod: Pod, *, is_training: bool) -> Iterator[Finding]:
    """Warn of what a GPU pod on spot nodes lacks: a toleration, time to end, a volume that outlives the node."""
    notice = spot_notice(pod)
    if notice is None:
        return
    if notice is AKS and not tolerated(AKS_TAINT, pod.spec.tolerations):
        yield warning(
            reason=UNTOLERATED_SPOT,
            path="spec.tolerations",
            message="each spot node of AKS has this taint, so the pod stays pending",
            choices=one_choice(Edit("spec.tolerations[-]", AKS_TAINT)),
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
    volumes = {volume.name: (at, volume) for at, volume in enumerate(pod.spec.volumes or ())}
    for place in pod.apps if is_training else ():
        for path in _saved_to(pod, place)[:MAX_PATHS]:
            yield from _lost_path_finding(place, path, volumes)


def _saved_to(pod: Pod, place: ContainerPlace) -> list[str]:
    """Return where the command line says that a training saves, else CHECKPOINTS unless it saves in an unknown place."""
    container = place.container
    # Variables are read as if they were flags: `CHECKPOINT_DIR` is like `--checkpoint_dir`.
    variables = (f"--{var.name.lower()}={var.value}" for var in container.env or () if var.value)
    text = "\n".join((*(container.command or ()), *(container.args or ()), *variables))[:LONGEST_TEXT]
    mounts = container.volume_mounts or ()
    volumes = [pod.volume_named(mount.name) for mount in mounts]
    may_outlive = any(
        volume is None or not (volume.empty_dir or volume.host_path or volume.secret) for volume in volumes
    )
    is_unknown = may_outlive or _REMOTE.search(text) or not _TRAINS.search(text)
    is_mounted = any(mount.mount_path.rstrip("/") == CHECKPOINTS for mount in mounts)
    paths = list(dict.fromkeys(_SAVES.findall(text)))
    return paths or ([CHECKPOINTS] if is_mounted or not is_unknown else [])


def _lost_path_finding(
    place: ContainerPlace, path: str, volumes: Mapping[str, tuple[int, Volume]]
) -> Iterator[Finding]:
    """Warn of a path that an emptyDir or the container itself has. Other volumes may outlive the node."""
    mounts = [
        mount
        for mount in place.container.volume_mounts or ()
        if f"{path}/".startswith(f"{mount.mount_path.rstrip('/')}/")
    ]
    mount = max(mounts, key=lambda mount: len(mount.mount_path), default=None)
    at, name, why = "-", "checkpoints", "no volume is mounted there"
    edits: Edits = ()
    if mount is None:
        edits = (Edit(f"{place.path}.volumeMounts[-]", _json(name=name, mountPath=path)),)
    elif mount.name in volumes and volumes[mount.name][1].empty_dir is not None:
        at, name, why = str(volumes[mount.name][0]), mount.name, f"volume {mount.name} is an emptyDir"
    else:
        return
    volume = _json(name=name, persistentVolumeClaim={"claimName": "checkpoints"})
    yield warning(
        reason=LOST_WITH_NODE,
        path=place.path,
        container=place.container.name,
        value=path,
        message=f"what is saved there is lost with the spot node: {why}",
        choices=one_choice(Edit(f"spec.volumes[{at}]", volume), *edits),
        is_example=True,
        remedy="mount a PersistentVolumeClaim there",
    )


def _json(**fields: object) -> Json:
    return Json(msgspec.json.encode(fields).decode())
