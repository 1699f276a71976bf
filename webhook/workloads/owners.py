"""The object that makes a pod, by the table of workload kinds: whether its pods run to completion, and its own deadline."""

from typing import Any

from msgspec.structs import replace

from policies.finding import Edit
from policies.pods.field_paths import Parts, field_path
from policies.pods.workload import Owner
from webhook.configuration.workload_kinds import BRANCHES, PodPath, WorkloadKind, steps
from webhook.workloads.counts import has_one_of, plain_number, pods_of_model, resolved_path, values


def owner_of_template(workload_kind: WorkloadKind, pod_path: PodPath, data: Any, at: Parts) -> Owner:
    """Return the object `data` as the owner of the pods of its template at `at`."""
    model_pods = pods_of_model(workload_kind, pod_path, data, at)
    gang_paths = (steps(pod.path) for pod in workload_kind.pods if pod.gang)
    # Only a path with `*` or `[]` can lead to further gangs of the object.
    no_other_pods = model_pods != 1 and all(map(BRANCHES.isdisjoint, gang_paths))
    owner = Owner(
        kind=workload_kind.kind,
        completes=workload_kind.runs_to_completion,
        model_pods=model_pods,
        model_pods_are_all=no_other_pods,
    )
    path_of = resolved_path(pod_path, at, workload_kind.deadline) if workload_kind.deadline else None
    for path, value in values(data, path_of) if path_of else ():
        if deadline := plain_number(value):
            return replace(owner, deadline=deadline, deadline_path=field_path(path))
    return owner


def first_deadline(workload_kind: WorkloadKind, data: Any) -> str:
    """Return the deadline of the object that passes first while its pods wait, as `spec.activeDeadlineSeconds: 60`, or ""."""
    deadline = "" if has_one_of(workload_kind.deadline_waits, data) else workload_kind.deadline
    paths = filter(None, (deadline, *workload_kind.start_deadlines))
    written = (value for path in paths for value in values(data, steps(path)))
    known = [(seconds, field_path(path)) for path, value in written if (seconds := plain_number(value))]
    return "{1}: {0}".format(*min(known)) if known else ""


def leader_edit(workload_kind: WorkloadKind, data: Any) -> Edit | None:
    """Return what lets the pods of the object without GPUs wait for the others; None if they do, or may run alone."""
    wanted = workload_kind.leaders_wait
    if not wanted or has_one_of(wanted, data):
        return None
    return Edit(*next(iter(wanted.items())))


def own_deadline(workload_kind: WorkloadKind, data: Any) -> int | None:
    """Return the deadline of the object `data` in seconds, None if it has none."""
    deadlines = (plain_number(value) for _, value in values(data, steps(workload_kind.deadline)))
    return next(filter(None, deadlines), None)
