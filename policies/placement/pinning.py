"""GPU classes on which a pod can run, according to its constraints, its node or its DeviceClass.

A label that no class lists pins nothing. If classes list their own names under a label key (`accelerator`), the name of a family
under this key pins the pod to the family. A hostname, or a node name in `matchFields`, pins it to the classes of that node.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from policies.finding import Edit
from policies.gpus.cards import vendor_domain
from policies.gpus.classes import GPUClass, GPUClasses
from policies.gpus.mapping_spec import DEVICE_CLASS_PREFIX
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.placement.nodes import HOSTNAME, NO_NODES, NODE_NAME_FIELD, NodeIndex, NodeReference
from policies.pods.annotations import GPU_CLASS, MODEL_FAMILY, MODEL_PARAMS
from policies.pods.injected import injected_changes
from policies.pods.label_selector import meets
from policies.pods.pod import NodeSelectorTerm, Pod
from policies.printable import first_names

MAX_NODES = 64
"""Maximum number of named nodes of a pod that are looked up. A pod that names more counts as if it could run on every node."""
VALUES_LISTED = 4
"""Values of a label in one message."""
TOO_MANY: NodeReference = (NODE_NAME_FIELD, f"(one of more than {MAX_NODES})")
"""Replaces the nodes of a pod that names more than MAX_NODES. No node has this name."""


class ClassPin(NamedTuple):
    """How a pod can pin itself to a class: the node label and its value, and the edit that leads to it."""

    key: str
    value: str
    edit: Edit


class Pinning(msgspec.Struct, frozen=True):
    """The classes that meet the pod's constraints, and the constraints as text."""

    classes: tuple[str, ...]
    """Names, sorted. Empty if the constraints contradict each other."""
    because: tuple[str, ...]
    """The constraints, such as `nodeSelector accelerator=nvidia-a100`."""
    is_injected: bool = False
    """Whether rule gpu-class added all constraints, according to the pod's annotation."""


def pinning(pod: Pod, gpu_classes: GPUClasses, nodes: NodeIndex = NO_NODES) -> Pinning | None:
    """Return the classes to which the pod is pinned. None if it is not pinned."""
    if nodes is not NO_NODES:
        return _pinning(pod, gpu_classes, nodes)
    # Several rules need the result, and the pod never changes: cache the result on the pod, with its GPUClasses.
    attributes = pod.__dict__
    if attributes.get("pinning_gpu_classes") is not gpu_classes:
        attributes["pinning"] = _pinning(pod, gpu_classes, NO_NODES)
        attributes["pinning_gpu_classes"] = gpu_classes
    cached: Pinning | None = attributes["pinning"]
    return cached


def _pinning(pod: Pod, gpu_classes: GPUClasses, nodes: NodeIndex) -> Pinning | None:
    allowed: list[frozenset[str]] = []
    because: list[str] = []
    injected: list[bool] = []
    changes = injected_changes(pod)
    for key, value in sorted(pod.node_selector.items()):
        if names := _classes_of_requirement(key, value, gpu_classes, nodes):
            allowed.append(names)
            because.append(f"nodeSelector {key}={value}")
            injected.append(because[-1] in changes)
    terms = pod.required_terms
    # Terms are alternatives: if one of them does not pin, every class is possible.
    alternatives = [_classes_of_term(term, gpu_classes, nodes) for term in terms if not term.is_empty]
    if terms and all(words for _, words in alternatives):
        allowed.append(frozenset[str]().union(*(classes for classes, _ in alternatives)))
        because += (word for _, words in alternatives for word in words)
        if not alternatives:
            because.append("required node affinity, of which no term matches a node")
        injected.append(False)
    if not allowed:
        return None
    is_injected = all(injected)
    if is_injected and GPU_CLASS not in pod.annotations:
        is_declared = MODEL_PARAMS in pod.annotations or MODEL_FAMILY in pod.annotations
        because[0] += ", by the declared model" if is_declared else ", by the policy's default"
    return Pinning(tuple(sorted(frozenset.intersection(*allowed))), tuple(because), is_injected)


