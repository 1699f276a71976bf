"""The injected fields of a pod, found by its annotation `injected`, and the pod as its author submitted it.

The annotation describes each change in the words of `policies.pods.patch`. A field that matches such a description counts as
injected. Fields of the API server's own plugins (tolerations of unreachable nodes, the token volume) came before us and stay.
Anyone can write the annotation, so it alone must never admit or inject anything.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from msgspec.structs import replace

from policies.pods import patch
from policies.pods.annotations import INJECTED
from policies.pods.field_paths import Parts
from policies.pods.pod import Container, Pod, PodSpec, View

T = TypeVar("T")
Words = AbstractSet[str]
"""Changes in words."""
Described = Iterator[tuple[Parts, str]]
"""Paths of JSON members, and each injecting change in words."""

_TERMS = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


def as_submitted(pod: Pod, *, by_author: bool = False, injected: Words | None = None) -> Pod:
    """Return the pod as submitted, without uid and status, and with nodeName only if `by_author`.

    Fields that match one of the changes `injected` (None: those of its own annotation) are removed. A value that we raised (a
    delay or grace period) is removed, too, because the original value is not known.
    """
    metadata = pod.metadata and replace(
        pod.metadata,
        uid=None,
        resource_version=None,
        annotations={key: value for key, value in pod.annotations.items() if key != INJECTED} or None,
    )
    body = replace(pod.spec, ephemeral_containers=None)
    if not by_author:
        body = replace(body, node_name=None)
    for path, _ in reversed(find_injected(pod, injected_changes(pod) if injected is None else injected)):
        body = _without(body, path) or PodSpec()
    return Pod(metadata=metadata, given_spec=body)


def injected_changes(pod: Pod) -> Words:
    """Return the changes in the annotation, which has lines of `rule: change, change`."""
    lines = pod.annotations.get(INJECTED, "").split("\n")
    return frozenset(what for line in lines for what in line.partition(": ")[2].split(", ") if what)


def find_injected(pod: Pod, changes: Words) -> list[tuple[Parts, str]]:
    """Return the paths below `spec` of the fields that match one of the changes, in order, each with the change.

    If several items of a list match, only the last one counts, because we append.
    """
    if not changes:
        return []
    found = {(what, path[:-1]): path for path, what in _described(pod) if what in changes}
    return sorted((path, what) for (what, _), path in found.items())


def _described(pod: Pod) -> Described:
    """Yield every field of the pod that a rule could have injected."""
    body = pod.spec
    yield from _items(body.tolerations, patch.toleration_words, "tolerations")
    yield from _items(body.volumes, patch.volume_words, "volumes")
    yield from _items(body.init_containers, patch.init_container_words, "initContainers")
    for key, value in (body.node_selector or {}).items():
        yield ("nodeSelector", key), patch.node_selector_words(key, value)
    of_nodes = body.affinity and body.affinity.node_affinity
    terms = (of_nodes and of_nodes.required and of_nodes.required.node_selector_terms) or ()
    for at, term in enumerate(terms):
        yield from _items(term.match_expressions, patch.node_affinity_words, *_TERMS, at, "matchExpressions")
    if body.termination_grace_period_seconds is not None:
        seconds = body.termination_grace_period_seconds
        yield ("terminationGracePeriodSeconds",), patch.grace_period_words(seconds)
    for place in pod.places:
        for path, what in _described_container(place.container):
            yield (place.list_name, place.index, *path), patch.container_words(place.container, what)


def _described_container(container: Container) -> Described:
    yield from _items(container.env, patch.env_words, "env")
    yield from _items(container.volume_mounts, patch.volume_mount_words, "volumeMounts")
    for kind, amounts in (("limits", container.limits), ("requests", container.requests)):
        for name, amount in amounts.items():
            yield ("resources", kind, name), patch.resource_words(kind, name, amount)
    if container.startup_probe is not None:
        yield ("startupProbe",), patch.startup_probe_words(container.startup_probe)
    if (readiness := container.readiness_probe) is not None and readiness.initial_delay_seconds:
        words = patch.initial_delay_words(readiness.initial_delay_seconds)
        yield ("readinessProbe", "initialDelaySeconds"), words


def _items(items: Iterable[T] | None, words: Callable[[T], str], *path: str | int) -> Described:
    for at, item in enumerate(items or ()):
        yield (*path, at), words(item)


def _without(node: Any, path: Parts) -> Any:
    """Return the node without the value at the path, and without parents that become empty. None if nothing is left."""
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
