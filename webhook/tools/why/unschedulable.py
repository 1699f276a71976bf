"""Why the scheduler finds no node, where nodes, taints, labels and GPUs do not say it: volumes, other pods, ports.

Its sentence has one reason for each node, or one for the pod (the constants in pkg/scheduler/framework/plugins, v1.37.2).
"""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from policies.finding import ContactEdit, Edit
from policies.pods.pod import Pod
from webhook.tools.why.explanation import Awaited, Cause, Source, Way

_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_AFFINITY = f"spec.affinity.podAffinity.{_REQUIRED}"
_ANTI_AFFINITY = f"spec.affinity.podAntiAffinity.{_REQUIRED}"
_SPREAD = "spec.topologySpreadConstraints"


class Filter(NamedTuple):
    """A reason of the scheduler, by a part of its words.

    `{claims}` stands for the pod's PersistentVolumeClaims. remedy: what to write. awaits: a pod on the node whose end is enough.
    """

    said: str
    message: str
    remedy: str = ""
    way: Way = Way()
    awaits: str = ""


_ELSEWHERE = (
    "the volume of {claims} is not there",
    "use a PersistentVolumeClaim whose volume is on nodes with free GPUs (in a cloud, in their zone), or ask {contact} for "
    "nodes with GPUs where the volume is",
    Way(contact_edits=(ContactEdit("Node"),)),
)
_IN_USE = (
    "another pod uses the volume of {claims}, which only one may use",
    "use a PersistentVolumeClaim that several pods may use, or one for each pod",
    Way(),
    "that pod",
)
OF_NODES = (
    Filter("didn't match PersistentVolume's node affinity", *_ELSEWHERE),
    Filter("had volume node affinity conflict", *_ELSEWHERE),  # its words before v1.35
    Filter("had no available volume zone", *_ELSEWHERE),
    Filter("didn't find available persistent volumes to bind", *_ELSEWHERE),
    Filter("did not have enough free storage", *_ELSEWHERE),
    Filter("with ReadWriteOncePod access mode already in-use by another pod", *_IN_USE),
    Filter("had no available disk", *_IN_USE),
    Filter("exceed max volume count", "it can mount no more volumes", awaits="a pod with volumes"),
    Filter("Too many pods", "it has as many pods as it can", awaits="one of them"),
    Filter(
        "didn't match pod topology spread constraints",
        f"{_SPREAD} count nodes without free GPUs, too",
        f"select the nodes with GPUs in spec.nodeSelector, or remove {_SPREAD}, or set whenUnsatisfiable: "
        "ScheduleAnyway in it",
        Way(edits=(Edit(_SPREAD),)),
    ),
    Filter(
        "didn't match pod affinity rules",
        f"the pods that {_AFFINITY} names are elsewhere",
        f"remove {_AFFINITY}, or create those pods again on such a node",
        Way(edits=(Edit(_AFFINITY),)),
    ),
    Filter(
        "didn't match pod anti-affinity rules",
        f"{_ANTI_AFFINITY} keeps it from a pod there",
        f"remove {_ANTI_AFFINITY}",
        Way(edits=(Edit(_ANTI_AFFINITY),)),
        "that pod",
    ),
    Filter(
        "didn't satisfy existing pods anti-affinity rules",
        "the podAntiAffinity of a pod there keeps it away",
        awaits="that pod",
    ),
    Filter(
        "didn't have free ports for the requested pod ports",
        "another pod has its host ports",
        "remove hostPort and hostNetwork",
        awaits="that pod",
    ),
)
"""Said of a node that takes the pod as far as taints, labels and resources go."""
OF_POD = (
    Filter(
        "pod has unbound immediate PersistentVolumeClaims",
        "{claims} has no volume yet",
        "kubectl describe pvc -n {namespace} says why",
    ),
    Filter(
        "bound to non-existent pv(s)",
        "the volume of {claims} is gone",
        "create the PersistentVolumeClaim again",
    ),
    Filter(
        "persistentvolumeclaim",
        "{claims} is not there",
        "create it in namespace {namespace}, or correct spec.volumes",
    ),
)
"""Said of the pod, whatever the nodes are."""


class Unscheduled(NamedTuple):
    """A pod for which the scheduler finds no node. said: its words. gpus: the GPU resources that the pod requests."""

    said: str
    pod: Pod
    gpus: Collection[str]
    namespace: str
    contact: str

    def causes(self, node: str, *, has_siblings: bool) -> Iterator[Cause]:
        """Yield what its words say beside what `NodeFit` has.

        node: a node that fits, as a subject; "" if none does. has_siblings: other pods of the object have a node. It would wait
        for itself if one of these is in the way.
        """
        for each in (*OF_POD, *(OF_NODES if node else ())):
            if each.said in self.said:
                awaits = "" if has_siblings and each.remedy else each.awaits
                remedies = (each.remedy, awaits and f"wait until {awaits} has ended")
                waits = (Way(awaits=(Awaited.END_OF_POD,)),) if awaits else ()
                yield Cause(
                    source=Source.SCHEDULER,
                    message=self._filled(
                        each.message if each in OF_POD else f"{node} has free GPUs for it, but {each.message}"
                    ),
                    remedy=self._filled(", or ".join(filter(None, remedies))),
                    ways=(*((each.way,) if each.way != Way() else ()), *waits),
                )
        lacking = " and ".join(name for name in insufficient(self.said) if name not in self.gpus)
        if node and lacking:
            message = f"{node} has free GPUs for it, but too little {lacking}"
            remedy = f"request less {lacking}, or wait until it is free"
            yield Cause(
                source=Source.NODES,
                message=message,
                remedy=remedy,
                ways=(Way(awaits=(Awaited.ROOM,)),),
            )

    def _filled(self, text: str) -> str:
        volumes = self.pod.spec.volumes or ()
        sources = filter(None, (volume.persistent_volume_claim for volume in volumes))
        names = " or ".join(dict.fromkeys(source.claim_name for source in sources))
        claims = f"PersistentVolumeClaim {names}"
        return text.format(claims=claims, namespace=self.namespace, contact=self.contact)


def insufficient(said: str) -> Collection[str]:
    """Return the resources of which the scheduler found too little on nodes."""
    return dict.fromkeys(_INSUFFICIENT.findall(said))
