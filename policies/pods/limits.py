"""Limits of the lengths of a pod's lists and strings, which keep an admission review within milliseconds.

The API server calls mutating webhooks before it validates a pod, so lists can have any length up to 3 MiB of request. The limits
apply before all rules and under every policy. Real pods are far below them. The exported policies refuse larger pods by the same
limits: a pod within them costs less than half of what CEL may cost.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from policies.finding import TOO_LARGE, Finding, truncate
from policies.pods.annotations import DOMAIN, INJECTED
from policies.pods.field_paths import annotation_path
from policies.pods.pod import NodeSelectorTerm, Pod, View

ID = "limits"
"""Rule id of the findings of this module."""

MAX_VALUES = 20_000
"""Commas in the JSON of an object: an estimate of its values without decoding. The largest of 220 real manifests has 330."""
MAX_CONTAINERS = 128
MAX_INIT_CONTAINERS = 64
"""Each runs together with the sidecars before it, so what they need is quadratic."""
MAX_IN_CONTAINER = 1_000
"""Items of each list of one container, such as env."""
MAX_ITEMS = 4_000
"""Items of env, envFrom and volumeMounts of all containers."""
MAX_RESOURCES = 64
"""Resource names in one map, such as limits."""
MAX_AMOUNTS = 1_024
"""Resource amounts in all containers: 8 for each of MAX_CONTAINERS."""
MAX_IN_POD = 500
"""Items of each list of the pod that has no limit of its own below, such as volumes."""
MAX_HOST_PATHS = 64
"""Volumes with a hostPath. Each path is compared with those that lead to GPUs, and with each volumeMount."""
MAX_PATH_CHARACTERS = 32_768
"""Characters of these paths. Linux opens none of more than 4,096."""
MAX_COMPARED = 256
"""Tolerations, entries of the nodeSelector, and terms. Rules compare each one with every taint or label of the GPU classes."""
MAX_REQUIREMENTS = 512
"""Requirements in all terms of the required node affinity; the same limit for the preferred node affinity."""
MAX_AFFINITY_VALUES = 2_000
"""Values of these requirements. Some requirements list node names."""
LONGEST_NAME = 253 + 1 + 63
"""Characters of a resource name: prefix, slash, name."""
MAX_NAME_CHARACTERS = 32_768
"""Characters of the resource names in all containers: 32 for each of MAX_AMOUNTS."""
REQUIRED_TERMS = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
PREFERRED_TERMS = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
LONGEST_ANNOTATION = 4_096
"""Characters of an annotation that a rule parses."""

POD_LIMITS = {
    **dict.fromkeys(("containers", "ephemeral_containers"), MAX_CONTAINERS),
    "init_containers": MAX_INIT_CONTAINERS,
    **dict.fromkeys(("volumes", "resource_claims", "scheduling_gates"), MAX_IN_POD),
    **dict.fromkeys(("tolerations", "node_selector"), MAX_COMPARED),
    "overhead": MAX_RESOURCES,
}
"""Of the lists and maps of a PodSpec, by the name of the field in `policies.pods.pod.PodSpec`."""
_IN_CONTAINER = dict.fromkeys(("env", "env_from", "volume_mounts"), MAX_IN_CONTAINER)
_CONTAINER_LIMITS = {"name": LONGEST_NAME, **_IN_CONTAINER}
_RESOURCE_LIMITS = {"limits": MAX_RESOURCES, "requests": MAX_RESOURCES, "claims": MAX_IN_CONTAINER}


def check_size(document: msgspec.Raw) -> msgspec.Raw:
    """Return the JSON of an object unchanged. Raises msgspec.ValidationError if it has too many values."""
    count = bytes(document).count(b",")
    if count > MAX_VALUES:
        raise msgspec.ValidationError(f"must have at most {MAX_VALUES} values, not {count} (its commas)")
    return document


def excesses(pod: Pod) -> list[Finding]:
    """Return a denial for each limit that the pod exceeds. Check the containers only if the pod's own lists are within limits."""
    return _pod_excesses(pod) or _container_excesses(pod)


