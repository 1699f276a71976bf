"""Limits of a pod's lists and texts. Real pods are far below them. They keep a review within milliseconds.

A mutating webhook sees a pod before validation, so an author can send lists of any length up to 3 MiB. The limits apply before
all rules, under every policy.
"""

from collections.abc import Mapping, Sequence

import msgspec

from policies.finding import Finding, truncate
from policies.pods.annotations import DOMAIN, INJECTED
from policies.pods.field_paths import annotation_path
from policies.pods.pod import Affinity, NodeSelectorTerm, Pod, View

ID = "limits"
"""Rule id of the findings of this module."""

MOST_VALUES = 20_000
"""Commas in the JSON of an object: they count its values without decoding. The largest of 220 real manifests has 330."""
MOST_CONTAINERS = 128
MOST_IN_CONTAINER = 1_000
"""Variables, mounts, … of one container; MOST_VALUES bounds those of all."""
MOST_RESOURCES = 64
"""Names of resources in one list."""
MOST_AMOUNTS = 1_024
"""Amounts of resources in all containers, 8 for each of MOST_CONTAINERS."""
MOST_IN_POD = 500
"""Volumes, claims, … of a pod."""
MOST_COMPARED = 256
"""Tolerations, terms, …: rules compare each with every taint or label of the classes."""
MOST_REQUIREMENTS = 512
"""In all terms of the required node affinity, and in all of the preferred one."""
MOST_AFFINITY_VALUES = 2_000
"""Values of these requirements. Some list nodes by their names."""
LONGEST_NAME = 253 + 1 + 63
"""Characters of a resource's name: prefix, slash, name."""
LONGEST_ANNOTATION = 4_096
"""Characters of an annotation that a rule parses."""


_OF_POD = {
    "containers": MOST_CONTAINERS,
    "init_containers": MOST_CONTAINERS,
    "ephemeral_containers": MOST_CONTAINERS,
    "volumes": MOST_IN_POD,
    "resource_claims": MOST_IN_POD,
    "scheduling_gates": MOST_IN_POD,
    "tolerations": MOST_COMPARED,
    "node_selector": MOST_COMPARED,
    "overhead": MOST_RESOURCES,
}
_OF_CONTAINER = {
    "name": LONGEST_NAME,
    "env": MOST_IN_CONTAINER,
    "env_from": MOST_IN_CONTAINER,
    "volume_mounts": MOST_IN_CONTAINER,
}
_OF_RESOURCES = {"limits": MOST_RESOURCES, "requests": MOST_RESOURCES, "claims": MOST_IN_CONTAINER}


def check_size(document: msgspec.Raw) -> msgspec.Raw:
    """Return the JSON of an object if it is short enough to be decoded. Raises msgspec.ValidationError."""
    count = bytes(document).count(b",")
    if count > MOST_VALUES:
        raise msgspec.ValidationError(f"must have at most {MOST_VALUES} values, not {count} (its commas)")
    return document


def excesses(pod: Pod) -> list[Finding]:
    """Return a denial for each length above its limit. Check the containers only if nothing else is too long."""
    return _of_pod(pod) or _of_containers(pod)


def _longer(path: str, length: int, limit: int, unit: str) -> list[Finding]:
    if length <= limit:
        return []
    return [Finding(rule=ID, path=path, message=f"must have at most {limit} {unit}, not {length}")]


def _lists(path: str, view: View, limits: Mapping[str, int]) -> list[Finding]:
    found: list[Finding] = []
    for name, limit in limits.items():
        value = getattr(view, name)
        if value is not None and len(value) > limit:
            field = view.__struct_encode_fields__[view.__struct_fields__.index(name)]
            unit = "characters" if isinstance(value, str) else "items"
            found += _longer(f"{path}.{field}", len(value), limit, unit)
    return found


def _of_pod(pod: Pod) -> list[Finding]:
    spec = pod.spec
    found = _lists("spec", spec, _OF_POD)
    if spec.resources is not None:
        found += _lists("spec.resources", spec.resources, _OF_RESOURCES)
    if spec.affinity is not None:
        found += _of_affinity(spec.affinity)
    for key, value in pod.annotations.items():
        # INJECTED grows with the pod, and is only split into words.
        if len(value) > LONGEST_ANNOTATION and key.startswith(DOMAIN) and key != INJECTED:
            found += _longer(annotation_path(truncate(key)), len(value), LONGEST_ANNOTATION, "characters")
    return found


def _of_affinity(affinity: Affinity) -> list[Finding]:
    of_nodes = affinity.node_affinity
    required = (of_nodes and of_nodes.required and of_nodes.required.node_selector_terms) or ()
    preferred = [each.preference for each in (of_nodes and of_nodes.preferred) or () if each.preference]
    path = "spec.affinity.nodeAffinity"
    return [
        *_of_terms(f"{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", required),
        *_of_terms(f"{path}.preferredDuringSchedulingIgnoredDuringExecution", preferred),
    ]


def _of_terms(path: str, terms: Sequence[NodeSelectorTerm]) -> list[Finding]:
    requirements = [
        each for term in terms for each in (*(term.match_expressions or ()), *(term.match_fields or ()))
    ]
    values = sum(len(each.values or ()) for each in requirements)
    return [
        *_longer(path, len(terms), MOST_COMPARED, "items"),
        *_longer(path, len(requirements), MOST_REQUIREMENTS, "requirements in all terms"),
        *_longer(path, values, MOST_AFFINITY_VALUES, "values in all terms"),
    ]


def _of_containers(pod: Pod) -> list[Finding]:
    found: list[Finding] = []
    amounts = 0
    for place in pod.places:
        container = place.container
        found += _lists(place.path, container, _OF_CONTAINER)
        if container.resources is not None:
            found += _lists(f"{place.path}.resources", container.resources, _OF_RESOURCES)
            names = [*container.limits, *container.requests]
            amounts += len(names)
            longest = max(map(len, names), default=0)
            found += _longer(f"{place.path}.resources", longest, LONGEST_NAME, "characters in a name")
    return found + _longer("spec", amounts, MOST_AMOUNTS, "amounts of resources in all containers")
