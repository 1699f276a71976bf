"""What is known of an object and its pods when its author asks why they do not run."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from policies.finding import PLATFORM_TEAM, Finding
from policies.placement.class_advice import ClassAdvice
from policies.pods.conditions import has_ended, true_condition
from policies.quota.fit import starts_beside_all
from policies.registry import QUOTA_RULE
from webhook.tools.status.denials import ClusterEvent
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.explanation import Cause, NodeFit
from webhook.tools.why.tried_remedies import RemainingSteps
from webhook.tools.why.unschedulable import UnschedulablePod

REPLICA_FAILURE = "ReplicaFailure"
"""The condition of Deployments, ReplicaSets and ReplicationControllers whose pods could not be created."""
_MINIMUM = re.compile(r"\.min\w+ is 0$")
"""Why an object makes no pods until its autoscaler makes some."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an object and its pods.

    data: the object. wanted: how many pods the object makes, None if it does not say. events: warnings about the object, the
      owners of its pods, and its pods.
    rule_denials: denials of the rules if a pod were created now; None if they are not known. (Past denials are in `events`.)
    quota_denials: what the quota says if a pod were created now, in the words that its author reads at apply.
    no_node_causes: warnings of the rules that a pod would find no node.
    sees_quota: whether the caller reads what limits the namespace. Without a GPUQuota, a tenant cannot see its team's quota.
    line: of the first of its pods that wait in line for quota, its name and why it waits.
    group: how many pods of the group of the explained pod exist, in words, if some are missing.
    kueue: why Kueue does not start the object yet; None if it has admitted it, or does not queue it.
    why_no_pods: why the object makes no pods, if `wanted` is 0. held: by name of a terminating pod, what it holds, in words.
    classes: on which the pods can run; empty if nothing pins them. nodes: nodes of these classes; None if they cannot be read, or
      if the pods request no resource of a node; the first is named. other_classes: others that take the
      pod, with the edits that name them, and what is awaited then.
    devices: why the claims of the stuck pod have no device, or not a working one.
    unscheduled: what else the scheduler says of it.
    node_source: what can add a node for the pod, in words; "" if nothing is known to. new_nodes: for which nodes to ask.
    """

    data: Any
    now: datetime
    pods: Sequence[StoredPod]
    events: Sequence[ClusterEvent]
    wanted: int | None
    rule_denials: Sequence[Finding] | None = ()
    quota_denials: Sequence[Finding] = ()
    no_node_causes: Sequence[Cause] = ()
    sees_quota: bool = True
    line: tuple[str, Cause] | None = None
    group: str = ""
    kueue: Cause | None = None
    why_no_pods: str = ""
    held: Mapping[str, str] = {}
    classes: Sequence[str] = ()
    nodes: Sequence[NodeFit] | None = None
    other_classes: Mapping[str, RemainingSteps] = {}
    devices: Sequence[Cause] = ()
    unscheduled: UnschedulablePod | None = None
    node_source: str = ""
    new_nodes: ClassAdvice = ClassAdvice()
    contact: str = PLATFORM_TEAM

    @property
    def living(self) -> list[StoredPod]:
        return [pod for pod in self.pods if not pod.has_ended]

    @property
    def remaining_pods(self) -> list[StoredPod]:
        """The pods that the object counts on: without those that are being deleted, unless a pod itself is explained."""
        return [pod for pod in self.living if self.data is None or not pod.is_terminating]

    @property
    def terminating(self) -> list[StoredPod]:
        return [pod for pod in self.pods if pod.is_terminating]

    @property
    def stuck(self) -> StoredPod | None:
        """A pod that does not run. A pod that finds no node comes first, because the nodes are compared with this pod."""
        waiting = (pod for pod in self.remaining_pods if not pod.is_running)
        return min(waiting, key=lambda pod: not pod.unscheduled, default=None)

    @property
    def denial_events(self) -> list[ClusterEvent]:
        """Events about pods whose creation our webhook denied in the past, the last one first."""
        denials = (event for event in self.events if event.denial and not event.denied_change)
        return sorted(denials, key=last_seen, reverse=True)

    @property
    def is_quota_denial(self) -> bool:
        """Whether the quota was the last that denied a pod. Otherwise a rule did, which the caller may not be able to read."""
        return all(f"[{QUOTA_RULE.id}]" in denial_event.denial for denial_event in self.denial_events[:1])

    @property
    def outdated_pods(self) -> int:
        """How many pods a rolling update of a Deployment cannot replace, since new ones are denied beside the old ones."""
        data, status = as_map(self.data), as_map(as_map(self.data).get("status"))
        failed = true_condition(status, REPLICA_FAILURE) or self.denial_events
        if data.get("kind") != "Deployment" or not failed or as_map(data.get("spec")).get("paused"):
            return 0
        return max(int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0)), 0)

    @property
    def adds_pods_first(self) -> bool:
        """Whether it is a Deployment whose update ends no old pod before a new one is ready."""
        data = as_map(self.data)
        spec, status = as_map(data.get("spec")), as_map(data.get("status"))
        has_old = int(status.get("replicas", 0)) > int(status.get("updatedReplicas", 0))
        return (
            data.get("kind") == "Deployment" and has_old and starts_beside_all(spec, spec.get("replicas", 1))
        )

    @property
    def is_missing_pods(self) -> bool:
        if not self.wanted:
            return bool(self.denial_events)
        return self.data is not None and (len(self.remaining_pods) < self.wanted or bool(self.outdated_pods))

    def author_of(self, owner: str) -> str:
        """Return the author of the pods of `owner`: the explained Deployment for a ReplicaSet, else `owner` itself."""
        data = as_map(self.data)
        if data.get("kind") != "Deployment" or not owner.startswith("ReplicaSet/"):
            return owner
        return f"Deployment/{as_map(data.get('metadata')).get('name')}"

    @property
    def has_ended(self) -> bool:
        is_over = has_ended(as_map(as_map(self.data).get("status")))
        return is_over or (bool(self.pods) and not self.living)

    @property
    def why_stopped(self) -> str:
        """Why the object should make no pods now, "" if it should make some."""
        spec = as_map(as_map(self.data).get("spec"))
        if self.remaining_pods or (self.wanted and not spec.get("schedule")):
            return ""
        if spec.get("suspend") is True:
            return "spec.suspend is true"
        if spec.get("schedule") and not self.denial_events:
            return f"it makes pods when spec.schedule ({spec['schedule']}) is due"
        is_woken = bool(self.denial_events) and _MINIMUM.search(self.why_no_pods)
        return self.why_no_pods if self.wanted == 0 and not is_woken else ""


def last_seen(event: ClusterEvent) -> float:
    return event.last.timestamp() if event.last else 0.0


def as_map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
