"""Every GPU class, built-in ones too: whether pods of a namespace may use it, its nodes, and what is free on them."""

from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from policies.gpus.classes import GPUClass, HostShare
from policies.placement.class_options import ANY, class_matches
from policies.placement.class_selection import node_label_values
from policies.placement.nodes import NodeFacts
from policies.policy import EffectivePolicy
from policies.quota.amounts import CLASSES, GPUS, ZERO
from policies.rule import Mode
from policies.rules import gpu_class, host_resources
from policies.rules.gpu_class import GPUClassOptions
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.capacity import NO_CAPACITY, ClassCapacity, capacity_by_class, share_by_class
from webhook.cluster.nodes import node_pools
from webhook.configuration.documents import CLASS, GROUP
from webhook.configuration.loader import Configuration, keys_to_know
from webhook.quota.documents import PLURAL, decode_quota, quota_path
from webhook.tools.json_struct import JsonStruct
from webhook.tools.status.tolerant_reader import TolerantReader

NO_POOLS = NodeFacts(keys=())


class ListedClass(JsonStruct, frozen=True, kw_only=True):
    """A GPU class, as `classes` lists it for a namespace.

    allowed: whether policy and quota let pods of the namespace use it; None where that cannot be read. because: why not, or why
    although the policy leaves it out (its mode); empty if unrestricted. can_be_made: whether an autoscaler or a Karpenter pool
    makes nodes of it. named: by the quota, by the policy or by a document. capacity: None where nodes cannot be read.
    allocatable_per_gpu: what its node with the least has for each card, if rule host-resources is on and the class has no share.
    """

    name: str
    family: str
    memory_gib: int = msgspec.field(name="memoryGiB")
    resource: str
    gpus_per_node: int | None = msgspec.field(name="gpusPerNode", default=None)
    mig_profiles: tuple[str, ...] = ()
    per_gpu: HostShare | None = msgspec.field(name="perGPU", default=None)
    allocatable_per_gpu: HostShare | None = msgspec.field(name="allocatablePerGPU", default=None)
    built_in: bool
    allowed: bool | None
    because: str = ""
    can_be_made: bool = False
    named: bool = False
    capacity: ClassCapacity | None = None

    @property
    def has_nodes(self) -> bool:
        return self.capacity is not None and self.capacity.nodes > 0

    @property
    def order(self) -> tuple[bool, bool, bool, bool, str]:
        """The sort key: with nodes, then those that can be made, then named and allowed ones."""
        return not self.has_nodes, not self.can_be_made, not self.named, self.allowed is False, self.name


class ClassListing(JsonStruct, frozen=True, kw_only=True):
    """The classes for a namespace: those with nodes first, then those that can be made, then named and allowed ones.

    policy: the policy of the namespace, and why it governs; empty where that cannot be read. unclassified: nodes of no class, by
    family or "". omitted: rights that the caller lacks, as `kubectl auth can-i` takes them. nodes_from: what was read instead of
    the nodes, in words; "" if the caller may list them.
    """

    namespace: str
    policy: str
    classes: tuple[ListedClass, ...]
    unclassified: Mapping[str, ClassCapacity]
    omitted: tuple[str, ...] = ()
    nodes_from: str = ""

    @property
    def relevant(self) -> tuple[ListedClass, ...]:
        """The classes that have nodes or can have them; where nodes cannot be read, also those that a document names.

        All classes, if these are none.
        """
        has_capacity = any(listed_class.capacity is not None for listed_class in self.classes)
        relevant = tuple(
            listed_class
            for listed_class in self.classes
            if listed_class.has_nodes or listed_class.can_be_made or (listed_class.named and not has_capacity)
        )
        return relevant or self.classes


def read_classes(
    api: ApiClient, namespace: str, now: datetime, *, config: Path | None = None
) -> ClassListing:
    """Return the classes of a cluster, or of the documents in `config`, for a namespace.

    Raises ConfigurationError, and `errors.ApiError` for everything but a lack of rights.
    """
    reader = TolerantReader(api)
    configuration = reader.configuration(config)
    policy = reader.policy_of(configuration, namespace)
    hard = reader.attempt(f"get {PLURAL}.{GROUP} -n {namespace}", partial(_granted_amounts, api, namespace))
    nodes = reader.class_nodes(configuration, now, any_age=True)
    keys = keys_to_know(configuration)
    right = "list nodepools.karpenter.sh"
    pools = () if config else reader.attempt(right, lambda: tuple(node_pools(api))) or ()
    return list_classes(
        configuration,
        namespace,
        policy,
        now,
        hard=hard,
        capacities=None if nodes is None else capacity_by_class(nodes),
        shares=share_by_class(nodes or ()) if policy and policy.options_of(host_resources.ID) else {},
        pools=NodeFacts(keys=keys, pools=pools),
        omitted=tuple(reader.omitted),
        nodes_from=reader.nodes_from,
    )


