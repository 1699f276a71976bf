"""Edits that may help a pod where a finding offers none: another class, one constraint less, a toleration, fewer GPUs."""

from collections.abc import Iterator
from itertools import islice

from policies.finding import Edit, Edits
from policies.gpus.classes import GPUClasses
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.class_choice import (
    ANNOTATION_PATH,
    REQUIRED_AFFINITY,
    offers,
    without_pins,
)
from policies.placement.class_use import ClassUse
from policies.placement.nodes import NodeFacts
from policies.pods.pod import Pod
from policies.pods.tolerations import tolerating

MOST_CLASSES, MOST_TAINTS, MOST_KEYS, MOST_REQUESTS = 8, 4, 4, 2
"""Classes, taints, constraints and requests that are tried."""
AMOUNTS = (8, 4, 2, 1)


def other_ways(
    pod: Pod, mapping: ResourceMapping, gpu_classes: GPUClasses, use: ClassUse, nodes: NodeFacts | None
) -> Iterator[Edits]:
    """Yield choices, whose effect on the pod is not known, in the order in which people prefer them."""
    resources = {
        each.resource for each in mapping.requests(pod) if not gpu_classes.is_unlisted(each.resource.profile)
    }
    named = [
        each.name
        for each in gpu_classes
        if use.allows(each)
        and use.may_have_nodes(each, nodes)
        and all(offers(each, resource, gpu_classes) for resource in resources)
    ]
    pins = without_pins(pod, gpu_classes)
    for name in named[:MOST_CLASSES]:
        yield (*pins, Edit(ANNOTATION_PATH, name))
    if nodes is None or nodes.pools or {each.name for each in resources} <= nodes.on_nodes:
        yield from ((Edit(f"spec.nodeSelector[{key}]"),) for key in [*pod.node_selector][:MOST_KEYS])
        if pod.required_terms:
            yield (Edit(REQUIRED_AFFINITY),)
        states = (state for of_labels in nodes.states.values() for state in of_labels) if nodes else ()
        taints = dict.fromkeys(taint for state in states for taint in state.taints)
        yield from ((Edit("spec.tolerations[-]", tolerating(each)),) for each in [*taints][:MOST_TAINTS])
    requests = (each for each in mapping.requests(pod) if each.resource.measure.is_count)
    for each in islice(requests, MOST_REQUESTS):
        paths = each.place.amount_paths(each.resource.name)
        for amount in AMOUNTS:
            if amount < each.quantity.value:
                yield tuple(Edit(path, amount) for path in paths)
