"""Pods that wait in line for quota: the scheduling gate, the pods that never get it, and the queue of a GPUQuota.

A pod under the gate has no demand. The controller reserves its demand and then removes the gate (`policies.quota.line`).
"""

from datetime import UTC, datetime
from enum import Enum

import msgspec
from msgspec.structs import replace

from policies.pods.pod import Pod

GATE = "gpu-admission.dev/quota"
"""The scheduling gate of a pod that waits. The webhook adds it to new pods, and only the controller removes it."""

KUEUE = "kueue.x-k8s.io/"
"""Prefix of the gate of Kueue, and of the labels and annotations that it sets on the pods that it manages."""
QUEUE_NAME = f"{KUEUE}queue-name"
"""Label of an object: the LocalQueue by which Kueue starts it."""
POD_GROUP, GROUP_SIZE = f"{KUEUE}pod-group-name", f"{KUEUE}pod-group-total-count"
"""Label and annotation of the pods of a group, which Kueue admits once as many exist."""


class OnExceeded(Enum):
    """What happens to a new pod that fits an empty quota, but not the free part."""

    DENY = "Deny"
    QUEUE = "Queue"


class QueueOrder(Enum):
    STRICT_FIFO = "StrictFIFO"
    """The first pod in line that does not fit blocks all pods behind it."""
    BEST_EFFORT_FIFO = "BestEffortFIFO"
    """Pods pass a blocked one until it has waited for STARVED_SECONDS."""


STARVED_SECONDS = 600.0
MAX_WAITING = 1000


class QueueSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`spec.queue` of a GPUQuota. `hold`: no gate is removed. `prefer_replacements`: see `policies.quota.line`."""

    order: QueueOrder = QueueOrder.STRICT_FIFO
    max_waiting: int = MAX_WAITING
    hold: bool = False
    prefer_replacements: bool = True


def creation_timestamp(at: int) -> str:
    """Return a moment, in ms since 1970, as the creationTimestamp of what was created then."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def waits(pod: Pod) -> bool:
    return any(gate.name == GATE for gate in pod.spec.scheduling_gates or ())


def without_gate(pod: Pod) -> Pod:
    gates = tuple(gate for gate in pod.spec.scheduling_gates or () if gate.name != GATE)
    return replace(pod, given_spec=replace(pod.spec, scheduling_gates=gates or None)) if waits(pod) else pod


def names_kueue(pod: Pod) -> bool:
    """Whether the pod claims to be one that Kueue starts: it has a label, an annotation or a scheduling gate of Kueue."""
    labels = (pod.metadata and pod.metadata.labels) or ()
    gates = (gate.name for gate in pod.spec.scheduling_gates or ())
    return any(name.startswith(KUEUE) for name in (*labels, *pod.annotations, *gates))


def never_waits(pod: Pod, *, by_daemonset: bool) -> str:
    """Return why the pod never gets the gate, "" if it may. ResourceClaims are made and count also under a gate."""
    if by_daemonset:
        return "a pod of a DaemonSet"
    if pod.spec.node_name:
        return "a pod with nodeName"
    return "a pod with ResourceClaims" if pod.spec.resource_claims else ""
