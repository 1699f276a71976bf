"""Kinds that are evaluated besides workloads, each with its API group."""

import msgspec

POD = ("", "Pod")
RESOURCE_QUOTA = ("", "ResourceQuota")
CLAIM = ("resource.k8s.io", "ResourceClaim")
CLAIM_TEMPLATE = ("resource.k8s.io", "ResourceClaimTemplate")
ADVISED = frozenset({RESOURCE_QUOTA, CLAIM_TEMPLATE})
"""Kinds, with their API groups, that are always admitted, but may get a warning: their author would not see the effect."""


class GroupKind(msgspec.Struct, frozen=True):
    group: str = ""
    kind: str = ""
