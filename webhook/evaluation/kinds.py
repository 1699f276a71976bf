"""Kinds that are evaluated besides workloads, each with its API group."""

POD = ("", "Pod")
RESOURCE_QUOTA = ("", "ResourceQuota")
LIMIT_RANGE = ("", "LimitRange")
PDB = ("policy", "PodDisruptionBudget")
CLAIM = ("resource.k8s.io", "ResourceClaim")
CLAIM_TEMPLATE = ("resource.k8s.io", "ResourceClaimTemplate")
CLAIM_SPEC_PATHS = {CLAIM: ("spec",), CLAIM_TEMPLATE: ("spec", "spec")}
"""Where they have the spec of a claim."""
ADVISED_KINDS = frozenset({RESOURCE_QUOTA, LIMIT_RANGE, CLAIM_TEMPLATE})
"""Kinds, with their API groups, that may get a warning: their author would not see the effect. Rules may deny templates."""
API_VALIDATED_KINDS = frozenset({RESOURCE_QUOTA, LIMIT_RANGE})
"""Kinds whose findings say what the API server rejects."""
