"""A stored pod as its author submitted it: without what admission, the scheduler and the kubelet have added since.

What we injected stands in the annotation `injected`, in the words of `policies.pods.patch`; what of the pod reads like that is
taken out again. What the API server's own plugins add (tolerations of unreachable nodes, the token's volume) was there before we
saw the pod, and stays. Anyone can write the annotation, so this is for reports on pods that run, and never for admission.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import TypeVar

from msgspec.structs import replace

from policies.pods import patch
from policies.pods.annotations import INJECTED
from policies.pods.pod import (
    Affinity,
    Container,
    NodeAffinity,
    NodeSelector,
    Pod,
    PodSpec,
    Resources,
)

T = TypeVar("T")


def as_submitted(pod: Pod, *, by_author: bool = False) -> Pod:
    """Return the pod as it was submitted, without uid and status; with its nodeName only if that is there `by_author`.

    A value that we replaced (a shorter delay or grace period) is not known any more: it is left out, and so its default.
    """
    injected = _injected(pod)
    metadata = pod.metadata and replace(
        pod.metadata,
        uid=None,
        resource_version=None,
        annotations={key: value for key, value in pod.annotations.items() if key != INJECTED} or None,
    )
    body = replace(pod.body, ephemeral_containers=None)
    if not by_author:
        body = replace(body, node_name=None)
    return Pod(metadata=metadata, spec=_without(body, injected) if injected else body)


def _injected(pod: Pod) -> frozenset[str]:
    """Return what was injected, in the words of each change: lines of `rule: change, change`."""
    lines = pod.annotations.get(INJECTED, "").split("\n")
    return frozenset(what for line in lines for what in line.partition(": ")[2].split(", ") if what)


def _without(body: PodSpec, injected: AbstractSet[str]) -> PodSpec:
    selector = {
        key: value
        for key, value in (body.node_selector or {}).items()
        if patch.node_selector_words(key, value) not in injected
    }
    grace = body.termination_grace_period_seconds
    is_ours = grace is not None and patch.grace_period_words(grace) in injected
    init_containers = _kept(body.init_containers, patch.init_container_words, injected)
    return replace(
        body,
        containers=tuple(_container(each, injected) for each in body.containers or ()),
        init_containers=tuple(_container(each, injected) for each in init_containers or ()) or None,
        volumes=_kept(body.volumes, patch.volume_words, injected),
        tolerations=_kept(body.tolerations, patch.toleration_words, injected),
        node_selector=selector or None,
        affinity=body.affinity and _affinity(body.affinity, injected),
        termination_grace_period_seconds=None if is_ours else grace,
    )


def _affinity(affinity: Affinity, injected: AbstractSet[str]) -> Affinity | None:
    of_nodes = affinity.node_affinity
    if of_nodes is None or of_nodes.required is None:
        return affinity
    terms = of_nodes.required.node_selector_terms or ()
    kept = [
        replace(
            term,
            match_expressions=_kept(term.match_expressions, patch.node_affinity_words, injected),
        )
        for term in terms
    ]
    # A term of which nothing is left was ours; one that was empty before stays, for it matches no node.
    mine = tuple(
        after
        for before, after in zip(terms, kept, strict=True)
        if not before.match_expressions or after.match_expressions or after.match_fields
    )
    required = NodeSelector(node_selector_terms=mine) if mine else None
    rest = replace(of_nodes, required=required)
    return None if rest == NodeAffinity() else replace(affinity, node_affinity=rest)


def _container(container: Container, injected: AbstractSet[str]) -> Container:
    prefix = patch.container_words(container, "")
    own = frozenset(what.removeprefix(prefix) for what in injected if what.startswith(prefix))
    if not own:
        return container
    startup, readiness, resources = container.startup_probe, container.readiness_probe, container.resources
    if startup is not None and patch.startup_probe_words(startup) in own:
        startup = None
    if readiness is not None and patch.initial_delay_words(readiness.initial_delay_seconds or 0) in own:
        readiness = replace(readiness, initial_delay_seconds=None)
    return replace(
        container,
        env=_kept(container.env, patch.env_words, own),
        volume_mounts=_kept(container.volume_mounts, patch.volume_mount_words, own),
        resources=resources and _resources(resources, own),
        startup_probe=startup,
        readiness_probe=readiness,
    )


def _resources(resources: Resources, own: AbstractSet[str]) -> Resources:
    limits, requests = (
        {
            name: amount
            for name, amount in (amounts or {}).items()
            if patch.resource_words(kind, name, amount) not in own
        }
        for kind, amounts in (("limits", resources.limits), ("requests", resources.requests))
    )
    return replace(resources, limits=limits or None, requests=requests or None)


def _kept(
    items: Iterable[T] | None, words: Callable[[T], str], injected: AbstractSet[str]
) -> tuple[T, ...] | None:
    """Return the items but for those that were injected: of several that read alike only the last one, for we append."""
    kept, found = [], set[str]()
    for item in reversed(tuple(items or ())):
        what = words(item)
        if what in injected and what not in found:
            found.add(what)
        else:
            kept.append(item)
    return tuple(reversed(kept)) or None