def named_nodes(pod: Pod) -> frozenset[NodeReference]:
    """Return the nodes that the pod names by `nodeName`, or else by its nodeSelector and required affinity.

    Return TOO_MANY if these are more than MAX_NODES.
    """
    if pod.spec.node_name:
        return frozenset({(NODE_NAME_FIELD, pod.spec.node_name)})
    selected = pod.node_selector.get(HOSTNAME)
    references = {(HOSTNAME, selected)} if selected else set()
    for term in pod.required_terms:
        for key, requirements in ((HOSTNAME, term.match_expressions), (NODE_NAME_FIELD, term.match_fields)):
            for requirement in requirements or ():
                if requirement.key == key and requirement.operator == "In":
                    references.update((key, value) for value in requirement.values or ())
    return frozenset(references) if len(references) <= MAX_NODES else frozenset({TOO_MANY})


def classes_of_node(labels: Mapping[str, str], gpu_classes: GPUClasses) -> frozenset[str]:
    """Return the names of the node's possible classes: several if its labels name only the family.

    If the labels contradict each other, return every class that one of them names.
    """
    keys = gpu_classes.label_keys & labels.keys()
    by_label = [names for key in keys if (names := classes_of_label(key, labels[key], gpu_classes))]
    return (frozenset.intersection(*by_label) or frozenset.union(*by_label)) if by_label else frozenset()


def _classes_of_requirement(
    key: str, value: str, gpu_classes: GPUClasses, nodes: NodeIndex
) -> frozenset[str]:
    names = classes_of_label(key, value, gpu_classes)
    return names or (_classes_of_nodes(key, value, gpu_classes, nodes) if key == HOSTNAME else frozenset())


def _classes_of_nodes(key: str, value: str, gpu_classes: GPUClasses, nodes: NodeIndex) -> frozenset[str]:
    """Return the classes of the nodes with this name. Empty if one of these nodes may be of any class."""
    by_node = [classes_of_node(dict(labels), gpu_classes) for labels in nodes.find((key, value))]
    return frozenset[str]().union(*by_node) if all(by_node) else frozenset()


def allows_label(pod: Pod, key: str, values: Sequence[str]) -> bool:
    """Whether the pod's requirements on label `key` allow at least one of the values."""
    selected = pod.node_selector.get(key)
    left = [value for value in values if selected is None or value == selected]
    terms = pod.required_terms
    return any(not terms or any(_allows(term, key, value) for term in terms) for value in left)


def is_narrowed_to(pod: Pod, key: str, values: Sequence[str]) -> bool:
    """Whether the pod already requires that label `key` has one of the values."""
    selected = pod.node_selector.get(key)
    terms = [term for term in pod.required_terms if not term.is_empty]
    return selected in values or (bool(terms) and all(_requires(term, key, values) for term in terms))


def _requires(term: NodeSelectorTerm, key: str, values: Sequence[str]) -> bool:
    requirements = (expression for expression in term.match_expressions or () if expression.key == key)
    return any(each.operator == "In" and set(each.values or ()) <= set(values) for each in requirements)


def _allows(term: NodeSelectorTerm, key: str, value: str) -> bool:
    requirements = (expression for expression in term.match_expressions or () if expression.key == key)
    return not term.is_empty and all(
        meets(frozenset((value,)), each.operator, frozenset(each.values or ())) for each in requirements
    )


def classes_of_label(key: str, value: str, gpu_classes: GPUClasses) -> frozenset[str]:
    """Return the names of the classes whose nodes have this label. The name of a family means all its classes."""
    classes = gpu_classes.matching_label(key, value)
    if not classes and key in gpu_classes.label_keys:
        # A family's name is a value only under a key where classes list their own names.
        classes = tuple(
            c for c in gpu_classes.of_family(value) if c in gpu_classes.matching_label(key, c.name)
        )
    return frozenset(gpu_class.name for gpu_class in classes)


def many_values(key: str, values: Sequence[str], classes: Sequence[GPUClass]) -> str:
    """Return the values of a label of these classes as `16 products of nvidia-a100`; "" for a few, which are listed."""
    if len(values) <= VALUES_LISTED:
        return ""
    names = list(dict.fromkeys(gpu_class.name for gpu_class in classes))
    families = sorted({gpu_class.family for gpu_class in classes})
    whose = first_names(names if len(names) == 1 else families, VALUES_LISTED)
    return f"{len(values)} {'products' if key.endswith('product') else 'values'} of {whose}"


