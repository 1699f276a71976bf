"""The injected fields of a pod, found by its annotation `injected`, and the pod as its author submitted it.

The annotation lists changes in the words of `policies.pods.patch`. A field that matches such words counts as injected. The API
server's own plugins add their fields before the webhook (tolerations of unreachable nodes, the token volume), so these stay.
Anyone can write the annotation, so it alone must never admit or inject anything.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.pods import patch
from policies.pods.annotations import INJECTED
from policies.pods.field_paths import Parts
from policies.pods.pod import Container, Pod, PodSpec, View

Words = AbstractSet[str]
"""Changes in words."""
Described = Iterator[tuple[Parts, str]]
"""Paths of JSON members, and the changes in words that could have injected them."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TERMS = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


def as_submitted(pod: Pod, *, by_author: bool = False, injected: Words | None = None) -> Pod:
    """Return the pod as submitted, without uid and status, and with nodeName only if `by_author`.

    Remove the fields that match one of the changes `injected` (None: those of the pod's annotation). Also remove raised values (a
    delay or grace period), because the original value is not known.
    """
    metadata = pod.metadata and replace(
        pod.metadata,
        uid=None,
        resource_version=None,
        annotations={key: value for key, value in pod.annotations.items() if key != INJECTED} or None,
    )
    spec = replace(pod.spec, ephemeral_containers=None)
    if not by_author:
        spec = replace(spec, node_name=None)
    for path, _ in reversed(find_injected(pod, injected_changes(pod) if injected is None else injected)):
        spec = _without(spec, path) or PodSpec()
    return Pod(metadata=metadata, given_spec=spec)


def names_its_node(document: bytes) -> bool:
    """Whether the pod, in JSON, was created with its nodeName. Who writes a field owns it, and a binding owns no field.

    (`BindingREST.assignPod`, pkg/registry/core/pod/storage, v1.36.) Without managedFields, the scheduler is assumed.
    """
    metadata = _MEMBERS.decode(document).get("metadata", b"{}")
    return b'"f:nodeName"' in bytes(_MEMBERS.decode(metadata).get("managedFields", b""))


def injected_changes(pod: Pod) -> Words:
    """Return the changes in the annotation, which has lines of `rule: change, change`."""
    lines = pod.annotations.get(INJECTED, "").split("\n")
    return frozenset(what for line in lines for what in line.partition(": ")[2].split(", ") if what)


def find_injected(pod: Pod, changes: Words) -> list[tuple[Parts, str]]:
    """Return the paths below `spec` of the fields that match one of the changes, in order, each with the change.

    If several items of a list match, only the last one counts, because rules append.
    """
    if not changes:
        return []
    found = {(what, path[:-1]): path for path, what in _described(pod) if what in changes}
    return sorted((path, what) for (what, _), path in found.items())


def _described(pod: Pod) -> Described:
    """Yield every field of the pod that a rule could have injected."""
    spec = pod.spec
    yield from _items(
        {"tolerations": spec.tolerations, "volumes": spec.volumes, "initContainers": spec.init_containers}
    )
    for key, value in pod.node_selector.items():
        yield ("nodeSelector", key), patch.words(value, f"nodeSelector {key}")
    for at, term in enumerate(pod.required_terms):
        for index, requirement in enumerate(term.match_expressions or ()):
            yield (*_TERMS, at, "matchExpressions", index), patch.words(requirement)
    if (seconds := spec.termination_grace_period_seconds) is not None:
        yield ("terminationGracePeriodSeconds",), patch.words(seconds, "terminationGracePeriodSeconds")
    for place in pod.places:
        for path, what in _described_container(place.container):
            yield (place.list_name, place.index, *path), f"{place.container.name}: {what}"


def _described_container(container: Container) -> Described:
    yield from _items({"env": container.env, "volumeMounts": container.volume_mounts})
    for kind, amounts in (("limits", container.limits), ("requests", container.requests)):
        for name, amount in amounts.items():
            yield ("resources", kind, name), patch.words(amount, f"{kind} {name}")
    if container.startup_probe is not None:
        yield ("startupProbe",), patch.words(container.startup_probe)
    if (readiness := container.readiness_probe) is not None and readiness.initial_delay_seconds:
        words = patch.words(readiness.initial_delay_seconds, "readinessProbe.initialDelaySeconds")
        yield ("readinessProbe", "initialDelaySeconds"), words


def _items(lists: Mapping[str, Iterable[patch.Added] | None]) -> Described:
    for name, items in lists.items():
        for at, item in enumerate(items or ()):
            yield (name, at), patch.words(item)


def _without(node: Any, path: Parts) -> Any:
    """Return the node without the value at the path, and without parents that become empty. None if the node is empty."""
    part, rest = path[0], path[1:]
    if isinstance(node, View):
        field = node.__struct_fields__[node.__struct_encode_fields__.index(str(part))]
        left = replace(node, **{field: _without(getattr(node, field), rest) if rest else None})
        return None if left == type(node)() else left
    child = _without(node[part], rest) if rest else None
    if isinstance(node, dict):
        others = {key: value for key, value in node.items() if key != part}
        return (others if child is None else {**node, part: child}) or None
    index = int(part)
    return (*node[:index], *(() if child is None else (child,)), *node[index + 1 :]) or None
