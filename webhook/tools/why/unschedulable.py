"""Why the scheduler finds no node, where nodes, taints, labels and GPUs do not say it: volumes, other pods, ports.

Its sentence has one reason for each node, or one for the pod (the constants in pkg/scheduler/framework/plugins, v1.37.2).
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from policies.finding import ContactEdit, Edit
from policies.pods.pod import Pod
from webhook.tools.why.explanation import Awaited, Cause, Remedy, Source

_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)")
_AFFINITY, _ANTI_AFFINITY = (
    f"spec.affinity.{kind}.requiredDuringSchedulingIgnoredDuringExecution"
    for kind in ("podAffinity", "podAntiAffinity")
)
_SPREAD = "spec.topologySpreadConstraints"


class SchedulerReason(NamedTuple):
    """A pattern of the scheduler's message, and what `why` says of it; `{claims}` stands for the pod's PersistentVolumeClaims.

    remedy, ways: what to write, in words and as data. blocking_pod: the pod on
    the node whose end is enough, as an object of a sentence.
    """

    pattern: str
    message: str
    remedy: str = ""
    ways: tuple[Remedy, ...] = ()
    blocking_pod: str = ""


NODE_REASONS = (
    SchedulerReason(
        "PersistentVolume's node affinity|volume node affinity conflict|no available volume zone"  # the second before v1.35
        "|available persistent volumes to bind|enough free storage",
        "the volume of {claims} is not there",
        "use a PersistentVolumeClaim whose volume is on nodes with free GPUs (in a cloud, in their zone), or ask {contact} for "
        "nodes with GPUs where the volume is",
        (Remedy(contact_edits=(ContactEdit("Node"),)),),
    ),
    SchedulerReason(
        "ReadWriteOncePod access mode already in-use|no available disk",
        "another pod uses the volume of {claims}, which only one may use",
        "use a PersistentVolumeClaim that several pods may use, or one for each pod",
        blocking_pod="that pod",
    ),
    SchedulerReason(
        "exceed max volume count", "it can mount no more volumes", blocking_pod="a pod with volumes"
    ),
    SchedulerReason("Too many pods", "it has as many pods as it can", blocking_pod="one of them"),
    SchedulerReason(
        "pod topology spread constraints",
        f"{_SPREAD} count nodes without free GPUs, too",
        f"select the nodes with GPUs in spec.nodeSelector, or remove {_SPREAD}, or set whenUnsatisfiable: ScheduleAnyway in it",
        (Remedy(edits=(Edit(_SPREAD),)),),
    ),
    SchedulerReason(
        "match pod affinity rules",
        f"the pods that {_AFFINITY} names are elsewhere",
        f"remove {_AFFINITY}, or create those pods again on such a node",
        (Remedy(edits=(Edit(_AFFINITY),)),),
    ),
    SchedulerReason(
        "match pod anti-affinity rules",
        f"{_ANTI_AFFINITY} keeps it from a pod there",
        f"remove {_ANTI_AFFINITY}",
        (Remedy(edits=(Edit(_ANTI_AFFINITY),)),),
        "that pod",
    ),
    SchedulerReason(
        "existing pods anti-affinity",
        "the podAntiAffinity of a pod there keeps it away",
        blocking_pod="that pod",
    ),
    SchedulerReason(
        "free ports",
        "another pod has its host ports",
        "remove hostPort and hostNetwork",
        blocking_pod="that pod",
    ),
)
"""Reasons about one node, which has room for the pod and takes it by taints and labels."""
POD_REASONS = (
    SchedulerReason(
        "unbound immediate PersistentVolumeClaims",
        "{claims} has no volume yet",
        "kubectl describe pvc says why",
    ),
    SchedulerReason(
        "non-existent pv", "the volume of {claims} is gone", "create the PersistentVolumeClaim again"
    ),
    SchedulerReason(
        "persistentvolumeclaim",
        "{claims} is not there",
        "create it, or correct spec.volumes",
    ),
)
"""Reasons about the pod, the same for all nodes."""


class UnschedulablePod(NamedTuple):
    """A pod that the scheduler finds no node for. message: its words. gpus: the GPU resources that it requests or misspells.

    path_of: translates a field path in the pod to one in the object that contains it.
    """

    message: str
    pod: Pod
    gpus: Collection[str]
    contact: str
    path_of: Callable[[str], str] = str

    def causes(self, node_phrase: str, *, has_siblings: bool) -> Iterator[Cause]:
        """Yield the causes that the message of the scheduler names besides GPUs.

        node_phrase: a node that fits, as the subject of a sentence; "" if none does. has_siblings: whether other pods of its
        object have a node. If one of these is in the way, no remedy says to wait for its end.
        """
        on_node = f"{node_phrase} has free GPUs for it, but "
        for reason, start in (
            *((one, "") for one in POD_REASONS),
            *((one, on_node) for one in NODE_REASONS if node_phrase),
        ):
            if re.search(reason.pattern, self.message):
                waits = bool(reason.blocking_pod) and not (has_siblings and reason.remedy)
                remedies = (reason.remedy, f"wait until {reason.blocking_pod} has ended" if waits else "")
                yield Cause(
                    source=Source.SCHEDULER,
                    message=self._with_names(start + reason.message),
                    remedy=self._with_names(", or ".join(filter(None, remedies))),
                    ways=(
                        *(way.located(self.path_of) for way in reason.ways),
                        *([Remedy(awaits=(Awaited.END_OF_POD,))] if waits else []),
                    ),
                )
        lacking = " and ".join(name for name in insufficient(self.message) if name not in self.gpus)
        if node_phrase and lacking:
            remedy = f"request less {lacking}, or wait until it is free"
            room = (Remedy(awaits=(Awaited.ROOM,)),)
            message = f"{on_node}too little {lacking}"
            yield Cause(source=Source.NODES, message=message, remedy=remedy, ways=room)

    def _with_names(self, text: str) -> str:
        sources = (volume.persistent_volume_claim for volume in self.pod.spec.volumes or ())
        names = " or ".join(dict.fromkeys(source.claim_name for source in sources if source))
        # The claim of an ephemeral volume has no name in the pod.
        claims = f"PersistentVolumeClaim {names}" if names else "the PersistentVolumeClaim of a volume"
        return text.format(claims=claims, contact=self.contact)


def insufficient(message: str) -> Collection[str]:
    """Return the resources that nodes have too little of, as the scheduler says."""
    return dict.fromkeys(_INSUFFICIENT.findall(message))
