"""Why the scheduler finds no node, where nodes, taints, labels and GPUs do not say it: volumes, other pods, ports.

Its sentence has one reason for each node, or one for the pod (the constants in pkg/scheduler/framework/plugins, v1.37.2).
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from policies.finding import ContactEdit, Edit
from policies.pods.pod import Pod
from webhook.tools.why.explanation import Awaited, Cause, Source, Way

_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)")
_AFFINITY, _ANTI_AFFINITY = (
    f"spec.affinity.{kind}.requiredDuringSchedulingIgnoredDuringExecution"
    for kind in ("podAffinity", "podAntiAffinity")
)
_SPREAD = "spec.topologySpreadConstraints"


class Filter(NamedTuple):
    """A reason of the scheduler, by a pattern of its words; `{claims}` stands for the pod's PersistentVolumeClaims.

    remedy, ways: what to write, in words and as data. awaits: the pod on the node whose end is enough.
    """

    said: str
    message: str
    remedy: str = ""
    ways: tuple[Way, ...] = ()
    awaits: str = ""


OF_NODES = (
    Filter(
        "PersistentVolume's node affinity|volume node affinity conflict|no available volume zone"  # the second before v1.35
        "|available persistent volumes to bind|enough free storage",
        "the volume of {claims} is not there",
        "use a PersistentVolumeClaim whose volume is on nodes with free GPUs (in a cloud, in their zone), or ask {contact} for "
        "nodes with GPUs where the volume is",
        (Way(contact_edits=(ContactEdit("Node"),)),),
    ),
    Filter(
        "ReadWriteOncePod access mode already in-use|no available disk",
        "another pod uses the volume of {claims}, which only one may use",
        "use a PersistentVolumeClaim that several pods may use, or one for each pod",
        awaits="that pod",
    ),
    Filter("exceed max volume count", "it can mount no more volumes", awaits="a pod with volumes"),
    Filter("Too many pods", "it has as many pods as it can", awaits="one of them"),
    Filter(
        "pod topology spread constraints",
        f"{_SPREAD} count nodes without free GPUs, too",
        f"select the nodes with GPUs in spec.nodeSelector, or remove {_SPREAD}, or set whenUnsatisfiable: ScheduleAnyway in it",
        (Way(edits=(Edit(_SPREAD),)),),
    ),
    Filter(
        "match pod affinity rules",
        f"the pods that {_AFFINITY} names are elsewhere",
        f"remove {_AFFINITY}, or create those pods again on such a node",
        (Way(edits=(Edit(_AFFINITY),)),),
    ),
    Filter(
        "match pod anti-affinity rules",
        f"{_ANTI_AFFINITY} keeps it from a pod there",
        f"remove {_ANTI_AFFINITY}",
        (Way(edits=(Edit(_ANTI_AFFINITY),)),),
        "that pod",
    ),
    Filter(
        "existing pods anti-affinity", "the podAntiAffinity of a pod there keeps it away", awaits="that pod"
    ),
    Filter(
        "free ports",
        "another pod has its host ports",
        "remove hostPort and hostNetwork",
        awaits="that pod",
    ),
)
"""Said of a node that takes the pod as far as taints, labels and resources go."""
OF_POD = (
    Filter(
        "unbound immediate PersistentVolumeClaims",
        "{claims} has no volume yet",
        "kubectl describe pvc says why",
    ),
    Filter("non-existent pv", "the volume of {claims} is gone", "create the PersistentVolumeClaim again"),
    Filter(
        "persistentvolumeclaim",
        "{claims} is not there",
        "create it, or correct spec.volumes",
    ),
)
"""Said of the pod, whatever the nodes are."""


class Unscheduled(NamedTuple):
    """A pod that the scheduler finds no node for. said: its words. gpus: the GPU resources that it requests, also misspelt ones.

    path_of: translates a field path in the pod to one in the object that contains it.
    """

    said: str
    pod: Pod
    gpus: Collection[str]
    contact: str
    path_of: Callable[[str], str] = str

    def causes(self, node: str, *, has_siblings: bool) -> Iterator[Cause]:
        """Yield what its words say besides GPUs.

        node: a node that fits, as a subject; "" if none does. has_siblings: other pods of the object have a node. It would wait
        for itself if one of these is in the way.
        """
        on_node = f"{node} has free GPUs for it, but "
        for each, start in (*((one, "") for one in OF_POD), *((one, on_node) for one in OF_NODES if node)):
            if re.search(each.said, self.said):
                waits = bool(each.awaits) and not (has_siblings and each.remedy)
                remedies = (each.remedy, f"wait until {each.awaits} has ended" if waits else "")
                yield Cause(
                    source=Source.SCHEDULER,
                    message=self._filled(start + each.message),
                    remedy=self._filled(", or ".join(filter(None, remedies))),
                    ways=(
                        *(way.located(self.path_of) for way in each.ways),
                        *([Way(awaits=(Awaited.END_OF_POD,))] if waits else []),
                    ),
                )
        lacking = " and ".join(name for name in insufficient(self.said) if name not in self.gpus)
        if node and lacking:
            remedy = f"request less {lacking}, or wait until it is free"
            room = (Way(awaits=(Awaited.ROOM,)),)
            message = f"{on_node}too little {lacking}"
            yield Cause(source=Source.NODES, message=message, remedy=remedy, ways=room)

    def _filled(self, text: str) -> str:
        sources = (volume.persistent_volume_claim for volume in self.pod.spec.volumes or ())
        names = " or ".join(dict.fromkeys(source.claim_name for source in sources if source))
        # The claim of an ephemeral volume has no name in the pod.
        claims = f"PersistentVolumeClaim {names}" if names else "the PersistentVolumeClaim of a volume"
        return text.format(claims=claims, contact=self.contact)


def insufficient(said: str) -> Collection[str]:
    """Return the resources that nodes have too little of, as the scheduler says."""
    return dict.fromkeys(_INSUFFICIENT.findall(said))
