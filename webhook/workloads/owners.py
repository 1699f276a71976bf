"""The object that makes a pod, by the table of workload kinds: whether its pods run to completion, and its own deadline."""

from typing import Any

from msgspec.structs import replace

from policies.pods.field_paths import Parts, field_path
from policies.pods.owner import Owner
from webhook.configuration.workload_kinds import BRANCHES, PodPath, WorkloadKind, steps
from webhook.workloads.counts import bound, plain_number, shared_pods, values


def owner_of_template(workload_kind: WorkloadKind, pod_path: PodPath, data: Any, at: Parts) -> Owner:
    """Return the object `data` as the owner of the pods of its template at `at`."""
    model_pods = shared_pods(workload_kind, pod_path, data, at)
    gang_paths = (steps(each.path) for each in workload_kind.pods if each.gang)
    # Only a path with `*` or `[]` can lead to further gangs of the object.
    are_all = model_pods != 1 and all(map(BRANCHES.isdisjoint, gang_paths))
    owner = Owner(
        kind=workload_kind.kind,
        completes=workload_kind.runs_to_completion,
        model_pods=model_pods,
        model_pods_are_all=are_all,
    )
    path_of = bound(pod_path, at, workload_kind.deadline) if workload_kind.deadline else None
    for path, value in values(data, path_of) if path_of else ():
        if deadline := plain_number(value):
            return replace(owner, deadline=deadline, deadline_path=field_path(path))
    return owner


def own_deadline(workload_kind: WorkloadKind, data: Any) -> int | None:
    """Return the deadline of the object `data` in seconds, None if it has none."""
    deadlines = (plain_number(value) for _, value in values(data, steps(workload_kind.deadline)))
    return next(filter(None, deadlines), None)