def _classes_of_term(
    term: NodeSelectorTerm, gpu_classes: GPUClasses, nodes: NodeIndex
) -> tuple[frozenset[str], list[str]]:
    """Return the classes that meet the term, and its constraints as text. Without constraints, the term does not pin."""
    allowed: list[frozenset[str]] = []
    because: list[str] = []
    for classes_of, requirements in (
        (_classes_of_requirement, term.match_expressions),
        (_classes_of_nodes, term.match_fields),
    ):
        for requirement in requirements or ():
            key, values = requirement.key, requirement.values or ()
            if requirement.operator == "In":
                by_value = [classes_of(key, value, gpu_classes, nodes) for value in values]
                # Unknown nodes may have a value that no class lists. Then the requirement does not pin.
                if by_value and all(by_value):
                    allowed.append(frozenset.union(*by_value))
                    listed = many_values(key, values, gpu_classes.named(allowed[-1])) or ", ".join(values)
                    because.append(f"node affinity {key} in ({listed})")
    return frozenset.intersection(*allowed) if allowed else frozenset(), because


class CandidateClasses(msgspec.Struct, frozen=True):
    """The classes on which the pod can run, and the reason in words."""

    classes: tuple[GPUClass, ...]
    is_narrowed: bool
    """Whether the pod's node, constraints or DeviceClass narrow the classes."""
    because: str
    names_unknown_node: bool = False
    """The pod names an unknown node, which may be of any class. Then `is_narrowed` is false."""


def candidate_classes(pod: Pod, gpu_classes: GPUClasses, nodes: NodeIndex) -> CandidateClasses:
    """Return the class of the pod's node if it is known, or else the classes to which the pod is pinned.

    `nodeName` takes precedence over constraints: the pod gets this node, or its kubelet rejects it. If `nodes` lacks label keys
    of the GPUClasses, all nodes count as unknown.
    """
    references, name = named_nodes(pod), pod.spec.node_name
    known = nodes if nodes.keys >= gpu_classes.label_keys and TOO_MANY not in references else NO_NODES
    unknown = sorted(value for key, value in references if not known.find((key, value)))
    if name:
        of_node = (
            classes_of_node(dict(labels), gpu_classes) for labels in known.find((NODE_NAME_FIELD, name))
        )
        if names := frozenset[str]().union(*of_node):
            return CandidateClasses(
                gpu_classes.named(names), True, f"its node is {' or '.join(sorted(names))}"
            )
    pinned = None if name and unknown else pinning(pod, gpu_classes, known)
    if pinned is None and unknown:
        return CandidateClasses(tuple(gpu_classes), False, f"node {unknown[0]} is not known", True)
    if pinned is None:
        why = f"its node {name} has no label of a GPU class" if name else "it pins no GPU class"
        return all_classes(gpu_classes, why)
    because = " and ".join(pinned.because)
    if not pinned.classes:
        return all_classes(gpu_classes, f"{because} contradict each other and leave no GPU class")
    return CandidateClasses(gpu_classes.named(pinned.classes), True, because)


def all_classes(gpu_classes: GPUClasses, because: str) -> CandidateClasses:
    return CandidateClasses(tuple(gpu_classes), False, because)


def candidates_for_resource(
    resource: GPUResource,
    candidates: CandidateClasses,
    gpu_classes: GPUClasses,
    resource_mapping: ResourceMapping,
) -> CandidateClasses:
    """Return the candidates that may have the resource: those of its vendor, and with its MIG profile. All, if there are none."""
    name = resource.name
    card = name
    if name.startswith(DEVICE_CLASS_PREFIX):
        device_class = name.removeprefix(DEVICE_CLASS_PREFIX)
        listing_it = gpu_classes.of_device_class(device_class)
        if classes := tuple(gpu_class for gpu_class in candidates.classes if gpu_class in listing_it):
            because = candidates.because if candidates.is_narrowed else f"device class {device_class}"
            return CandidateClasses(classes, True, because)
        pattern = resource_mapping.device_class_pattern(device_class)
        card = (pattern and pattern.resource) or name
    its_vendor = vendor_domain(card)
    of_vendor = tuple(
        gpu_class
        for gpu_class in candidates.classes
        if name in gpu_class.equivalents or vendor_domain(gpu_class.resource) == its_vendor
    )
    with_profile = of_vendor
    if (profile := resource.profile) is not None:
        with_profile = tuple(
            each for each in of_vendor if name in each.equivalents or gpu_classes.mig_profile(each, profile)
        )
    return replace(candidates, classes=with_profile or of_vendor or candidates.classes)
