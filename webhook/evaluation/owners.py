"""What the rules may know of the controller that makes a pod."""

from msgspec.structs import replace

from policies.pods.limits import LONGEST_NAME
from policies.pods.pod import Metadata, Pod
from policies.pods.workload import NO_OWNER, Owner
from policies.policy import EffectivePolicy
from policies.rule import Need
from webhook.configuration.loader import Configuration
from webhook.evaluation.facts import Facts, OwnerUnread


def owner_of(
    policy: EffectivePolicy, pod: Pod, configuration: Configuration, facts: Facts, *, is_proven: bool = True
) -> Owner:
    """Return the controller of a pod, if an enabled rule reads it. Its kind counts only if it `is_proven`.

    Its deadline is looked up only for a GPU pod without one: a pod's own comes first.
    """
    reference = (pod.metadata or Metadata()).controller if Need.OWNER in policy.needs else None
    if reference is None:
        return NO_OWNER
    group, kind = reference.api_version.rpartition("/")[0], reference.kind
    workload_kind = configuration.workload_kinds.get((group, kind))
    owner = Owner(
        kind=kind if is_proven and len(kind) <= LONGEST_NAME else "",
        completes=workload_kind is not None and workload_kind.runs_to_completion,
    )
    if workload_kind is None or not workload_kind.ends_pods or pod.spec.active_deadline_seconds is not None:
        return owner
    if facts.owner_deadline is None or not configuration.resource_mapping.pod_requests_gpus(pod):
        return replace(owner, deadline_is_known=False)
    name = f"{kind}/{reference.name}"
    try:
        deadline = facts.owner_deadline(policy.namespace, reference, workload_kind)
    except OwnerUnread as unread:
        return replace(owner, name=name, deadline_is_known=False, problem=str(unread))
    if deadline is None:
        return owner  # without its name, which would keep equal pods from one decision
    return replace(owner, name=name, deadline=deadline, deadline_path=workload_kind.deadline)
