"""Which workload an autoscaler scales, and its least and most replicas.

A ClusterRole lets the webhook read the kinds in `_SCALED_KINDS`. All of them count replicas in `spec.replicas`.
"""

from typing import Any

import msgspec

from webhook.configuration.workload_kinds import plural
from webhook.workloads.references import ObjectReference

HPA = ("autoscaling", "HorizontalPodAutoscaler")
SCALED_OBJECT = ("keda.sh", "ScaledObject")
AUTOSCALERS = frozenset({HPA, SCALED_OBJECT})

_KEDA_MAX_REPLICAS = 100
"""KEDA's default of `maxReplicaCount` (keda.sh/docs, reference/scaledobject-spec). Its default target is a Deployment."""

_SCALED_KINDS = {
    ("", "ReplicationController"): "v1",
    ("apps", "Deployment"): "v1",
    ("apps", "ReplicaSet"): "v1",
    ("apps", "StatefulSet"): "v1",
    ("argoproj.io", "Rollout"): "v1alpha1",
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): "v1",
}
"""The version by which each kind is read."""

SCALED_RESOURCES = tuple((group, plural(kind)) for group, kind in _SCALED_KINDS)
"""API group and resource of each kind in `_SCALED_KINDS`."""


class ScaleTarget(msgspec.Struct, frozen=True):
    """The workload that an autoscaler scales to at most `max_replicas`, and at least to `min_replicas`."""

    group: str
    kind: str
    name: str
    max_replicas: int
    min_replicas: int = 1

    def in_namespace(self, namespace: str) -> ObjectReference:
        version = _SCALED_KINDS[self.group, self.kind]
        return ObjectReference(self.group, version, self.kind, plural(self.kind), namespace, self.name)

    def with_max_replicas(self, data: Any) -> bytes:
        """Return the workload in JSON with its maximum of replicas."""
        spec = data.get("spec") if isinstance(data, dict) else None
        if not isinstance(spec, dict):
            return b"{}"
        return msgspec.json.encode({**data, "spec": {**spec, "replicas": self.max_replicas}})


class _Reference(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    kind: str = "Deployment"
    api_version: str | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    scale_target_ref: _Reference
    min_replicas: int | None = None
    max_replicas: int = 0
    max_replica_count: int | None = None
    min_replica_count: int | None = None


# Several threads must not be the first to use the type; see `quota/ledger_objects.py`.
msgspec.convert({"scaleTargetRef": {"name": ""}}, _Spec)


def scale_target(group: str, kind: str, data: Any) -> ScaleTarget | None:
    """Return the target of an autoscaler. None for another kind, and for a target outside `_SCALED_KINDS`."""
    if (group, kind) not in AUTOSCALERS or not isinstance(data, dict):
        return None
    try:
        spec = msgspec.convert(data.get("spec"), _Spec)
    except msgspec.ValidationError:
        return None
    target, max_replicas = spec.scale_target_ref, spec.max_replicas
    min_replicas = 1 if spec.min_replicas is None else spec.min_replicas
    version = target.api_version or ""
    if (group, kind) == SCALED_OBJECT:
        max_replicas = _KEDA_MAX_REPLICAS if spec.max_replica_count is None else spec.max_replica_count
        min_replicas = spec.min_replica_count or 0
        version = version or "apps/v1"
    group_kind = version.rpartition("/")[0], target.kind
    if group_kind not in _SCALED_KINDS or max_replicas <= 0:
        return None
    return ScaleTarget(*group_kind, target.name, max_replicas, min_replicas)
