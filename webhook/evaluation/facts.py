"""The facts about a cluster that decisions depend on, and what they say of the controller that makes a pod."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.gpus.claimed_devices import ClaimName, RequestedDevices
from policies.placement.nodes import NO_NODES, NodeFacts, NodeIndex
from policies.pods.label_selector import LabelSelector
from policies.pods.limit_ranges import NamespaceLimits
from policies.pods.limits import LONGEST_NAME
from policies.pods.pod import Metadata, OwnerReference, Pod
from policies.pods.workload import NO_OWNER, Owner
from policies.policy import EffectivePolicy, Labels
from policies.rule import Need
from webhook.configuration.loader import Configuration
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.workloads.references import ObjectReference


class OwnerUnread(Exception):  # noqa: N818 - no bug
    """The object that makes a pod could not be read; the message says why."""


OwnerLookup = Callable[[str, OwnerReference, WorkloadKind], int | None]
"""Returns the seconds after which an object of this kind in a namespace ends its pods; None if it has no deadline, or does not
exist. Raises OwnerUnread."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Lookups of facts for one object, for a review by its deadline. An omitted field: the fact is unknown."""

    labels_of: Callable[[str], Labels] = lambda _namespace: ()
    """The labels of a namespace. Raises NamespaceUnknown."""
    nodes: Callable[[], NodeFacts | None] = lambda: None
    named_nodes: Callable[[], NodeIndex] = lambda: NO_NODES
    claims: Callable[[ClaimName], RequestedDevices | None] | None = None
    is_made_for_pod: Callable[[ClaimName], bool | None] = lambda _name: False
    """Whether a claim was made from a template for one pod; None if it could not be read."""
    owner_deadline: OwnerLookup | None = None
    pdb_selectors: Callable[[str], tuple[LabelSelector, ...] | None] = lambda _namespace: None
    """The selectors of the PodDisruptionBudgets in a namespace; None if they cannot be read."""
    find_object: Callable[[ObjectReference], Any] = lambda _name: None
    """An object that another one references (`refers`), or scales, as plain data; None if it cannot be read."""
    config_maps: Callable[[str], Mapping[str, Mapping[str, str]]] = lambda _namespace: {}
    """The data of the ConfigMaps in a namespace, by name, as far as they are known."""
    limits_of: Callable[[str], NamespaceLimits | None] = lambda _namespace: None
    """What the LimitRanges of a namespace say; None if they cannot be read."""


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
