"""Edits that may help a pod: another class, one constraint less, a toleration, fewer GPUs, one of several kinds of GPUs."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from msgspec.structs import replace

from policies.finding import Edit, Edits, Finding, warning
from policies.gpus.cards import vendor_domain
from policies.gpus.classes import GPUClasses
from policies.gpus.mapping_spec import DEVICE_CLASS_PREFIX, Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.placement.availability import NO_NODE, Availability
from policies.placement.class_advice import ANNOTATION_PATH
from policies.placement.class_options import ClassOptions, has_resource
from policies.placement.class_selection import REQUIRED_AFFINITY, edits_to_unpin
from policies.placement.nodes import NodeFacts
from policies.pods.pod import Pod
from policies.pods.tolerations import toleration_for

MAX_CLASSES = 8
MAX_TAINTS = 4
MAX_CONSTRAINTS = 4
"""Keys of the nodeSelector."""
MAX_REQUESTS = 2
AMOUNTS = (8, 4, 2, 1)
"""Numbers of GPUs that fit on a node, largest first: most nodes have 8, and workloads divide by two."""


def possible_edits(
    pod: Pod,
    mapping: ResourceMapping,
    gpu_classes: GPUClasses,
    class_options: ClassOptions,
    nodes: NodeFacts | None,
) -> Iterator[Edits]:
    """Yield edits to try on the pod, in the order in which people prefer them. The caller finds out which of them help."""
    resources = {
        each.resource for each in mapping.requests(pod) if not gpu_classes.is_unlisted(each.resource.profile)
    }
    class_names = [
        gpu_class.name
        for gpu_class in gpu_classes
        if class_options.allows(gpu_class)
        and class_options.may_have_nodes(gpu_class, nodes)
        and all(has_resource(gpu_class, resource, gpu_classes) for resource in resources)
    ]
    pins = edits_to_unpin(pod, gpu_classes)
    for name in class_names[:MAX_CLASSES]:
        yield (*pins, Edit(ANNOTATION_PATH, name))
    # Constraints and taints do not matter if no node has the resource.
    if nodes is None or nodes.pools or {resource.name for resource in resources} <= nodes.existing_resources:
        yield from ((Edit(f"spec.nodeSelector[{key}]"),) for key in [*pod.node_selector][:MAX_CONSTRAINTS])
        if pod.required_terms:
            yield (Edit(REQUIRED_AFFINITY),)
        states = (state for of_labels in nodes.states.values() for state in of_labels) if nodes else ()
        taints = dict.fromkeys(taint for state in states for taint in state.taints)
        yield from ((Edit("spec.tolerations[-]", toleration_for(each)),) for each in [*taints][:MAX_TAINTS])
    requests = (request for request in mapping.requests(pod) if request.resource.measure.is_count)
    for request in islice(requests, MAX_REQUESTS):
        name = request.resource.name
        paths = dict.fromkeys(
            (*request.place.amount_paths(name), f"{request.place.path}.resources.limits[{name}]")
        )
        for amount in AMOUNTS:
            if amount < request.quantity.value:
                yield tuple(Edit(path, amount) for path in paths)


Constraints = tuple[tuple[str, Edit], ...]
"""Each in words (`nodeSelector zone=a`), and the edit that removes it."""


def blocking_constraints(pod: Pod, requested: Mapping[str, int], nodes: NodeFacts) -> tuple[Constraints, ...]:
    """Return each constraint that alone keeps the pod from nodes with what it requests; without one, all of them together."""
    selectors = tuple(
        (f"nodeSelector {key}={value}", Edit(f"spec.nodeSelector[{key}]"))
        for key, value in islice(pod.node_selector.items(), MAX_CONSTRAINTS)
    )
    terms = (("the required node affinity", Edit(REQUIRED_AFFINITY)),) if pod.required_terms else ()
    single = ((constraint,) for constraint in (*selectors, *terms))
    having = [each for each in single if _nodes_have(_without_constraint(pod, each[0][1]), requested, nodes)]
    return tuple(having) or ((*selectors, *terms),)


def _without_constraint(pod: Pod, edit: Edit) -> Pod:
    spec = pod.spec
    left = {
        key: value for key, value in pod.node_selector.items() if edit.path != f"spec.nodeSelector[{key}]"
    }
    affinity = None if edit.path == REQUIRED_AFFINITY else spec.affinity
    return replace(pod, given_spec=replace(spec, node_selector=left, affinity=affinity))


def _nodes_have(pod: Pod, requested: Mapping[str, int], nodes: NodeFacts) -> bool:
    states = nodes.states_for(pod, requested)
    return states is None or any(state.has_amounts(requested) for state in states)


ONLY_ONE = "request only one of them, or each in a pod of its own"
_EXCLUSIVE_MEASURES = frozenset({Measure.DEVICES, Measure.SHARES, Measure.SLICES})
"""What a node offers its cards as: one of them, and of one vendor."""


def rarely_together(
    availability: Availability, requested: Iterable[GPUResource], mapping: ResourceMapping
) -> Iterator[Finding]:
    """Warn of an unpinned pod that requests several of them. Where the nodes are known, rule gpu-toleration knows better."""
    if availability.knows_nodes or availability.pinned:
        return
    requested_forms = {
        resource.name: (vendor_domain(resource.name), resource.measure)
        for resource in requested
        if resource.measure in _EXCLUSIVE_MEASURES
        and not (resource.name.startswith(DEVICE_CLASS_PREFIX) or mapping.suggested_name(resource.name))
    }
    if len(set(requested_forms.values())) > 1:
        names = " and ".join(sorted(requested_forms))
        yield warning(
            reason=NO_NODE,
            path="spec",
            message=f"the pod stays pending unless a node has {names} together, which few have",
            choices=tuple(only_one_of(availability.pod, requested_forms).values()),
            remedy=ONLY_ONE,
        )


def only_one_of(pod: Pod, names: Collection[str]) -> dict[str, Edits]:
    """Return, for each of the resources, the edits that remove the others."""
    ordered = sorted(names)
    return {
        name: tuple(map(Edit, pod.amount_paths([each for each in ordered if each != name])))
        for name in ordered
    }
