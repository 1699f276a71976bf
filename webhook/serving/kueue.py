"""Whether Kueue has admitted what makes a pod: by the Workload of its controller, which only Kueue's own controllers mark.

Labels prove nothing, since a tenant writes them. Kueue holds plain pods, and those of Deployments, StatefulSets and
LeaderWorkerSets, under a gate of its own from their creation: then no Workload is there yet, and they may have our gate, too.
"""

from time import monotonic

import msgspec

from policies.pods.names import is_uid
from policies.pods.pod import Metadata, OwnerReference, Pod
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, Page, api_path, decoded
from webhook.serving.lookups import LONGEST_SECONDS, MAX_OWNERS
from webhook.workloads.gangs import controller_of

VERSIONS = ("v1beta2", "v1beta1")
JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: the uid of the object that it is made for."""
REMEMBERED_SECONDS = 10.0
"""Kueue admits a Job before it makes pods, and may suspend it again at any time."""


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] = ()


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    owner_references: tuple[OwnerReference, ...] = ()


class _Workload(msgspec.Struct, frozen=True):
    metadata: _Metadata
    status: _Status = _Status()

    def admits(self, uid: str) -> bool:
        is_reserved = any(each == _Condition("QuotaReserved", "True") for each in self.status.conditions)
        return is_reserved and any(each.uid == uid for each in self.metadata.owner_references)


_WORKLOADS = msgspec.json.Decoder(Page[_Workload])


class KueueWorkloads:
    """For any number of threads."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._known: dict[tuple[str, str], tuple[bool, float]] = {}

    def has_admitted(self, namespace: str, pod: Pod, deadline: float) -> bool:
        """Whether quota of Kueue is reserved for the controller of the pod, as far as can be read by the deadline."""
        owner, now = controller_of(pod.metadata or Metadata()), monotonic()
        if owner is None or not is_uid(owner.uid):
            return False
        found, until = self._known.get((namespace, owner.uid), (False, 0.0))
        seconds = min(deadline - now, LONGEST_SECONDS)
        if now < until or seconds <= 0:
            return found and now < until
        found = self._read(namespace, owner.uid, seconds)
        if len(self._known) >= MAX_OWNERS:
            self._known.clear()
        self._known[namespace, owner.uid] = found, now + REMEMBERED_SECONDS
        return found

    def _read(self, namespace: str, uid: str, seconds: float) -> bool:
        for version in VERSIONS:
            path = api_path(f"/apis/kueue.x-k8s.io/{version}", "namespaces", namespace, "workloads")
            try:
                listed = self._api.get(path, query={"labelSelector": f"{JOB_UID}={uid}"}, timeout=seconds)
                return any(each.admits(uid) for each in decoded(_WORKLOADS.decode, listed).items or ())
            except errors.NotFound:
                continue
            except (errors.ApiError, msgspec.MsgspecError):
                break
        return False