def _granted_amounts(api: ApiClient, namespace: str) -> Mapping[str, Fraction] | None:
    try:
        record = decode_quota(api.get(quota_path(namespace)))
    except errors.NotFound:
        return {}
    return None if record is None or record.spec is None else record.spec.amounts


def list_classes(
    configuration: Configuration,
    namespace: str,
    policy: EffectivePolicy | None,
    now: datetime,
    *,
    hard: Mapping[str, Fraction] | None,
    capacities: Mapping[str, ClassCapacity] | None = None,
    shares: Mapping[str, HostShare] = MappingProxyType({}),
    pools: NodeFacts = NO_POOLS,
    omitted: tuple[str, ...] = (),
    nodes_from: str = "",
) -> ClassListing:
    """Return the classes for a namespace; `hard` is what the namespace's quota grants. None: unknown."""
    options = policy.options_of(gpu_class.RULE.id) if policy else None
    options = options if isinstance(options, GPUClassOptions) else GPUClassOptions()
    granted = {key.removeprefix(CLASSES) for key, amount in (hard or {}).items() if amount}
    documented = {document.name for document in configuration.documents if document.kind == CLASS}
    listed = []
    for of_class in configuration.classes:
        allowed, because = class_permission(of_class, policy, now, hard)
        listed.append(
            ListedClass(
                name=of_class.name,
                family=of_class.family,
                memory_gib=of_class.memory_gib,
                resource=of_class.resource,
                gpus_per_node=of_class.gpus_per_node,
                mig_profiles=tuple(of_class.mig_profiles),
                per_gpu=of_class.per_gpu,
                allocatable_per_gpu=None if of_class.per_gpu else shares.get(of_class.name),
                built_in=of_class.name not in documented,
                allowed=allowed,
                because=because,
                can_be_made=_can_be_made(of_class, options, pools),
                named=of_class.name in documented
                or bool({of_class.name, of_class.family} & {*granted, options.default})
                or (ANY not in options.allowed and class_matches(of_class, options.allowed)),
                capacity=None if capacities is None else capacities.get(of_class.name, NO_CAPACITY),
            )
        )
    listed.sort(key=lambda listed_class: listed_class.order)
    names = {listed_class.name for listed_class in listed}
    return ClassListing(
        namespace=namespace,
        policy="" if policy is None else f"{policy.name}: {policy.why}",
        classes=tuple(listed),
        unclassified={name: capacity for name, capacity in (capacities or {}).items() if name not in names},
        omitted=omitted,
        nodes_from=nodes_from,
    )


def _can_be_made(of_class: GPUClass, options: GPUClassOptions, pools: NodeFacts) -> bool:
    if class_matches(of_class, options.autoscaled_classes):
        return True
    values = node_label_values(of_class, options.label_key)
    return bool(values) and pools.has_label(options.label_key, values)


def class_permission(
    of_class: GPUClass, policy: EffectivePolicy | None, now: datetime, hard: Mapping[str, Fraction] | None
) -> tuple[bool | None, str]:
    """Return `allowed` and `because` of a ListedClass; `hard` is what the namespace's quota grants."""
    allowed: bool | None = None
    because = ""
    if policy is not None:
        options, mode = policy.options_of(gpu_class.RULE.id), policy.mode_of(gpu_class.RULE.id, now)
        allowed = True
        if isinstance(options, GPUClassOptions) and not class_matches(of_class, options.allowed):
            allowed = mode is not Mode.ENFORCE
            because = f"rule {gpu_class.RULE.id} of policy {policy.name} allows {', '.join(options.allowed)}"
            because += f"; it is in mode {mode.value} here" if allowed else ""
    keys = (GPUS, f"{CLASSES}{of_class.name}", f"{CLASSES}{of_class.family}")
    forbidden = next((key for key in keys if hard and hard.get(key) == ZERO), None)
    if allowed is not False and forbidden is not None:
        return False, f"the GPUQuota grants 0 of {forbidden}"
    return (None if allowed and hard is None else allowed), because