def _excess(path: str, length: int, limit: int, unit: str) -> list[Finding]:
    if length <= limit:
        return []
    message = f"must have at most {limit} {unit}, not {length}"
    return [Finding(rule=ID, reason=TOO_LARGE, path=path, message=message)]


def _list_excesses(path: str, view: View, limits: Mapping[str, int]) -> list[Finding]:
    found: list[Finding] = []
    for name, limit in limits.items():
        value = getattr(view, name)
        if value is not None and len(value) > limit:
            field = view.__struct_encode_fields__[view.__struct_fields__.index(name)]
            unit = "characters" if isinstance(value, str) else "items"
            found += _excess(f"{path}.{field}", len(value), limit, unit)
    return found


def _pod_excesses(pod: Pod) -> list[Finding]:
    spec = pod.spec
    found = _list_excesses("spec", spec, POD_LIMITS)
    if spec.resources is not None:
        found += _list_excesses("spec.resources", spec.resources, _RESOURCE_LIMITS)
        found += _name_excesses(
            "spec.resources", (*(spec.resources.limits or ()), *(spec.resources.requests or ()))
        )
    paths = [volume.host_path.path for volume in spec.volumes or () if volume.host_path]
    found += _excess("spec.volumes", len(paths), MAX_HOST_PATHS, "with a hostPath")
    found += _excess("spec.volumes", sum(map(len, paths)), MAX_PATH_CHARACTERS, "characters in all hostPaths")
    preferred = [term.preference for term in pod.node_affinity.preferred or () if term.preference]
    found += _term_excesses(REQUIRED_TERMS, pod.required_terms)
    found += _term_excesses(PREFERRED_TERMS, preferred)
    for key, value in pod.annotations.items():
        # INJECTED is longer for a larger pod, and rules only split it into words.
        if len(value) > LONGEST_ANNOTATION and key.startswith(DOMAIN) and key != INJECTED:
            found += _excess(annotation_path(truncate(key)), len(value), LONGEST_ANNOTATION, "characters")
    return found


def _term_excesses(path: str, terms: Sequence[NodeSelectorTerm]) -> list[Finding]:
    requirements = [
        each for term in terms for each in (*(term.match_expressions or ()), *(term.match_fields or ()))
    ]
    values = sum(len(requirement.values or ()) for requirement in requirements)
    return [
        *_excess(path, len(terms), MAX_COMPARED, "items"),
        *_excess(path, len(requirements), MAX_REQUIREMENTS, "requirements in all terms"),
        *_excess(path, values, MAX_AFFINITY_VALUES, "values in all terms"),
    ]


def _name_excesses(path: str, names: Iterable[str]) -> list[Finding]:
    return _excess(path, max(map(len, names), default=0), LONGEST_NAME, "characters in a name")


def _container_excesses(pod: Pod) -> list[Finding]:
    found: list[Finding] = []
    amounts = characters = items = 0
    for place in pod.places:
        container = place.container
        found += _list_excesses(place.path, container, _CONTAINER_LIMITS)
        items += sum(len(getattr(container, field) or ()) for field in _IN_CONTAINER)
        if container.resources is not None:
            found += _list_excesses(f"{place.path}.resources", container.resources, _RESOURCE_LIMITS)
            names = [*container.limits, *container.requests]
            amounts += len(names)
            characters += sum(map(len, names))
            found += _name_excesses(f"{place.path}.resources", names)
    return [
        *found,
        *_excess("spec", items, MAX_ITEMS, "items of env, envFrom and volumeMounts in all containers"),
        *_excess("spec", amounts, MAX_AMOUNTS, "amounts of resources in all containers"),
        *_excess("spec", characters, MAX_NAME_CHARACTERS, "characters of resource names in all containers"),
    ]
