"""The facts about a cluster that decisions depend on."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from policies.gpus.claimed_devices import ClaimName, RequestedDevices
from policies.placement.nodes import NO_NODES, NodeFacts, NodeIndex
from policies.pods.label_selector import LabelSelector
from policies.pods.limit_ranges import NamespaceLimits
from policies.pods.pod import OwnerReference
from policies.policy import Labels
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.workloads.references import ObjectName


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
    budgets: Callable[[str], tuple[LabelSelector, ...] | None] = lambda _namespace: None
    """The selectors of the PodDisruptionBudgets in a namespace; None if they cannot be read."""
    referred: Callable[[ObjectName], Any] = lambda _name: None
    """An object that another one names (`refers`), or scales, as plain data; None if it cannot be read."""
    config_maps: Callable[[str], Mapping[str, Mapping[str, str]]] = lambda _namespace: {}
    """The data of the ConfigMaps in a namespace, by name, as far as they are known."""
    limits_of: Callable[[str], NamespaceLimits | None] = lambda _namespace: None
    """What the LimitRanges of a namespace say; None if they cannot be read."""
