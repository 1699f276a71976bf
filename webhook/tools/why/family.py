"""The pods of an object, also through objects between: a Deployment's by its ReplicaSets, a CronJob's by its Jobs.

Owners are followed upwards from the pods, and from the objects whose pods were denied, by one list of metadata for each kind of
owner. So the number of calls depends on the number of kinds alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from policies.pods.pod import Pod, decode_pod
from policies.quota.waiting import GROUP_SIZE, POD_GROUP
from policies.times import utc
from webhook.cluster import errors
from webhook.cluster.api import METADATA_LIST, shallow
from webhook.cluster.objects import decode_owned
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.quota.counted_records import PODS
from webhook.tools.status.denials import ClusterEvent
from webhook.tools.status.permitted import Permitted
from webhook.tools.stored_pod import StoredPod, decode_stored
from webhook.tools.why.discovery import ServedKind, ServedKinds
from webhook.workloads.counts import zeros

MAX_LEVELS = 5
"""Owners above a pod: a Pod of a Job of a JobSet of a TrainJob has three."""


def read_author(
    reader: Permitted, kinds: ServedKinds, namespace: str, served: ServedKind, document: bytes
) -> tuple[ServedKind, bytes]:
    """Return the object that people wrote: the last controller above this one that is served and readable, else this one."""
    for _ in range(MAX_LEVELS):
        owner = decode_owned(document).metadata.controller
        above = kinds.of_reference(owner.api_version, owner.kind) if owner else None
        if owner is None or above is None:
            break
        try:
            document = shallow(reader.api.get(above.resource.path(namespace, owner.name)))
        except (errors.Forbidden, errors.NotFound):
            break
        served = above
    return served, document


def read_family(
    reader: Permitted, kinds: ServedKinds, namespace: str, uid: str, denied: Iterable[ClusterEvent]
) -> tuple[list[StoredPod], frozenset[str]]:
    """Return the pods of the object `uid`, and the uids of everything between it and them, with its own.

    `denied` are the Events about objects of its namespace whose pods were denied.
    """
    pods = reader.listed("pods", namespace, PODS.path(namespace), decode_stored) or []
    parents: dict[str, str] = {}
    unknown: dict[str, tuple[str, str]] = {}
    for pod in pods:
        owner = pod.metadata.owner
        if owner is not None:
            parents[pod.metadata.uid] = owner.uid
            unknown[owner.uid] = owner.api_version, owner.kind
    for event in denied:
        about = event.involved_object
        unknown[about.uid] = about.api_version, about.kind
    for _ in range(MAX_LEVELS):
        unknown = {each: kind for each, kind in unknown.items() if each not in parents and each != uid}
        if not unknown:
            break
        above = _follow(reader, kinds, namespace, sorted(set(unknown.values())), parents)
        for gone in unknown.keys() - parents.keys():
            parents[gone] = ""
        unknown = above
    members = frozenset(each for each in {*parents, uid} if _belongs(each, uid, parents))
    return [pod for pod in pods if pod.metadata.uid in members], members


def _follow(
    reader: Permitted,
    kinds: ServedKinds,
    namespace: str,
    owner_kinds: list[tuple[str, str]],
    parents: dict[str, str],
) -> dict[str, tuple[str, str]]:
    """Add the owners of all objects of these kinds to `parents`; return the owners with their kinds."""
    owners: dict[str, tuple[str, str]] = {}
    for api_version, kind in owner_kinds:
        served = kinds.of_reference(api_version, kind)
        if served is None:
            continue
        name, path = f"{served.plural}.{served.group}".rstrip("."), served.resource.path(namespace)
        for item in reader.listed(name, namespace, path, decode_stored, accept=METADATA_LIST) or ():
            owner = item.metadata.owner
            parents[item.metadata.uid] = owner.uid if owner else ""
            if owner is not None:
                owners[owner.uid] = owner.api_version, owner.kind
    return owners


def _belongs(member: str, uid: str, parents: Mapping[str, str]) -> bool:
    for _ in range(MAX_LEVELS + 1):
        if member == uid:
            return True
        member = parents.get(member, "")
    return False


def read_pods(reader: Permitted, namespace: str, pods: Iterable[StoredPod]) -> dict[str, Pod]:
    """Return the pods that can be read, whole, by name."""
    found: dict[str, Pod] = {}
    for pod in pods:
        name = pod.metadata.name
        with suppress(errors.Forbidden, errors.NotFound):
            found[name] = decode_pod(reader.api.get(PODS.path(namespace, name)))
    return found


def missing_of_group(reader: Permitted, namespace: str, pod: StoredPod) -> str:
    """Return how many pods of a pod's group exist (of Kueue, by label and number), in words; "" if none is missing."""
    name, size = (pod.metadata.labels or {}).get(POD_GROUP), (pod.metadata.annotations or {}).get(GROUP_SIZE)
    if not name or not size or not size.isdecimal():
        return ""
    query = {"labelSelector": f"{POD_GROUP}={name}"}
    pods = reader.listed("pods", namespace, PODS.path(namespace), decode_stored, query=query)
    number = int(size) if pods is None else sum(each.status.phase != "Failed" for each in pods)
    return f"{number} of {size} pods of {name} exist" if number < int(size) else ""


def why_no_pods(data: Any, kind: WorkloadKind | None, now: datetime) -> str:
    """Return why an object makes no pods, if it makes none, and who last scaled it."""
    if "desiredNumberScheduled" in (data.get("status") or {}):
        return "no node matches its pods: status.desiredNumberScheduled is 0"
    fields = dict.fromkeys(zeros(kind, data)) if kind else ()
    by = _scaled_by(data, now) if "scaled to zero: spec.replicas is 0" in fields else ""
    return "; ".join(fields) + by or "as it is written, it makes no pods"


def _scaled_by(data: Any, now: datetime) -> str:
    """Return who last wrote spec.replicas, and when, by the managedFields."""
    entries = data.get("metadata", {}).get("managedFields") or ()
    wrote = [entry for entry in entries if "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})]
    last = max(wrote, key=lambda each: str(each.get("time")), default=None)
    at = f" at {utc(datetime.fromisoformat(last['time']), now)}" if last and last.get("time") else ""
    return f", written by {last.get('manager')}{at}" if last else ""


def wanted_pods(data: Any, counts: Sequence[int | None]) -> int | None:
    """Return how many pods an object makes now: of a Job, no more than are left to complete; of a DaemonSet what it says."""
    spec, status = data.get("spec") or {}, data.get("status") or {}
    if "desiredNumberScheduled" in status:
        return int(status["desiredNumberScheduled"])
    if not counts or None in counts:
        return None
    written = sum(count or 0 for count in counts)
    completions = spec.get("completions")
    return written if completions is None else min(written, max(completions - status.get("succeeded", 0), 0))
