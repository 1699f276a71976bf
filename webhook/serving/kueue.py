"""Whether Kueue has reserved quota for the controller of a pod: its Workload has the condition QuotaReserved.

A label only narrows the list, since a tenant may write it: the Workload must also have an ownerReference to the uid. Plain pods,
and pods of Deployments, StatefulSets and LeaderWorkerSets, are recognised by the scheduling gate of Kueue, not here.
"""

from contextlib import suppress
from time import monotonic

import msgspec

from policies.pods.field_paths import value_at
from policies.pods.names import is_uid
from policies.pods.pod import Metadata, Pod
from webhook.cluster import errors
from webhook.cluster.api import REVIEW_READ_SECONDS, ApiClient, api_path, decoded
from webhook.cluster.kueue import GROUP, VERSIONS

JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: the uid of its owner."""
MAX_READ = 16
"""Workloads of one owner. It has several while an elastic Job changes."""
MAX_OWNERS = 4096
"""Owners whose answers are remembered."""
REMEMBERED_SECONDS = 10.0
"""Kueue admits a Job before there are pods of it, and may suspend it again."""


class KueueWorkloads:
    """Reads and remembers Kueue's Workloads. Thread-safe."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._known: dict[tuple[str, str], tuple[bool, float]] = {}

    def has_quota_reserved(self, namespace: str, pod: Pod, deadline: float) -> bool:
        """Whether a Workload of the pod's controller has condition QuotaReserved. Admitted may follow later (admission checks).

        False if that cannot be read by the deadline.
        """
        owner, now = (pod.metadata or Metadata()).controller, monotonic()
        if owner is None or not is_uid(owner.uid):
            return False
        key = namespace, owner.uid
        is_reserved, until = self._known.get(key, (False, 0.0))
        if now < until:
            return is_reserved
        if now >= deadline:
            return False
        is_reserved = self._read(*key, min(deadline - now, REVIEW_READ_SECONDS))
        if len(self._known) >= MAX_OWNERS:
            self._known.clear()
        self._known[key] = is_reserved, now + REMEMBERED_SECONDS
        return is_reserved

    def _read(self, namespace: str, uid: str, seconds: float) -> bool:
        # An error counts as no, and is remembered, too: the pod then waits in line.
        query = {"labelSelector": f"{JOB_UID}={uid}", "limit": str(MAX_READ)}
        for version in VERSIONS:
            path = api_path(f"/apis/{GROUP}/{version}", "namespaces", namespace, "workloads")
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
