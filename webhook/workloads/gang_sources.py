"""Where the gang of a pod is looked up: by a PodGroup that its metadata names, or by its controller."""

import re
from functools import lru_cache
from typing import Any

import msgspec

from policies.pods.field_paths import value_at
from policies.pods.limits import LONGEST_NAME
from policies.pods.names import is_dns_subdomain
from policies.pods.pod import Metadata, Pod
from policies.quota.waiting import GROUP_SIZE, KUEUE, POD_GROUP
from webhook.configuration.workload_kinds import WorkloadKind, WorkloadKinds
from webhook.workloads.counts import stage_field

SOURCES = 4096
"""Gang sources that are cached."""
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
"""Label of the pods of a LeaderWorkerSet: each group is a gang."""

POD_GROUPS = (
    ("annotations", "scheduling.k8s.io/group-name", "scheduling.volcano.sh/v1beta1"),
    ("annotations", "scheduling.volcano.sh/group-name", "scheduling.volcano.sh/v1beta1"),
    ("labels", "scheduling.x-k8s.io/pod-group", "scheduling.x-k8s.io/v1alpha1"),
    ("annotations", "pod-group-name", "scheduling.run.ai/v2alpha2"),
)
"""Where a pod names its PodGroup: of Volcano, of the coscheduling plugin, of KAI. All of them have `spec.minMember`."""
SIZE = re.compile("[1-9][0-9]{0,5}")
"""The pods of a group of Kueue, which has no object of its own. A controller may make them one after another."""
SCHEDULING = "scheduling.k8s.io"
"""The API group of Kubernetes' own. A pod names a PodGroup in `schedulingGroup` since 1.36 (feature gate GenericWorkload)."""

GANG_MARKERS = {
    ("batch", "Job"): (
        ("annotations", "batch.kubernetes.io/job-completion-index"),
        ("labels", "jobset.sigs.k8s.io/jobset-name"),
        ("labels", "training.kubeflow.org/job-role"),
    ),
    ("apps", "StatefulSet"): (("labels", GROUP_INDEX),),
    ("", "Pod"): (("labels", GROUP_INDEX),),
}
"""Kinds whose objects lead to a gang only if their pods have one of these: an Indexed Job, a Job of a JobSet, the Job of the
launcher of an MPIJob, and a StatefulSet and the leader Pod of a LeaderWorkerSet."""


class GangSource(msgspec.Struct, frozen=True):
    """The object by which the gang of a pod is looked up. `part`: which of its gangs (group index); for Kueue, the size.

    `uid` is that of a controller: another object of that name may have another size.
    """

    api_version: str
    kind: str
    name: str
    part: str = ""
    uid: str = ""

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def type(self) -> tuple[str, str]:
        return self.group, self.kind

    @property
    def is_pod_group(self) -> bool:
        return self.kind == "PodGroup"


_shared = lru_cache(maxsize=SOURCES)(GangSource)
"""Returns one object for equal sources: a thousand pods of one Job share it."""


def _source(api_version: str, kind: str, name: str, part: str = "", uid: str = "") -> GangSource | None:
    """Return the source; None if no object can have that name. An annotation or ownerReference may have any text."""
    texts = api_version, kind, part, uid
    is_possible = is_dns_subdomain(name) and all(
        text.isprintable() and len(text) <= LONGEST_NAME for text in texts
    )
    return _shared(api_version, kind, name, part, uid) if is_possible else None


def owner_source(metadata: Metadata) -> GangSource | None:
    """Return the controller that an object names. None without one, or if no object can have that name."""
    owner = metadata.controller
    return _source(owner.api_version, owner.kind, owner.name, uid=owner.uid) if owner else None


def gang_source(pod: Pod) -> GangSource | None:
    """Return where the gang of a pod is looked up. None of a pod without PodGroup, whose controller leads to no gang."""
    metadata, spec = pod.metadata or Metadata(), pod.spec
    if spec.scheduling_group and spec.scheduling_group.pod_group_name:
        return _source(SCHEDULING, "PodGroup", spec.scheduling_group.pod_group_name)
    fields = {"annotations": metadata.annotations or {}, "labels": metadata.labels or {}}
    for field, key, api_version in POD_GROUPS:
        if name := fields[field].get(key):
            return _source(api_version, "PodGroup", name)
    owner = metadata.controller
    if owner is None:
        group, size = fields["labels"].get(POD_GROUP, ""), fields["annotations"].get(GROUP_SIZE, "")
        return _source(KUEUE, "PodGroup", group, size) if SIZE.fullmatch(size) else None
    part = fields["labels"].get(GROUP_INDEX, "")
    source = _source(owner.api_version, owner.kind, owner.name, part, owner.uid)
    markers = GANG_MARKERS.get(source.type) if source is not None else None
    return source if markers is None or any(key in fields[field] for field, key in markers) else None


def may_be_in_gang(pod: Pod, kinds: WorkloadKinds) -> bool:
    """Whether the pod may be in a gang, by its metadata. Then it waits until the other pods are there."""
    source = gang_source(pod)
    return source is not None and (source.is_pod_group or may_lead_to_gang(source, kinds))


def may_lead_to_gang(source: GangSource, kinds: WorkloadKinds) -> bool:
    """Whether the pods of an object run together, or it may belong to an object whose pods do."""
    workload_kind = kinds.get(source.type)
    return source.type in GANG_MARKERS or (workload_kind is not None and may_be_gang(workload_kind))


def may_be_gang(workload_kind: WorkloadKind) -> bool:
    """Whether pods of such objects may be a gang: all of them (`starts_together`), or some that need each other."""
    has_gang = bool(workload_kind.together) or any(pod_path.gang for pod_path in workload_kind.pods)
    return workload_kind.starts_together or has_gang


def starts_together(workload_kind: WorkloadKind, data: Any) -> bool:
    """Whether all pods of the object `data` are one gang, so that they leave the line together.

    An Indexed Job that runs all of its pods at one time is distributed training.
    """
    mode, pods, at_one_time = (
        value_at(data, ("spec", field)) for field in ("completionMode", "completions", "parallelism")
    )
    is_job = (workload_kind.group, workload_kind.kind) == ("batch", "Job")
    is_whole = is_job and mode == "Indexed" and pods == at_one_time
    return (workload_kind.starts_together or is_whole) and not stage_field(workload_kind, data)
