"""GPU classes on which a pod can run, according to its node, its constraints or its DeviceClass."""

import msgspec
from msgspec.structs import replace

from policies.gpus.cards import vendor
from policies.gpus.classes import ClassCatalogue, GPUClass
from policies.gpus.resource_mapping import IMPLICIT_DEVICE_CLASS, GPUResource, ResourceMapping
from policies.placement.named_nodes import NO_NODES, NODE_NAME, NodeIndex
from policies.placement.pinning import TOO_MANY, classes_of_node, named_nodes, pinning
from policies.pods.pod import Pod


class CandidateClasses(msgspec.Struct, frozen=True):
    """The classes on which the pod can run, and the reason in words."""

    classes: tuple[GPUClass, ...]
    is_known: bool
    """Whether the pod's node or constraints narrow the classes."""
    because: str
    names_unknown_node: bool = False
    """The pod names an unknown node, which may be of any class. Then `is_known` is false."""


def candidate_classes(pod: Pod, catalogue: ClassCatalogue, nodes: NodeIndex) -> CandidateClasses:
    """Return the class of the pod's node if it is known, or else the classes to which the pod is pinned.

    `nodeName` takes precedence over constraints, because no scheduler reads them. If `nodes` lacks label keys of the catalogue,
    all nodes count as unknown.
    """
    named, name = named_nodes(pod), pod.spec.node_name
    known = nodes if nodes.keys >= catalogue.label_keys and TOO_MANY not in named else NO_NODES
    unknown = sorted(value for kind, value in named if not known.find((kind, value)))
    if name:
        of_node = (classes_of_node(dict(labels), catalogue) for labels in known.find((NODE_NAME, name)))
        if names := frozenset[str]().union(*of_node):
            return CandidateClasses(catalogue.named(names), True, f"its node is {' or '.join(sorted(names))}")
    pinned = None if name and unknown else pinning(pod, catalogue, known)
    if pinned is None and unknown:
        return CandidateClasses(tuple(catalogue), False, f"node {unknown[0]} is not known", True)
    if pinned is None:
        why = f"its node {name} has no label of a GPU class" if name else "it pins no GPU class"
        return all_classes(catalogue, why)
    because = " and ".join(pinned.because)
    if not pinned.classes:
        return all_classes(catalogue, f"{because} contradict each other and leave no GPU class")
    return CandidateClasses(catalogue.named(pinned.classes), True, because)


def all_classes(catalogue: ClassCatalogue, because: str) -> CandidateClasses:
    return CandidateClasses(tuple(catalogue), False, because)


def for_resource(
    resource: GPUResource,
    candidates: CandidateClasses,
    catalogue: ClassCatalogue,
    resource_mapping: ResourceMapping,
) -> CandidateClasses:
    """Return the candidates that have the resource, or all candidates if none is known to have it."""
    name, offering, classes = resource.name, resource.name, candidates.classes
    if name.startswith(IMPLICIT_DEVICE_CLASS):
        device_class = name.removeprefix(IMPLICIT_DEVICE_CLASS)
        listing = catalogue.of_device_class(device_class)
        if named := tuple(gpu_class for gpu_class in classes if gpu_class in listing):
            because = candidates.because if candidates.is_known else f"device class {device_class}"
            return CandidateClasses(named, True, because)
        pattern = resource_mapping.device_class(device_class)
        offering = (pattern and pattern.resource) or name
    offered_by = vendor(offering)
    having = tuple(c for c in classes if name in c.equivalents or vendor(c.resource) == offered_by)
    if (profile := resource.profile) is not None:
        sliced = tuple(c for c in having if name in c.equivalents or catalogue.mig_profile(c, profile))
        having = sliced or having
    return replace(candidates, classes=having or classes)
