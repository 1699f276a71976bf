"""Whether Kueue has admitted the controller of a pod: its Workload says so.

Labels prove nothing, since a tenant writes them. Plain pods, and pods of Deployments, StatefulSets and LeaderWorkerSets, have a
gate of Kueue before they have a Workload.
"""

from contextlib import suppress
from time import monotonic

import msgspec

from policies.pods.field_paths import value_at
from policies.pods.names import is_uid
from policies.pods.pod import Metadata, Pod
from webhook.cluster import errors
from webhook.cluster.api import REVIEW_READ_SECONDS, ApiClient, api_path, decoded
from webhook.serving.owner_deadlines import MAX_OWNERS

VERSIONS = ("v1beta2", "v1beta1")
JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: the uid of its owner."""
MAX_READ = 16
"""Workloads of one owner. It has several while an elastic Job changes."""
REMEMBERED_SECONDS = 10.0
"""Kueue admits a Job before there are pods of it, and may suspend it again."""


class KueueWorkloads:
    """Reads and remembers Kueue's Workloads. Thread-safe."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._known: dict[tuple[str, str], tuple[bool, float]] = {}

    def has_admitted(self, namespace: str, pod: Pod, deadline: float) -> bool:
        """Whether quota of Kueue is reserved for the controller of the pod; False if that cannot be read by the deadline."""
        owner, now = (pod.metadata or Metadata()).controller, monotonic()
        if owner is None or not is_uid(owner.uid):
            return False
        key = namespace, owner.uid
        admitted, until = self._known.get(key, (False, 0.0))
        if now < until or now >= deadline:
            return admitted and now < until
        admitted = self._read(*key, min(deadline - now, REVIEW_READ_SECONDS))
        if len(self._known) >= MAX_OWNERS:
            self._known.clear()
        self._known[key] = admitted, now + REMEMBERED_SECONDS
        return admitted

    def _read(self, namespace: str, uid: str, seconds: float) -> bool:
        query = {"labelSelector": f"{JOB_UID}={uid}", "limit": str(MAX_READ)}
        for version in VERSIONS:
            path = api_path(f"/apis/kueue.x-k8s.io/{version}", "namespaces", namespace, "workloads")
            with suppress(errors.ApiError, msgspec.MsgspecError):
                listed = self._api.get(path, query=query, timeout=seconds)
                items = value_at(decoded(msgspec.json.decode, listed), ("items",)) or ()
                return any(_is_reserved_for(item, uid) for item in items)
        return False


def _is_reserved_for(workload: object, uid: str) -> bool:
    owners = value_at(workload, ("metadata", "ownerReferences")) or ()
    conditions = value_at(workload, ("status", "conditions")) or ()
    states = [(value_at(condition, ("type",)), value_at(condition, ("status",))) for condition in conditions]
    return ("QuotaReserved", "True") in states and any(value_at(owner, ("uid",)) == uid for owner in owners)
