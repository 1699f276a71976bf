"""Pods that wait in line for quota: the scheduling gate, why each waits, the pods that never get it, and the queue of a GPUQuota.

A pod under the gate has no demand. The controller reserves its demand and then removes the gate (`policies.quota.line`).
"""

from datetime import UTC, datetime
from enum import Enum

import msgspec
from msgspec.structs import replace

from policies.pods.pod import Pod
from policies.quota.amounts import Amounts

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


class Standing(Enum):
    """Why a pod waits, as the reason in the status of the GPUQuota."""

    STARTING = "Starting"
    """Quota is held for it, and its gate is being removed."""
    NEXT = "Next"
    """It starts when the quota has room."""
    BEHIND = "Behind"
    """Others are before it in line."""
    INCOMPLETE = "Incomplete"
    """Pods of its gang do not exist yet."""
    UNREAD_GANG = "UnreadGang"
    """How many pods its gang needs could not be read yet."""
    OTHER_GATE = "OtherGate"
    """It has a scheduling gate of somebody else, too."""
    DENIED = "Denied"
    """The removal of its gate was denied."""
    TOO_LARGE = "TooLarge"
    """It exceeds the whole quota."""
    TOO_MANY = "TooMany"
    """Its gang has more pods than can start together."""
    ON_HOLD = "OnHold"
    """`spec.queue.hold` of the GPUQuota is true."""
    BUDGET_SPENT = "BudgetSpent"
    """The budget of GPU-hours of something that it needs is spent. Others pass it."""


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """A stored pod under our gate. `demand` is what it will need, under every catalogue version of the ledger.

    `since` is its creationTimestamp. `gang` is the key of its gang, or "". `owner` is the owner of its credits, or "".
    `beyond`: Kueue has admitted it, so it waits for no other pod, and by so much its namespace may exceed the GPUQuota.
    `replaces`: it replaces an ended pod, so it goes first. `keeper` is the uid of the object that may keep quota for it, or "",
    and `keep` the id of what that object keeps for it.
    """

    uid: str
    demand: Amounts
    since: str
    priority: int = 0
    gang: str = ""
    obstacle: Standing | None = None
    owner: str = ""
    replaces: bool = False
    keeper: str = ""
    keep: str = ""
    beyond: Amounts = {}


def creation_timestamp(at: int) -> str:
    """Return a moment, in ms since 1970, as the creationTimestamp of what was created then."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def has_quota_gate(pod: Pod) -> bool:
    return any(gate.name == GATE for gate in pod.spec.scheduling_gates or ())


def without_gate(pod: Pod) -> Pod:
    gates = tuple(gate for gate in pod.spec.scheduling_gates or () if gate.name != GATE)
    return (
        replace(pod, given_spec=replace(pod.spec, scheduling_gates=gates or None))
        if has_quota_gate(pod)
        else pod
    )


def names_kueue(pod: Pod) -> bool:
    """Whether the pod claims to be one that Kueue starts: it has a label, an annotation or a scheduling gate of Kueue."""
    labels = (pod.metadata and pod.metadata.labels) or ()
    gates = (gate.name for gate in pod.spec.scheduling_gates or ())
    return any(name.startswith(KUEUE) for name in (*labels, *pod.annotations, *gates))


def why_never_waits(pod: Pod, *, by_daemonset: bool) -> str:
    """Return why the pod never gets the gate, "" if it may. ResourceClaims are made and count also under a gate."""
    if by_daemonset:
        return "a pod of a DaemonSet"
    if pod.spec.node_name:
        return "a pod with nodeName"
    return "a pod with ResourceClaims" if pod.spec.resource_claims else ""
